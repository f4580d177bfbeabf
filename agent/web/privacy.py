"""Keeps other users and processes of the machine from the data folder and the memory of the server, which hold keys."""

import ctypes
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from agent.errors import ConfigError

PR_SET_DUMPABLE = 4


def make_memory_private() -> None:
    """Let only root read `/proc/PID/environ` and the memory of this process, or attach a debugger to it. Linux only.

    Also turns core dumps off. A program that this process starts is readable again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


OWN_FILES = ("history.sqlite*", "history", "secret", "media")
"""The app's files in the data folder. A mounted folder can hold other files, such as programs."""

log = logging.getLogger(__name__)


def make_private(folder: Path) -> None:
    """Create `folder` with mode 0700, or remove the rights of other users from it and from the app's files in it.

    The folder itself can be a link. Links inside it are not followed, because their targets can belong to something
    else. Files of other users are left alone. Raises `ConfigError` if the folder cannot be created.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
    except OSError as error:
        raise ConfigError(f"The data folder {folder} cannot be used: {error.strerror}.") from error
    failed: OSError | None = None
    for path in _own_paths(folder):
        try:
            _restrict(path)
        except OSError as error:  # a mounted folder can belong to another user
            failed = failed or error
    if failed is not None:
        log.warning(
            "The data folder %s may be readable by others: %s", folder, failed.strerror or type(failed).__name__
        )


def _own_paths(folder: Path) -> Iterator[Path]:
    yield folder
    for pattern in OWN_FILES:
        for path in folder.glob(pattern):
            if path.is_symlink():
                log.warning("%s is a link: who may read what it names is not changed.", path)
                continue
            yield path
            for parent, folders, files in os.walk(path, followlinks=False):
                yield from (Path(parent, name) for name in (*folders, *files))


def _restrict(path: Path) -> None:
    """Remove the rights of other users from one file or folder of this user."""
    if not _is_open_to_others(path.lstat()):
        return
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(opened)
        if _is_open_to_others(found):
            os.fchmod(opened, found.st_mode & 0o700)
    finally:
        os.close(opened)


def _is_open_to_others(found: os.stat_result) -> bool:
    """Return True if this user owns the file or folder and other users have rights to it."""
    ours = found.st_uid == os.geteuid() and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    return ours and bool(found.st_mode & 0o077)
