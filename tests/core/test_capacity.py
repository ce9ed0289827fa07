"""What a load needs, worked out from the cost of a decision; and the worked example of the documentation."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from ratelimit_app.core.capacity import FILL, MEMORY_FACTOR, Costs, Load, as_data, as_text, needs

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs/capacity.md").read_text()
TIMES = "\N{MULTIPLICATION SIGN}"
COSTS = Costs(server_us=60.0, client_us=120.0, wall_us=200.0, log_bytes=208, decisions=1_000)


def blocks(language: str) -> list[str]:
    """Give the page's code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def example() -> tuple[Costs, Load]:
    """Give what the page's example was measured as, and its load."""
    (block,) = blocks("json")
    data = json.loads(block)
    return Costs(**data["measured"]), Load(**data["load"])


def test_needs_when_a_sale_is_given_are_cores_over_fill_and_bytes_times_factor() -> None:
    """Cores are rate times cost; what is needed leaves the spare; memory is a full log for each user and rule."""
    need = needs(COSTS, Load(users=1_000_000, rps=50_000, rules=3))
    assert (3.0, 6.0) == (need.server_cores, need.client_cores)
    assert (5, 10) == (need.primaries, need.processes)
    assert (624_000_000, 936_000_000) == (need.log_bytes, need.memory_bytes)


@pytest.mark.parametrize(("rps", "primaries"), [(1, 1), (10_000, 1), (10_001, 2), (20_001, 3)])
def test_primaries_when_one_is_full_are_one_more(rps: int, primaries: int) -> None:
    """A core filled to its share is enough; one decision a second more needs the next."""
    assert primaries == needs(COSTS, Load(users=1, rps=rps, rules=1)).primaries


def test_needs_when_nothing_costs_are_one_of_each() -> None:
    """No load works without a server and a process, however cheap."""
    free = Costs(server_us=0.0, client_us=0.0, wall_us=1.0, log_bytes=0)
    need = needs(free, Load(users=1, rps=1, rules=1))
    assert (1, 1, 0) == (need.primaries, need.processes, need.memory_bytes)


@pytest.mark.parametrize(
    ("users", "written"), [(1, "312 bytes"), (10, "3.1 KB"), (10**6, "312.0 MB"), (10**10, "3.1 TB")]
)
def test_memory_when_written_for_people_has_a_unit(users: int, written: str) -> None:
    """Sizes are in decimal units, and small ones in bytes."""
    assert written in as_text(COSTS, Load(users=users, rps=1, rules=1))


def test_the_report_when_the_server_was_busy_with_others_says_so() -> None:
    """A measurement beside other load is no good: the report warns, and is silent about a quiet server."""
    load = Load(users=1, rps=1, rules=1)
    busy = Costs(server_us=60.0, client_us=120.0, wall_us=200.0, log_bytes=208, other_load=0.31)
    assert "31% of a core busy with others" in as_text(busy, load)
    assert "busy" not in as_text(COSTS, load)


def test_the_example_of_the_page_when_recomputed_is_what_the_command_would_print() -> None:
    """`docs/capacity.md` shows a measurement: its JSON and its text follow from its own figures."""
    costs, load = example()
    (as_json,) = blocks("json")
    assert as_data(costs, load) == json.loads(as_json)
    (console,) = blocks("console")
    assert console.partition("\n")[2].strip() == as_text(costs, load)


def test_the_sums_of_the_page_when_recomputed_are_right() -> None:
    """Each product or quotient that `docs/capacity.md` writes out is what it says, to the digits it gives."""
    sums = re.findall(rf"([\d,.]+(?: [{TIMES}/] [\d,.]+)+) = ([\d,]+(?:\.\d+)?)", PAGE)
    assert len(sums) > 4
    for terms, result in sums:
        first, *rest = re.split(rf" ([{TIMES}/]) ", terms.replace(",", ""))
        value = float(first)
        for sign, term in zip(rest[::2], rest[1::2], strict=True):
            value = value * float(term) if sign == TIMES else value / float(term)
        digits = len(result.partition(".")[2])
        assert float(result.replace(",", "")) == pytest.approx(value, abs=0.51 * 10**-digits), terms


def test_the_example_of_the_page_when_explained_uses_its_own_figures() -> None:
    """The sums of the page are those of the measurement that it shows, with the code's own spare."""
    costs, load = example()
    need = needs(costs, load)
    for written in (
        f"{load.rps:,} {TIMES} {costs.server_us} / 1,000,000 = ",
        f"{load.rps:,} {TIMES} {costs.client_us} / 1,000,000 = ",
        f" / {FILL} = ",
        f"{load.users:,} {TIMES} {load.rules} {TIMES} {costs.log_bytes} = {need.log_bytes:,}",
        f"{need.log_bytes:,} {TIMES} {MEMORY_FACTOR} = {need.memory_bytes:,}",
    ):
        assert written in PAGE
    assert need.primaries == math.ceil(need.server_cores / FILL)
