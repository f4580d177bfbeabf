"""The places where files are stored: a folder of this machine, any place that `fsspec` reaches, or memory.

Every call blocks. Threads can share a place, but only one at a time changes the files of one folder.
"""

import errno
import os
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from tempfile import mkstemp
from time import time
from typing import Any, Protocol

from agent.errors import ConfigError

DRAFT_PREFIX = "."
"""Begins the name of a file that is not written completely, and of a folder that does not hold files of people."""
S3 = ("s3", "s3a")
"""The protocols of S3."""
S3_OPTIONS = {"connect_timeout": 3.0, "read_timeout": 10.0, "retries": {"mode": "standard", "total_max_attempts": 2}}
"""Seconds that the driver of S3 waits for a connection, and for each part of an answer, and its attempts."""
WRITE_SECONDS, WRITE_BYTES_PER_SECOND = 20.0, 250_000
"""A write fails after so many seconds, and the time that its bytes take at this speed."""
_AWAY = {"ConnectionError", "ClientConnectionError", "HTTPClientError", "TimeoutError", "Timeout"}
"""Names of the errors of a server that is not reached or does not answer. Each driver has classes of its own."""
DRAFT_SECONDS = 24 * 3600.0
"""A draft that is older than this belongs to a process that was killed."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """The name of a file without its folder, its size in bytes, and the Unix time when it was written."""

    name: str
    size: int
    written_at: float


class Place(Protocol):
    """Files by name. A name is a path with slashes, relative to the place. Every call can raise `OSError`."""

    @property
    def label(self) -> str:
        """The place as people read it, without passwords."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it, and create its folder. A failed write leaves no file that looks complete."""
        ...

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of a file from `start` to `end`. Raises `FileNotFoundError`."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if there is none."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, and its folder if it is empty then. A missing file is ignored."""
        ...

    def files(self, folder: str) -> list[FileInfo]:
        """Return the complete files that are directly in a folder. A missing folder has none."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the folders at the top of the place."""
        ...

    def remove_drafts(self, folder: str) -> None:
        """Remove the drafts in a folder that nobody will finish."""
        ...

    def path(self, name: str) -> Path | None:
        """Return the path of a file on this machine, or None if the place is elsewhere."""
        ...


