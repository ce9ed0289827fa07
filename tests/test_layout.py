"""The measures of the house, which no linter holds: sizes, names of modules, what the core imports, Lua headers."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ratelimit_app"
MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 40
MODULES = sorted(
    p for top in (PACKAGE, ROOT / "demo_project") for p in top.rglob("*.py") if "migrations" not in p.parts
)
SCRIPTS = sorted(PACKAGE.rglob("*.lua"))

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    """Return PATH as it is written in the project, for test ids and messages."""
    return str(path.relative_to(ROOT))


def functions(source: str) -> Iterator[FunctionNode]:
    """Yield every function and method of SOURCE, nested ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, FunctionNode):
            yield node


def lines_without_docstring(function: FunctionNode) -> int:
    """Count the lines of FUNCTION from its `def`, less its docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return total
    docstring = function.body[0]
    return total - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def long_functions(source: str) -> list[str]:
    """Name the functions of SOURCE over the limit, with their size."""
    sizes = {f.name: lines_without_docstring(f) for f in functions(source)}
    return [f"{name}: {size} lines" for name, size in sizes.items() if size > MAX_FUNCTION_LINES]


def imported_roots(source: str) -> set[str]:
    """Return the top-level names of all modules that SOURCE imports."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add((node.module or "").partition(".")[0])
    return roots


def missing_header_parts(script: str) -> list[str]:
    """Name the parts that the comment block at the top of SCRIPT does not have."""
    header = re.match(r"(?:\s*--[^\n]*\n)*", script)
    text = header.group() if header else ""
    return [part for part in ("KEYS", "ARGV", "Returns") if part not in text]


def test_the_package_when_listed_has_modules_and_scripts() -> None:
    """The tests of this file look at something."""
    assert len(MODULES) > 20
    assert SCRIPTS


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_module_when_measured_is_short_enough(module: Path) -> None:
    """A module has at most 300 lines, so that it is about one thing."""
    assert len(module.read_text().splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("module", MODULES, ids=name)
def test_a_function_when_measured_is_short_enough(module: Path) -> None:
    """No function has more than 40 lines, its docstring not counted."""
    assert long_functions(module.read_text()) == []


def test_a_module_when_named_says_what_it_is_about() -> None:
    """No module is a drawer for leftovers."""
    assert [
        name(m) for m in MODULES if m.stem in {"utils", "util", "helpers", "helper", "misc", "common"}
    ] == []


@pytest.mark.parametrize("module", sorted((PACKAGE / "core").rglob("*.py")), ids=name)
def test_the_core_when_imported_needs_the_standard_library_alone(module: Path) -> None:
    """The core imports the standard library and itself."""
    foreign = imported_roots(module.read_text()) - sys.stdlib_module_names - {"ratelimit_app"}
    assert foreign == set()


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_a_script_when_opened_explains_its_call(script: Path) -> None:
    """Every Lua file begins with a comment that names its KEYS, its ARGV and what it Returns."""
    assert missing_header_parts(script.read_text()) == []


@pytest.mark.parametrize("test_file", sorted((ROOT / "tests").rglob("test_*.py")), ids=name)
def test_a_test_when_read_states_its_promise(test_file: Path) -> None:
    """Every test says in a docstring what it holds us to."""
    tests = [f for f in functions(test_file.read_text()) if f.name.startswith("test_")]
    assert [f.name for f in tests if not ast.get_docstring(f)] == []


def test_long_functions_when_one_is_too_long_names_it() -> None:
    """The measure itself notices a long body, and forgives a long docstring."""
    body = "\n".join("    x = 1" for _ in range(MAX_FUNCTION_LINES))
    docstring = '    """' + "\n".join("    word" for _ in range(MAX_FUNCTION_LINES)) + '"""'
    assert long_functions(f"def long():\n{body}\n") == ["long: 41 lines"]
    assert long_functions(f"def talkative():\n{docstring}\n    return 1\n") == []


def test_missing_header_parts_when_a_script_is_bare_names_them() -> None:
    """The measure itself notices a script without a header, and a word that only the code has."""
    assert missing_header_parts("return KEYS[1]\n") == ["KEYS", "ARGV", "Returns"]
    assert missing_header_parts("-- KEYS: one\n-- ARGV: two\n-- Returns: three\nreturn 1\n") == []
