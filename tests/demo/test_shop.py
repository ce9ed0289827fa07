"""The shop's promises: one grab for each user, never oversold, never a locked database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.demo.conftest import Demo

MANY_GRABS = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
import django
django.setup()
from django.db import connection
from demo_project.shop.models import AlreadyGrabbed, Coupon, SoldOut

def grab(user_id):
    try:
        Coupon.objects.get().grab(user_id)
        return "got"
    except (AlreadyGrabbed, SoldOut) as refusal:
        return type(refusal).__name__
    except Exception as error:
        return repr(error)

users = list(map(int, sys.argv[1].split(","))) * 2
with ThreadPoolExecutor(8) as pool:
    print(json.dumps(list(pool.map(grab, users))))
"""

PREPARE = """
import json
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from demo_project.shop.models import Coupon
call_command("migrate", verbosity=0)
users = [User.objects.create(username=f"u{n}").pk for n in range(120)]
Coupon.objects.create(slug="c", title="c", stock=50)
print(json.dumps(users))
"""

COUNT = """
import json
import django
django.setup()
from demo_project.shop.models import Coupon, Grab
print(json.dumps([Coupon.objects.get().stock, Grab.objects.count()]))
"""


def _python(demo: Demo, script: str, *arguments: str) -> Any:
    finished = demo.run("-c", script, *arguments)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_grab_when_processes_and_threads_race_on_sqlite_then_never_oversold_nor_locked(demo):
    """Four processes with eight threads each: exactly the stock is handed out, and no request meets a lock error."""
    users = _python(demo, PREPARE)
    shares = [",".join(map(str, users[start : start + 60])) for start in (0, 30, 60, 0)]
    running = [demo.start("-c", MANY_GRABS, share) for share in shares]
    outputs = [process.communicate(timeout=60) for process in running]
    answers = [answer for out, _ in outputs for answer in json.loads(out.splitlines()[-1])]

    assert set(answers) == {"got", "AlreadyGrabbed", "SoldOut"}
    assert answers.count("got") == 50
    assert _python(demo, COUNT) == [0, 50]


def test_seed_when_debug_is_off_then_refuses_and_says_why(demo):
    """Accounts that everybody knows never reach a real site."""
    finished = demo.run("manage.py", "seed", DEBUG="0")

    assert finished.returncode == 1
    assert "DEBUG is off: refusing to seed accounts" in finished.stderr


def test_demo_when_debug_is_off_then_refuses_before_it_starts_anything(demo):
    """The demo seeds, so it refuses for the same reason."""
    finished = demo.run("manage.py", "demo", DEBUG="0")

    assert finished.returncode == 1
    assert "DEBUG is off: the demo seeds accounts" in finished.stderr
    assert demo.left_behind() == []
