"""Keeps other processes of this user from reading the memory and the environment of this one, which hold keys."""

import ctypes
import sys

PR_SET_DUMPABLE = 4


def make_memory_private() -> None:
    """Let only root read `/proc/PID/environ` and the memory of this process, or attach a debugger to it. Linux only.

    Also turns core dumps off. A program that this process starts is readable again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
