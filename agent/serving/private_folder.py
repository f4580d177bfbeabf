"""Makes the data folder, and what is kept in it, readable by this user alone."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

KEPT = ("history.sqlite*", "secret", "media")
"""The files of this app in it: a mounted folder may hold other files, programs among them."""

log = logging.getLogger(__name__)


def make_private(folder: Path) -> None:
    """Create `folder` with mode 0700, or take the rights of others away from it, its files and its folders."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        for path in _kept(folder):
            mode = path.stat(follow_symlinks=False).st_mode
            if mode & 0o077 and not path.is_symlink():
                path.chmod(mode & 0o700)
    except OSError as error:  # a mounted folder may belong to somebody else
        log.warning("The data folder %s may be readable by others: %s", folder, error.strerror or type(error).__name__)


def _kept(folder: Path) -> Iterator[Path]:
    yield folder
    for pattern in KEPT:
        for path in folder.glob(pattern):
            yield path
            for parent, folders, files in os.walk(path):
                yield from (Path(parent, name) for name in (*folders, *files))
