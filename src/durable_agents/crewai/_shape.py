"""What a crew or a flow consists of, by name: a run goes on only under a structure that is the same."""

from typing import Any

from ._private import Crew, Flow


def structure_of_crew(crew: Crew) -> dict[str, Any]:
    """Agents, tasks and tools by name; what they are told may change at any time."""
    return {
        "process": str(crew.process),
        "agents": [[agent.role, _tools(agent)] for agent in crew.agents],
        "tasks": [
            [
                task.name or "",
                task.agent.role if task.agent is not None else "",
                _tools(task),
                bool(task.async_execution),
            ]
            for task in crew.tasks
        ],
    }


def tools_of_crew(crew: Crew) -> set[str] | None:
    """The names of the crew's tools; None when some become known only in a run."""
    agents = [*crew.agents, crew.manager_agent, *(task.agent for task in crew.tasks)]
    owners: list[Any] = [*filter(None, agents), *crew.tasks]
    if any(getattr(owner, given, None) for owner in owners for given in ("mcps", "apps")):
        return None
    return {name for owner in owners for name in _tools(owner)}


def _tools(owner: Any) -> list[str]:
    return sorted(str(tool.name) for tool in owner.tools or ())


def structure_of_flow(flow: Flow[Any]) -> dict[str, Any]:
    """Methods, what triggers them, and which of them route or ask a person."""
    return {
        name: {
            "start": method.start,
            "listen": method.listen,
            "router": bool(method.router),
            "asks": method.human_feedback is not None,
        }
        for name, method in sorted(flow._definition.methods.items())
    }
