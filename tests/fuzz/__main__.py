"""Try many inputs on every target, drawn by hypothesis and guided by atheris: `make fuzz`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from importlib.util import find_spec

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import HOSTILE_TEXTS
from tests.fuzz.targets import SEEDS, TARGETS, text_of

ALPHABET = st.text('0123456789abcdefABCDEF.:,;="\\[]%/ \t_-forknmshd+{}#~|', max_size=80)
HOSTILE = st.sampled_from(HOSTILE_TEXTS)


def drawn(name: str, count: int) -> int:
    """Have hypothesis draw so many inputs for a target; give how many were tried. Raises AssertionError."""
    tried: Counter[str] = Counter()
    pieces = st.lists(
        ALPHABET | HOSTILE | st.text(max_size=40) | st.sampled_from(SEEDS[name]).map(text_of), max_size=4
    )
    inputs = st.binary(max_size=300) | st.builds(
        lambda first, texts: bytes([first]) + "\0".join(texts).encode("utf-8", "surrogatepass"),
        st.integers(0, 255),
        pieces,
    )

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs)
    def attempt(data: bytes) -> None:
        tried[name] += 1
        TARGETS[name](data)

    attempt()
    return tried[name]


def guided(name: str, count: int) -> int:
    """Have atheris find so many inputs for a target; one that breaks a promise ends the run."""
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: atheris found an input that breaks a promise.\n{done.stdout}\n{done.stderr}")
    return count


def main() -> None:
    """Try, and tell how many were tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--inputs", type=int, default=240_000, help="how many, over all targets and both ways"
    )
    options = parser.parse_args()
    ways = {"hypothesis": drawn}
    if find_spec("atheris"):
        ways["atheris"] = guided
    else:
        sys.stdout.write(
            "atheris is not installed (pip install -r tests/fuzz/requirements.txt): hypothesis alone.\n"
        )
    # An input of hypothesis costs some thirty times one of atheris.
    shares = {"hypothesis": 1.0} if len(ways) == 1 else {"hypothesis": 0.1, "atheris": 0.9}
    total = 0
    for name in TARGETS:
        for way, tries in ways.items():
            began = time.monotonic()
            tried = tries(name, round(options.inputs * shares[way] / len(TARGETS)))
            total += tried
            sys.stdout.write(f"{name}: {tried:,} inputs by {way}, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    sys.stdout.write(f"{total:,} inputs: no exception, no two identities in one key, no key of 200 bytes.\n")


if __name__ == "__main__":
    main()
