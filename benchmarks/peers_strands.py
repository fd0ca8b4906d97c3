"""Strands alone, and with its session manager: files, each written and renamed without fsync."""

from strands import Agent
from strands.session import FileSessionManager
from variant import Setting, Variant


def peers(setting: Setting) -> list[Variant]:
    agent = setting.agent()

    def alone(text: str, name: str) -> None:
        agent.messages.clear()  # an agent is a conversation, and ours begins a new one with each run
        agent(text)

    def with_files(text: str, name: str) -> None:
        manager = FileSessionManager(name, setting.file("sessions"))
        tools = list(agent.tool_registry.registry.values())
        Agent(model=agent.model, tools=tools, callback_handler=None, session_manager=manager)(text)

    return [Variant("alone", alone), Variant("FileSessionManager", with_files)]
