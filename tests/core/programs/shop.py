"""shop.py: a script with an agent that was given no name, and some queued runs."""

from unnamed import agent_of, main

from durable_agents._core import default_name
from plain import Plain

agent = Plain(agent_of("shop"), default_name("agent"))
main(agent, "shop")
