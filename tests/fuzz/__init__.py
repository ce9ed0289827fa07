"""Hostile input by the hundred thousand: what must hold of addresses, rates and keys, whatever is sent."""
