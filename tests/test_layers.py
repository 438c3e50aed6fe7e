"""The rules of the code's shape, read off its syntax trees: who imports whom, how long things are, what stays out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("hwmodels", "workloads", "sim", "viz")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MAY_IMPORT = {
    "hwmodels": ("hwmodels",),
    "workloads": ("workloads", "hwmodels.errors"),
    "sim": ("hwmodels", "workloads", "sim"),
    "viz": PACKAGES,
}
HEAVY = {"matplotlib", "numba", "numpy", "pandas", "pydantic", "scipy", "simpy"}
NJIT_MODULE = "sim/engine.py"

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: Path) -> str:
    """Dotted module name of a file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything a module imports anywhere, relative imports resolved."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*base, *([node.module] if node.module else [])))
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def is_within(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


@each_module
def test_nothing_imports_to_its_right(path: Path) -> None:
    allowed = MAY_IMPORT[path.relative_to(ROOT).parts[0]]
    ours = [(line, name) for line, name in imported(path) if name.split(".")[0] in {*PACKAGES, "tests"}]
    assert [item for item in ours if not any(is_within(item[1], name) for name in allowed)] == []


@each_module
def test_numba_stays_in_the_engine(path: Path) -> None:
    """All njit functions live in one file: a cached caller in another keeps stale code of its helpers."""
    is_engine = path.relative_to(ROOT).as_posix() == NJIT_MODULE
    assert is_engine == any(is_within(name, "numba") for _, name in imported(path))


def test_the_engine_knows_no_simpy_and_the_host_no_numba() -> None:
    """Through everything they import, too."""
    assert "simpy" not in loaded_by("sim.engine")
    assert "numba" not in loaded_by("sim.host")


@pytest.mark.parametrize("module", [*PACKAGES, "viz.cli", "viz.commands.app", "sim.studies.catalog"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    """The command answers --help at once: heavy libraries wait until they are needed."""
    assert loaded_by(module) & HEAVY == set()


def loaded_by(module: str) -> set[str]:
    """Top-level modules in memory after a fresh interpreter imports `module`."""
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@each_module
def test_modules_are_short(path: Path) -> None:
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines < (700 if path.relative_to(ROOT).as_posix() == NJIT_MODULE else 450)


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def n_lines(first: ast.stmt, last: ast.stmt) -> int:
    return (last.end_lineno or last.lineno) - first.lineno + 1


@each_module
def test_functions_are_short(path: Path) -> None:
    assert {node.name: n_lines(node, node) for node in functions(path) if n_lines(node, node) > 60} == {}


def test_most_functions_are_very_short() -> None:
    lengths = sorted(n_lines(node, node) for path in MODULES for node in functions(path))
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 9 // 10] <= 30


def test_simulate_reads_on_one_screen() -> None:
    simulate = next(node for node in functions(ROOT / "sim/run.py") if node.name == "simulate")
    body = simulate.body[1:] if ast.get_docstring(simulate) else simulate.body
    assert n_lines(body[0], body[-1]) <= 40


@each_module
def test_public_things_say_what_they_are(path: Path) -> None:
    """Modules, public classes, public functions and methods have docstrings."""
    assert ast.get_docstring(tree(path)), "the module has no docstring"
    assert list(undocumented(tree(path))) == []


def undocumented(node: ast.Module | ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_"):
            if not ast.get_docstring(item):
                yield f"{item.name} (line {item.lineno})"
            if isinstance(item, ast.ClassDef):
                yield from undocumented(item)


def tracked_files() -> list[Path]:
    """Files under version control; skips where this is no checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_machine_paths_or_registry_addresses() -> None:
    # Written in pieces, so that this file does not hold what it looks for.
    paths = "|".join(
        rf"(?<![\w.]){re.escape('/' + name + '/')}" for name in ("work", "root", "farm", "home", "tmp/bash")
    )
    hosts = "|".join(re.escape(".".join(name)) for name in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org")))
    pattern = re.compile(f"{paths}|{hosts}".encode())
    assert [path.name for path in tracked_files() if pattern.search(path.read_bytes())] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
