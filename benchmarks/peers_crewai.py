"""CrewAI alone, and with its checkpoints after each model call and each use of a tool.

`@persist` is left out: it keeps the state of a flow after each of its methods, and no call inside of one.
"""

from crewai.state.checkpoint_config import CheckpointConfig
from crewai.state.provider.json_provider import JsonProvider
from crewai.state.provider.sqlite_provider import SqliteProvider
from variant import Setting, Variant


def peers(setting: Setting) -> list[Variant]:
    plain = setting.agent()
    found = [Variant("alone", lambda text, name: plain.kickoff({"text": text}))]
    for label, provider in (
        ("checkpoints, files", JsonProvider()),
        ("checkpoints, SQLite", SqliteProvider()),
    ):
        crew = setting.agent()
        crew.checkpoint = CheckpointConfig(
            location=setting.file(label), provider=provider,
            on_events=["llm_call_completed", "tool_usage_finished"],
        )  # fmt: skip
        found.append(Variant(label, lambda text, name, crew=crew: crew.kickoff({"text": text})))  # type: ignore[misc]
    return found
