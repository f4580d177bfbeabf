"""A place in this process's memory, for files that must not be on any disk."""

import errno
from collections.abc import Callable
from pathlib import Path
from time import time

from agent.media.places import FileInfo


class MemoryPlace:
    """Files in memory. They are gone with the object. `room` returns how many more bytes can be written."""

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._files = dict[str, tuple[bytes, float]]()

    @property
    def label(self) -> str:
        """Implement `Place.label`."""
        return "memory"

    @property
    def total(self) -> int:
        """The number of bytes of all files."""
        return sum(len(data) for data, _ in [*self._files.values()])

    def write(self, name: str, data: bytes) -> None:
        """Implement `Place.write`."""
        if data and len(data) > self._room():
            raise OSError(errno.ENOSPC, "there is no room in memory for this file", name)
        self._files[name] = bytes(data), time()

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Implement `Place.read`."""
        found = self._files.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", name)
        return found[0][start:end]

    def size(self, name: str) -> int | None:
        """Implement `Place.size`."""
        found = self._files.get(name)
        return None if found is None else len(found[0])

    def remove(self, name: str) -> None:
        """Implement `Place.remove`."""
        self._files.pop(name, None)

    def files(self, folder: str) -> list[FileInfo]:
        """Implement `Place.files`."""
        found = [(name.rpartition("/"), data, at) for name, (data, at) in [*self._files.items()]]
        return [FileInfo(name, len(data), at) for (parent, _, name), data, at in found if parent == folder]

    def folders(self) -> list[str]:
        """Implement `Place.folders`."""
        return sorted({name.partition("/")[0] for name in [*self._files] if "/" in name})

    def remove_drafts(self, folder: str) -> None:
        """Implement `Place.remove_drafts`: there are none, because a file appears at once."""

    def path(self, name: str) -> Path | None:
        """Implement `Place.path`: no file has one."""
        return None
