"""The chaos suite itself: what its judges and its proxy do; the drills are run by `make chaos`."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos.findings import banned_within, exact_again, statuses
from tests.chaos.page import BEGIN, END, write
from tests.chaos.proxy import Proxy, Weather
from tests.chaos.shoppers import BANNED, Note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECOND = 1_000_000


def note(began: float, status: int = 200, client: str = "10.0.0.1", *, degraded: bool = False) -> Note:
    """Make a note of an answer that was decided when it was asked for."""
    return Note("open", client, began, 0.0, status, degraded, 0 if degraded else int(began * SECOND))


def steady() -> list[Note]:
    """Twenty a second are admitted at each second's start, and one is denied in its middle."""
    seconds = [100.0 + number for number in range(8)]
    return [note(at) for at in seconds for _ in range(20)] + [note(at + 0.5, 429) for at in seconds]


def held(findings: Iterator[object]) -> list[bool]:
    """Give what held."""
    return [bool(one.held) for one in findings]  # type: ignore[attr-defined]


def test_the_judge_when_every_window_is_full_and_none_is_over_finds_nothing() -> None:
    """Twenty in each second, and denials while they are there."""
    assert [True, True, True] == held(exact_again(steady(), 100.0))


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (note(105.2), [True, False, True]),
        (note(105.999_999, 429), [True, True, True]),
        (note(109.5, 429), [True, True, False]),
        (note(105.0, degraded=True), [False, True, True]),
        (note(100.2), [True, True, True]),
    ],
)
def test_the_judge_when_something_is_wrong_says_what(extra: Note, expected: list[bool]) -> None:
    """One too many, one denied below the limit, one without Redis; what was wrong before the return is no matter."""
    assert expected == held(exact_again([*steady(), extra], 100.0))


def test_the_judge_when_nothing_was_denied_or_admitted_is_not_content() -> None:
    """A drill in which nobody came near the limit shows nothing."""
    assert [True, True, False] == held(exact_again([one for one in steady() if one.status == 200], 100.0))
    assert [False, False, False] == held(exact_again([], 100.0))


def test_statuses_when_an_error_is_among_them_do_not_hold() -> None:
    """A 503 is for `closed` alone, and a lost connection for nobody."""
    assert [True] == held(statuses([note(1.0), note(1.0, 429)]))
    assert [False] == held(statuses([note(1.0), note(1.0, 503)]))
    assert [False] == held(statuses([note(1.0), note(1.0, 0)]))
    assert [True] == held(statuses([note(1.0, 503)._replace(policy="closed")]))


def test_a_ban_when_it_comes_back_is_timed_by_the_last_that_passed() -> None:
    """A ban that holds now and then does not hold."""
    visits = [(1.0, 403), (2.5, 200), (3.0, 403)]
    notes = [note(at, status, BANNED) for at, status in visits]
    assert (False, True) == (banned_within(notes, 1.0, 1.0).held, banned_within(notes, 1.0, 2.0).held)
    assert not banned_within(notes[:2], 1.0, 9.0).held


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_echo, args=(peer,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _echo(peer: socket.socket) -> None:
    with peer:
        try:
            while data := peer.recv(65_536):
                peer.sendall(data)
        except OSError:
            return


def _ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(data)
        answer = b""
        while len(answer) < len(data) and (part := one.recv(65_536)):
            answer += part
        return answer


def test_the_proxy_when_the_weather_is_fine_changes_nothing(echo: int) -> None:
    """What goes in comes out, however much it is."""
    data = bytes(range(256)) * 4_000
    with Proxy(echo) as proxy:
        assert data == _ask(proxy.port, data)


def test_the_proxy_when_the_line_is_slow_is_late_and_whole(echo: int) -> None:
    """A delay each way, and a line of so many bytes a second."""
    for weather in (Weather(delay=0.1), Weather(bandwidth=1_000)):
        with Proxy(echo) as proxy:
            proxy.weather = weather
            began = time.monotonic()
            assert b"x" * 100 == _ask(proxy.port, b"x" * 100)
            assert time.monotonic() - began >= 0.2


def test_the_proxy_when_it_cuts_resets_in_the_middle_of_an_answer(echo: int) -> None:
    """Half an answer, and then a reset: never a whole one."""
    with Proxy(echo) as proxy:
        proxy.weather = Weather(cut_after=1)
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as one:
            one.sendall(b"0123456789")
            answer = one.recv(5, socket.MSG_WAITALL)
            with pytest.raises(ConnectionResetError):
                one.recv(1)
        assert (b"01234", 1) == (answer, proxy.cuts)


def test_the_page_when_written_holds_the_findings_between_its_marks(tmp_path: Path) -> None:
    """What stands around the marks stays; what stood between them goes."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}stale\n{END}after\n")
    write({"drill": ("Title.", list(statuses([note(1.0)])))}, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| `drill` | `open` answers 200, 403, 429 alone | 200: 1 | held |" in text


def test_the_page_when_some_drills_are_run_again_keeps_the_others_of_the_same_form(tmp_path: Path) -> None:
    """Each drill's rows are those of its last run; the whole form and the short one do not mix."""
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}{END}")
    first, second = (
        {name: ("", list(statuses([note(1.0, code)])))} for name, code in (("a", 200), ("b", 429))
    )
    write(first, page)
    write(second, page)
    write({"a": ("", list(statuses([note(1.0, 403)])))}, page)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert ["403: 1", "429: 1"] == [row.split(" | ")[2] for row in rows]
    write(second, page, short=True)
    assert 1 == page.read_text().count("\n| `")
