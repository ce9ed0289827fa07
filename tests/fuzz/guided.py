"""
One target under atheris, which finds its inputs by what they reach in the code: `python -m tests.fuzz.guided`.

Arguments: the target and how many inputs. Ends with a status other than 0, and the input, when a promise is broken.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path


def main(name: str, runs: str) -> None:
    """Try so many inputs."""
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["ratelimit_app.core"]):
        targets = import_module("tests.fuzz.targets")
    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for number, seed in enumerate(targets.SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)
    options = [f"-runs={runs}", "-max_len=600", "-verbosity=0", f"-artifact_prefix={corpus}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], targets.TARGETS[name])
    atheris.Fuzz()  # it ends the process


if __name__ == "__main__":
    main(*sys.argv[1:])
