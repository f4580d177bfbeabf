"""Locks files, so that no other process uses them."""

import sys
from typing import BinaryIO


def try_lock(file: BinaryIO) -> bool:
    """Lock an open file until it is closed, and return True. The system releases the lock if this process crashes.

    Return False if another process holds the lock, or if the file system or the operating system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True
