"""The description of a store by its author, and one trial of a law: an empty place, its store and a clock."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Self, cast

from agent.errors import ConfigError
from agent.history.contract import HistoryStore
from agent.history.records import now
from agent.suspension.ledgers import Ledger

PROCESS_SECONDS = 60.0
"""Seconds to wait for a line of another process."""


class Clock:
    """A clock that runs, and can be set forward."""

    ahead = timedelta()

    def __call__(self) -> datetime:
        """Return its time."""
        return now() + self.ahead

    def go_forward(self, **units: float) -> None:
        """Set it forward by so many `hours`, or other units of `timedelta`."""
        self.ahead += timedelta(**units)

    def before(self, **units: float) -> datetime:
        """Return the time so long ago."""
        return self() - timedelta(**units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A store to be tested, as its author describes it.

    `open` opens the store that belongs to a folder, which is empty at first. Stores without files take its name, for
    example as a prefix of their keys. A further call opens the same data again, in this process or another one.
    """

    open: Callable[[Path, Callable[[], datetime]], Awaitable[HistoryStore]]
    without: Collection[str] = ()
    """Capabilities that the store does not offer."""
    processes: bool = False
    """True if several processes can share the data, and if these survive a process."""
    replicas: bool = False
    """True if processes can take over each other's runs, see `agent.history.replicas`."""
    raw: Callable[[Path, HistoryStore], Awaitable[bytes]] | None = None
    """Returns everything that is stored for the folder, past the store's own reading."""
    queries: Callable[[HistoryStore], AbstractAsyncContextManager[list[str]]] | None = None
    """Returns a context with a list that has each query of the store, or each command to its server, at its end."""
    ledger: Callable[[Path], Ledger] | None = None
    """Opens the ledger that belongs to a folder."""

    def offers(self, capability: str) -> bool:
        """Return True if the laws of this capability apply."""
        own = {
            "processes": self.processes,
            "replicas": self.replicas,
            "raw": self.raw,
            "queries": self.queries,
            "ledger": self.ledger,
        }
        return capability not in self.without and bool(own.get(capability, True))


def find_subject(name: str) -> Subject:
    """Return the subject that "module:variable" names, or "module:dict.key". Raises `ConfigError`."""
    module, _, path = name.partition(":")
    try:
        found = reduce(_step, path.split("."), cast("object", import_module(module)))
    except (ImportError, AttributeError, KeyError, ValueError) as error:
        raise ConfigError(f"There is no subject {name!r}: {error}. Name it as in my_tests.stores:SUBJECT.") from error
    if not isinstance(found, Subject):
        raise ConfigError(f"{name!r} is no Subject of agent.history.conformance.")
    return found


def _step(found: object, name: str) -> object:
    return cast("Mapping[str, object]", found)[name] if isinstance(found, Mapping) else getattr(found, name)


class Trial:
    """The store under test and its surroundings. It owns what it opens, as an asynchronous context manager."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.subject = name, folder, find_subject(name)
        self.clock = Clock()
        self.store: HistoryStore
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the store."""
        self.store = await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all stores."""
        await self._opened.aclose()

    async def open(self) -> HistoryStore:
        """Open the same data once more, as another process would do."""
        store = await self.subject.open(self.folder, self.clock)
        self._opened.push_async_callback(store.aclose)
        return store

    async def reopen(self) -> None:
        """Close the store and open its data again, if that survives."""
        if self.subject.processes:
            await self.store.aclose()
            self.store = await self.open()

    async def raw(self) -> bytes:
        """Return everything that is stored."""
        return await self.subject.raw(self.folder, self.store) if self.subject.raw else b""

    async def queries_of(self, call: Callable[[], Awaitable[object]]) -> list[str]:
        """Return the queries that a call of the store makes."""
        if self.subject.queries is None:
            raise ConfigError(f"{self.name!r} does not count queries.")
        async with self.subject.queries(self.store) as queries:
            await call()
        return queries

    def ledger(self) -> Ledger:
        """Open the ledger, as another process would do it again."""
        if self.subject.ledger is None:
            raise ConfigError(f"{self.name!r} has no ledger.")
        return self.subject.ledger(self.folder)

    async def process(self, program: Callable[..., object], *arguments: str) -> "Process":
        """Start another process that calls `program` with a trial of the same data and these arguments.

        Ends with this trial. `program` is a function of a module, and can be asynchronous.
        """
        source = f"from {__name__} import run_program; run_program()"
        names = (program.__module__, program.__name__, self.name, str(self.folder))
        pipe = subprocess.PIPE
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = Process(
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", source, *names, *arguments, env=environment, stdin=pipe, stdout=pipe
            )
        )
        self._opened.push_async_callback(process.kill)
        return process


class Process:
    """Another process. It prints lines, and waits for lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def read(self) -> str:
        """Return the next line that the process prints. Raises `AssertionError` if it ends or hangs."""
        stdout = self._process.stdout
        assert stdout is not None
        line = await asyncio.wait_for(stdout.readline(), PROCESS_SECONDS)
        assert line, "the other process ended early, see its error output"
        return line.decode().rstrip("\n")

    def write(self, line: str = "") -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def kill(self) -> list[str]:
        """Kill the process as `kill -9` does, and return the lines that were not read."""
        with suppress(ProcessLookupError):
            self._process.kill()
        rest, _ = await self._process.communicate()
        return rest.decode().splitlines()


def run_program() -> None:
    """Call what the command line names. This is the main function of the other processes."""
    module, program, name, folder, *arguments = sys.argv[1:]
    result = getattr(import_module(module), program)(Trial(name, Path(folder)), *arguments)
    if isinstance(result, Coroutine):
        asyncio.run(cast("Coroutine[None, None, None]", result))
