"""Files that visitors attached and have not sent yet: how much room they take, and when they are removed.

They lie in a folder that belongs to this process alone. What an ended process left behind is therefore nobody's.
"""

import asyncio
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic, time
from typing import BinaryIO

from agent.errors import Limited, named
from agent.history import new_id
from agent.serving.sentences import SENTENCES
from agent.serving.upload_form import safe_name
from agent.settings import UploadSettings

PREFIX = "switchboard-"
LOCK = ".lock"
LEAST = 64 * 1024
"""The fewest bytes that a file counts for, because its folder and its entry in the table take space, too."""
GUESTS = ""
"""The account of all visitors without a cookie, whom nothing tells apart."""
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class _Upload:
    account: str
    size: int
    at: float


class Uploads:
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
        self._files: dict[Path, _Upload] = {}  # the oldest first
        self._used, self._total = Counter[str](), 0
        self._in_use: list[Collection[Path]] = []

    def check(self, visitor: str | None, size: int) -> None:
        """Make sure that there is room for `size` bytes more of this visitor's. Raises `Limited`.

        Where all have too much together, the oldest files of whoever has most make room for a visitor who has less.
        """
        account = visitor or GUESTS
        most = self.limits.mb_per_visitor if visitor else self.limits.mb_of_guests
        if self._used[account] + size > most * MB:
            raise named(Limited, SENTENCES, "upload_quota" if visitor else "upload_quota_guests", most=most)
        self._make_room(account, size)

    def count(self, visitor: str | None, size: int) -> None:
        """Count `size` bytes that this visitor sends. Raises `Limited`, counting none."""
        self.check(visitor, size)
        self._add(visitor or GUESTS, size)

    def uncount(self, visitor: str | None, size: int) -> None:
        """Take back what was counted."""
        self._add(visitor or GUESTS, -size)

    def keep(self, path: Path, visitor: str | None, size: int) -> None:
        """Remember a file that is there, and count it."""
        counted = max(size, LEAST)
        self._add(visitor or GUESTS, counted)
        self._files[path] = _Upload(visitor or GUESTS, counted, self._clock())

    async def add(self, visitor: str | None, name: str, data: bytes) -> Path:
        """Keep these bytes as if they had been uploaded. Raises `Limited`."""
        self.check(visitor, len(data))
        path = self.folder / new_id() / safe_name(name)
        await asyncio.to_thread(_write, path, data)
        self.keep(path, visitor, len(data))
        return path

    def remove(self, paths: Iterable[str], visitor: str | None) -> None:
        """Remove files that this visitor attached and has sent: they are kept with the message now."""
        for path in map(Path, paths):
            upload = self._files.get(path)
            if upload is not None and upload.account == (visitor or GUESTS):
                self._remove(path)

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
        old = [path for path, upload in self._files.items() if upload.at <= self._clock() - seconds]
        old = [path for path in old if path not in in_use][:limit]
        for path in old:
            self._forget(path)
        known = {path.parent.name for path in (*self._files, *in_use)}
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

    def _make_room(self, account: str, size: int) -> None:
        share = self.limits.disk_percent / 100 * (self._free(self.folder) + self._total)
        most = min(self.limits.mb_in_all * MB, share)
        while self._total + size > most:
            held, in_use = Counter[str](), self._paths_in_use()
            unused = {path: upload for path, upload in self._files.items() if path not in in_use}
            for upload in unused.values():
                held[upload.account] += upload.size
            largest = max(held, key=lambda one: held[one], default=account)
            if largest == account or held[largest] <= self._used[account] + size:
                raise named(Limited, SENTENCES, "upload_full")
            self._remove(next(path for path, upload in unused.items() if upload.account == largest))

    def _paths_in_use(self) -> set[Path]:
        return {path for paths in self._in_use for path in list(paths)}

    def _remove(self, path: Path) -> None:
        self._forget(path)
        _delete(path)

    def _forget(self, path: Path) -> None:
        upload = self._files.pop(path)
        self._add(upload.account, -upload.size)

    def _delete_old(self, paths: Sequence[Path], known: Collection[str], before: float, limit: int) -> int:
        """Delete these files, and at most `limit` folders not `known` and last changed before this Unix time.

        Returns how many such folders were deleted. Runs in a thread, without the table.
        """
        for path in paths:
            with suppress(OSError):  # a later sweep finds the folder
                _delete(path)
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
