"""A run's own crew: what a kickoff writes to is new, everything else is the very object of the user's crew.

`Crew.copy` makes another crew out of this one's data. A model or memory of a class of one's own is no data; agents of
one role and tasks of one text are taken for each other; and it knows no agents but the crew's. Here nothing is made
from data: objects are copied one level deep, and what `_private.WRITTEN` names is set anew.
"""

import uuid
from types import MethodType
from typing import Any

from pydantic_core import PydanticUndefined

from ._private import BaseAgent, BaseAgentAdapter, CacheHandler, Crew, TokenProcess, ToolsHandler

_SERVICES = ("llm", "function_calling_llm", "memory", "knowledge", "knowledge_sources", "knowledge_storage")


def copy_of_crew(crew: Crew) -> Crew:
    """A crew for one run.

    What stands in several places is one object in the copy, too. Models, tools, memory, knowledge and callbacks are the
    original's.
    """
    return _Copies(crew).crew


class _Copies:
    """What has been copied so far, by the original's address."""

    def __init__(self, crew: Crew) -> None:
        self._made: dict[int, Any] = {}
        self.crew: Crew = _shallow(crew, self._made)
        self._reset_crew(crew)
        fields = self.crew.__dict__
        fields["agents"] = [self._agent(agent) for agent in crew.agents]
        fields["manager_agent"] = self._agent(crew.manager_agent)
        for agent in fields["agents"]:  # as a crew does when it is made
            if crew.cache:
                agent.set_cache_handler(self.crew._cache_handler)
            if crew.max_rpm:
                agent.set_rpm_controller(self.crew._rpm_controller)
        for task in crew.tasks:  # first all of them: a context names others
            self._made[id(task)] = _shallow(task, self._made)
        fields["tasks"] = [self._task(task) for task in crew.tasks]

    def _reset_crew(self, crew: Crew) -> None:
        copied: Any = self.crew
        copied.__dict__.update(id=uuid.uuid4(), usage_metrics=None, token_usage=None, execution_logs=[])
        defaults = {name: private.get_default() for name, private in Crew.__private_attributes__.items()}
        private = {name: value for name, value in defaults.items() if value is not PydanticUndefined}
        object.__setattr__(copied, "__pydantic_private__", {**private, "_memory": crew._memory})
        if (
            crew._memory is not None
        ):  # instead of True, of which CrewAI makes another memory during the kickoff
            copied.__dict__["memory"] = crew._memory
        copied.set_private_attrs()
        self._made[id(crew._cache_handler)] = copied._cache_handler

    def _agent(self, agent: Any) -> Any:
        if agent is None or id(agent) in self._made:
            return self._made.get(id(agent))
        if isinstance(agent, BaseAgentAdapter) or type(agent).copy is not BaseAgent.copy:
            copied = agent.copy()  # it knows what else belongs to one agent alone
            copied.__dict__.update(
                (name, agent.__dict__[name]) for name in _SERVICES if name in agent.__dict__
            )
        else:
            copied = _shallow(agent, self._made)
            self._reset_agent(copied, agent)
        self._made[id(agent)] = copied
        return copied

    def _reset_agent(self, copied: Any, agent: Any) -> None:
        fields = copied.__dict__
        fields.update(id=uuid.uuid4(), agent_executor=None, crew=None, tools_results=[])
        fields["cache_handler"] = self._cache(agent.cache_handler)
        if type(agent.tools_handler) is ToolsHandler:
            fields["tools_handler"] = ToolsHandler(cache=self._cache(agent.tools_handler.cache))
        for name, value in list(fields.items()):  # A2A puts methods on the agent itself
            if isinstance(value, MethodType) and value.__self__ is agent:
                fields[name] = MethodType(value.__func__, copied)
        fresh: dict[str, Any] = {
            "_kickoff_event_id": None,
            "_last_messages": [],
            "_mcp_resolver": None,
            "_request_within_rpm_limit": None,
            "_rpm_controller": None,
            "_times_executed": 0,
            "_token_process": TokenProcess(),
            "_tool_failures": [],
        }
        private = copied.__pydantic_private__
        private.update((name, value) for name, value in fresh.items() if name in private)
        copied.set_private_attrs()

    def _cache(self, handler: CacheHandler | None) -> CacheHandler | None:
        """A plain one is the run's: it would answer otherwise in a process that has not run the tools."""
        if type(handler) is not CacheHandler:
            return handler
        return self._made.setdefault(id(handler), CacheHandler())  # type: ignore[no-any-return]

    def _task(self, task: Any) -> Any:
        copied = self._made[id(task)]
        copied.__dict__.update(id=uuid.uuid4(), agent=self._agent(task.agent))
        if isinstance(task.context, list):
            copied.__dict__["context"] = [self._made.get(id(other), other) for other in task.context]
        copied.__pydantic_private__["_thread"] = None
        return copied


def _shallow(original: Any, made: dict[int, Any]) -> Any:
    """The same fields in another object; lists, dicts and sets among them are copied, once each."""
    copied = original.model_copy()
    for values in (copied.__dict__, copied.__pydantic_private__):
        for name, value in values.items():
            if type(value) in (list, dict, set):
                values[name] = made.setdefault(id(value), value.copy())
    return copied
