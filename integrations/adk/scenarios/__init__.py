"""ADK agents for the crash matrix (`python -m crashmatrix --framework adk`).

Ordinary agents, as an application has them. Their models decide from the request they get; their tools and nodes act on
the `World`.
"""

from . import agents, failures, teams, waits, workflows

__all__ = ["agents", "failures", "teams", "waits", "workflows"]
