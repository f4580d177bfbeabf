"""Opens the history store that a URL names, and imports only that one."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from agent.errors import ConfigError
from agent.history.contract import HistoryStore
from agent.history.records import now

FILE = "history.sqlite"
"""The file of a SQLite history whose URL names none."""


async def open_store(url: str, *, folder: Path, clock: Callable[[], datetime] = now) -> HistoryStore:
    """Open a store: "sqlite" for a file in `folder`, "sqlite:///path" for another one, or "memory:".

    Raises `ConfigError` for any other URL and for a file that cannot be used.
    """
    match url.partition(":")[0]:
        case "sqlite":
            from agent.history.sqlite import SqliteStore

            return await SqliteStore.open(sqlite_path(url, folder), clock=clock)
        case "memory":
            from agent.history.memory import MemoryStore

            return MemoryStore(clock)
        case kind:
            raise ConfigError(f"There is no history store for {kind!r}. Use sqlite or memory.")


def sqlite_path(url: str, folder: Path) -> Path:
    """Return the file that a URL of a SQLite history names."""
    path = url.removeprefix("sqlite").removeprefix("://").removeprefix("/")
    return Path(path).expanduser() if path else folder / FILE
