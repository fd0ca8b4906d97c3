"""Tool calls that need approval, as the questions of a waiting run.

A question is the id of the tool call. Its answer is `True`, `False`, or a mapping: `approve` (bool), `always` (bool,
for later calls of this tool, too) and, with a rejection, `message` (what the model gets to read).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from agents import RunState, ToolApprovalItem

from .._core import Question, logger
from .._core.errors import ConfigurationError


def questions_of(items: Iterable[ToolApprovalItem], past: Iterable[Question]) -> dict[str, Any]:
    """Question → what is asked. One that is asked again, since its answer said nothing, gets an id of its own."""
    asked_before = Counter(name.partition("#")[0] for pause in past for name in pause.questions)
    answered = {name for pause in past for name in pause.answers}
    found: dict[str, Any] = {}
    for name, item in named(items).items():
        used = name if name not in answered else f"{name}#{asked_before[name] + 1}"
        found[used] = {"tool": item.tool_name, "arguments": _arguments(item), "agent": item.agent.name}
    return found


def named(items: Iterable[ToolApprovalItem]) -> dict[str, ToolApprovalItem]:
    """The items by the id of their call; a second one with the same id, of another agent, has a number behind it."""
    seen: Counter[str] = Counter()
    found = {}
    for item in items:
        name = str(item.call_id)
        seen[name] += 1
        found[name if seen[name] == 1 else f"{name}~{seen[name]}"] = item
    return found


def _arguments(item: ToolApprovalItem) -> Any:
    try:
        return json.loads(item.arguments or "null", parse_constant=_no_constant)
    except ValueError:
        return item.arguments


def _no_constant(name: str) -> None:
    """NaN and the infinities are no JSON, and models write them all the same."""
    raise ValueError(name)


def check(answer: Any) -> None:
    """Raise `ConfigurationError` for an answer that neither approves nor rejects."""
    if _approves(answer) is None:
        raise ConfigurationError(
            f"{answer!r:.200} neither approves nor rejects the tool call: answer True, False, or a mapping such as "
            f'{{"approve": False, "message": "…"}}'
        )


def _approves(answer: Any) -> bool | None:
    approve = answer.get("approve") if isinstance(answer, Mapping) else answer
    return approve if isinstance(approve, bool) else None


def apply(state: RunState[Any], pause: Question) -> None:
    """Approve and reject in the state what the answers say. An answer that says nothing leaves its question open."""
    items = named(state.get_interruptions())
    for question, answer in pause.answers.items():
        item = items.get(question.partition("#")[0])
        if item is None:
            continue
        decision = answer if isinstance(answer, Mapping) else {}
        approve = _approves(answer)
        if approve is True:
            state.approve(item, always_approve=bool(decision.get("always")))
        elif approve is False:
            state.reject(
                item, always_reject=bool(decision.get("always")), rejection_message=decision.get("message")
            )
        else:
            logger.warning(
                "the answer %.80r to %r neither approves nor rejects; it is asked again", answer, question
            )


def decisions_of(state: RunState[Any], questions: Iterable[str]) -> dict[str | None, Any]:
    """Question → what the user has decided in their own state, for those of these questions that they have."""
    items = named(state.get_interruptions())
    found: dict[str | None, Any] = {}
    for question in questions:
        item = items.get(question.partition("#")[0])
        decision = _decision(state, item) if item is not None else None
        if decision is not None:
            found[question] = decision
    return found


def past_calls(state: RunState[Any]) -> set[str]:
    """The ids of all calls in a state that the SDK has gone on with, which has no open ones any more."""
    found = (_call_id(item.raw_item) for item in state._generated_items)
    return {call for call in found if call is not None}


def _call_id(item: Any) -> str | None:
    found = item.get("call_id") if isinstance(item, Mapping) else getattr(item, "call_id", None)
    return None if found is None else str(found)


def _decision(state: RunState[Any], item: ToolApprovalItem) -> dict[str, Any] | bool | None:
    owner, item = state._find_nested_approval_state(item) or (state, item)
    context = owner._context
    if context is None:
        return None
    about: dict[str, Any] = {"tool_namespace": item.tool_namespace, "existing_pending": item}
    name, call_id = item.tool_name or "", str(item.call_id)
    approved = context.get_approval_status(name, call_id, **about)
    if approved is None:
        return None
    decision: dict[str, Any] = {"approve": bool(approved)}
    if not approved and (message := context.get_rejection_message(name, call_id, **about)):
        decision["message"] = message
    if _is_for_ever(context, item, approved):
        decision["always"] = True
    return decision if len(decision) > 1 else bool(approved)


def _is_for_ever(context: Any, item: ToolApprovalItem, approved: bool) -> bool:
    keys = context._resolve_approval_keys(item)
    records = [record for key in keys for record in context._approval_records_for_key(key, item)]
    return any((record.approved if approved else record.rejected) is True for record in records)