class LocalFolder:
    """A place in a folder of this machine. Other users can read neither its files nor its folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def label(self) -> str:
        return str(self._folder)

    def write(self, name: str, data: bytes) -> None:
        """Implement `Place.write`: the file appears when it is complete, because others can read it meanwhile."""
        path = self._folder / name
        self._create_folder(path.parent)
        if not data:
            path.touch(mode=0o600)
            return
        number, draft = mkstemp(dir=path.parent, prefix=DRAFT_PREFIX)
        try:
            with open(number, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            self._remove_if_empty(path.parent)
            raise

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with open(self._folder / name, "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(max(0, end - start))

    def size(self, name: str) -> int | None:
        try:
            return (self._folder / name).stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        self._remove_if_empty(path.parent)

    def files(self, folder: str) -> list[FileInfo]:
        found = list[FileInfo]()
        with suppress(FileNotFoundError), os.scandir(self._folder / folder) as files:
            for file in files:
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    info = file.stat(follow_symlinks=False)
                    if not file.name.startswith(DRAFT_PREFIX) and file.is_file(follow_symlinks=False):
                        found.append(FileInfo(file.name, info.st_size, info.st_mtime))
        return found

    def folders(self) -> list[str]:
        try:
            with os.scandir(self._folder) as folders:
                return [folder.name for folder in folders if folder.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def remove_drafts(self, folder: str) -> None:
        with suppress(OSError), os.scandir(self._folder / folder) as files:
            for file in files:
                if not file.name.startswith(DRAFT_PREFIX) or not file.is_file(follow_symlinks=False):
                    continue
                with suppress(OSError):
                    if file.stat(follow_symlinks=False).st_mtime < time() - DRAFT_SECONDS:
                        os.unlink(file)

    def path(self, name: str) -> Path:
        return self._folder / name

    def _create_folder(self, folder: Path) -> None:
        inside = folder.relative_to(self._folder).parts
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for depth in range(1, len(inside) + 1):  # `parents=True` would give the folders in between other rights
            self._folder.joinpath(*inside[:depth]).mkdir(exist_ok=True, mode=0o700)

    def _remove_if_empty(self, folder: Path) -> None:
        """Remove the folder, and the folders above it in this place, as long as they are empty."""
        with suppress(OSError):  # the folder still has other files
            while folder != self._folder:
                folder.rmdir()
                folder = folder.parent


class RemoteFolder:
    """A place that `fsspec` reaches. `root` is a path in the file system `fs`.

    A file is written in one request. Where the protocol cannot do this, a process that is killed meanwhile leaves a
    part of the file, whose size tells it from the whole.
    """

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self._root = fs, root.rstrip("/")

    @property
    def label(self) -> str:
        protocol = self._fs.protocol
        root = re.sub(r"^/*([^/@]*@)?", "", self._root)
        return f"{protocol if isinstance(protocol, str) else protocol[0]}://{root}"

    def write(self, name: str, data: bytes) -> None:
        """Implement `Place.write`. The folder is created if the file system has folders."""
        path = self._path(name)
        with _os_errors():
            try:
                self._pipe(path, data)
            except Exception as error:  # each protocol has its own error for a missing folder
                if _is_away(error):
                    raise
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._pipe(path, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Implement `Place.read`. An object store refuses a range in which the file has nothing.

        An answer that was cut is asked for once more.
        """
        try:
            return self._read(name, start, end)
        except ConnectionError:
            raise
        except OSError:
            size = self.size(name)
            if size is None:
                raise
        return self._read(name, start, end) if start < size else b""

    def size(self, name: str) -> int | None:
        try:
            with _os_errors():
                found = self._fs.info(self._path(name))
        except FileNotFoundError:
            return None
        return int(found["size"]) if found["type"] == "file" else None

    def remove(self, name: str) -> None:
        """Implement `Place.remove`. Empty folders stay; an object store has none."""
        with suppress(FileNotFoundError), _os_errors():
            self._fs.rm_file(self._path(name))

    def files(self, folder: str) -> list[FileInfo]:
        return [
            FileInfo(_name(found), int(found["size"]), self._written_at(found))
            for found in self._list(self._path(folder))
            if found["type"] == "file" and not _name(found).startswith(DRAFT_PREFIX)
        ]

    def folders(self) -> list[str]:
        return [_name(found) for found in self._list(self._root) if found["type"] == "directory"]

    def remove_drafts(self, folder: str) -> None:
        """Implement `Place.remove_drafts`: there are none."""

    def path(self, name: str) -> None:
        """Implement `Place.path`."""

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _pipe(self, path: str, data: bytes) -> None:
        if not self._fs.async_impl:
            self._fs.pipe_file(path, data)
            return
        # aiohttp has no time-out for a server that takes no bytes, nor for one that should first allow to send them.
        seconds = WRITE_SECONDS + len(data) / WRITE_BYTES_PER_SECOND
        import_module("fsspec.asyn").sync(self._fs.loop, self._fs._pipe_file, path, data, timeout=seconds)

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        with _os_errors():
            if end is not None and end <= start:
                self._fs.info(self._path(name))  # raises if there is none
                return b""
            return self._fs.cat_file(self._path(name), start=start, end=end)

    def _list(self, path: str) -> list[dict[str, Any]]:
        try:
            with _os_errors():
                return [found for found in self._fs.ls(path, detail=True) if _name(found)]
        except FileNotFoundError:
            return []

    def _written_at(self, found: dict[str, Any]) -> float:
        """Return the time under the name that the protocol gives it in a list, or ask for it."""
        for name in ("LastModified", "last_modified", "mtime", "updated", "modified", "created"):
            if (value := found.get(name)) is not None:
                return _unix_time(value)
        with _os_errors():
            return _unix_time(self._fs.modified(found["name"]))


