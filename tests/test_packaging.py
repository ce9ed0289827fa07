"""What is shipped: versions that agree, data files that the wheel takes along, optional parts that stay optional."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import ratelimit_app

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ratelimit_app"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
METADATA = PROJECT["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
]

# Run in a process of its own, where the named packages cannot be imported.
IMPORT_WITHOUT = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_app"],
    CACHES={{"default": {{"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}}},
    SECRET_KEY="only-for-this-test",
)
django.setup()
import {module}
"""


def declared_requirements() -> list[Requirement]:
    """Return the runtime requirements and those of every extra, our own extras left out."""
    texts = [
        *METADATA["dependencies"],
        *(r for extra in METADATA["optional-dependencies"].values() for r in extra),
    ]
    return [r for r in map(Requirement, texts) if r.name != METADATA["name"]]


def import_without(module: str, *absent: str) -> subprocess.CompletedProcess[str]:
    """Import MODULE after Django's setup in a new process in which the ABSENT packages do not exist."""
    code = IMPORT_WITHOUT.format(module=module, absent=absent)
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_package_data_when_a_file_is_no_python_takes_it_into_the_wheel() -> None:
    """Every script, template, static file, translation and marker of the package is declared as its data."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["ratelimit_app"]
    declared = {path for pattern in patterns for path in PACKAGE.glob(pattern) if path.is_file()}
    present = {p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}}
    assert present - declared == set()
    assert PACKAGE / "py.typed" in declared


def test_packages_when_a_folder_has_modules_are_found() -> None:
    """Every folder with Python files is a package: setuptools would leave it out of the wheel otherwise."""
    folders = {p.parent for p in PACKAGE.rglob("*.py")}
    assert [f for f in folders if not (f / "__init__.py").exists()] == []


@pytest.mark.parametrize("pin", PINS, ids=str)
def test_a_pin_when_written_is_exact(pin: Requirement) -> None:
    """What is installed for development is one version, the one that was tried."""
    assert [s.operator for s in pin.specifier] == ["=="]


@pytest.mark.parametrize("declared", declared_requirements(), ids=str)
def test_a_range_when_declared_admits_the_pin(declared: Requirement) -> None:
    """The versions that the tests run with are versions that the package says it works with."""
    pinned = {pin.name.lower(): pin for pin in PINS}[declared.name.lower()]
    assert all(declared.specifier.contains(s.version) for s in pinned.specifier)


def test_python_versions_when_declared_agree_everywhere() -> None:
    """The classifiers name exactly the interpreters that CI tests, and the lowest is the one required."""
    prefix = "Programming Language :: Python :: 3."
    classified = sorted(
        f"3.{c.removeprefix(prefix)}" for c in METADATA["classifiers"] if c.startswith(prefix)
    )
    ci = (ROOT / ".ci" / "run").read_text()
    tested = re.findall(r"^(?:MAIN|WHOLE|PARTLY)_VERSION=([\d.]+)$", ci, flags=re.MULTILINE)
    assert " ".join(tested).split() == classified
    assert SpecifierSet(METADATA["requires-python"]) == SpecifierSet(f">={classified[0]}")


def test_changelog_when_read_begins_with_unreleased() -> None:
    """The changelog is open for the next change, and its newest release, if any, is the package's version."""
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert headings[1:2] in ([], [ratelimit_app.__version__])


@pytest.mark.parametrize("module", ["ratelimit_app", "ratelimit_app.middleware", "ratelimit_app.decorators"])
def test_the_app_when_drf_and_celery_are_absent_is_importable(module: str) -> None:
    """Importing the app needs neither DRF nor Celery."""
    result = import_without(module, "rest_framework", "celery", "kombu")
    assert (0, "") == (result.returncode, result.stderr)


@pytest.mark.parametrize(
    ("module", "absent"), [("ratelimit_app.throttling", "rest_framework"), ("ratelimit_app.tasks", "celery")]
)
def test_an_optional_door_when_its_library_is_absent_says_so(module: str, absent: str) -> None:
    """The throttles need DRF and the tasks need Celery: their import fails, naming what is missing."""
    result = import_without(module, absent)
    assert result.returncode != 0
    assert absent in result.stderr
