"""Networks with an expiry each, found by address: one dict look-up for each prefix length in use."""

from __future__ import annotations

from ratelimit_app.core.addresses import Address, parse_network

NEVER = 0


class NetworkTable:
    """
    A list of networks, fast at 100,000 of them and changed in place, one network at a time.

    Expiries are microseconds since the epoch by the Redis clock; `NEVER` (0) does not end.
    Reads need no lock: every change is one assignment in a dict.
    """

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, dict[int, int]]] = {4: {}, 6: {}}

    def set(self, text: str, expires_us: int) -> None:
        """Add a network or change its expiry. Raises ValueError when the text is none."""
        network = parse_network(text)
        shift = network.max_prefixlen - network.prefixlen
        tables = self._tables[network.version]
        table = tables.get(shift)
        if table is None:
            table = {}
            self._tables[network.version] = {**tables, shift: table}
        table[int(network.network_address) >> shift] = expires_us

    def discard(self, text: str) -> None:
        """Take a network out, if it is there. Raises ValueError when the text is none."""
        network = parse_network(text)
        shift = network.max_prefixlen - network.prefixlen
        self._tables[network.version].get(shift, {}).pop(int(network.network_address) >> shift, None)

    def find(self, address: Address, now_us: int) -> int | None:
        """Give the latest expiry of the networks that hold this address, None when no live one does."""
        number, latest = int(address), None
        for shift, table in self._tables[address.version].items():
            expires = table.get(number >> shift)
            if expires is None or NEVER < expires <= now_us:
                continue
            if expires == NEVER:
                return NEVER
            latest = expires if latest is None else max(latest, expires)
        return latest

    def __bool__(self) -> bool:
        return bool(self._tables[4] or self._tables[6])

    def __len__(self) -> int:
        return sum(len(table) for tables in self._tables.values() for table in tables.values())
