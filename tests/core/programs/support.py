"""support.py: another script with an agent that was given no name."""

from unnamed import agent_of, main

from durable_agents._core import default_name
from plain import Plain

agent = Plain(agent_of("support"), default_name("agent"))
main(agent, "support")
