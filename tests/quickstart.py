"""What every quickstart must show: killed after the refund and started again, it finishes and pays nothing twice.

test_the_quickstart = goes_on("adk")
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

QUICKSTARTS = Path(__file__).parents[1] / "quickstarts"
_FROM_OUTSIDE = ("MODEL", "OPENAI_API_KEY", "GOOGLE_API_KEY", "DURABLE_AGENTS_DATABASE_URL")


def goes_on(framework: str) -> Callable[[Path], None]:
    """The test of a framework's quickstart."""

    def test(tmp_path: Path) -> None:
        killed = _run(framework, tmp_path, "--crash")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert _effects(tmp_path) == ["refunded"]

        again = _run(framework, tmp_path)
        assert again.returncode == 0, again.stderr
        assert "Order 55 is refunded." in again.stdout
        assert _effects(tmp_path) == ["refunded", "mailed"]
        steps = re.findall(r"(model|tool) +(\w+) +by worker (\w+)", again.stdout)
        tools = {name: worker for kind, name, worker in steps if kind == "tool"}
        assert list(tools) == ["look_up_order", "refund_card", "send_mail"]
        assert tools["look_up_order"] == tools["refund_card"] != tools["send_mail"]
        assert len(steps) == 7, "each model and tool call is recorded once"

        third = _run(framework, tmp_path)
        assert third.stdout == again.stdout, "the same run id gives the same result"
        assert _effects(tmp_path) == ["refunded", "mailed"]

    return test


def _run(framework: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in _FROM_OUTSIDE}
    command = [sys.executable, str(QUICKSTARTS / framework / "refund.py"), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110)


def _effects(folder: Path) -> list[str]:
    """The first word of each line of the ledger."""
    return [line.split()[0] for line in (folder / "ledger.txt").read_text().splitlines()]
