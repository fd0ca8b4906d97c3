"""The demo keeps what it prints, in a pipe and in a terminal."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[3] / "demo" / "demo.py"
NATIVE = "The same graph, killed in the same place"
AFTER_KILL = "(exit code -9)"


def environment(temp: Path) -> dict[str, str]:
    unwanted = ("NO_COLOR", "DURABLE_AGENTS_DATABASE_URL")
    return {**{k: v for k, v in os.environ.items() if k not in unwanted}, "TMPDIR": str(temp)}


def steps(text: str) -> dict[str, str]:
    """Step → how it ended, of a part of the output."""
    return dict(re.findall(r"^ +[\d.]+ s +\w+ +(\w+) {2,}(\S.*)$", text, re.MULTILINE))


def test_killed_in_the_middle_of_a_step_every_finished_step_comes_from_its_record(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM)]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout, "a pipe gets plain text"

    durable, native = done.stdout.split(NATIVE)
    assert steps(durable.split(AFTER_KILL)[1]) == {
        "refund_card": "from its record",
        "open_ticket": "ran",
        "model": "ran",
        "send_mail": "ran",
    }
    assert "1 refund, 1 ticket, 1 mail" in durable
    assert steps(native.split(AFTER_KILL)[1])["refund_card"] == "ran AGAIN"
    assert "2 refunds, 1 ticket, 1 mail" in native
    assert "The promise holds." in native
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_killed_between_effect_and_record_the_idempotency_key_keeps_the_refund_one(tmp_path: Path) -> None:
    terminal, writes = pty.openpty()
    command = [sys.executable, str(PROGRAM), "--kill-at", "refund_card:after"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=writes) as demo:
        os.close(writes)
        text = read(terminal)
    assert demo.returncode == 0, text
    assert "\x1b[" in text, "a terminal gets colours"
    durable, native = re.sub(r"\x1b\[[\d;]*m|\r", "", text).split(NATIVE)
    assert steps(durable.split(AFTER_KILL)[1])["refund_card"] == "ran again: it was cut off"
    assert "1 refund, 1 ticket, 1 mail; 2 times refund_card with one key" in durable
    assert "2 refunds, 1 ticket, 1 mail" in native


def read(terminal: int) -> str:
    """All that is written to a terminal, until nobody can write to it any more."""
    parts = []
    try:
        while part := os.read(terminal, 65536):
            parts.append(part)
    except OSError:  # how Linux says that
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode()
