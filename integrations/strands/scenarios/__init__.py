"""Strands agents for the crash matrix (`python -m crashmatrix --framework strands`).

Ordinary agents, graphs and swarms, as an application has them. Their models decide from the messages they get; their
tools and hooks act on the `World`.
"""

from . import agents, failures, groups, interrupts

__all__ = ["agents", "failures", "groups", "interrupts"]
