"""Files that visitors attached and have not sent yet: how much room they take, and when they are removed.

They lie in a folder that belongs to this process alone. What an ended process left behind is therefore nobody's.
"""

import asyncio
import fcntl
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice, takewhile
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, time
from typing import BinaryIO

from agent.errors import Limited, localized_error
from agent.history import new_id
from agent.settings import UploadSettings
from agent.web.middleware.upload_form import safe_name
from agent.web.sentences import SENTENCES

PREFIX = "switchboard-"
LOCK = ".lock"
LEAST = 64 * 1024
"""The fewest bytes that a file counts for, because its folder and its entry in the table take space, too."""
GUESTS = ""
"""The account of all visitors without a cookie, whom nothing tells apart."""
FILES_PER_VISITOR = 500
FILES_OF_GUESTS = 2_000
FILES_IN_ALL = 10_000
"""Unsent files of one visitor, of all guests together and of everybody."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class _Upload:
    account: str
    size: int
    at: float


class _Kept(OrderedDict[Path, None]):
    """The files of one account, the oldest first. `size` is what they count for together."""

    size = 0

    def add(self, path: Path, size: int) -> None:
        self[path] = None
        self.size += size

    def remove(self, path: Path, size: int) -> None:
        del self[path]
        self.size -= size


class UnsentFiles:
    """Owner of the folder and of the table of who attached which file. `visitor` is None for a guest.

    `free` says how many bytes the disk has left.
    """

    def __init__(
        self,
        base: Path,
        limits: UploadSettings,
        *,
        clock: Callable[[], float] = monotonic,
        free: Callable[[Path], int] | None = None,
    ) -> None:
        self.limits = limits
        self._clock, self._free = clock, free or _free
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_leftovers(base)
        self.folder = Path(mkdtemp(prefix=PREFIX, dir=base)).resolve()
        self._lock = _lock(self.folder)
        self._files = OrderedDict[Path, _Upload]()  # the oldest first
        self._folders = set[str]()
        self._kept: dict[str, _Kept] = {}
        self._used, self._total = Counter[str](), 0
        self._in_use: list[Collection[Path]] = []

    def check(self, visitor: str | None, size: int, files: int = 0) -> None:
        """Raise `Limited` unless there is or can be room for so many bytes and files more of this visitor's.

        Nothing is removed: a length that a request only declares costs nobody a file.
        """
        self._victims(visitor, size, files)

    def count(self, visitor: str | None, size: int, files: int = 0) -> list[Path]:
        """Count `size` bytes that this visitor sends, and make room for so many files. Raises `Limited`, counting none.

        Returns the files that made room, which are off the table: the caller deletes them, in a thread. Where
        all have too much together, these are the oldest files of whoever has most, if that is more than this visitor.
        """
        victims = self._victims(visitor, size, files)
        for path in victims:
            self._forget(path)
        self._add(visitor or GUESTS, size)
        return victims

    def uncount(self, visitor: str | None, size: int) -> None:
        """Take back what was counted."""
        self._add(visitor or GUESTS, -size)

    def keep(self, path: Path, visitor: str | None, size: int) -> None:
        """Remember a file that is there, and count it."""
        account, counted = visitor or GUESTS, max(size, LEAST)
        self._add(account, counted)
        self._files[path] = _Upload(account, counted, self._clock())
        self._folders.add(path.parent.name)
        self._kept.setdefault(account, _Kept()).add(path, counted)

    async def add(self, visitor: str | None, name: str, data: bytes) -> Path:
        """Keep these bytes as if they had been uploaded. Raises `Limited`."""
        path, size = self.folder / new_id() / safe_name(name), len(data)
        victims = self.count(visitor, size, 1)
        try:
            await asyncio.to_thread(delete, victims)
            await asyncio.to_thread(_write, path, data)
        finally:
            self.uncount(visitor, size)
        self.keep(path, visitor, size)
        return path

    def remove(self, paths: Iterable[str], visitor: str | None) -> None:
        """Remove files that this visitor attached and has sent: they are kept with the message now."""
        for path in map(Path, paths):
            upload = self._files.get(path)
            if upload is not None and upload.account == (visitor or GUESTS):
                self._forget(path)
                _delete(path)

    @contextmanager
    def using(self, paths: Collection[Path]) -> Generator[None]:
        """Let nothing else remove these files within the block. The collection may grow meanwhile."""
        self._in_use.append(paths)
        try:
            yield
        finally:
            self._in_use = [others for others in self._in_use if others is not paths]

    async def expire(self, limit: int = 200) -> int:
        """Remove the oldest files whose time is over, at most `limit`, and return how many they were.

        Folders as old that are not in the table, such as that of an interrupted upload, are removed as well. What is in
        use stays. The files are taken off the table first and removed in a thread, so that nobody waits for the disk.
        """
        seconds, in_use = self.limits.minutes * 60, self._paths_in_use()
        before = self._clock() - seconds
        aged = (path for path, _ in takewhile(lambda kept: kept[1].at <= before, self._files.items()))
        old = list(islice((path for path in aged if path not in in_use), limit))
        for path in old:
            self._forget(path)
        known = self._folders | {path.parent.name for path in in_use}
        return len(old) + await asyncio.to_thread(self._delete_old, old, known, time() - seconds, limit)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _add(self, account: str, size: int) -> None:
        self._used[account] += size
        self._total += size
        if self._used[account] <= 0:
            del self._used[account]

    def _victims(self, visitor: str | None, size: int, files: int) -> list[Path]:
        """The files of others that have to go for so many bytes and files more of this visitor's. Raises `Limited`."""
        account = visitor or GUESTS
        most_files = FILES_PER_VISITOR if visitor else FILES_OF_GUESTS
        most = self.limits.mb_per_visitor if visitor else self.limits.mb_of_guests
        if files and len(self._kept.get(account, ())) + files > most_files:
            raise localized_error(
                Limited, SENTENCES, "upload_count" if visitor else "upload_count_guests", most=most_files
            )
        if self._used[account] + size > most * MB:
            raise localized_error(Limited, SENTENCES, "upload_quota" if visitor else "upload_quota_guests", most=most)
        share = self.limits.disk_percent / 100 * (self._free(self.folder) + self._total)
        missing = self._total + size - min(self.limits.mb_in_all * MB, share)
        surplus = len(self._files) + files - FILES_IN_ALL if files else 0
        return self._oldest_of_largest(account, self._used[account] + size, missing, surplus)

    def _oldest_of_largest(self, account: str, least: int, missing: float, surplus: int) -> list[Path]:
        """The oldest files of those who have more than `least`, until they have so many bytes and so many files."""
        found: list[Path] = []
        if missing <= 0 and surplus <= 0:
            return found
        in_use = self._paths_in_use()
        held = {one: kept.size for one, kept in self._kept.items()}
        for upload in (self._files[path] for path in in_use if path in self._files):
            held[upload.account] -= upload.size
        largest = [(-size, one) for one, size in held.items()]
        heapify(largest)
        oldest: dict[str, Iterator[Path]] = {}
        while missing > 0 or surplus > 0:
            size, one = largest[0] if largest else (0, account)
            if one == account or -size <= least:
                raise localized_error(Limited, SENTENCES, "upload_full")
            unused = oldest.setdefault(one, (path for path in self._kept[one] if path not in in_use))
            path = next(unused)
            found.append(path)
            missing, surplus = missing - self._files[path].size, surplus - 1
            heapreplace(largest, (size + self._files[path].size, one))
        return found

    def _paths_in_use(self) -> set[Path]:
        return {path for paths in self._in_use for path in list(paths)}

    def _forget(self, path: Path) -> None:
        upload = self._files.pop(path)
        self._folders.discard(path.parent.name)
        self._add(upload.account, -upload.size)
        kept = self._kept[upload.account]
        kept.remove(path, upload.size)
        if not kept:
            del self._kept[upload.account]

    def _delete_old(self, paths: Sequence[Path], known: Collection[str], before: float, limit: int) -> int:
        """Delete these files, and at most `limit` folders not `known` and last changed before this Unix time.

        Returns how many such folders were deleted. Runs in a thread, without the table.
        """
        delete(paths)
        swept = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name in known or swept >= limit:
                    continue
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before:
                        shutil.rmtree(entry.path, ignore_errors=True)
                        swept += not os.path.lexists(entry.path)  # housekeeping goes on until nothing goes any more
        return swept


def remove_leftovers(base: Path) -> int:
    """Remove the folders of processes that have ended, and return how many they were.

    A process holds a lock in its folder as long as it runs. What has no such lock file is not ours, and stays.
    """
    removed = 0
    for folder in base.glob(f"{PREFIX}*"):
        try:
            lock = (folder / LOCK).open("r+b")
        except OSError:
            continue
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _lock(folder: Path) -> BinaryIO:
    """Hold the lock of this folder until the file is closed. On a disk without locks its folder is never taken over."""
    draft = folder / f"{LOCK}-draft"  # another process that starts now must not find the file before it is locked
    lock = draft.open("wb")
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(folder / LOCK)
    return lock


def delete(paths: Iterable[Path]) -> None:
    """Delete files that are off the table. Blocks for as long as the disk does."""
    for path in paths:
        with suppress(OSError):  # housekeeping finds the folder later
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a file and the folder that it has for itself."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(data)


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
