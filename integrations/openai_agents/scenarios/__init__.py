"""OpenAI Agents SDK agents for the crash matrix (`python -m crashmatrix --framework openai_agents`).

Ordinary agents, as an application has them. Their models decide from what they are shown; tools, guardrails and
callbacks act on the `World`.
"""

from . import agents, approvals, failures, guardrails, sessions, streams

__all__ = ["agents", "approvals", "failures", "guardrails", "sessions", "streams"]
