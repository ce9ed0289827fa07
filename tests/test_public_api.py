"""The public names: listed, importable, and without DRF, Celery or a connection."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import ratelimit_app

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = ["check", "acquire", "peek", "refund", "reset", "block", "unblock"]

# Refuses some packages, sets up a project that uses neither, and imports all that a project without them would.
PROBE = """
import socket, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rest_framework", "celery", "kombu", "pytest", "hypothesis"}:
            raise ImportError(name + " is not installed here")
sys.meta_path.insert(0, Refuse())
def connect(*_):
    raise AssertionError("importing connects to something")
socket.socket.connect = connect
import ratelimit_app
from django.conf import settings
settings.configure(
    SECRET_KEY="x",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_app"],
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django
django.setup()
from ratelimit_app import *
import ratelimit_app.compat, ratelimit_app.decorators, ratelimit_app.middleware, ratelimit_app.schedule
import ratelimit_app.signals, ratelimit_app.testing
from django.core.checks import run_checks
print([message.id for message in run_checks()])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"rest_framework", "celery", "kombu"}))
import threading
print([thread.name for thread in threading.enumerate()])
"""


def test_the_public_names_when_listed_are_sorted_and_what_the_package_gives() -> None:
    """`__all__` is the truth: every name of it can be imported, and `dir` shows it."""
    assert sorted(ratelimit_app.__all__) == ratelimit_app.__all__
    assert sorted(set(ratelimit_app.__all__)) == ratelimit_app.__all__
    assert set(ratelimit_app.__all__) <= set(dir(ratelimit_app))
    assert set(ratelimit_app.__all__) == set(ratelimit_app._HOME_OF)
    assert all(callable(getattr(ratelimit_app, name)) for name in ratelimit_app.__all__)


@pytest.mark.parametrize("name", CONTRACT)
def test_a_function_of_the_contract_when_looked_for_has_an_async_twin(name: str) -> None:
    """Each function, and the same with an `a` before its name and the same arguments."""
    function, twin = getattr(ratelimit_app, name), getattr(ratelimit_app, f"a{name}")
    assert {name, f"a{name}"} <= set(ratelimit_app.__all__)
    assert not inspect.iscoroutinefunction(function)
    arguments = [str(parameter) for parameter in inspect.signature(function).parameters.values()]
    assert arguments == [str(parameter) for parameter in inspect.signature(twin).parameters.values()]
    assert function.__doc__


def test_a_name_when_there_is_none_is_an_attribute_error() -> None:
    """A typing error is told as Python tells it."""
    with pytest.raises(AttributeError, match="module 'ratelimit_app' has no attribute 'chek'"):
        _ = ratelimit_app.chek


def test_the_package_when_imported_needs_no_drf_no_celery_and_no_redis() -> None:
    """A project without them installs, imports, sets up and checks it; no connection is made, no thread started."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ("[]\n[]\n['MainThread']\n", "", 0) == (done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize(("module", "package"), [("throttling", "rest_framework"), ("tasks", "celery")])
def test_a_door_when_its_package_is_missing_says_so(module: str, package: str) -> None:
    """Only the throttles need DRF, only the tasks need Celery, and the error names what is missing."""
    probe = PROBE.partition("from ratelimit_app import *")[0] + f"import ratelimit_app.{module}"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert f"{package} is not installed here" in done.stderr
