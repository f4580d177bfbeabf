"""The resource limits of this process, which the operating system enforces. Windows has none."""

import ctypes
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""The numbers of the options in glibc's `malloc.h`."""
BYTES = 128 * 1024
"""The value with which glibc starts for both."""


def return_free_memory() -> bool:
    """Stop glibc from keeping more free memory after a peak. Return False where the C library is another one.

    glibc keeps up to `M_TRIM_THRESHOLD` free bytes for each of its arenas, of which there are eight for each core. It
    takes blocks of `M_MMAP_THRESHOLD` bytes from the system and returns them. Whenever such a block is freed, it raises
    both limits, so that a page of 2 MB costs 4 MB in each arena for ever. Setting them ends that. See `man mallopt`.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and all([mallopt(option, BYTES) for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD)])


def trim_free_memory() -> bool:
    """Return the free pages between used blocks to the system. Return False where the C library cannot.

    The limits above are only about the end of each arena.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))


def limit_worker(memory: int, seconds: int) -> None:
    """Limit this process to `memory` bytes of data and `seconds` of processor time, and forbid it to write files.

    Does nothing on a system without such limits.
    """
    try:
        import resource
    except ImportError:
        return
    # The hard limit of processor time is later, so that the first signal identifies the time limit.
    wanted = {
        resource.RLIMIT_DATA: (memory, memory),
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for name, (soft, hard) in wanted.items():
        most = resource.getrlimit(name)[1]
        if most != resource.RLIM_INFINITY:
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(name, (soft, hard))


def raise_open_files(wanted: int) -> int:
    """Raise the limit of open files to the system's maximum, or to `wanted` if there is none.

    Return how many files can be open now, or `wanted` if the system has no limit.
    """
    try:
        import resource
    except ImportError:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        most = wanted if hard == resource.RLIM_INFINITY else hard
        with suppress(ValueError, OSError):  # macOS refuses values above a limit of its kernel
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else soft
