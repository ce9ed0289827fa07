"""
Lists as others publish them: plain and netset files, CSV, JSON, CrowdSec's decisions.

A reader takes text and gives what each row says, or why it says nothing; it holds one row at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratelimit_app.core.feeds.json_values import Broken, read_json
from ratelimit_app.core.feeds.plain import read_plain
from ratelimit_app.core.feeds.records import Listed, PassedOver, Terms
from ratelimit_app.core.feeds.tables import is_header, read_csv
from ratelimit_app.core.feeds.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    Reader = Callable[[Text, Terms], Iterator[Listed | PassedOver]]

__all__ = ["FORMATS", "Broken", "Listed", "PassedOver", "Terms", "read"]

FORMATS = ("auto", "plain", "netset", "csv", "json", "crowdsec")
_READERS: dict[str, Reader] = {"plain": read_plain, "csv": read_csv, "json": read_json}


def read(stream: TextIO, terms: Terms, form: str = "auto") -> tuple[str, Iterator[Listed | PassedOver]]:
    """
    Name the form of a text (`plain`, `csv` or `json`), and give its rows.

    `form`: one of FORMATS; with `auto` and `crowdsec` the text itself says which. The rows raise Broken, a
    ValueError, where a text cannot be read on.
    """
    text = Text(stream)
    form = {"netset": "plain", "auto": "", "crowdsec": ""}.get(form, form) or _form_of(text.head())
    return form, _READERS[form](text, terms)


def _form_of(head: str) -> str:
    start = head.lstrip()
    # An IPv6 address may stand in brackets; a JSON list begins with a text, an object, or its end.
    if start.startswith("{") or (start.startswith("[") and start[1:].lstrip()[:1] in {"", "{", '"', "]"}):
        return "json"
    if start.strip() == "null":
        return "json"
    return "csv" if is_header(head) else "plain"
