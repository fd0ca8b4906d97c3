"""The code of the READMEs runs, block after block, as a newcomer would type it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READMES = ["README.md"]


@pytest.mark.parametrize("readme", READMES)
def test_every_python_block_runs(readme: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / readme).read_text(), re.DOTALL)
    assert blocks
    program = tmp_path / "typed.py"
    program.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "order-57" not in done.stderr


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target
