"""From what one decision costs to what a load needs: Redis primaries, processes, bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, log
from typing import Any

# A core that is busier answers late, and has nothing left when another one fails.
FILL = 0.6
# Fragmentation, the buffers of replicas, and the copy that a save makes of what changes meanwhile.
MEMORY_FACTOR = 1.5
# A server that is busier with others than this, as a share of a core, is worth a warning.
BUSY = 0.05
KILO = 1_000
UNITS = ("KB", "MB", "GB", "TB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """
    What one decision costs on the machine where it was measured.

    `server_us`: CPU microseconds of the whole Redis process. `client_us`: CPU microseconds of ours. `wall_us`: how
    long the caller waited, microseconds. `log_bytes`: one rule's full log of one client. `decisions`: how many were
    measured. `other_load`: share of a core that the server spent on others meanwhile.
    """

    server_us: float
    client_us: float
    wall_us: float
    log_bytes: int
    decisions: int = 0
    other_load: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is expected: `users` with a log each for each of `rules`, and `rps` decisions a second."""

    users: int
    rps: int
    rules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """
    What a load needs, with the spare that `FILL` and `MEMORY_FACTOR` leave.

    `server_cores`, `client_cores`: CPU seconds a second, without the spare. `log_bytes`: all logs, without it.
    `processes`: as many as deciding keeps busy, beside what the views need. `memory_bytes`: for all primaries
    together.
    """

    server_cores: float
    client_cores: float
    log_bytes: int
    primaries: int
    processes: int
    memory_bytes: int


def needs(costs: Costs, load: Load) -> Needs:
    """Work out what a load needs. The costs must be those of as many rules."""
    server_cores = load.rps * costs.server_us / 1e6
    client_cores = load.rps * costs.client_us / 1e6
    log_bytes = load.users * load.rules * costs.log_bytes
    return Needs(
        server_cores=round(server_cores, 3),
        client_cores=round(client_cores, 3),
        log_bytes=log_bytes,
        primaries=max(ceil(server_cores / FILL), 1),
        processes=max(ceil(client_cores / FILL), 1),
        memory_bytes=ceil(log_bytes * MEMORY_FACTOR),
    )


def as_data(costs: Costs, load: Load) -> dict[str, Any]:
    """Give measurement, load and needs as plain data."""
    return {"measured": asdict(costs), "load": asdict(load), "needs": asdict(needs(costs, load))}


def as_text(costs: Costs, load: Load) -> str:
    """Give measurement, load and needs for people."""
    need = needs(costs, load)
    lines = [
        f"Measured here, {costs.decisions:,} decisions of {load.rules} rules one by one:",
        f"  Redis, whole process  {costs.server_us:10.1f} us CPU a decision",
        f"  this process          {costs.client_us:10.1f} us CPU a decision",
        f"  the caller waited     {costs.wall_us:10.1f} us a decision",
        f"  one full log          {costs.log_bytes:10,} bytes",
        f"For {load.users:,} users and {load.rps:,} decisions a second:",
        f"  Redis primaries       {need.primaries:10,} ({need.server_cores:.2f} cores at {FILL:.0%})",
        f"  processes             {need.processes:10,} ({need.client_cores:.2f} cores at {FILL:.0%}), beside what the views need",
        f"  memory in all         {_size(need.memory_bytes):>10} ({_size(need.log_bytes)} of logs, times {MEMORY_FACTOR})",
    ]
    if costs.other_load > BUSY:
        lines.append(
            f"Redis was {costs.other_load:.0%} of a core busy with others: measure again when it is idle."
        )
    return "\n".join(lines)


def _size(count: int) -> str:
    if count < KILO:
        return f"{count} bytes"
    power = min(int(log(count, KILO)), len(UNITS))
    return f"{count / KILO**power:.1f} {UNITS[power - 1]}"
