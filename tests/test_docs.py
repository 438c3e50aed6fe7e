"""Every code block of the README and the docs runs and shows what it says it does; every link leads somewhere.

What becomes of a block is said by the word after its fence: see `docs/make_images.py`, which also brings the pages'
pictures and printed output up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.make_images import FENCE, PAGES, ROOT, blocks, link_data, pictures, refresh, run_blocks
from hwmodels.spec import FIELDS, SECTIONS

LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?:#[^)]*)?\)")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


@pytest.mark.slow
@pytest.mark.timeout(900)  # the README starts the command some twenty times
@each_page
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    for block, printed in run_blocks(page, tmp_path):
        where = f"{page.name}, line {block.line}: not what is printed now; run docs/make_images.py"
        assert block.code.split("\n") == printed.split("\n"), where
    saved = {path.name for path in tmp_path.glob("*.png")}
    assert [picture.name for picture in pictures(page) if picture.name not in saved] == [], "shown, but not made there"


@each_page
def test_pictures_are_pictures(page: Path) -> None:
    for picture in pictures(page):
        assert picture.read_bytes().startswith(PNG_SIGNATURE), picture.name


@each_page
def test_every_fence_was_seen(page: Path) -> None:
    """An indented or unclosed fence would be passed over."""
    n_fences = len(re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert n_fences == 2 * len(blocks(page))


def written(text: str, folder: Path) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize(
    "text",
    [
        "```bash\nfalse | true\n```\n",
        "```python\n1 / 0\n```\n",
        "```toml\na = \n```\n",
        "```\nanything\n```\n",
    ],
)
def test_what_is_wrong_in_a_block_is_noticed(text: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError, ZeroDivisionError)):
        run_blocks(written(text, tmp_path), tmp_path)


def test_output_is_noted_and_refreshed(tmp_path: Path) -> None:
    python, bash = "```python\nprint(1)\n```\n", "```bash\nprintf 'a \\nb\\n'\n```\n"
    text = f"{python}\n```text output\n{{}}```\n\n{bash}\n```text output\n{{}}```\n"
    page = written(text.format("2\n", ""), tmp_path)
    assert [printed for _, printed in run_blocks(page, tmp_path)] == ["1\n", "a\nb\n"]
    refresh(page)
    assert page.read_text(encoding="utf-8") == text.format("1\n", "a\nb\n")


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
def test_keys_of_gpus_exist(page: Path) -> None:
    named = re.findall(r"`(\w+\.\w+)(?:=[^`]*)?`", page.read_text(encoding="utf-8"))
    assert [key for key in named if key.split(".")[0] in SECTIONS and key not in FIELDS] == []


@each_page
def test_no_placeholder_is_left(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [i for i, line in enumerate(lines, 1) if "TODO" in line] == []
