"""Fields of a request's body, read from a bounded copy: the view still reads its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import SEEK_END, BytesIO
from typing import Any

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.files.uploadhandler import FileUploadHandler, SkipFile
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, QueryDict
from django.http.multipartparser import MultiPartParser, MultiPartParserError
from django.http.request import RawPostDataException

MAX_BODY = 1024 * 1024
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


def max_body() -> int:
    """Give the bound in bytes: 1 MiB, or what Django reads into memory where that is less."""
    readable: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return MAX_BODY if readable is None else min(MAX_BODY, readable)


class _NoFiles(FileUploadHandler):
    """Parses a form without keeping its files."""

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        raise SkipFile

    def file_complete(self, file_size: int) -> None:
        return None


def is_too_large(request: HttpRequest) -> bool:
    """Whether a body that may have fields is over the bound."""
    return _has_fields(_kind(request)) and _body_size(request) > max_body()


def parsed_body(request: HttpRequest, holder: Any = None, *, as_drf: bool = False) -> Mapping[str, Any]:
    """
    Parse a copy of a body within the bound; the view still reads its own. Anything unreadable has no fields.

    `holder`: DRF's request. What it or Django has parsed already may have been read from a stream that has ended.
    `as_drf`: read JSON in the charset that the client names, as DRF does.
    """
    try:
        if not 0 < _body_size(request) <= max_body():
            return {}
        known = _known(request, holder)
        return _fields(request, _kind(request), as_drf=as_drf) if known is None else known
    except (ValueError, LookupError, RecursionError, OSError):
        return {}
    except (RawPostDataException, MultiPartParserError, SuspiciousOperation):
        return {}


def _known(request: HttpRequest, holder: Any) -> Mapping[str, Any] | None:
    """Give the fields that were parsed before us, where the bytes of the body are gone; None: parse them."""
    if hasattr(request, "_body"):
        return None
    found = (getattr(holder, "_data", None), vars(request).get("_post"))
    return next((data for data in found if isinstance(data, Mapping) and data), None)


def field_text(value: Any) -> str | None:
    """Write a value that is no text, as JSON has them and DRF's parsers may give them; None where that is too deep."""
    try:
        return json.dumps(value, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        return None


def _body_size(request: HttpRequest) -> int:
    """Under ASGI a chunked body has no length but is there in full; under WSGI Django sees none of it."""
    declared = request.META.get("CONTENT_LENGTH") or ""
    stream: Any = getattr(request, "_stream", None)
    if declared or not isinstance(request, ASGIRequest) or stream is None:
        return int(declared) if declared.isascii() and declared.isdigit() else 0
    at, size = stream.tell(), stream.seek(0, SEEK_END)
    stream.seek(at)
    return int(size)


def _kind(request: HttpRequest) -> str:
    return (request.content_type or "").lower()


def _is_json(kind: str) -> bool:
    return kind == JSON or kind.endswith("+json")


def _has_fields(kind: str) -> bool:
    return _is_json(kind) or kind == FORM or kind.startswith("multipart/") or "*" in kind


def _fields(request: HttpRequest, kind: str, *, as_drf: bool) -> Mapping[str, Any]:
    charset = request.encoding or settings.DEFAULT_CHARSET
    if "*" in kind and not kind.startswith("multipart/"):
        # DRF lets any parser have what a client calls `*/*`.
        kind = JSON if request.body.lstrip()[:1] == b"{" else FORM
    if _is_json(kind):
        value = json.loads(request.body.decode(charset) if as_drf else request.body)
        return value if isinstance(value, dict) else {}
    if kind == FORM:
        return QueryDict(request.body, encoding=charset)
    if kind.startswith("multipart/"):
        handlers: list[FileUploadHandler] = [_NoFiles()]
        return MultiPartParser(request.META, BytesIO(request.body), handlers, request.encoding).parse()[0]
    return {}
