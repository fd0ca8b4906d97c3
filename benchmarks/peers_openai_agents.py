"""The OpenAI Agents SDK alone, with its sessions, and with dbos-openai-agents.

That one records the model calls. The tool is in none of its records, unless it is decorated as a step of DBOS, as its
README asks for: both are measured.
"""

from agents import Runner, SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from dbos_openai_agents import DBOSRunner
from plain_dbos import as_step, variants
from sqlalchemy.ext.asyncio import create_async_engine
from variant import Setting, Variant


def peers(setting: Setting) -> list[Variant]:
    agent = setting.agent()
    engine = create_async_engine(setting.async_postgresql)
    setting.closing.callback(lambda: setting.awaited(engine.dispose()))

    def with_file(text: str, name: str) -> None:
        session = SQLiteSession(name, setting.file("sessions.sqlite"))
        setting.awaited(Runner.run(agent, text, session=session))
        session.close()

    def with_server(text: str, name: str) -> None:
        session = SQLAlchemySession(name, engine=engine, create_tables=True)
        setting.awaited(Runner.run(agent, text, session=session))

    decorated = setting.framework.agent(as_step(setting.charge))
    return [
        Variant("alone", lambda text, name: setting.awaited(Runner.run(agent, text))),
        Variant("SQLiteSession", with_file),
        Variant("SQLAlchemySession, postgresql", with_server),
        *variants(setting, "dbos-openai-agents", lambda text, name: DBOSRunner.run(agent, text)),
        *variants(setting, "dbos-openai-agents + steps", lambda text, name: DBOSRunner.run(decorated, text)),
    ]
