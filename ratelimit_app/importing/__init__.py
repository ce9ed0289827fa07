"""Lists of others into the database, all or nothing, and from there to Redis."""

from __future__ import annotations

from ratelimit_app.importing.dialects import UnsupportedDatabase
from ratelimit_app.importing.judging import Terms
from ratelimit_app.importing.report import Report
from ratelimit_app.importing.run import PUBLISH, READ, NothingToKeep, import_rows

__all__ = ["PUBLISH", "READ", "NothingToKeep", "Report", "Terms", "UnsupportedDatabase", "import_rows"]