def open_place(url: str) -> Place:
    """Return the place that a URL names: "file:folder", "memory:" or another URL that `fsspec` knows.

    Nothing is read or written yet. Raises `ConfigError` if the protocol is unknown or its driver is not installed.
    """
    protocol, _, rest = url.partition(":")
    if protocol in ("file", "local"):
        return LocalFolder(Path(rest.removeprefix("//")).expanduser())
    fsspec: Any = import_module("fsspec")
    if not rest.strip("/") and protocol == "memory":
        return RemoteFolder(fsspec.filesystem("memory", global_store=False, skip_instance_cache=True), "")
    try:
        # No list of files is kept, so that files of another process are seen.
        options = _s3_options(fsspec) if protocol in S3 else {}
        fs, root = fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:  # its text names the package
        raise ConfigError(f"Files cannot be kept at {protocol}: {error}, with pip install.") from error
    except Exception as error:  # the text of other errors could name a password
        is_known = protocol in fsspec.available_protocols()
        reason = type(error).__name__ if is_known else f"Protocol not known: {protocol}"
        raise ConfigError(f"Files cannot be kept at {protocol}: {reason}.") from error
    if protocol in S3:
        fs.retries = 1  # the attempts of its own are multiplied by those of botocore
    return RemoteFolder(fs, root)


def _s3_options(fsspec: Any) -> dict[str, Any]:
    """Return the options for the driver of S3. Those in the configuration of fsspec win."""
    given = [fsspec.config.conf.get(protocol, {}).get("config_kwargs", {}) for protocol in S3]
    return {"config_kwargs": S3_OPTIONS | given[0] | given[1]}


@contextmanager
def _os_errors() -> Generator[None]:
    """Turn the exceptions of a driver into `OSError`. Their text stays out of it, because it can name a password.

    It is a `ConnectionError` if the server is away.
    """
    try:
        yield
    except Exception as error:
        if _is_away(error):
            raise ConnectionError(f"the place of the files does not answer: {type(error).__name__}") from error
        if isinstance(error, OSError):
            raise
        raise OSError(f"the place of the files answered with {type(error).__name__}") from error


def _is_away(error: Exception) -> bool:
    return any(kind.__name__ in _AWAY for kind in type(error).__mro__)


def _name(found: dict[str, Any]) -> str:
    """Return the last part of a listed name."""
    return str(found["name"]).rstrip("/").rpartition("/")[2]


def _unix_time(value: Any) -> float:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return float(value)


class MemoryPlace:
    """Files in memory. They are gone with the object. `room` returns how many more bytes can be written."""

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._files = dict[str, tuple[bytes, float]]()

    @property
    def label(self) -> str:
        return "memory"

    @property
    def total(self) -> int:
        """The number of bytes of all files."""
        return sum(len(data) for data, _ in [*self._files.values()])

    def write(self, name: str, data: bytes) -> None:
        if data and len(data) > self._room():
            raise OSError(errno.ENOSPC, "there is no room in memory for this file", name)
        self._files[name] = bytes(data), time()

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        found = self._files.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", name)
        return found[0][start:end]

    def size(self, name: str) -> int | None:
        found = self._files.get(name)
        return None if found is None else len(found[0])

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def files(self, folder: str) -> list[FileInfo]:
        found = [(name.rpartition("/"), data, at) for name, (data, at) in [*self._files.items()]]
        return [FileInfo(name, len(data), at) for (parent, _, name), data, at in found if parent == folder]

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in [*self._files] if "/" in name})

    def remove_drafts(self, folder: str) -> None:
        """Implement `Place.remove_drafts`: there are none, because a file appears at once."""

    def path(self, name: str) -> Path | None:
        """Implement `Place.path`: no file has one."""
        return None
