"""Files that visitors attached but have not sent: their names, their disk quota and their removal.

Each process has its own folder for them, so the folder of an ended process can be removed.
"""

import os
import re
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice, takewhile
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import BinaryIO

from filelock import lock_descriptor

from agent.errors import Limited
from agent.history import new_id, steady_now
from agent.i18n.text import N_, LocalizedText, _
from agent.settings import UploadSettings
from agent.system.threads import UPLOADS
from agent.web.middleware.visitor_cookie import GUEST

PREFIX = "switchboard-"
LOCK = ".lock"
MIN_FILE_BYTES = 64 * 1024
"""The least number of bytes that a file counts for, because its folder and table entry take space too."""
FILES_PER_VISITOR = 500
FILES_OF_GUESTS = 2_000
FILES_IN_ALL = 10_000
"""The most unsent files of one visitor, of all guests together and of everybody."""
MB = 1_000_000
_TOO_MANY = N_(
    "You have attached {most} files that are not sent yet, and more are not possible. Send them "
    "first, or try again in an hour."
)
_TOO_MANY_OF_GUESTS = N_(
    "Visitors without cookies may attach {most} files together, and have done so. Allow cookies for "
    "this page, or try again in an hour."
)
_TOO_LARGE = N_(
    "You have attached files that are not sent yet, and {most:g} MB of these is the most. Send them "
    "first, or try again in an hour."
)
_TOO_LARGE_OF_GUESTS = N_(
    "Visitors without cookies may attach {most:g} MB together, and have done so. Allow cookies for "
    "this page, or try again in an hour."
)


@dataclass(frozen=True, slots=True)
class _Upload:
    account: str
    size: int
    added_at: float


class _AccountFiles(OrderedDict[Path, None]):
    """The files of one account, oldest first. `size` is the number of bytes that they count for."""

    size = 0

    def add(self, path: Path, size: int) -> None:
        self[path] = None
        self.size += size

    def remove(self, path: Path, size: int) -> None:
        del self[path]
        self.size -= size


