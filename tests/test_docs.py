"""The documentation names everything that users can touch, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.dispatch import Signal

import ratelimit_app
from ratelimit_app import checks, conf, core, signals, testing
from ratelimit_app.core import rates

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TOP = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "RELEASING.md")
]
COMMANDS = sorted(p.stem for p in (ROOT / "ratelimit_app/management/commands").glob("ratelimit_*.py"))
SIGNALS = sorted(n for n, v in vars(signals).items() if isinstance(v, Signal) and n != "rows_changed")
FUNCTIONS = [name for name in ratelimit_app.__all__ if name.islower() and f"a{name}" in ratelimit_app.__all__]
CHECK_IDS = sorted(
    {
        found
        for module in Path(checks.__file__).parent.glob("*.py")
        for found in re.findall(r'id="(ratelimit_app\.[EW]\d{3})"', module.read_text())
    }
)
EVENTS = sorted(
    {
        event
        for module in (ROOT / "ratelimit_app").rglob("*.py")
        for event in re.findall(r"[\"' ](ratelimit\.[a-z]+_[a-z]+)\b", module.read_text())
    }
)


def text(name: str) -> str:
    """Give a page's text."""
    return (DOCS / name).read_text()


def headings(page: Path) -> list[str]:
    """Give the headings of a page, code blocks left out."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, re.MULTILINE)


def anchor(heading: str) -> str:
    """Give the anchor that the usual renderers make of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def links(page: Path) -> list[str]:
    """Give the relative targets of a page's links and pictures."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r"^\[[^\]]+\]: (\S+)", prose, re.MULTILINE)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def name(page: Path) -> str:
    """Name a page in a test's id."""
    return str(page.relative_to(ROOT))


def test_what_is_looked_for_when_listed_is_not_empty() -> None:
    """The tests of this file look at something."""
    assert all((PAGES, COMMANDS, SIGNALS, FUNCTIONS, CHECK_IDS, EVENTS))
    assert len(conf.SETTINGS) > 20


@pytest.mark.parametrize("setting", conf.SETTINGS)
def test_a_setting_when_there_is_one_has_a_heading_with_its_type(setting: str) -> None:
    """`docs/settings.md` has a heading of name and type for each setting, and no others."""
    found = [h for h in headings(DOCS / "settings.md") if h.startswith(f"`{setting}: ")]
    assert 1 == len(found)
    default = conf.SETTINGS[setting].default
    section = text("settings.md").partition(f"## {found[0]}\n")[2].partition("\n## ")[0]
    assert "Default" in section
    if default is not None:
        written = f'"{default}"' if isinstance(default, str) else str(default)
        assert f"`{written}`" in section.replace("_000", "000")


def test_a_setting_when_documented_exists() -> None:
    """No heading speaks of a setting that is gone."""
    named = {h.strip("`").partition(":")[0] for h in headings(DOCS / "settings.md") if h.startswith("`")}
    assert set(conf.SETTINGS) == named


def test_check_ids_when_documented_are_those_of_the_code() -> None:
    """Each id has one heading in `docs/checks.md`, in order."""
    assert CHECK_IDS == [h for h in headings(DOCS / "checks.md") if h.startswith("ratelimit_app.")]


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_when_there_is_one_has_a_heading(signal: str) -> None:
    """`docs/signals.md` says when each is sent."""
    assert f"`{signal}`" in headings(DOCS / "signals.md")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_when_there_is_one_has_a_heading(function: str) -> None:
    """Each public function is explained under its signature; its twin is named."""
    assert any(heading.startswith(f"`{function}(") for heading in headings(DOCS / "functions.md"))
    assert f"`a{function}`" in text("functions.md")


@pytest.mark.parametrize("helper", ["override_rules", "disable_limits", "clear_limits", "travel"])
def test_a_testing_helper_when_there_is_one_has_a_heading(helper: str) -> None:
    """`docs/testing.md` explains each helper that projects may use."""
    assert hasattr(testing, helper)
    assert any(heading.startswith(f"`{helper}(") for heading in headings(DOCS / "testing.md"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_when_there_is_one_is_documented(command: str) -> None:
    """Some page names each management command."""
    assert any(f"`{command}" in page.read_text() or f" {command}" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_of_the_log_when_there_is_one_is_documented(event: str) -> None:
    """An operator who greps the documentation for a line of the log finds what it means."""
    assert any(event in page.read_text() for page in PAGES)


def test_every_module_of_the_core_when_listed_stands_in_the_architecture() -> None:
    """The table of the core is complete."""
    modules = {path.stem for path in Path(core.__file__).parent.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`([a-z_]+)`", text("architecture.md").partition("## The core")[2]))
    assert set() == modules - named


def test_rates_when_documented_are_what_the_parser_takes() -> None:
    """Each example of `docs/rates.md` is read, and what is said to be refused is."""
    table = re.findall(r"^\| `([^`]+)` \|", text("rates.md"), re.MULTILINE)
    assert len(table) > 5
    for written in table:
        assert written == "None" or rates.parse_rates(written)
    (refused,) = re.findall(r"^(`10/month`.*) are refused", text("rates.md"), re.MULTILINE)
    for written in re.findall(r"`([^`]+)`", refused):
        with pytest.raises(rates.RateError):
            rates.parse_rates(written)


@pytest.mark.parametrize("page", [*PAGES, *(page for page in TOP if page.exists())], ids=name)
def test_a_link_when_relative_leads_somewhere(page: Path) -> None:
    """Files and headings that a page points to are there."""
    for link in links(page):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if fragment and target.suffix == ".md":
            assert fragment in [anchor(heading) for heading in headings(target)], link


def test_every_page_when_written_is_in_the_index() -> None:
    """Whoever begins at the index can reach each page."""
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links(DOCS / "index.md")}
    assert [] == [name(page) for page in PAGES if page.name != "index.md" and page not in listed]


def test_a_decision_record_when_written_has_its_parts_and_its_number() -> None:
    """Context, decision, consequences, what was rejected; numbers without gaps."""
    records = sorted((DOCS / "decisions").glob("*.md"))
    assert [f"{number:04}" for number in range(1, len(records) + 1)] == [
        record.name[:4] for record in records
    ]
    for record in records:
        title, *parts = headings(record)
        assert title.startswith(record.name[:4])
        assert ["Context", "Decision", "Consequences", "Rejected"] == parts


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_when_it_shows_python_shows_what_compiles(page: Path) -> None:
    """No example of ours has a syntax error."""
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(block, str(page), "exec")


def test_the_examples_of_imports_when_written_exist() -> None:
    """Every `from ratelimit_app… import …` of the documentation works, in a project like the tests'."""
    lines = {
        line.strip()
        for page in [*PAGES, *(page for page in TOP if page.exists())]
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
        if re.match(r"from ratelimit_app\S* import [\w, ]+", line.strip())
    }
    assert lines
    script = "\n".join(["import django", "django.setup()", *sorted(lines)])
    environment = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)
