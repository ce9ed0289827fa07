"""Account names, written alike where logins take them for one: letter case, width, blanks, what cannot be seen."""

from __future__ import annotations

import re
from unicodedata import normalize

MAX_FOLDED = 1_000
# Unicode's Default_Ignorable_Code_Point, and the controls that are no white space: nobody sees or types them.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


def fold(text: str) -> str:
    """
    Give what `alice`, ` ALICE ` and the same in full-width letters have in common.

    Unicode's NFKC, the case folded, without blanks around it and without what nobody sees. Folding twice changes
    nothing. Text over 1,000 characters, which names no account, is not brought into NFKC: that costs the square of
    its length.
    """
    if text.isascii() and text.isprintable():
        return text.strip().lower()
    text = _UNSEEN.sub("", text).strip()
    if len(text) > MAX_FOLDED:
        return text.casefold().strip()
    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    return _UNSEEN.sub("", folded).strip()
