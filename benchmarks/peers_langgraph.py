"""LangGraph alone, and with its savers: a checkpoint is committed before the next superstep begins (`sync`)."""

import sqlite3
from contextlib import closing
from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from variant import Setting, Variant


def peers(setting: Setting) -> list[Variant]:
    graph = setting.agent()

    def variant(name: str, saver: Any) -> Variant:
        saved = graph.copy({"checkpointer": saver})

        def call(text: str, thread: str) -> None:
            options = {"durability": "sync"} if saver else {}
            saved.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}}, **options)

        return Variant(name, call)

    connection = sqlite3.connect(setting.file("native.sqlite"), check_same_thread=False)
    setting.closing.enter_context(closing(connection))
    file = SqliteSaver(connection)
    file.setup()
    connection.execute("PRAGMA synchronous=FULL")
    server = setting.closing.enter_context(PostgresSaver.from_conn_string(setting.urls["postgresql"]))
    server.setup()
    return [variant("alone", None), variant("SqliteSaver", file), variant("PostgresSaver", server)]
