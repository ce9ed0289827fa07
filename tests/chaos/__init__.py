"""Real servers, processes and networks that fail: what must hold then, measured by `make chaos`."""