class UnsentFiles:
    """Owns the folder of unsent files and the table of their visitors. `visitor` is None for a guest.

    `free` returns how many bytes the disk has left.
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
        self._clock, self._free_bytes = clock, free or _free_bytes
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_leftovers(base)
        self.folder = Path(mkdtemp(prefix=PREFIX, dir=base)).resolve()
        self._lock = _lock(self.folder)
        self._files = OrderedDict[Path, _Upload]()  # oldest first
        self._folders = set[str]()
        self._by_account: dict[str, _AccountFiles] = {}
        self._used, self._total = Counter[str](), 0
        self._in_use: list[Collection[Path]] = []

    def check(self, visitor: str | None, size: int, files: int = 0) -> None:
        """Raise `Limited` unless this visitor has, or can get, room for `size` more bytes and `files` more files.

        Removes nothing: a length that a request only declares must not cost anybody a file.
        """
        self._files_to_evict(visitor, size, files)

    def count(self, visitor: str | None, size: int, files: int = 0) -> list[Path]:
        """Count `size` bytes of this visitor and make room for `files` files. Raises `Limited` and then counts nothing.

        Returns the files that made room. They are off the table, and the caller deletes them in a thread. If the total
        is too large, these are the oldest files of the largest account, provided that it is larger than this visitor's.
        """
        evicted = self._files_to_evict(visitor, size, files)
        for path in evicted:
            self._forget(path)
        self._add(visitor or GUEST, size)
        return evicted

    def uncount(self, visitor: str | None, size: int) -> None:
        """Undo `count` for `size` bytes."""
        self._add(visitor or GUEST, -size)

    def record(self, path: Path, visitor: str | None, size: int) -> None:
        """Record an existing file and count it."""
        account, counted = visitor or GUEST, max(size, MIN_FILE_BYTES)
        self._add(account, counted)
        self._files[path] = _Upload(account, counted, self._clock())
        self._folders.add(path.parent.name)
        self._by_account.setdefault(account, _AccountFiles()).add(path, counted)

    async def add(self, visitor: str | None, name: str, data: bytes) -> Path:
        """Store these bytes as if they had been uploaded. Raises `Limited`."""
        path, size = self.folder / new_id() / stored_name(name), len(data)
        evicted = self.count(visitor, size, 1)
        try:
            await UPLOADS.run(delete, evicted)
            await UPLOADS.run(_write, path, data)
        finally:
            self.uncount(visitor, size)
        self.record(path, visitor, size)
        return path

    def remove(self, paths: Iterable[str], visitor: str | None) -> None:
        """Remove files that this visitor has sent, because the message stores them now."""
        for path in map(Path, paths):
            upload = self._files.get(path)
            if upload is not None and upload.account == (visitor or GUEST):
                self._forget(path)
                _delete(path)

    def number_of(self, visitor: str) -> int:
        """Return the number of this visitor's files."""
        return len(self._by_account.get(visitor, ()))

    async def remove_all(self, visitor: str) -> None:
        """Remove all files of this visitor, except those in use."""
        in_use = self._paths_in_use()
        paths = [path for path in self._by_account.get(visitor, ()) if path not in in_use]
        for path in paths:
            self._forget(path)
        await UPLOADS.run(delete, paths)

    @contextmanager
    def using(self, paths: Collection[Path]) -> Generator[None]:
        """Protect these files from removal within the block. The collection can grow meanwhile."""
        self._in_use.append(paths)
        try:
            yield
        finally:
            self._in_use = [others for others in self._in_use if others is not paths]

    async def expire(self, limit: int = 200) -> int:
        """Remove the oldest expired files, at most `limit`, and return how many.

        Folders of the same age that are not in the table are removed too, for example after an interrupted upload.
        Files in use stay. Files are taken off the table first and deleted in a thread, so that nobody waits for the
        disk.
        """
        seconds, in_use = self.limits.minutes * 60, self._paths_in_use()
        before = self._clock() - seconds
        expired = (path for path, _ in takewhile(lambda item: item[1].added_at <= before, self._files.items()))
        old = list(islice((path for path in expired if path not in in_use), limit))
        for path in old:
            self._forget(path)
        known = self._folders | {path.parent.name for path in in_use}
        return len(old) + await UPLOADS.run(self._delete_old, old, known, steady_now().timestamp() - seconds, limit)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    def _add(self, account: str, size: int) -> None:
        self._used[account] += size
        self._total += size
        if self._used[account] <= 0:
            del self._used[account]

    def _files_to_evict(self, visitor: str | None, size: int, files: int) -> list[Path]:
        """Return the files of others that must go for this visitor's new bytes and files. Raises `Limited`."""
        account = visitor or GUEST
        most_files = FILES_PER_VISITOR if visitor else FILES_OF_GUESTS
        most = self.limits.mb_per_visitor if visitor else self.limits.mb_of_guests
        if files and len(self._by_account.get(account, ())) + files > most_files:
            raise Limited(LocalizedText(_TOO_MANY if visitor else _TOO_MANY_OF_GUESTS, {"most": most_files}))
        if self._used[account] + size > most * MB:
            raise Limited(LocalizedText(_TOO_LARGE if visitor else _TOO_LARGE_OF_GUESTS, {"most": most}))
        share = self.limits.disk_percent / 100 * (self._free_bytes(self.folder) + self._total)
        missing = self._total + size - min(self.limits.mb_in_all * MB, share)
        surplus = len(self._files) + files - FILES_IN_ALL if files else 0
        return self._oldest_of_largest(account, self._used[account] + size, missing, surplus)

    def _oldest_of_largest(self, account: str, least: int, missing: float, surplus: int) -> list[Path]:
        """Return the oldest files of accounts over `least` bytes, enough for `missing` bytes and `surplus` files."""
        found: list[Path] = []
        if missing <= 0 and surplus <= 0:
            return found
        in_use = self._paths_in_use()
        sizes = {one: files.size for one, files in self._by_account.items()}
        for upload in (self._files[path] for path in in_use if path in self._files):
            sizes[upload.account] -= upload.size
        largest = [(-size, one) for one, size in sizes.items()]
        heapify(largest)
        oldest: dict[str, Iterator[Path]] = {}
        while missing > 0 or surplus > 0:
            size, one = largest[0] if largest else (0, account)
            if one == account or -size <= least:
                raise Limited(_("There is no room for more files at the moment. Try again in an hour."))
            unused = oldest.setdefault(one, (path for path in self._by_account[one] if path not in in_use))
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
        account_files = self._by_account[upload.account]
        account_files.remove(path, upload.size)
        if not account_files:
            del self._by_account[upload.account]

    def _delete_old(self, paths: Sequence[Path], known: Collection[str], before: float, limit: int) -> int:
        """Delete these files, and at most `limit` folders not in `known` that last changed before this Unix time.

        Returns how many folders were deleted. Runs in a thread and does not use the table.
        """
        delete(paths)
        deleted = 0
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name in known or deleted >= limit:
                    continue
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < before:
                        shutil.rmtree(entry.path, ignore_errors=True)
                        deleted += not os.path.lexists(entry.path)  # housekeeping repeats until nothing is removed
        return deleted


