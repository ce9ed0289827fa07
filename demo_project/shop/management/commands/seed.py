from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo_project.shop.seeding import seed

NOTICE = """\
Seeded {users} users (user-1 ... user-{users}, tokens demo-token-1 ... demo-token-{users}), the account admin with the
password admin, a coupon, rules and a promotion policy. These accounts are for the demo only: anybody can guess them."""


class Command(BaseCommand):
    """Seed the demo; refuses where DEBUG is off, since everybody knows these accounts."""

    help = "Set the demo's sale up: accounts, a coupon, rules, a promotion policy. For the demo only."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--users", type=int, default=400, help="how many users (default 400)")
        parser.add_argument("--stock", type=int, default=300, help="how many coupons (default 300)")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            message = (
                "DEBUG is off: refusing to seed accounts whose passwords and tokens everybody knows. "
                "Set DEBUG=1 where this is a demo; on a real site make accounts of your own."
            )
            raise CommandError(message)
        seed(users=options["users"], stock=options["stock"])
        self.stdout.write(NOTICE.format(users=options["users"]))
