"""JSON: a list, values one after the other, or an object that holds a list; a list is read value by value."""

from __future__ import annotations

import json
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.feeds.records import PassedOver, each_of, read_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratelimit_app.core.feeds.records import Listed, Terms
    from ratelimit_app.core.feeds.text import Text

DELETED = "is a decision that was taken back"
MAX_VALUE = 64 * 1024 * 1024

_LONGEST_REST = 64
_LISTS = frozenset({"entries", "decisions", "new", "deleted"})
_decode = json.JSONDecoder().raw_decode


class Broken(ValueError):
    """A text that cannot be read on; the message says where and why."""


def read_json(text: Text, terms: Terms) -> Iterator[Listed | PassedOver]:
    """
    Read a list, or values one after the other: texts, objects, alerts of CrowdSec's, and objects with such a list.

    Raises Broken.
    """
    while start := _next(text):
        if start == "[":
            text.at += 1
            yield from _read_list(text, terms)
        elif start == "{":
            text.at += 1
            yield from _read_object(text, terms)
        else:
            line, value = text.place(), _value(text)
            if value is not None:
                yield from each_of(value, line, terms, _shown)


def _read_list(text: Text, terms: Terms, *, deleted: bool = False) -> Iterator[Listed | PassedOver]:
    if _next(text) == "]":
        text.at += 1
        return
    while True:
        line, value = text.place(), _value(text)
        for row in each_of(value, line, terms, _shown):
            yield PassedOver(line, _shown(value), DELETED, is_fault=False) if deleted else row
        if _separated(text, "]"):
            return


def _read_object(text: Text, terms: Terms) -> Iterator[Listed | PassedOver]:
    """Read an object name by name: the list that it holds may be of any length."""
    line, record, has_list = text.place(), dict[str, Any](), False
    if _next(text) == "}":
        text.at += 1
        return
    while True:
        name = _value(text)
        if not isinstance(name, str) or _next(text) != ":":
            raise _broken(text, "an object whose names are texts was expected")
        text.at += 1
        if name in _LISTS and _next(text) == "[":
            text.at += 1
            has_list = True
            yield from _read_list(text, terms, deleted=name == "deleted")
        else:
            record[name] = _value(text)
        if _separated(text, "}"):
            break
    # The names around a list tell of the list: the time of an export, the machine of an alert.
    if not has_list and not (record.keys() & _LISTS):
        yield read_record(record, line, terms)


def _separated(text: Text, end: str) -> bool:
    """Take the comma, or the end; whether it was the end."""
    found = _next(text)
    if found not in {",", end}:
        raise _broken(text, f"',' or '{end}' was expected" if found else f"it ends before its '{end}'")
    text.at += 1
    return found == end


def _next(text: Text) -> str:
    """Give the next character that is no space, and leave it there; blank at the end."""
    while True:
        while text.at < len(text.buffer):
            char = text.buffer[text.at]
            if char not in " \t\n\r":
                return char
            text.at += 1
        if not text.fill():
            return ""


def _value(text: Text) -> Any:
    if not _next(text):
        raise _broken(text, "it ends where a value was expected")
    while True:
        try:
            value, end = _decode(text.buffer, text.at)
        except JSONDecodeError as error:
            if len(text.buffer) - text.at > MAX_VALUE:
                raise _broken(text, f"no value of at most {MAX_VALUE:,} characters") from error
            if not text.fill():
                raise _broken(text, error.msg) from error
            continue
        except (ValueError, RecursionError) as error:
            raise _broken(text, str(error)) from error
        # A number near the end of what was read may go on: "0" and "0." decode alike.
        if end + _LONGEST_REST < len(text.buffer) or not _is_number(value) or not text.fill():
            text.at = end
            return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _broken(text: Text, why: str) -> Broken:
    return Broken(f"The JSON is broken at line {text.place():,}: {why}.")


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:200]
