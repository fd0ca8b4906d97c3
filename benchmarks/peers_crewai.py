"""CrewAI alone: it has nothing of its own that keeps a call.

`@persist` keeps the state of a flow after each of its methods, and no call inside of one. A crew's `checkpoint` is
written at events of the flow, the crew, a task or an agent; at those of a model or a tool, whose source is none of
these, nothing is (read from crewai 1.15.30, and seen: no file for `llm_call_completed` and `tool_usage_finished`).
"""

from variant import Setting, Variant


def peers(setting: Setting) -> list[Variant]:
    crew = setting.agent()
    return [Variant("alone", lambda text, name: crew.kickoff({"text": text}))]