def remove_leftovers(base: Path) -> int:
    """Remove the folders of ended processes and return how many.

    A process holds a lock in its folder while it runs. A folder without this lock file belongs to something else and
    stays.
    """
    removed = 0
    for folder in base.glob(f"{PREFIX}*"):
        try:
            lock = (folder / LOCK).open("r+b")
        except OSError:
            continue
        with lock, suppress(OSError):  # without locks nobody knows whether the folder is in use
            if lock_descriptor(lock.fileno(), blocking=False):
                shutil.rmtree(folder, ignore_errors=True)
                removed += 1
    return removed


def _lock(folder: Path) -> BinaryIO:
    """Hold the lock of this folder until the file is closed.

    On a system without locks, and on Windows, where an open file keeps its name, no other process ever removes the
    folder.
    """
    draft = folder / f"{LOCK}-draft"  # a process that starts now must not find the file before it is locked
    lock = draft.open("wb")
    with suppress(OSError):
        lock_descriptor(lock.fileno(), blocking=False)
    with suppress(PermissionError):
        draft.rename(folder / LOCK)
    return lock


def delete(paths: Iterable[Path]) -> None:
    """Delete files that are off the table. Blocks while the disk works."""
    for path in paths:
        with suppress(OSError):  # housekeeping finds the folder later
            _delete(path)


def _delete(path: Path) -> None:
    """Delete a file and its own folder."""
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(data)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


LONGEST_NAME = 200
"""The longest file name in bytes."""
_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f`$!{}]')
_STAND_INS = {ord(sign): 0xF000 + ord(sign) for sign in '<>:"|?*`$!{}'}
"""Characters for private use that stand on the disk for signs that are forbidden there, as on network drives."""
_SIGNS = {stand_in: sign for sign, stand_in in _STAND_INS.items()}


def stored_name(name: str) -> str:
    """Return the name of a file on the disk. `given_name` returns the visitor's name from it."""
    return safe_name(name.translate(_STAND_INS))


def given_name(path: Path) -> str:
    """Return the name that the visitor knows, without folders and control characters. It can have any other sign."""
    return path.name.translate(_SIGNS)


def safe_name(name: str) -> str:
    """Return the last part of a file name without characters that file systems or shells misread.

    Gradio's pages change names in the same way.
    """
    cut = _FORBIDDEN.sub("", name.replace("\\", "/").rpartition("/")[2]).rstrip(" .")
    stem, dot, suffix = cut.rpartition(".")
    if not stem:
        stem, dot, suffix = (suffix, "", "") if not dot else ("file", dot, suffix)
    room = LONGEST_NAME - len(f"{dot}{suffix}".encode()[: LONGEST_NAME // 2])
    kept = f"{dot}{suffix}".encode()[: LONGEST_NAME // 2].decode(errors="ignore")
    return (stem.encode()[:room].decode(errors="ignore") + kept) or "file"
