"""The memory use of a process. Imports nothing that would add to it."""

import re
from pathlib import Path


def most_memory() -> int:
    """Return the peak memory of this process in KB.

    `ru_maxrss` is not usable, because it starts with the value of the parent process.
    """
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def held_memory(pid: int) -> int:
    """Return the current memory of another process, in bytes."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) * 1024
