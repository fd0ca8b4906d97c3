"""LangGraph agents for the crash matrix (`python -m crashmatrix --framework langgraph`).

Ordinary graphs, as an application has them. Their models decide from the messages they get; their nodes and tools act
on the `World`. Those decorated with `both` exist twice, the second one awaited.
"""

from . import agents, durability, failures, graphs, interrupts

__all__ = ["agents", "durability", "failures", "graphs", "interrupts"]
