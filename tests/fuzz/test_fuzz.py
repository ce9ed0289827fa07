"""The fuzzing itself: it tells a broken promise from a kept one, and its seeds keep all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.targets import KEYS, SEEDS, TARGETS, Names


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in TARGETS for seed in SEEDS[name]])
def test_a_seed_when_tried_keeps_every_promise(name: str, seed: bytes) -> None:
    """What the guided search begins with is right; so is everything that is cut from it."""
    for end in range(len(seed) + 1):
        TARGETS[name](seed[:end])


def test_two_meanings_of_one_key_when_seen_are_told() -> None:
    """The one thing that a limiter must never do: count two clients as one."""
    names = Names()
    names.note(b"key", ("one",))
    names.note(b"key", ("one",))
    with pytest.raises(AssertionError, match="other"):
        names.note(b"key", ("other",))
    with pytest.raises(AssertionError, match="bytes"):
        names.note(KEYS.mark("x" * 50) * 4, ("long",))


def test_the_fuzzing_when_run_tells_how_many_it_has_tried() -> None:
    """A run of a few inputs ends well, on every target."""
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "600"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "inputs: no exception, no two identities in one key" in done.stdout
    assert all(f"{name}: " in done.stdout for name in TARGETS)
