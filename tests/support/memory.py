"""What a process has held of memory; imports nothing that would add to it."""

import re
from pathlib import Path


def most_memory() -> int:
    """The most that this process has held, in KB.

    `ru_maxrss` would not do: it begins with that of the process by which this one was started.
    """
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def held_memory(pid: int) -> int:
    """What another process holds now, in bytes."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) * 1024
