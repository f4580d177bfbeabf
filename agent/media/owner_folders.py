"""Files in one folder per owner, with a running total of their sizes. Every call blocks; threads can share an object.

The total is exact after each change through this object. `recount` also finds the changes of other processes.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from threading import Lock
from time import time

FILE_BYTES = 4096
"""The fewest bytes that a file counts for, because it takes at least one block of the disk."""
DRAFT_PREFIX = "."
"""Begins the name of a file that is not written completely."""
DRAFT_SECONDS = 24 * 3600.0
"""A draft that is older than this belongs to a process that was killed."""


class OwnerFolders:
    """Owns the files under `folder/<owner>/`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes = Counter[str]()
        self._is_counted = False
        self._files_lock, self._recount_lock = Lock(), Lock()

    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of each owner's files. Only the first call reads the folders."""
        with self._recount_lock:
            if not self._is_counted:
                self._recount()
        with self._files_lock:
            return dict(self._sizes)

    def recount(self) -> None:
        """Read the sizes of all files again, and remove drafts that nobody will finish."""
        with self._recount_lock:
            self._recount()

    def write(self, path: Path, data: bytes) -> None:
        """Write the whole file or nothing, because another task can read it at the same time."""
        with self._files_lock:  # so that nobody removes the empty folder
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            number, draft = mkstemp(dir=path.parent, prefix=DRAFT_PREFIX)
        try:
            with open(number, "wb") as file:
                file.write(data)
            with self._files_lock:
                before = _size(path)
                os.replace(draft, path)
                self._add(path.parent.name, _size(path) - before)
        except BaseException:
            with self._files_lock:
                Path(draft).unlink(missing_ok=True)
                _remove_if_empty(path.parent)
            raise

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files. Missing ones are ignored. Raises the first `OSError` after all were tried."""
        folders, failure = set[Path](), None
        for path in paths:
            folders.add(path.parent)
            with self._files_lock:
                try:
                    size = _size(path)
                    path.unlink(missing_ok=True)
                    self._add(path.parent.name, -size)
                except OSError as error:
                    failure = failure or error
        for folder in folders:
            with self._files_lock:
                _remove_if_empty(folder)
        if failure is not None:
            raise failure

    def remove_folder(self, owner: str) -> None:
        """Remove all files of an owner. Raises `OSError`."""
        with self._files_lock:
            try:
                with suppress(FileNotFoundError):
                    shutil.rmtree(self._folder / owner)
            finally:
                self._recount_owner(owner)

    def owners(self) -> list[str]:
        """Return the owners that have a folder."""
        try:
            with os.scandir(self._folder) as folders:
                return [folder.name for folder in folders if folder.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def written_before(self, owner: str, time: float) -> list[str]:
        """Return the names of an owner's files that were written before this Unix time."""
        found = list[str]()
        with suppress(FileNotFoundError), os.scandir(self._folder / owner) as files:
            for file in files:
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    if file.stat(follow_symlinks=False).st_mtime < time and not file.name.startswith(DRAFT_PREFIX):
                        found.append(file.name)
        return found

    def _recount(self) -> None:
        # Files can be written and removed meanwhile, but not in the folder that is being read.
        for owner in {*self.owners(), *self._counted_owners()}:
            with self._files_lock:
                self._recount_owner(owner)
        self._is_counted = True

    def _counted_owners(self) -> list[str]:
        with self._files_lock:
            return list(self._sizes)

    def _recount_owner(self, owner: str) -> None:
        size = 0
        with suppress(OSError), os.scandir(self._folder / owner) as files:
            for file in files:
                if file.name.startswith(DRAFT_PREFIX):
                    _remove_old_draft(file)
                else:
                    size += _size(file)
        self._sizes[owner] = 0
        self._add(owner, size)

    def _add(self, owner: str, size: int) -> None:
        self._sizes[owner] += size
        if self._sizes[owner] <= 0:
            del self._sizes[owner]


def _size(file: Path | os.DirEntry[str]) -> int:
    """Return the bytes that a file counts for, 0 if there is none."""
    try:
        return max(FILE_BYTES, os.stat(file, follow_symlinks=False).st_size)
    except FileNotFoundError:
        return 0


def _remove_old_draft(file: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if file.stat(follow_symlinks=False).st_mtime < time() - DRAFT_SECONDS:
            os.unlink(file)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # the folder still has other files
        folder.rmdir()
