"""A call of a verb as a request: what of it is recorded, what only this process has, and whose question it answers."""

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.errors import UnknownInterruptError
from langgraph.pregel import Pregel
from langgraph.types import Command

from .._core import Question, Request
from .._core.errors import ConfigurationError, EncodingError
from ._loops import EXIT
from ._private import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_STRICT_RESUME,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    ensure_config,
    is_xxh3_128_hexdigest,
)
from ._runner import PLACE, RECORDED_KEYWORDS, GraphRunner, Live
from ._values import Said

_SURROUNDINGS = ("checkpoint_ns", "checkpoint_id", "checkpoint_map", CONFIG_KEY_THREAD_ID)
_ABOUT_SURROUNDINGS = ("langgraph_", "checkpoint_", CONFIG_KEY_THREAD_ID)
_AMBIGUOUS = (  # as natively
    "When there are multiple pending interrupts, you must specify the interrupt id when resuming. "
    "Docs: https://docs.langchain.com/oss/python/langgraph/interrupts#handling-multiple-interrupts."
)
_RETURNS = ("stream_mode", "version")
"""Arguments of `invoke` that say what it returns."""
_SETTINGS = ("tags", "metadata", "run_name", "recursion_limit", "max_concurrency")


def request_of(
    graph: Pregel[Any, Any, Any, Any],
    durable: GraphRunner,
    input: Any,
    config: RunnableConfig | None,
    keywords: dict[str, Any],
    run_id: str | None,
    *,
    is_async: bool,
    streams: bool = False,
) -> tuple[Request, str]:
    """The request, and the id of the run.

    Args:
        graph: the durable graph that is called; `durable` is its runner.
        input, config, keywords, run_id: what its verb got.
        streams: the caller gets events and no result.
    """
    merged = _merged(graph.config, config)
    if CONFIG_KEY_TASK_ID in merged[CONF]:
        merged = _without_surroundings(merged, config)
    thread = merged.setdefault(CONF, {}).get(CONFIG_KEY_THREAD_ID)
    thread = run_id if thread is None else thread
    if thread is not None:
        merged[CONF][CONFIG_KEY_THREAD_ID] = thread
    resumes = isinstance(input, Command) and input.resume is not None
    if isinstance(input, Command) and input.resume is None and input.update is None and not input.goto:
        raise ConfigurationError("Command(resume=None) answers nothing: LangGraph takes None for no answer")
    if resumes and thread is not None and (waiting := durable.waiting_run(str(thread))) is not None:
        return _answer(input, waiting, Live(merged, _native(keywords)), run_id)
    if resumes and run_id is not None and durable.asked_run(run_id):
        return Request(None, live=Live(merged, _native(keywords)), answers=_again(input.resume)), run_id
    codec = durable.codec
    try:
        recorded_input = codec.encode(input)
    except EncodingError as error:
        raise EncodingError(f"the input of run {run_id!r} cannot be recorded: {error}") from error
    if run_id is None and thread is None and durable.needs_thread and not merged[CONF]:
        raise ValueError(
            "Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, "
            "checkpoint_id. A durable graph also takes run_id=, which is the thread then."
        )
    run_id = durable.fresh_id(recorded_input) if run_id is None else run_id
    thread = str(thread if thread is not None else run_id)
    merged[CONF] = {**merged[CONF], CONFIG_KEY_THREAD_ID: thread}
    configurable, gone = _recordable(codec, merged[CONF])
    live_names = [f"configurable.{name}" for name in gone]
    settings, _ = _recordable(codec, {k: v for k, v in merged.items() if k in _SETTINGS})
    given = {k: keywords[k] for k in RECORDED_KEYWORDS if keywords.get(k) is not None}
    kept, gone = _recordable(codec, given)
    live_names += gone
    recorded = {
        "input": recorded_input,
        "configurable": configurable,
        "keywords": kept,
        "output_keys": keywords.get("output_keys"),
    }
    live = Live(merged, _native(keywords))
    durability = keywords.get("durability") or merged[CONF].get(CONFIG_KEY_DURABILITY)
    if keywords.get("checkpoint_during") is False:
        durability = EXIT
    returns = {} if streams else {k: keywords[k] for k in _RETURNS if keywords.get(k) is not None}
    incidental = {"async": is_async, "config": settings, "durability": durability, "returns": returns}
    observers = ("callbacks",) if merged.get("callbacks") else ()
    return Request(recorded, thread, live, tuple(live_names), observers, incidental=incidental), run_id


