"""Makes the C library return free memory to the system."""

import ctypes
import sys

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
