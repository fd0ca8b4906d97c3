"""What can be read off a compiled graph: the types of its state, and whether it needs an event loop."""

import dataclasses
import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from langgraph.checkpoint.base import Checkpoint
from pydantic import BaseModel

from ._private import TASKS, collect_from_type

_SCHEMAS = ("state_schema", "input_schema", "output_schema", "context_schema")
# `create_agent(response_format=…)` types its channel with a type variable; the schema stands in the model node.
_STRUCTURED_OUTPUT = "langchain.agents.structured_output"


def types_of(graph: Any) -> list[type]:
    """The classes in the schemas of a compiled graph and of its nodes that are graphs, as LangGraph collects them.

    And those that the nodes' functions name: what they return, or give to `interrupt(response_schema=…)`.
    """
    found: set[Any] = set()
    for each in _graphs(graph):
        for declared in (*_schemas(each), *_response_formats(each), *_named(each)):
            collect_from_type(declared, set(), found, set())
    return sorted((t for t in found if _is_storable(t)), key=lambda t: (t.__module__, t.__qualname__))


def _graphs(graph: Any) -> list[Any]:
    return [graph, *(subgraph for _, subgraph in graph.get_subgraphs(recurse=True))]


def _schemas(graph: Any) -> Iterator[Any]:
    builder = getattr(graph, "builder", None)
    declared = [getattr(builder, name, None) for name in _SCHEMAS]
    declared += [node.input_schema for node in getattr(builder, "nodes", {}).values()]
    for channel in graph.channels.values():
        declared += [getattr(channel, name, None) for name in ("ValueType", "UpdateType")]
    yield from (each for each in declared if each is not None)


def _response_formats(graph: Any) -> Iterator[Any]:
    for step in _steps(graph):
        for content in _enclosed(getattr(step, "func", None)):
            for value in content.values() if isinstance(content, dict) else (content,):
                if type(value).__module__ == _STRUCTURED_OUTPUT:
                    yield from _response_schemas(value)


def _response_schemas(strategy: Any) -> Iterator[Any]:
    """The schema of a strategy, or of a bound output tool; a union's members one by one."""
    yield from (s for s in [getattr(strategy, "schema", None)] if s is not None)
    yield from (spec.schema for spec in getattr(strategy, "schema_specs", ()))


def _named(graph: Any) -> Iterator[type]:
    """The classes that the functions of the nodes name in their code."""
    for step in _steps(graph):
        for function in (getattr(step, "func", None), getattr(step, "afunc", None)):
            function = inspect.unwrap(function) if function is not None else None
            code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
            if code is not None:
                named = [known[name] for name in code.co_names if name in known]
                yield from filter(_is_storable, (*named, *_enclosed(function)))


def _enclosed(function: Any) -> Iterator[Any]:
    """What a function has from the functions around it."""
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # an empty cell
            yield cell.cell_contents


def _steps(graph: Any) -> Iterator[Any]:
    """What the nodes of a graph run."""
    for node in graph.nodes.values():
        bound: Any = getattr(node, "bound", None)
        yield from getattr(bound, "steps", [bound])


def _is_storable(found: Any) -> bool:
    return isinstance(found, type) and (
        issubclass(found, (BaseModel, Enum)) or dataclasses.is_dataclass(found)
    )


def structure_of(graph: Any) -> dict[str, Any]:
    """Nodes, edges and channels: what the paths and the state of a run are made of."""
    builder = getattr(graph, "builder", None)
    edges = [*getattr(builder, "edges", ())]
    edges += [(name, target) for names, target in getattr(builder, "waiting_edges", ()) for name in names]
    for name, branches in getattr(builder, "branches", {}).items():
        edges += [(name, target) for branch in branches.values() for target in (branch.ends or {}).values()]
    found = {
        "nodes": sorted(graph.nodes),
        "edges": sorted({f"{source} -> {target}" for source, target in edges}),
        "channels": {
            name: type(channel).__name__
            for name, channel in graph.channels.items()
            if not name.startswith(("branch:", "join:"))  # these are edges
        },
    }
    inside = {name: structure_of(subgraph) for name, subgraph in graph.get_subgraphs()}
    return {**found, "subgraphs": inside} if inside else found


def lost_nodes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The nodes of a structure that another one lacks, or that are graphs and lack nodes there."""
    inside, there = then.get("subgraphs", {}), now.get("subgraphs", {})
    lost = [name for name in then.get("nodes", ()) if name not in now.get("nodes", ())]
    return lost + [
        name for name in inside if name not in lost and lost_nodes(inside[name], there.get(name, {}))
    ]


def is_next(node: str, checkpoint: Checkpoint) -> bool:
    """Whether a node comes next after a checkpoint, by LangGraph's rule (`_triggers` in pregel/_algo.py, 1.2.24)."""
    values, seen = checkpoint["channel_values"], checkpoint["versions_seen"].get(node, {})
    sent = [packet.node for packet in values.get(TASKS, ())]
    return node in sent or any(
        (channel == f"branch:to:{node}" or (channel.startswith("join:") and channel.endswith(f":{node}")))
        and channel in values
        and (channel not in seen or version > seen[channel])  # type: ignore[operator]
        for channel, version in checkpoint["channel_versions"].items()
    )


def needs_async(graph: Any) -> bool:
    """Whether a node of the graph, or a tool of a `ToolNode` in it, has no sync form."""
    return any(_is_async_only(step) for each in _graphs(graph) for step in _steps(each))


def unknown_tools(graph: Any, names: Collection[str]) -> list[str]:
    """Those of the names that no `ToolNode` has, in a graph that has any; a node's own code may call other tools."""
    known = {
        name
        for each in _graphs(graph)
        for step in _steps(each)
        for name in getattr(step, "tools_by_name", ())
    }
    return sorted(set(names) - known) if known else []


def _is_async_only(step: Any) -> bool:
    tools = getattr(step, "tools_by_name", {}).values()
    if any(
        getattr(tool, "func", True) is None and getattr(tool, "coroutine", None) is not None for tool in tools
    ):
        return True
    return getattr(step, "func", True) is None and getattr(step, "afunc", None) is not None
