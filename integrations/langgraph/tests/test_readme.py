"""The code of the READMEs runs, block after block, as a newcomer would type it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_every_python_block_runs(tmp_path: Path) -> None:
    worker = [block for block in blocks() if block.startswith("# worker.py")]
    typed = [block for block in blocks() if block not in worker]
    assert len(worker) == 1
    assert len(typed) > 5
    (tmp_path / "refunds.py").write_text("\n".join(typed[:2]))
    (tmp_path / "typed.py").write_text("\n".join(typed))
    done = subprocess.run(
        [sys.executable, "typed.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    works_and_stays(worker[0], tmp_path)


def works_and_stays(code: str, folder: Path) -> None:
    (folder / "worker.py").write_text(
        code.replace("signal.pause()", "print('works', flush=True)\nsignal.pause()")
    )
    worker = subprocess.Popen([sys.executable, "worker.py"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert "works\n" in iter(worker.stdout.readline, "")
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
