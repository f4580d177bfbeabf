"""The laws of a history store: how one is written, the store under test, and what it stores.

`tests/history/*_laws.py` have the laws, and `test_conformance.py` checks each of them on each store.
"""

import asyncio
import os
import reprlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart

from agent.errors import AgentError, Conflict, HistoryError, NotFound
from agent.history.contract import HistoryStore
from agent.history.values import Conversation, Entry, RunEvent, RunEvents, now
from agent.suspension.ledger import Ledger

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
    """A store to be tested.

    `open` opens the store that belongs to a folder, which is empty at first. Stores without files take its name, for
    example as a prefix of their keys. A further call opens the same data again, in this process or another one.
    """

    open: Callable[[Path, Callable[[], datetime]], Awaitable[HistoryStore]]
    without: Collection[str] = ()
    """Capabilities that the store does not offer."""
    processes: bool = False
    """True if several processes can share the data, and if these survive a process."""
    raw: Callable[[Path, HistoryStore], Awaitable[bytes]] | None = None
    """Returns everything that is stored for the folder, past the store's own reading."""
    queries: Callable[[HistoryStore], AbstractAsyncContextManager[list[str]]] | None = None
    """Returns a context with a list that has each query of the store, or each command to its server, at its end."""
    ledger: Callable[[Path], Ledger] | None = None
    """Opens the ledger that belongs to a folder."""

    def offers(self, capability: str) -> bool:
        """Return True if the laws of this capability apply."""
        own = {"processes": self.processes, "raw": self.raw, "queries": self.queries, "ledger": self.ledger}
        return capability not in self.without and bool(own.get(capability, True))


def _find_subject(name: str) -> Subject:
    """Return the subject that "module:variable" names, or "module:dict.key"."""
    module, _, path = name.partition(":")
    return reduce(_step, path.split("."), cast("Any", import_module(module)))


def _step(found: Any, name: str) -> Any:
    return found[name] if isinstance(found, Mapping) else getattr(found, name)


class Trial:
    """The store under test and its surroundings. It owns what it opens, as an asynchronous context manager."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.subject = name, folder, _find_subject(name)
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
        assert self.subject.queries is not None
        async with self.subject.queries(self.store) as queries:
            await call()
        return queries

    def ledger(self) -> Ledger:
        """Open the ledger, as another process would do it again."""
        assert self.subject.ledger is not None
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
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    def send_signal(self, number: int) -> None:
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


Capability = Literal[
    "base", "branches", "labels", "search", "retention", "events", "links", "raw", "queries", "processes", "ledger"
]

_SHOWN_CHARACTERS = 1500


class Broken(AssertionError):
    """A store breaks a law. The text says what was found and what was expected."""


@dataclass(frozen=True, slots=True)
class Law:
    """A promise of every store that offers the needed capabilities.

    `check` raises `Broken`, or any other exception.
    """

    needs: tuple[Capability, ...]
    check: Callable[[Trial], Awaitable[None]]

    @property
    def name(self) -> str:
        """The name, which is a sentence."""
        return self.check.__name__


_LAWS: list[Law] = []
_MODULES = ("conversation_laws", "retention_laws", "run_laws")
"""The modules in `tests.history` that add their laws when they are imported."""


def law(*needs: Capability) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
    """Return the decorator that makes a function a law."""

    def add(check: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        _LAWS.append(Law(needs, check))
        return check

    return add


def laws_for(subject: Subject) -> list[Law]:
    """Return the laws whose capabilities the store offers."""
    for name in _MODULES:
        import_module(f"tests.history.{name}")
    return [law for law in _LAWS if all(map(subject.offers, law.needs))]


def same(found: object, expected: object, what: str) -> None:
    """Raise `Broken` if the two differ. `what` says what was looked at."""
    if found != expected:
        raise Broken(f"{what}: found {_short(found)}, expected {_short(expected)}.")


def holds(condition: object, what: str) -> None:
    """Raise `Broken` with this sentence if the condition is false."""
    if not condition:
        raise Broken(what)


@contextmanager
def refused(kind: type[AgentError], what: str) -> Generator[list[AgentError], None, None]:
    """Raise `Broken` unless the block raises `kind`, which the list then has. A plain `HistoryError` is no subclass."""
    caught: list[AgentError] = []
    try:
        yield caught
    except kind as error:
        if kind is HistoryError and isinstance(error, NotFound | Conflict):
            raise Broken(f"{what}: raised {type(error).__name__} instead of a plain HistoryError.") from error
        caught.append(error)
    except Exception as error:
        raise Broken(f"{what}: raised {error!r} instead of {kind.__name__}.") from error
    else:
        raise Broken(f"{what}: raised nothing instead of {kind.__name__}.")


@contextmanager
def allowed(what: str) -> Generator[None, None, None]:
    """Raise `Broken` if the block raises a `HistoryError`."""
    try:
        yield
    except HistoryError as error:
        raise Broken(f"{what}: raised {error!r}.") from error


def _short(value: object) -> str:
    shown = reprlib.Repr()
    shown.maxstring = shown.maxother = _SHOWN_CHARACTERS
    shown.maxlist = shown.maxtuple = 20
    return shown.repr(value)


ALICE, MALLORY = "visitor:alice", "visitor:mallory"


def prompt(text: str = "Hello") -> ModelRequest:
    """Return a message of a visitor."""
    return ModelRequest([UserPromptPart(text)])


def chain(*messages: ModelMessage, after: str | None = None) -> list[Entry]:
    """Return one entry per message, each linked to the one before it."""
    entries: list[Entry] = []
    for message in messages:
        entries.append(Entry(parent_id=after, message=message))
        after = entries[-1].id
    return entries


async def started(store: HistoryStore, *texts: str, owner: str = ALICE) -> tuple[Conversation, list[Entry]]:
    """Store a conversation with these prompts."""
    entries = chain(*map(prompt, texts or ("Hello",)))
    return await store.save(Conversation(owner=owner, head_id=entries[-1].id), entries), entries


async def titled(store: HistoryStore, title: str, *texts: str, owner: str = ALICE) -> Conversation:
    """Store a conversation with this title and these prompts."""
    entries = chain(*map(prompt, texts or ("Hello",)))
    return await store.save(Conversation(owner=owner, title=title, head_id=entries[-1].id), entries)


async def grown(store: HistoryStore, conversation: Conversation, entries: Sequence[Entry]) -> Conversation:
    """Store further entries, of which the last one becomes the newest of the conversation."""
    return await store.save(replace(conversation, head_id=entries[-1].id), entries)


def prompts(entries: Sequence[Entry]) -> list[Any]:
    """Return what the visitor wrote in these entries."""
    return [part.content for entry in entries for part in entry.message.parts if isinstance(part, UserPromptPart)]


def batch(conversation: Conversation, first: int, *texts: str, run: str = "run", ended: bool = False) -> RunEvents:
    """Return events of a run in this conversation with these texts, numbered from `first`."""
    events = [RunEvent.of(number, {"type": "output_text", "content": text}) for number, text in enumerate(texts, first)]
    return RunEvents(
        run_id=run, conversation_id=conversation.id, owner=conversation.owner, events=events, has_ended=ended
    )


def contents(events: Sequence[RunEvent]) -> list[tuple[int, str]]:
    """Return the number and the text of each event."""
    return [(event.number, event.value["content"]) for event in events]


async def check(law: Law, name: str, folder: Path) -> None:
    """Check a law on the subject that "module:variable" names, in an empty folder. Raises `Broken` or what it meets."""
    async with Trial(name, folder) as trial:
        await law.check(trial)
