"""Decoding in a process of its own, for formats whose headers can hide how much there is in them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from agent.errors import InputError
from agent.media.decoding import REFUSED
from agent.media.sentences import refused

PATIENCE = 60
"""Seconds; the process has less of its processor, which may be busy."""

_ENV = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""All that it gets of ours; there are keys in the rest."""
_PROGRAM = Path(__file__).with_name("decoding.py")


def environment() -> dict[str, str]:
    """What a process is told that is given a file of somebody's."""
    few = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
    return few | {name: os.environ[name] for name in _ENV if name in os.environ}


def apart(job: str, *args: str, data: bytes) -> bytes:
    """What `decoding` makes of the data. Raises `InputError` for what it refuses, `ValueError` for the broken."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(_PROGRAM), job, *args],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError("it took too long") from error
    if done.returncode == REFUSED:
        raise _refused(done.stdout.rpartition(b"\n")[2])
    if done.returncode:
        raise ValueError(f"the decoder ended with {done.returncode}")
    return done.stdout


def _refused(said: bytes) -> InputError:
    """What the process says of a file, which may have taken it over. Raises `ValueError` for what it could not say."""
    try:
        key, values = json.loads(said)
        plain = {name: one if isinstance(one, int | float) else str(one)[:40] for name, one in values.items()}
        return refused(key, **plain)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("the decoder said what it cannot say") from error
