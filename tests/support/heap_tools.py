"""Tools that look for secrets in the memory of their own process, check who can read it, and what is kept of a peak."""

import ctypes
import gc
import re
import sys
from collections import deque
from collections.abc import Iterator
from mmap import PAGESIZE
from pathlib import Path
from threading import Barrier, Thread
from types import FrameType, ModuleType
from typing import Any, cast

KEY_LENGTH = 32
"""Hexadecimal digits after the prefix of a made-up key."""
DEPTH = 40


def is_dumpable() -> str:
    """Say if other processes of this user may read the memory."""
    return "readable" if ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) else "private"


def megabytes_kept() -> int:
    """Let eight threads have 80 MB at once, and return how many megabytes the process keeps when they have ended."""
    bytes(16_000_000)  # when it is freed, glibc raises its limits, unless they are fixed
    barrier, before = Barrier(8), _resident()

    def work() -> None:
        barrier.wait()
        pieces = [b"x" * 100_000 + bytes([number]) for number in range(100)]
        barrier.wait()
        pieces.clear()

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (_resident() - before) // 1_000_000


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE


def find_keys(prefix: str) -> str:
    """Say which objects hold a key, garbage that is not collected yet included, with the way to each, one a line.

    Args:
        prefix: The key without its last 32 characters, so that asking for it makes no more of them.
    """
    text = re.compile(re.escape(prefix) + rf"[0-9a-f]{{{KEY_LENGTH}}}")
    data = re.compile(text.pattern.encode())
    gc.unfreeze()  # frozen objects are on no list of the collector
    others = gc.get_objects()
    parents: dict[int, Any] = {}
    waiting = deque[Any]()
    parents |= dict.fromkeys(map(id, (others, parents, waiting)))
    found = list[str]()
    for root in (*_frames(), *sys.modules.values(), *others):  # `others` come last, as their holders are on no list
        if id(root) not in parents:
            parents[id(root)] = None
            waiting.append(root)
        while waiting:
            held = waiting.popleft()
            if isinstance(held, str | bytes | bytearray):
                if text.search(held) if isinstance(held, str) else data.search(held):
                    found.append(_way(held, parents))
                continue
            for child in gc.get_referents(held):
                if id(child) not in parents:
                    parents[id(child)] = held
                    waiting.append(child)
    return "\n".join([f"{len(found)} hold a key.", *found])


def _frames() -> Iterator[FrameType]:
    for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]
        step: FrameType | None = frame
        while step is not None:
            yield step
            step = step.f_back


def _way(held: object, parents: dict[int, Any]) -> str:
    """Return the types of the objects on the way to this one, without their content."""
    steps = [type(held).__name__]
    while (parent := parents.get(id(held))) is not None and len(steps) < DEPTH:
        steps.append(_named(parent, held))
        held = parent
    return " < ".join(steps)


def _named(parent: Any, held: object) -> str:
    if isinstance(parent, dict):
        items = cast(dict[object, object], parent).items()
        keys = [key for key, value in items if value is held and isinstance(key, str)]
        return f"dict[{keys[0][:30] if keys else '?'}]"
    if isinstance(parent, FrameType):
        return f"frame {parent.f_code.co_qualname}"
    if isinstance(parent, ModuleType):
        return f"module {parent.__name__}"
    return getattr(parent, "__qualname__", None) or f"{type(parent).__module__}.{type(parent).__name__}"
