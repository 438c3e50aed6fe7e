"""Run the documents' code as a reader would, and keep the pictures and the printed output they show up to date.

    python docs/make_images.py [PAGE ...]

Pages show pictures of `docs/images` that their own code saves under the same name in the current directory, and output
that their own code prints. This script runs every page (or those named) in a directory of its own, puts the pictures
into `docs/images` and the output into the page. `tests/test_docs.py` runs the pages with the same functions and fails
where a page shows something else.

The word after a fence says what becomes of the block:
- `bash` runs through `bash -euo pipefail`, in a directory of its page's own that holds a link to `hwmodels`;
- `python` runs in that directory too; the blocks of a page share one namespace, in order;
- `text output` is what the block before it prints;
- `toml` and `json` must parse; `text` is left alone;
- `bash setup` (the README's two) is run from nothing by `.ci/run`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block: what stands after the fence, its text, and where in the page the text begins and ends."""

    info: str
    code: str
    line: int
    start: int
    end: int


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(m["info"].strip(), m["code"], text.count("\n", 0, m.start("code")) + 1, *m.span("code"))
        for m in FENCE.finditer(text)
    ]


def pictures(page: Path) -> list[Path]:
    """Files of the pictures that a page shows."""
    targets = PICTURE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return [(page.parent / target).resolve() for target in targets if ":" not in target]


class Runner:
    """Runs the blocks of one page in one directory and one namespace; `shown` gathers what `text output` should say."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""
        self.shown: list[tuple[Block, str]] = []

    def bash(self, block: Block) -> None:
        """Run a block in the shell; the commands of this Python's environment come first."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = os.environ | {"PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
        command = ["bash", "-euo", "pipefail", "-c", block.code]
        done = subprocess.run(
            command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{self.page.name}, line {block.line}: {done.stdout}{done.stderr}"
        self.printed = done.stdout

    def python(self, block: Block) -> None:
        """Run a block in this process."""
        source = "\n" * (block.line - 1) + block.code  # tracebacks name the page's own lines
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(self.folder):
            exec(compile(source, str(self.page), "exec"), self.namespace)
        self.printed = out.getvalue()

    def output(self, block: Block) -> None:
        """Note what the block before printed."""
        self.shown.append((block, "".join(f"{line.rstrip()}\n" for line in self.printed.splitlines())))


def leave(_: Block) -> None:
    """What is not executed."""


def actions(runner: Runner) -> dict[str, Callable[[Block], Any]]:
    """What becomes of a block, by the words after its fence."""
    return {
        "bash": runner.bash,
        "python": runner.python,
        "text output": runner.output,
        "toml": lambda block: tomllib.loads(block.code),
        "json": lambda block: json.loads(block.code),
        "text": leave,
        "bash setup": leave,
    }


def run_blocks(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Run a page; returns its `text output` blocks, each with what it should say."""
    runner = Runner(page, folder)
    action_of = actions(runner)
    for block in blocks(page):
        assert block.info in action_of, f"{page.name}, line {block.line}: say what becomes of the block {block.info!r}"
        action_of[block.info](block)
    return runner.shown


def link_data(folder: Path) -> None:
    """Make paths of the measured tables read as from a checkout."""
    (folder / "hwmodels").symlink_to(ROOT / "hwmodels")


def refresh(page: Path) -> None:
    """Run a page; put its output into it and its pictures into `docs/images`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        link_data(folder)
        shown = run_blocks(page, folder)
        for picture in pictures(page):
            shutil.copyfile(folder / picture.name, picture)
    text = page.read_text(encoding="utf-8")
    for block, printed in reversed(shown):
        text = text[: block.start] + printed + text[block.end :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"  # a reader's own choice would need a display
    IMAGES.mkdir(exist_ok=True)
    for given in [Path(word).resolve() for word in sys.argv[1:]] or PAGES:
        refresh(given)
