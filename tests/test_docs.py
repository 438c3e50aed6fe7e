"""Every code block of the README and the docs runs; every link in them leads somewhere.

The word after a fence says what becomes of the block:
- `bash` runs through `bash -euo pipefail`, in a directory of its file's own that holds a link to `hwmodels`;
- `python` runs in that directory too; the blocks of a file share one namespace, in order;
- `text output` must equal what the block before it printed;
- `toml` and `json` must parse; `text` is left alone;
- `bash setup` (the README's two) is run from nothing by `.ci/run`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?:#[^)]*)?\)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


class Block(NamedTuple):
    """One fenced block: what stands after the fence, its text, and the line of the page on which the text begins."""

    info: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m["info"].strip(), m["code"], text.count("\n", 0, m.start("code")) + 1) for m in FENCE.finditer(text)]


class Runner:
    """Runs the blocks of one page in one directory and one namespace."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def bash(self, block: Block) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        done = subprocess.run(
            command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{self.page.name}, line {block.line}: {done.stdout}{done.stderr}"
        self.printed = done.stdout

    def python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code  # tracebacks name the page's own lines
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, str(self.page), "exec"), self.namespace)
        self.printed = out.getvalue()

    def output(self, block: Block) -> None:
        assert block.code.split("\n") == self.printed.split("\n"), f"{self.page.name}, line {block.line}"


def leave(_: Block) -> None:
    """What is not executed."""


def actions(runner: Runner) -> dict[str, Callable[[Block], Any]]:
    return {
        "bash": runner.bash,
        "python": runner.python,
        "text output": runner.output,
        "toml": lambda block: tomllib.loads(block.code),
        "json": lambda block: json.loads(block.code),
        "text": leave,
        "bash setup": leave,
    }


def run_blocks(page: Path, folder: Path) -> None:
    action_of = actions(Runner(page, folder))
    for block in blocks(page):
        assert block.info in action_of, f"{page.name}, line {block.line}: say what becomes of the block {block.info!r}"
        action_of[block.info](block)


@each_page
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hwmodels").symlink_to(ROOT / "hwmodels")  # so that paths read as from a checkout
    monkeypatch.chdir(tmp_path)
    run_blocks(page, tmp_path)


@each_page
def test_every_fence_was_seen(page: Path) -> None:
    """An indented or unclosed fence would be passed over."""
    n_fences = len(re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert n_fences == 2 * len(blocks(page))


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nfalse | true\n```\n",
        "```python\n1 / 0\n```\n",
        "```toml\na = \n```\n",
        "```\nanything\n```\n",
        "```python\nprint(1)\n```\n\n```text output\n2\n```\n",
    ],
)
def test_what_is_wrong_in_a_block_is_noticed(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises((AssertionError, ValueError, ZeroDivisionError)):
        run_blocks(page, tmp_path)


def test_the_readme_sets_up_in_two_blocks() -> None:
    setups = [block.code for block in blocks(ROOT / "README.md") if block.info == "bash setup"]
    assert [len(setup.strip().splitlines()) for setup in setups] == [1, 1]
    assert "tilewalk gemm" in setups[0]
    assert setups[1].strip().endswith("pytest")


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))) if ":" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@each_page
def test_no_placeholder_is_left(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [i for i, line in enumerate(lines, 1) if "TODO" in line] == []
