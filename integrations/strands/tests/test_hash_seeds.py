"""A graph whose process dies goes on in one with another PYTHONHASHSEED: natively its order depends on it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

PROGRAM = '''
import os, signal, sys
sys.path.insert(0, {kit!r})
import durable_agents
from durable_agents.strands import DurableMultiAgent
from strands import tool
from strands.multiagent import GraphBuilder
from strands_kit import agent_of

NAMES = ["carol", "alice", "bob", "dave", "eve"]

def act(line):
    with open("ledger", "a") as ledger:
        ledger.write(line + "\\n")

@tool
def work(who: str) -> str:
    """Work."""
    act(f"work {{who}}")
    return f"{{who}} worked"

def node(name):
    return agent_of(lambda n, _: [("work", {{"who": name}})] if n == 0 else f"{{name}} said", work, name=name)

def join(n, messages):
    act("join " + " ".join(b["text"].strip() for b in messages[-1]["content"] if "From" in b["text"]))
    if "--crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "joined " + " ".join(b["text"].split()[-2] for b in messages[-1]["content"] if "Agent:" in b["text"])

builder = GraphBuilder()
for name in NAMES:
    builder.add_node(node(name), name)
builder.add_node(agent_of(join, name="join"), "join")
for name in NAMES:
    builder.add_edge(name, "join")
    builder.set_entry_point(name)
builder.set_max_node_executions(20)
app = DurableMultiAgent(builder.build(), "graph")
result = app("task", run_id="r")
print([node.node_id for node in result.execution_order], list(result.results), str(result.results["join"].result))
print(sorted(step.path for step in durable_agents.runs.get("r").steps()))
print([edge[0].node_id for edge in result.edges])
'''


def run(folder: Path, seed: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "DURABLE_AGENTS_DATABASE_URL"}
    env |= {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    program = PROGRAM.format(kit=str(Path(__file__).parent))
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 4)])
def test_a_graph_goes_on_under_another_hash_seed(tmp_path: Path, first: int, second: int) -> None:
    killed = run(tmp_path, first, "--crash")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = run(tmp_path, second)
    assert again.returncode == 0, again.stderr
    names = ["carol", "alice", "bob", "dave", "eve"]
    order = [*names, "join"]
    assert again.stdout.splitlines()[0].startswith(f"{order} {order} joined {' '.join(names)}")
    assert again.stdout.splitlines()[-1] == str(names)
    ledger = (tmp_path / "ledger").read_text().splitlines()
    assert sorted(ledger[:5]) == sorted(f"work {name}" for name in names), "no node ran twice"
    joined = "join " + " ".join(f"From {name}:" for name in names)
    assert ledger[5:] == [joined, joined], "the join got its input in one order, in both processes"
