"""The quickstart is killed after the refund, and run again."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[3] / "quickstarts" / "crewai" / "refund.py"


def quickstart(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("MODEL", "DURABLE_AGENTS_DATABASE_URL")}
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110)


def effects(folder: Path) -> list[str]:
    """The first word of each line of the ledger."""
    return [line.split()[0] for line in (folder / "ledger.txt").read_text().splitlines()]


def test_a_killed_run_finishes_when_the_program_is_started_again(tmp_path: Path) -> None:
    killed = quickstart(tmp_path, "--crash")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert effects(tmp_path) == ["refunded"]

    again = quickstart(tmp_path)
    assert again.returncode == 0, again.stderr
    assert "Order 55 is refunded." in again.stdout
    assert effects(tmp_path) == ["refunded", "mailed"]
    steps = re.findall(r"(model|tool) +(\w+) +by worker (\w+)", again.stdout)
    tools = {name: worker for kind, name, worker in steps if kind == "tool"}
    assert list(tools) == ["look_up_order", "refund_card", "send_mail"]
    assert tools["look_up_order"] == tools["refund_card"] != tools["send_mail"]
    assert len(steps) == 7, "each model and tool call is recorded once"

    third = quickstart(tmp_path)
    assert third.stdout == again.stdout, "the same run id gives the same result"
    assert effects(tmp_path) == ["refunded", "mailed"]
