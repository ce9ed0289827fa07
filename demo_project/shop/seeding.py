"""What the demo's database holds when the sale opens: a coupon, accounts, rules and a promotion policy."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.db import transaction
from rest_framework.authtoken.models import Token

from demo_project.shop.models import Coupon
from ratelimit_app.models import BlacklistEntry, PromotionPolicy, Rule

COUPON = "midnight"

RULES: list[dict[str, Any]] = [
    {
        "name": "per-address",
        "description": "The middleware applies it before anybody is authenticated; a client is its IPv6 /64.",
        "route": "/api/",
        "key": "ip",
        "rate": "60/5s",
    },
    {
        "name": "per-user",
        "description": "RuleThrottle applies it: only the view knows whom a token belongs to.",
        "scope": "grab",
        "key": "user",
        "rate": "5/5s",
    },
    {
        "name": "per-device",
        "description": "Many accounts on one device. Clients choose this header: per-address catches who changes it.",
        "scope": "grab",
        "key": "device",
        "rate": "10/5s",
    },
    {
        "name": "browse",
        "description": "What the shop can do is shared by browsing and paying: half of it is left to paying.",
        "route": "catalogue",
        "key": "global",
        "rate": "20/5s",
        "group": "shop",
    },
    {
        "name": "pay",
        "description": "When the shop is full, the core business goes first.",
        "route": "pay",
        "key": "global",
        "rate": "20/5s",
        "group": "shop",
        "reserve": 10,
    },
]

POLICY = {
    "kinds": "ip,user",
    "threshold": 30,
    "find_period": 60,
    "block_period": 120,
    "factor": 2,
    "max_block_period": 3600,
    "decay_period": 3600,
    "max_blocks_per_run": 50,
}


def seed(*, users: int, stock: int) -> None:
    """
    Set the sale up afresh: full stock, nobody has grabbed, nobody is banned for an earlier run.

    Rules and the policy are made where they are missing; those that somebody has edited stay as they are.
    """
    with transaction.atomic():
        _make_users(users)
        _open_sale(stock)
        for rule in RULES:
            Rule.objects.get_or_create(name=rule["name"], defaults=rule)
        PromotionPolicy.objects.get_or_create(name="flash-sale", defaults=POLICY)
        BlacklistEntry.objects.filter(source="promoted").delete()


def _make_users(count: int) -> None:
    names = {f"user-{number}": f"demo-token-{number}" for number in range(1, count + 1)}
    User.objects.bulk_create(
        (User(username=name, password=make_password(None)) for name in names), ignore_conflicts=True
    )
    users = User.objects.filter(username__in=names)
    Token.objects.bulk_create(
        (Token(key=names[user.username], user=user) for user in users), ignore_conflicts=True
    )
    if not User.objects.filter(username="admin").exists():
        User.objects.create_superuser("admin", password="admin")


def _open_sale(stock: int) -> None:
    coupon, _ = Coupon.objects.update_or_create(
        slug=COUPON, defaults={"title": "Midnight coupon: half price", "stock": stock}
    )
    coupon.grabs.all().delete()
