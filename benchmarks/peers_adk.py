"""Google ADK alone, with its session services, and with dbos-google-adk.

That one records the model calls. The tool is in none of its records, unless it is decorated as a step of DBOS, as its
README asks for, and the session is the user's: measured are the README's session in memory, and what comes nearest to
ours, which is the decorated tool and a session in the database.
"""

from typing import Any

from dbos_google_adk import DBOSPlugin
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from plain_dbos import as_step, variants
from variant import Setting, Variant


class Turns:
    """One runner: a new session for each text."""

    def __init__(self, agent: Any, sessions: BaseSessionService, *plugins: Any) -> None:
        self._runner = Runner(
            agent=agent, app_name="shop", session_service=sessions, plugins=list(plugins),
            auto_create_session=True,
        )  # fmt: skip

    async def turn(self, text: str, session: str) -> list[Any]:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        events = self._runner.run_async(user_id="u", session_id=session, new_message=message)
        return [event async for event in events]


def peers(setting: Setting) -> list[Variant]:
    server = DatabaseSessionService(setting.async_postgresql)
    setting.closing.callback(lambda: setting.awaited(server.close()))
    found = []
    for name, sessions in {
        "alone": InMemorySessionService(),
        "SqliteSessionService": SqliteSessionService(setting.file("sessions.sqlite")),
        "DatabaseSessionService, postgresql": server,
    }.items():
        turns = Turns(setting.agent(), sessions)
        found.append(Variant(name, lambda text, name, turns=turns: setting.awaited(turns.turn(text, name))))  # type: ignore[misc]

    agent, decorated = setting.agent(), setting.framework.agent(as_step(setting.charge))
    simple = Turns(agent, InMemorySessionService(), DBOSPlugin())
    file = Turns(decorated, SqliteSessionService(setting.file("dbos-sessions.sqlite")), DBOSPlugin())
    served = Turns(decorated, server, DBOSPlugin())
    near = "dbos-google-adk + steps + session"
    return [
        *found,
        *variants(setting, "dbos-google-adk", simple.turn),
        *(v for v in variants(setting, near, file.turn) if v.name.endswith("sqlite")),
        *(v for v in variants(setting, near, served.turn) if v.name.endswith("postgresql")),
    ]
