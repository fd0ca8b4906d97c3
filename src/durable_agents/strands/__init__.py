"""Durable Strands Agents: `DurableAgent(agent)`, `DurableMultiAgent(graph_or_swarm)`.

Importing it puts a few cuts into Strands that do nothing outside of a durable run; see `_cuts`.
"""

from . import _cuts
from ._durable import DurableAgent, DurableMultiAgent

_cuts.install()

__all__ = ["DurableAgent", "DurableMultiAgent"]
