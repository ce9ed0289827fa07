"""Account names that a login takes for one are one, whoever writes them; nothing else is thrown together."""

from __future__ import annotations

import sys
from unicodedata import category

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratelimit_app.core.folding import MAX_FOLDED, fold
from ratelimit_app.core.identity import Source, folded
from tests.cases import HOSTILE_TEXTS

SAME = {
    "alice": [
        "ALICE", "Alice ", "\talice\r\n", "\N{NO-BREAK SPACE}alice\N{IDEOGRAPHIC SPACE}", "\uff41\uff2c\uff49\uff43\uff45",
        "al\u200bice", "\ufeffalice", "alice\u2060", "a\u00adlice", "alice\x00", "\x7fal\x1bice", "\u202ealice\u202c",
        "alice\ufe0f", "\U000e0061alice", "\u3164alice", "\u24d0lice", "ALI\u212dE",
    ],
    "alice@example.org": ["Alice@EXAMPLE.org", " alice@example\uff0eorg", "alice\uff20example.org"],
    "strasse": ["STRASSE", "Stra\N{LATIN SMALL LETTER SHARP S}e", "STRA\N{LATIN CAPITAL LETTER SHARP S}E"],
    "\u00e9lo\u00efse": ["e\u0301loi\u0308se", "\u00c9LO\u00cfSE", "E\u0301LOI\u0308SE "],
    "\u03c3\u03c3": ["\u03a3\u03a3", "\u03c3\u03c2"],
    "": ["", " ", "\u200b", "\x00 \x00", "\u3164", "\u2028\u00a0"],
}  # fmt: skip
OTHER = [
    "al ice",
    "alice1",
    "alicé",
    "\u0430lice",
    "alice@example.com",
    "a.lice",
    "al-ice",
    "alice+x",
    "ali\u0131ce",
]

CHARACTERS = [
    char for char in map(chr, range(sys.maxunicode + 1)) if category(char) not in {"Cn", "Co", "Cs"}
]


@pytest.mark.parametrize(
    ("name", "spelled"), [(name, text) for name, texts in SAME.items() for text in texts]
)
def test_a_name_when_spelled_otherwise_folds_to_one(name: str, spelled: str) -> None:
    """Case, width, composition, blanks around it, and what nobody sees make no new account (C16)."""
    assert name == fold(spelled)


@pytest.mark.parametrize("other", OTHER)
def test_a_name_when_another_stays_another(other: str) -> None:
    """Blanks and dots within, tags, accents and look-alikes of other scripts are other names."""
    assert "alice" != fold(other)


@given(st.text(st.characters(), max_size=40))
@example("\u1e9e\u0345\u0301")
@example("\ud800 A")
def test_a_name_when_folded_again_stays(text: str) -> None:
    """What was folded when it was stored is what is folded when it is asked for; spelling in capitals is one too."""
    once = fold(text)
    assert once == fold(once)
    assert once == fold(f" \N{ZERO WIDTH SPACE}{text}\n")


def test_every_character_when_folded_again_stays() -> None:
    """All of Unicode, one by one."""
    assert [] == [char for char in CHARACTERS if fold(fold(char)) != fold(char)]


def test_every_format_character_when_in_a_name_is_unseen() -> None:
    """What Unicode calls a format character is never a way to a second identity, but for those that are written."""
    kept = [char for char in CHARACTERS if category(char) in {"Cf", "Cc"} and fold(f"a{char}b") != "ab"]
    written = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85"
    assert set(written) <= set(kept)
    assert all(category(char) == "Cf" for char in set(kept) - set(written))
    assert not set(kept) & set("\u200b\u200c\u200d\u200e\u202a\u2066\ufeff\u00ad")


@pytest.mark.parametrize(
    "text", [*HOSTILE_TEXTS, "a" + "\u0315\u0300" * 5_000, "\ufdfa" * 10_000, "İ" * 10_000]
)
def test_any_text_when_folded_is_no_error_and_no_flood(text: str) -> None:
    """Lone surrogates, NUL, 10 kB, what grows when composed: the result is bounded by what came (C25)."""
    assert len(fold(text)) <= 3 * max(len(text), MAX_FOLDED)
    assert fold(text) == fold(fold(text))


def test_a_long_name_when_padded_is_still_the_name() -> None:
    """Blanks and unseen characters are taken away before the length counts."""
    assert "alice" == fold("Al" + "\u200b" * 5_000 + "ice" + " " * 5_000)
    assert "x\uff41" * MAX_FOLDED == fold("X\uff21" * MAX_FOLDED)


@pytest.mark.parametrize("kind", ["header", "cookie", "param"])
def test_a_token_when_counted_stays_as_it_is(kind: str) -> None:
    """Only fields hold names; a token in other letters is another token."""
    assert "ToKeN " == folded(Source(kind, "x"), "ToKeN ")
    assert "token" == folded(Source("field", "x"), "ToKeN ")
