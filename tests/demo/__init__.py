"""The demo: its parts, and the whole of it from outside."""

from __future__ import annotations
