"""Places of files and history stores that fail, and places that crash with their process, for the tests of files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent.files.places import FileInfo, Place
from agent.history import Conversation, RetentionStore
from agent.history.key_value import KeyValueStore
from agent.history.memory import MemoryStore


class Crash(BaseException):
    """The process ends here."""


@dataclass
class Fuse:
    """Fails the call of this number. After a "crash" every further call fails, because the process is gone."""

    calls: int
    kind: Literal["crash", "error"] = "crash"
    has_blown: bool = False

    def burn(self) -> None:
        if self.has_blown and self.kind == "crash":
            raise Crash
        self.calls -= 1
        if self.calls == 0:
            self.has_blown = True
            raise Crash if self.kind == "crash" else OSError("no space left")


class FailingPlace:
    """A place whose calls fail as its fuse says. A write that crashes leaves half of the file, as on some protocols."""

    def __init__(self, place: Place, fuse: Fuse, *, leaves_half: bool) -> None:
        self._place, self._fuse, self._leaves_half = place, fuse, leaves_half
        self.label = place.label

    def write(self, name: str, data: bytes) -> None:
        try:
            self._fuse.burn()
        except Crash:
            if self._leaves_half and self._fuse.calls == 0 and data:
                self._fuse.calls = -1
                self._place.write(name, data[: len(data) // 2])
            raise
        self._place.write(name, data)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._fuse.burn()
        return self._place.read(name, start, end)

    def size(self, name: str) -> int | None:
        self._fuse.burn()
        return self._place.size(name)

    def remove(self, name: str) -> None:
        self._fuse.burn()
        self._place.remove(name)

    def files(self, folder: str) -> list[FileInfo]:
        self._fuse.burn()
        return self._place.files(folder)

    def folders(self) -> list[str]:
        return self._place.folders()

    def remove_drafts(self, folder: str) -> None:
        self._place.remove_drafts(folder)

    def path(self, name: str) -> Path | None:
        return self._place.path(name)


class FailingStore(KeyValueStore):
    """A history that crashes before or after a change, as its fuse says. `data` is what earlier processes stored."""

    def __init__(self, stored: MemoryStore, fuse: Fuse) -> None:
        super().__init__(stored._storage)
        self._fuse = fuse
        retention: Any = _FailingRetention(stored.retention, self._burn)
        self.retention = retention

    async def save(self, conversation: Conversation, entries: Any = (), events: Any = None) -> Conversation:
        self._burn()
        saved = await super().save(conversation, entries, events)
        self._burn()
        return saved

    def _burn(self) -> None:
        if self._fuse.kind == "crash":
            self._fuse.burn()


class _FailingRetention:
    def __init__(self, retention: RetentionStore, burn: Callable[[], None]) -> None:
        self._retention, self._burn = retention, burn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._retention, name)

    async def erase(self, conversation: Conversation) -> bool:
        self._burn()
        erased = await self._retention.erase(conversation)
        self._burn()
        return erased
