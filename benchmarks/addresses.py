"""
What finding the client's address costs, beside the same walk by `ipaddress` alone, as a ratio.

    python -m benchmarks.addresses [--rounds N] [--calls N] [--quick] [--json]

Each round resolves addresses that were never seen before, so that no cache helps, by both ways in turn, in CPU time of
this process; the figures are medians over the rounds. The promise: under 6 us. Both ways must name the same client,
or the run ends with an error. Needs no server.
"""

from __future__ import annotations

import argparse
import gc
import ipaddress
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ratelimit_app.core.addresses import NetworkSet, client_address, client_of, parse_address, parse_network
from ratelimit_app.core.forwarding import hops

if TYPE_CHECKING:
    from collections.abc import Callable

PROMISED_US = 6.0
PROXIES = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "2001:db8:ff::/48")
PEER = "10.0.0.5"


@dataclass(frozen=True)
class Case:
    """Requests of one kind: `written` gives the header of an address."""

    name: str
    header: str
    written: Callable[[str], str]
    version: int = 4


CASES = (
    Case("one hop", "X-Forwarded-For", str),
    Case("one hop, IPv6", "X-Forwarded-For", str, 6),
    Case("with a port", "X-Forwarded-For", lambda text: f"{text}:51234"),
    Case(
        "a forged hop and two proxies",
        "X-Forwarded-For",
        lambda text: f"198.51.100.66, {text}, 10.0.0.7, 10.0.0.8",
    ),
    Case("Forwarded", "Forwarded", lambda text: f"for={text};proto=https"),
    Case("X-Real-IP", "X-Real-IP", str),
)


def ours(trusted: NetworkSet) -> Callable[[str, str], str]:
    """Resolve as a request does."""

    def resolve(header: str, value: str) -> str:
        address = client_address(PEER, hops(header, value), trusted, trust_unix=False)
        return "" if address is None else client_of(address, 32, 64).network

    return resolve


def plain(trusted: list[Any]) -> Callable[[str, str], str]:
    """Walk from the right with `ipaddress` and nothing else: no ports, no brackets, no standard's own quoting."""

    def resolve(header: str, value: str) -> str:
        if header == "Forwarded":
            value = ",".join(part.partition("for=")[2].partition(";")[0] for part in value.split(","))
        client = ipaddress.ip_address(PEER)
        for hop in reversed(value.split(",")):
            host = hop.strip()
            client = ipaddress.ip_address(host if host.count(":") != 1 else host.partition(":")[0])
            if not any(client in network for network in trusted):
                break
        prefix = 32 if client.version == 4 else 64
        network = ipaddress.ip_network((client, prefix), strict=False)
        return f"ip:{client}" if prefix == client.max_prefixlen else f"ip:{network}"

    return resolve


def values(case: Case, count: int, draw: random.Random) -> list[str]:
    """Draw headers of addresses that are nobody's proxy."""
    found = []
    for _ in range(count):
        if case.version == 4:
            address = ipaddress.IPv4Address(0xCB007100 ^ draw.getrandbits(20))
            found.append(case.written(str(address)))
        else:
            found.append(case.written(str(ipaddress.IPv6Address(0x2A000000 << 96 | draw.getrandbits(80)))))
    return found


def measure(case: Case, rounds: int, calls: int) -> dict[str, Any]:
    """Resolve as many fresh headers by both ways, in turn. Raises SystemExit when they do not agree."""
    draw = random.Random(case.name)
    ways = {
        "ours": ours(NetworkSet(map(parse_network, PROXIES))),
        "ipaddress": plain([ipaddress.ip_network(text) for text in PROXIES]),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        given = values(case, calls, draw)
        answers = {}
        for name in list(ways)[:: 1 if number % 2 else -1]:
            parse_address.cache_clear()
            times[name].append(_timed(ways[name], case.header, given) / calls * 1e6)
            answers[name] = [ways[name](case.header, value) for value in given[:100]]
        if answers["ours"] != answers["ipaddress"]:
            sys.exit(f"{case.name}: the two ways name different clients")
    row = {name: statistics.median(found) for name, found in times.items()}
    ratios = [one / other for one, other in zip(times["ours"], times["ipaddress"], strict=True)]
    return {"case": case.name, "us": row, "ratio": statistics.median(ratios)}


def _timed(resolve: Callable[[str, str], str], header: str, given: list[str]) -> float:
    gc.collect()
    gc.disable()
    began = time.process_time()
    for value in given:
        resolve(header, value)
    took = time.process_time() - began
    gc.enable()
    return took


def run(rounds: int, calls: int) -> list[dict[str, Any]]:
    """Measure every case."""
    return [measure(case, rounds, calls) for case in CASES]


def as_table(rows: list[dict[str, Any]]) -> str:
    """Write what was measured."""
    lines = [f"{'a request with':32} {'ours, us':>10} {'ipaddress, us':>14} {'ratio':>7}"]
    lines += [
        f"{row['case']:32} {row['us']['ours']:>10.2f} {row['us']['ipaddress']:>14.2f} {row['ratio']:>7.2f}"
        for row in rows
    ]
    return "\n".join([*lines, f"promised: under {PROMISED_US:g} us"])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.addresses", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="show that it runs; the figures mean nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = run(2, 200) if options.quick else run(options.rounds, options.calls)
    sys.stdout.write((json.dumps(rows, indent=2) if options.json else as_table(rows)) + "\n")


if __name__ == "__main__":
    main()