def _answer(
    command: Command[Any], waiting: tuple[str, Question], live: Live, named: str | None
) -> tuple[Request, str]:
    """A `Command(resume=…)` to the run that waits on the thread, its plain value pinned to the open question.

    What else is said, an update or where to go, is recorded with the answer to the first question.
    """
    run_id, pause = waiting
    if named not in (None, run_id):
        raise ConfigurationError(
            f"run {run_id!r} waits on this thread: answer it without run_id=, or with its own, not {named!r}"
        )
    resume: Any = command.resume
    if live.config[CONF].get(CONFIG_KEY_STRICT_RESUME):
        _check_strictly(resume, sorted(pause.questions))
    if _is_by_question(resume):
        answers: dict[str | None, Any] = {k: v for k, v in resume.items() if k in pause.questions}
    elif len(pause.questions) == 1:
        answers = {next(iter(pause.questions)): resume}  # by the time it arrives another one may be open
    else:
        raise RuntimeError(_AMBIGUOUS)
    says_more, place = command.update is not None or bool(command.goto), _elsewhere(live.config, pause)
    if says_more or place:
        if not answers:
            raise ConfigurationError(
                f"Command(resume=…) answers none of the open questions of run {run_id!r}, so that its update= and "
                f"goto= would be lost; open are {', '.join(pause.questions)}"
            )
        first = next(iter(answers))
        answers[first] = Said(answers[first], command if says_more else None, place)
    return Request(None, live=live, answers=answers), run_id


def _elsewhere(config: RunnableConfig, pause: Question) -> dict[str, Any]:
    """What of a config names another checkpoint than the one at which the run waits; empty if nothing does."""
    place = {key: config[CONF][key] for key in PLACE if config[CONF].get(key)}
    named = place.get(CONFIG_KEY_CHECKPOINT_ID)
    is_there = named in (None, pause.state["checkpoint"]) and CONFIG_KEY_CHECKPOINT_MAP not in place
    return {} if is_there else place


def _is_by_question(resume: Any) -> bool:
    return isinstance(resume, dict) and bool(resume) and all(is_xxh3_128_hexdigest(key) for key in resume)


def _check_strictly(resume: Any, pending: list[str]) -> None:
    """Refuse, as the native loop does in strict mode, an answer that does not fit the open questions."""
    if resume == {}:
        raise UnknownInterruptError(
            "The resume map names no interrupt", reason="empty_map", pending_ids=pending
        )
    if not _is_by_question(resume):
        if len(pending) > 1:
            raise UnknownInterruptError(_AMBIGUOUS, reason="ambiguous", pending_ids=pending)
    elif unknown := sorted(resume.keys() - set(pending)):
        raise UnknownInterruptError(
            f"Unknown or already-consumed interrupt: {unknown[0]}",
            reason="not_pending",
            interrupt_ids=unknown,
            pending_ids=pending,
        )


def _again(resume: Any) -> dict[str | None, Any]:
    """The answers of a command to a run that may have had them."""
    return {**resume} if _is_by_question(resume) else {None: resume}


def _merged(own: RunnableConfig | None, given: RunnableConfig | None) -> RunnableConfig:
    """The graph's own config and the call's, as the native verbs merge them; neither is changed."""
    merged = ensure_config(own, given)
    merged[CONF] = dict(merged.get(CONF) or {})
    return merged


def _without_surroundings(merged: RunnableConfig, given: RunnableConfig | None) -> RunnableConfig:
    """The config of a call in a node of a graph that is not durable, less what that graph put there for its subgraphs.

    It names that graph's checkpointer, thread and checkpoints; this run has its own.
    """
    asked = (given or {}).get(CONF) or {}
    kept = {
        k: v
        for k, v in merged[CONF].items()
        if k in asked or (k not in _SURROUNDINGS and not k.startswith("__pregel"))
    }
    about = {k: v for k, v in (merged.get("metadata") or {}).items() if not k.startswith(_ABOUT_SURROUNDINGS)}
    return {**merged, CONF: kept, "metadata": about}


def _native(keywords: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in keywords.items() if k != "durability"}


def _recordable(codec: Any, values: Any) -> tuple[dict[str, Any], list[str]]:
    """The values that have a durable form, and the names of the others."""
    kept, gone = {}, []
    for name, value in values.items():
        if str(name).startswith("__pregel"):
            continue
        try:
            kept[name] = codec.encode(value)
        except EncodingError:
            gone.append(name)
    return kept, gone
