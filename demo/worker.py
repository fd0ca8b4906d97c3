"""What the demo's four processes do: two with `DurableGraph`, two with LangGraph's own checkpointer."""

import logging
import os
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import shop
from agent import refund_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite import SqliteSaver
from ledger import tell
from model import OfflineModel

import durable_agents
from durable_agents.langgraph import DurableGraph

REFUND = {"order": 55}
RUN_ID = "order-55"
THREAD: RunnableConfig = {"configurable": {"thread_id": RUN_ID}}


# -- with DurableGraph


def start(folder: Path, hang: str) -> None:
    """The process that is going to be killed."""
    shop.WORLD = shop.World(folder, hang)
    app = durable_app(folder)
    app.invoke(REFUND, run_id=RUN_ID)


def recover(folder: Path) -> None:
    """The process after it: it has the same agent, and launches."""
    shop.WORLD = shop.World(folder)
    durable_app(folder)
    durable_agents.launch()
    # What follows only looks on.
    result = durable_agents.runs.get(RUN_ID).result(timeout=30)
    tell(folder, note=f"finished: {result['messages'][-1].content}")
    durable_agents.shutdown()


def durable_app(folder: Path) -> DurableGraph:
    logging.getLogger("durable_agents").addHandler(LogTeller(folder))
    graph = refund_agent(OfflineModel(), durable_agents.idempotency_key).compile(name="refund_agent")
    return DurableGraph(graph.with_config(callbacks=[Teller(folder)]))


def warm_up(folder: Path) -> None:
    """Create the tables, and import what launching imports, before there are processes that would have to."""
    os.environ["DURABLE_AGENTS_DATABASE_URL"] = f"sqlite:///{folder / 'durable.sqlite'}"
    durable_agents.launch()
    durable_agents.shutdown()


# -- with LangGraph's own checkpointer


def start_native(folder: Path, hang: str) -> None:
    """The process that is going to be killed."""
    shop.WORLD = shop.World(folder, hang)
    with SqliteSaver.from_conn_string(str(folder / "native.sqlite")) as saver:
        native_app(saver, folder).invoke(REFUND, THREAD)


def resume_native(folder: Path, resume: Event) -> None:
    """The process after it: it has the graph and its checkpoints, and goes on when somebody says so."""
    shop.WORLD = shop.World(folder)
    with SqliteSaver.from_conn_string(str(folder / "native.sqlite")) as saver:
        app = native_app(saver, folder)
        tell(folder, note=f"the thread's next node: {', '.join(app.get_state(THREAD).next)}")
        resume.wait()
        result = app.invoke(None, THREAD)
    tell(folder, note=f"finished: {result['messages'][-1].content}")


def native_app(saver: SqliteSaver, folder: Path) -> Any:
    # A new key for each request, as an HTTP client makes it.
    graph = refund_agent(OfflineModel(), lambda: uuid4().hex).compile(saver, name="refund_agent")
    return graph.with_config(callbacks=[Teller(folder)])


# -- what they tell the demo


class Teller(BaseCallbackHandler):
    """An ordinary LangChain callback. It sees the steps that run, and those that come from their records too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun: dict[UUID, tuple[str, str]] = {}

    def on_chat_model_start(self, *_: Any, run_id: UUID, metadata: Any = None, **__: Any) -> None:
        node = metadata["langgraph_node"]
        self._begun[run_id] = node, node

    def on_tool_start(self, serialized: Any, *_: Any, run_id: UUID, metadata: Any = None, **__: Any) -> None:
        self._begun[run_id] = metadata["langgraph_node"], serialized["name"]

    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._ended(run_id)

    def on_tool_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self._ended(run_id)

    def _ended(self, run_id: UUID) -> None:
        node, step = self._begun.pop(run_id)
        tell(self._folder, node=node, step=step)


class LogTeller(logging.Handler):
    """Tells what the library logs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(logging.WARNING)
        self._folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        tell(self._folder, note=record.getMessage())
