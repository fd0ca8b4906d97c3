"""Every name of CrewAI that this package patches or that is private, in one place, checked at import.

Read from crewai 1.15.30. A version in which one of them is gone or has other parameters fails here, at import, and not
in the middle of somebody's refund.
"""

import inspect
from typing import Any

from crewai import crew as _crew
from crewai import task as _task
from crewai.agent import core as _agent_core
from crewai.agent.core import Agent
from crewai.agents.agent_adapters.base_agent_adapter import BaseAgentAdapter
from crewai.agents.agent_builder.base_agent import BaseAgent
from crewai.agents.agent_builder.utilities.base_token_process import TokenProcess
from crewai.agents.agent_executor import AgentExecutor
from crewai.agents.cache.cache_handler import CacheHandler
from crewai.agents.step_executor import StepExecutor
from crewai.agents.tools_handler import ToolsHandler
from crewai.core.providers.human_input import SyncHumanInputProvider
from crewai.core.providers.human_input import _provider as human_input_provider
from crewai.crew import Crew
from crewai.flow import runtime as _flow_runtime
from crewai.flow.async_feedback.types import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow_config import flow_config
from crewai.flow.human_feedback import HumanFeedbackResult
from crewai.flow.input_provider import InputResponse
from crewai.flow.persistence.base import FlowPersistence
from crewai.flow.runtime import Flow
from crewai.flow.runtime import _iter_condition_events as condition_events
from crewai.llms.base_llm import BaseLLM, llm_call_context
from crewai.memory.unified_memory import Memory
from crewai.task import Task
from crewai.tools.agent_tools.base_agent_tools import BaseAgentTool
from crewai.tools.base_tool import BaseTool, Tool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.utilities.agent_utils import extract_tool_call_info
from pydantic import BaseModel

from .._core.errors import ConfigurationError

__all__ = [
    "Agent",
    "AgentExecutor",
    "BaseAgent",
    "BaseAgentAdapter",
    "BaseAgentTool",
    "BaseLLM",
    "BaseTool",
    "CacheHandler",
    "Crew",
    "CrewStructuredTool",
    "Flow",
    "FlowPersistence",
    "HumanFeedbackPending",
    "HumanFeedbackResult",
    "InputResponse",
    "Memory",
    "PendingFeedbackContext",
    "StepExecutor",
    "SyncHumanInputProvider",
    "Task",
    "TokenProcess",
    "Tool",
    "ToolsHandler",
    "agent_module",
    "condition_events",
    "crew_module",
    "extract_tool_call_info",
    "flow_config",
    "flow_module",
    "human_input_provider",
    "llm_call_context",
    "task_module",
]

task_module: Any = _task
"""The module whose `process_guardrail` a task calls."""

agent_module: Any = _agent_core
"""The module whose `process_guardrail` and `begin_execution` an agent on its own calls."""

crew_module: Any = _crew
"""The module whose `begin_execution` a crew calls."""

flow_module: Any = _flow_runtime
"""The module whose `begin_execution` a flow calls."""

_PARAMETERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "BaseLLM.call": (BaseLLM.call, (
        "self", "messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")),
    "BaseLLM.acall": (BaseLLM.acall, (
        "self", "messages", "tools", "callbacks", "available_functions", "from_task", "from_agent", "response_model")),
    "BaseLLM._wrap_call_method": (BaseLLM._wrap_call_method, ("method_name",)),
    "BaseLLM._track_token_usage_internal": (BaseLLM._track_token_usage_internal, ("self", "usage_data")),
    "BaseLLM.get_token_usage_summary": (BaseLLM.get_token_usage_summary, ("self",)),
    "BaseLLM._emit_call_started_event": (
        BaseLLM._emit_call_started_event,
        ("self", "messages", "tools", "callbacks", "available_functions", "from_task", "from_agent")),
    "BaseLLM._emit_call_completed_event": (
        BaseLLM._emit_call_completed_event,
        ("self", "response", "call_type", "from_task", "from_agent", "messages", "usage")),
    "BaseTool.run": (BaseTool.run, ("self", "args", "kwargs")),
    "BaseTool.arun": (BaseTool.arun, ("self", "args", "kwargs")),
    "Tool.run": (Tool.run, ("self", "args", "kwargs")),
    "Tool.arun": (Tool.arun, ("self", "args", "kwargs")),
    "CrewStructuredTool.invoke": (CrewStructuredTool.invoke, ("self", "input", "config", "kwargs")),
    "CrewStructuredTool.ainvoke": (CrewStructuredTool.ainvoke, ("self", "input", "config", "kwargs")),
    "AgentExecutor.invoke": (AgentExecutor.invoke, ("self", "inputs")),
    "AgentExecutor.invoke_async": (AgentExecutor.invoke_async, ("self", "inputs")),
    "AgentExecutor._execute_single_native_tool_call": (
        AgentExecutor._execute_single_native_tool_call, ("self", "tool_call")),
    "StepExecutor.execute": (StepExecutor.execute, ("self", "todo", "context")),
    "Agent.execute_task": (Agent.execute_task, ("self", "task", "context", "tools")),
    "Agent.aexecute_task": (Agent.aexecute_task, ("self", "task", "context", "tools")),
    "Agent._check_execution_error": (Agent._check_execution_error, ("self", "e", "task")),
    "Task._execute_core": (Task._execute_core, ("self", "agent", "context", "tools")),
    "Task._aexecute_core": (Task._aexecute_core, ("self", "agent", "context", "tools")),
    "Task._execute_task_async": (Task._execute_task_async, ("self", "agent", "context", "tools", "future")),
    "crewai.task.process_guardrail": (task_module.process_guardrail, ("output", "guardrail", "retry_count")),
    "crewai.agent.core.process_guardrail": (agent_module.process_guardrail, ("output", "guardrail", "retry_count")),
    "crewai.agent.core.begin_execution": (
        agent_module.begin_execution, ("execution_uuid", "tracing", "trace_session")),
    "crewai.crew.begin_execution": (
        crew_module.begin_execution, ("execution_uuid", "tracing", "trace_session")),
    "crewai.flow.runtime.begin_execution": (
        flow_module.begin_execution, ("execution_uuid", "tracing", "trace_session")),
    "Crew.kickoff": (Crew.kickoff, ("self", "inputs", "input_files", "from_checkpoint")),
    "Crew.akickoff": (Crew.akickoff, ("self", "inputs", "input_files", "from_checkpoint")),
    "Crew.set_private_attrs": (Crew.set_private_attrs, ("self",)),
    "BaseAgent.copy": (BaseAgent.copy, ("self",)),
    "BaseAgent.set_private_attrs": (BaseAgent.set_private_attrs, ("self",)),
    "BaseAgent.set_rpm_controller": (BaseAgent.set_rpm_controller, ("self", "rpm_controller")),
    "Flow.kickoff_async": (
        Flow.kickoff_async, ("self", "inputs", "input_files", "from_checkpoint", "restore_from_state_id")),
    "Flow._execute_method": (Flow._execute_method, ("self", "method_name", "method", "args", "kwargs")),
    "Flow._run_human_feedback_step": (
        Flow._run_human_feedback_step, ("self", "method_name", "feedback_definition", "method_output")),
    "Flow._resolve_feedback_provider": (Flow._resolve_feedback_provider, ("self", "feedback_definition")),
    "Flow._resolve_input_provider": (Flow._resolve_input_provider, ("self",)),
    "Flow._flow_post_init": (Flow._flow_post_init, ("self", "definition")),
    "Flow._stamp_state_id": (Flow._stamp_state_id, ("self", "state_id")),
    "FlowPersistence.save_state": (
        FlowPersistence.save_state, ("self", "flow_uuid", "method_name", "state_data")),
    "FlowPersistence.load_state": (FlowPersistence.load_state, ("self", "flow_uuid")),
    "Memory.recall": (Memory.recall, ("self", "query")),
    "Memory.remember": (Memory.remember, ("self", "content")),
    "Memory.remember_many": (Memory.remember_many, ("self", "contents")),
    "Memory.extract_memories": (Memory.extract_memories, ("self", "content")),
    "Memory.drain_writes": (Memory.drain_writes, ("self",)),
    "SyncHumanInputProvider._prompt_input": (SyncHumanInputProvider._prompt_input, ("crew",)),
    "SyncHumanInputProvider._prompt_input_async": (SyncHumanInputProvider._prompt_input_async, ("crew",)),
    "crewai.utilities.agent_utils.extract_tool_call_info": (extract_tool_call_info, ("tool_call",)),
    "crewai.flow.runtime._iter_condition_events": (condition_events, ("condition",)),
}  # fmt: skip

WRITTEN: dict[type[BaseModel], tuple[str, ...]] = {
    Crew: (
        "id", "agents", "tasks", "manager_agent", "usage_metrics", "token_usage", "execution_logs", "_memory",
        "_cache_handler", "_rpm_controller"),
    BaseAgent: (
        "id", "agent_executor", "cache_handler", "crew", "tools_handler", "tools_results", "_kickoff_event_id",
        "_request_within_rpm_limit", "_rpm_controller", "_token_process", "_tool_failures"),
    Agent: ("_last_messages", "_mcp_resolver", "_times_executed"),
    Task: ("id", "agent", "context", "_thread"),
}  # fmt: skip
"""What a run's copy does not take over as it is: what a kickoff writes to, and what refers to crews, agents, tasks."""


def check() -> None:
    """Raise `ConfigurationError` when a private name is gone or has other parameters than where this was read from."""
    for cls, names in WRITTEN.items():
        if gone := set(names) - set(cls.model_fields) - set(cls.__private_attributes__):
            raise ConfigurationError(
                f"{cls.__name__} of crewai has no {', '.join(sorted(gone))}; "
                f"install the version that durable-runners[crewai] asks for"
            )
    for name, (function, expected) in _PARAMETERS.items():
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise ConfigurationError(
                f"{name}{found} is not the one of crewai 1.15.30 that this was written for; "
                f"install the version that durable-runners[crewai] asks for"
            )


check()
