"""The lists of the database as files: whole, to be imported again, or as addresses for the edge."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.models import Q
from django.utils import timezone

from ratelimit_app.core.feeds import writing
from ratelimit_app.core.feeds.cutting import Spared
from ratelimit_app.core.networks import read_network, write_network
from ratelimit_app.models import AllowlistEntry, BlacklistEntry, Publication
from ratelimit_app.publishing import content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from typing import TextIO

    from ratelimit_app.models import Entry

FORMATS = ("csv", "json", *writing.EDGE)
LISTS: dict[str, type[Entry]] = {"blacklist": BlacklistEntry, "allowlist": AllowlistEntry}
SPOOLED = 8_000_000  # characters that stay in memory before they go to a temporary file
_CHUNK = 2_000
_PIECE = 65_536
T = TypeVar("T")


@dataclass(slots=True)
class Report:
    """
    What a file holds: `written` entries or networks, and until when, None: until the list is edited.

    `left_out`: entries that the format cannot hold, by kind. `spared`: networks cut or left out for the allowlist.
    """

    name: str
    form: str
    written: int = 0
    spared: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    holds_until: datetime | None = None

    def as_dict(self) -> dict[str, Any]:
        """Give it as plain data."""
        until = self.holds_until.isoformat() if self.holds_until else None
        return {
            "list": self.name,
            "format": self.form,
            "written": self.written,
            "spared": self.spared,
            "left_out": dict(self.left_out),
            "unreadable": self.unreadable,
            "holds_until": until,
        }

    def end_at(self, expires_at: datetime | None) -> None:
        """Note the end of something that was written."""
        if expires_at is not None and (self.holds_until is None or expires_at < self.holds_until):
            self.holds_until = expires_at


def export(
    write: Callable[[str], object],
    form: str,
    name: str = "blacklist",
    *,
    set_name: str = "ratelimit",
    progress: Callable[[int], object] = lambda _: None,
) -> Report:
    """
    Write what is active on a list: `csv` and `json` everything of every entry, the others what each bans at the edge.

    `write` is given the text in pieces. `form`: one of FORMATS; `name`: of the list; `set_name`: of the sets of ipset
    and the table of nftables; `progress` is told how many were written. A file for the edge leaves out whom the
    allowlist lets pass. Raises ValueError for a form that would ban who is on the allowlist.
    """
    now, report = timezone.now(), Report(name, form)
    if form in writing.EDGE:
        if name != "blacklist" and form != "plain":
            msg = f"{form} turns away whom it lists: expected csv, json or plain for the {name}."
            raise ValueError(msg)
        with tempfile.SpooledTemporaryFile(SPOOLED, "w+", encoding="utf-8") as body:
            # When the file ceases to hold is known at its end, and said at its beginning.
            networks = _told(_networks(name, now, report), report, progress)
            body.writelines(writing.EDGE[form](networks, set_name))
            write(writing.head(writing.Stamp(now, report.holds_until)))
            body.seek(0)
            while piece := body.read(_PIECE):
                write(piece)
        return report
    rows = _told(_entries(LISTS[name], now, report), report, progress)
    for piece in writing.csv_pieces(rows) if form == "csv" else writing.json_pieces(rows, now):
        write(piece)
    return report


def _told(items: Iterable[T], report: Report, progress: Callable[[int], object]) -> Iterator[T]:
    for item in items:
        report.written += 1
        if report.written % _CHUNK == 0:
            progress(report.written)
        yield item


def _aliases() -> list[str]:
    row = Publication.objects.using(content.write_alias()).filter(pk=1).first()
    return content.aliases(row or Publication())


def _active(model: type[Entry], alias: str, now: datetime) -> Any:
    manager: Any = model._default_manager  # noqa: SLF001 - Django's documented name
    return (
        manager.using(alias)
        .filter(Q(expires_at=None) | Q(expires_at__gt=now))
        .order_by("kind", "value", "pk")
    )


def _entries(model: type[Entry], now: datetime, report: Report) -> Iterator[writing.Written]:
    for alias in _aliases():
        rows = _active(model, alias, now).values_list(*writing.COLUMNS)
        for row in rows.iterator(chunk_size=_CHUNK):
            written = writing.Written(*row)
            report.end_at(written.expires_at)
            yield written


def _networks(name: str, now: datetime, report: Report) -> Iterator[str]:
    """Give the networks of a list, each once and until its longest entry ends; those of the blacklist as they act."""
    spared = Spared(_allowed(now) if name == "blacklist" else ())
    for kind, value, expires_at in _longest(LISTS[name], now):
        if kind != "ip":
            report.left_out[kind] += 1
            continue
        try:
            network = read_network(value)
        except ValueError:
            report.unreadable += 1
            continue
        report.spared += spared.overlaps(*network)
        for part in spared.left_of(*network):
            report.end_at(expires_at)
            yield write_network(*part)


def _longest(model: type[Entry], now: datetime) -> Iterator[tuple[str, str, datetime | None]]:
    """Give kind and value of each identity once, with the end of its longest entry, None: never."""
    aliases = _aliases()
    if len(aliases) == 1:
        yield from _grouped(model, aliases[0], now)
        return
    # An identity may be on several databases: then all of them are held at once.
    ends: dict[tuple[str, str], datetime | None] = {}
    for alias in aliases:
        for kind, value, end in _grouped(model, alias, now):
            ends[kind, value] = _later(ends.get((kind, value), end), end)
    for (kind, value), end in ends.items():
        yield kind, value, end


def _grouped(model: type[Entry], alias: str, now: datetime) -> Iterator[tuple[str, str, datetime | None]]:
    rows = _active(model, alias, now).values_list("kind", "value", "expires_at").iterator(chunk_size=_CHUNK)
    for (kind, value), group in groupby(rows, itemgetter(0, 1)):
        yield kind, value, reduce(_later, (end for _, _, end in group))


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)


def _allowed(now: datetime) -> Iterator[tuple[int, int, int]]:
    """Give the networks on the allowlist; what raw SQL left unreadable lets nobody pass."""
    for kind, value, _ in _longest(AllowlistEntry, now):
        if kind == "ip":
            with suppress(ValueError):
                yield read_network(value)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """
    Write a file that appears whole or not at all, under the permissions of the one that it replaces.

    A path that is no plain file, such as a pipe, is written to directly. Raises OSError.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as direct:
            yield direct
        return
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8", newline="") as out:
            yield out
            out.flush()
            os.fchmod(out.fileno(), _mode(path))
            os.fsync(out.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _mode(path: Path) -> int:
    """Give the permissions of a file, or those that a new one would get."""
    with suppress(FileNotFoundError):
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _sync_directory(directory: Path) -> None:
    """Have the new name survive a loss of power; not every file system lets itself be asked."""
    with suppress(OSError):
        number = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
