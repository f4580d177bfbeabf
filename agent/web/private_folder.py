"""Makes the data folder, and what is kept in it, readable by this user alone."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agent.errors import ConfigError

KEPT = ("history.sqlite*", "secret", "media")
"""The files of this app in it: a mounted folder may hold other files, programs among them."""

log = logging.getLogger(__name__)


def make_private(folder: Path) -> None:
    """Create `folder` with mode 0700, or take the rights of others away from it, its files and its folders.

    The folder itself may be a link. Links in it are not followed, because what they name may belong to something else,
    and what another user owns is left alone. Raises `ConfigError` where there can be no such folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
    except OSError as error:
        raise ConfigError(f"The data folder {folder} cannot be used: {error.strerror}.") from error
    failed: OSError | None = None
    for path in _kept(folder):
        try:
            _close(path)
        except OSError as error:  # a mounted folder may belong to somebody else
            failed = failed or error
    if failed is not None:
        log.warning(
            "The data folder %s may be readable by others: %s", folder, failed.strerror or type(failed).__name__
        )


def _kept(folder: Path) -> Iterator[Path]:
    yield folder
    for pattern in KEPT:
        for path in folder.glob(pattern):
            if path.is_symlink():
                log.warning("%s is a link: who may read what it names is not changed.", path)
                continue
            yield path
            for parent, folders, files in os.walk(path, followlinks=False):
                yield from (Path(parent, name) for name in (*folders, *files))


def _close(path: Path) -> None:
    """Take the rights of others away from one file or folder of this user's."""
    if not _is_open(path.lstat()):
        return
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(opened)
        if _is_open(found):
            os.fchmod(opened, found.st_mode & 0o700)
    finally:
        os.close(opened)


def _is_open(found: os.stat_result) -> bool:
    """Whether this is a file or folder of this user's, and others have rights to it."""
    ours = found.st_uid == os.geteuid() and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    return ours and bool(found.st_mode & 0o077)
