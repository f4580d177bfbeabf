"""Opens the history store that a URL names, and imports only that one."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from agent.errors import ConfigError
from agent.history.contract import HistoryStore
from agent.history.values import now

STORE_KINDS = ("sqlite", "json", "memory", "redis", "rediss", "unix", "postgresql", "postgres")
"""The beginnings of the URLs that `open_store` takes."""
FILE, FOLDER = "history.sqlite", "history"
"""The file of a SQLite history and the folder of a JSON history whose URL names none."""


async def open_store(
    url: str, *, folder: Path, clock: Callable[[], datetime] = now, is_secret: bool = False
) -> HistoryStore:
    """Open a store, such as "sqlite", "sqlite:///path", "json:folder", "postgresql://host/database" or "redis://host".

    Raises `ConfigError` for any other URL, for a file that cannot be used, and if the driver is missing. A server that
    is away is no error: each call says so until it is back, without its address if that `is_secret`.
    """
    match url.partition(":")[0]:
        case "sqlite":
            from agent.history.sql.sqlite import SqliteStore

            return await SqliteStore.open(sqlite_path(url, folder), clock=clock)
        case "json":
            from agent.history.json_files import JsonStore

            return await JsonStore.open(json_path(url, folder), clock=clock)
        case "postgresql" | "postgres":
            with needing_driver("PostgreSQL", "postgres"):
                from agent.history.sql.postgres import PostgresStore
            return await PostgresStore.open(url, clock=clock, is_secret=is_secret)
        case "memory":
            from agent.history.memory import MemoryStore

            return MemoryStore(clock)
        case "redis" | "rediss" | "unix":
            with needing_driver("Redis", "redis"):
                from agent.history.redis import RedisStore

            return RedisStore(url, clock=clock, is_secret=is_secret)
        case kind:
            raise ConfigError(f"There is no history store for {kind!r}. Use sqlite, json, postgresql, redis or memory.")


@runtime_checkable
class StoreOnServer(Protocol):
    """A store on a server, whose settings can lose conversations."""

    async def find_weaknesses(self) -> Sequence[tuple[str, str]]:
        """Return each setting that can lose conversations, and what to do about it. Raises `HistoryError`."""
        ...


def other_histories(url: str, folder: Path) -> list[Path]:
    """Return the histories in this folder that the URL does not name."""
    opened = path_of(url, folder)
    return [path for path in (folder / FILE, folder / FOLDER) if path.exists() and path.resolve() != opened]


def path_of(url: str, folder: Path) -> Path | None:
    """Return the file or the folder of the history that a URL names, or None if it is in memory or on a server."""
    own = {"sqlite": sqlite_path, "json": json_path}.get(url.partition(":")[0])
    return own(url, folder).resolve() if own else None


@contextmanager
def needing_driver(name: str, extra: str) -> Generator[None]:
    """Turn the error that a driver is missing into a sentence on how to install it."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"The driver of {name} is not installed: pip install -r requirements-stores.txt, "
            f"or pip install '.[{extra}]' (in the folder of Switchboard)."
        ) from error


def sqlite_path(url: str, folder: Path) -> Path:
    """Return the file that a URL of a SQLite history names."""
    path = url.removeprefix("sqlite").removeprefix(":")  # people also write sqlite:/path and sqlite:path
    path = path.removeprefix("//").removeprefix("/") if path.startswith("//") else path
    return Path(path).expanduser() if path else folder / FILE


def json_path(url: str, folder: Path) -> Path:
    """Return the folder that a URL of a JSON history names, relative to the data folder."""
    return folder / Path(url.removeprefix("json").removeprefix(":") or FOLDER).expanduser()
