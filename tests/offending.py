"""Offences as the tests need them: at a chosen second, without the requests that would have made them."""

from __future__ import annotations

import time
import uuid

from django.contrib.auth.models import User
from django_redis import get_redis_connection

from ratelimit_app.conf import conf
from ratelimit_app.models import PromotionPolicy, Rule
from ratelimit_app.signals import identity_blocked


def offend(identity: str, slot: str = "grab", count: int = 3, at: float | None = None) -> None:
    """Write offences where the buffers of the processes flush theirs."""
    second = int(time.time() if at is None else at)
    valkey = get_redis_connection("default")
    valkey.hincrby(conf.keys.offences(identity), f"{second}|{slot}", count)
    valkey.zadd(conf.keys.offenders, {identity: second}, gt=True)


def make_rule(name: str = "grab", **fields: object) -> Rule:
    """Make a rule whose offences count."""
    rule: Rule = Rule.objects.create(**({"name": name, "key": "ip", "rate": "5/s"} | fields))
    return rule


def make_policy(name: str = "repeat", **fields: object) -> PromotionPolicy:
    """Make a policy with numbers that are easy to follow."""
    numbers = {"threshold": 3, "find_period": 60, "block_period": 100, "factor": 2, "max_block_period": 1_000}
    policy: PromotionPolicy = PromotionPolicy.objects.create(
        **({"name": name, **numbers, "decay_period": 500} | fields)
    )
    return policy


def note_signals() -> None:
    """Note each `identity_blocked` in the database, as a project's audit would; nothing there is unique."""
    identity_blocked.connect(_note)


def _note(identity: str, **_: object) -> None:
    User.objects.create(username=uuid.uuid4().hex, first_name=identity)
