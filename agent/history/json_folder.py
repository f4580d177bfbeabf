"""The folder of a JSON history: finds conversations, remembers their states, and lets one process change it at a time.

    owners/<owner>/<conversation>/   the files of a conversation, see `agent.history.json_conversation`
    ids/<conversation>               names the owner's folder, so that no two owners have the same id
    runs/<number>-<run>              names the folder of the run's conversation; the numbers are in order of the starts
    links/<digest>                   names the folder of the conversation to which this link leads
    lock                             is locked by the process that writes

`ids`, `runs` and `links` are indexes: a file there counts only if the conversation says the same. `open` makes missing
ones.
"""

import asyncio
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from filelock import lock_descriptor

from agent.errors import AgentError, ConfigError, HistoryError, NotFound, reason_of
from agent.history import json_conversation as files
from agent.history.codec import load_records, place_at
from agent.history.json_conversation import Addition, Signature, State, name_of
from agent.history.records import NO_CONVERSATION, Record
from agent.history.uninterrupted import UninterruptedWork
from agent.i18n import _
from agent.system.threads import HISTORY_FILES

T = TypeVar("T")

FOLDER_LOCK_SECONDS = 2.5
"""Seconds that a write waits for other processes, from its call on if the write before it waited in vain."""
_FOLDER_LOCK_POLL_SECONDS = 0.004
log = logging.getLogger(__name__)


class JsonFolder:
    """The folder of a store, until `aclose`. The methods that are not `async` block, and run in a thread.

    Reading needs no lock: a record's file is replaced as a whole, and the bytes that it refers to never change.
    """

    def __init__(self, path: Path, patience: float, clock: Callable[[], datetime]) -> None:
        self.path, self.clock = path, clock
        self._owners, self._ids, self._runs, self._links = (path / name for name in ("owners", "ids", "runs", "links"))
        self._patience, self._was_locked = patience, False
        self._turn = asyncio.Lock()
        self._work = UninterruptedWork()
        self._known: dict[Path, dict[str, tuple[Signature, State | None]]] = {}

    async def open(self) -> None:
        """Make the folder for this user alone, and remove what killed processes left. Raises `ConfigError`."""
        with self._naming_errors(ConfigError):
            await HISTORY_FILES.run(self._prepare)

    async def read(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread. Raises `HistoryError` if a file cannot be read."""
        self._work.check_open()
        with self._naming_errors(HistoryError):
            return await HISTORY_FILES.run(work)

    async def write(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread while no other process writes, to its end even if the caller is cancelled."""
        return await self._work.run(self._in_turn(work, time.monotonic() + self._patience))

    async def aclose(self) -> None:
        """Finish the writes in progress."""
        await self._work.finish()

    # Conversations

    def folder_of(self, owner: str, id_: str) -> Path:
        """Return the folder for a conversation, whether it exists or not."""
        return self._owners / name_of(owner) / name_of(id_)

    def find(self, owner: str, id_: str) -> tuple[State, str] | None:
        """Return the state and the text of a record, whether it has expired or not."""
        return files.read_record(self.folder_of(owner, id_))

    def states(self, owner: str) -> list[State]:
        """Return the states of an owner's conversations, in the order of the list. Damaged ones are logged."""
        return sorted(self._states(self._owners / name_of(owner)), key=lambda state: -state.place)

    def all_states(self, owners: str) -> Iterator[State]:
        """Yield the states of all conversations whose owners begin so."""
        for folder in _subfolders(self._owners):
            yield from (state for state in self._states(folder) if state.owner.startswith(owners))

    def next_place(self, owner: str, at: datetime) -> int:
        """Return the place for a conversation that this owner saves now, and that is to be the first."""
        places = (state.place + 1 for state in self._states(self._owners / name_of(owner)))
        return max([place_at(at), *places])

    def write_record(self, state: State, record: str, additions: Sequence[Addition] = (), *, is_new: bool) -> None:
        """Store a conversation, and remove what does not belong to it any more. Call it in `write`."""
        folder = self.folder_of(state.owner, state.id)
        if is_new:
            self._claim(state)
            if folder.exists():  # left by a killed process
                shutil.rmtree(folder)
        files.write(folder, state, record, additions)
        files.cut(folder, state)

    def remove(self, state: State) -> None:
        """Remove a conversation and the events of its runs. Call it in `write`."""
        files.remove(self.folder_of(state.owner, state.id))
        (self._ids / name_of(state.id)).unlink(missing_ok=True)
        self.remove_runs(state.runs)
        self.remove_links(state.links)

    def is_taken(self, owner: str, id_: str) -> bool:
        """Return True if another owner has a conversation with this id."""
        try:
            name = (self._ids / name_of(id_)).read_text()
        except FileNotFoundError:
            return False
        return name != name_of(owner) and (self._owners / name / name_of(id_) / files.RECORD).exists()

    # Runs

    def add_run(self, run_id: str, state: State) -> None:
        """Remember to which conversation a new run belongs. Call it in `write`."""
        self.remove_runs([run_id])  # of a save that failed
        numbers = [int(name.partition("-")[0]) for name in self._run_names()]
        name = f"{max(numbers, default=0) + 1:016}-{name_of(run_id)}"
        _write_private(self._runs / name, _place_of(state))

    def find_run(self, run_id: str) -> State | None:
        """Return the state of the conversation that has this run."""
        found = (state for _, state in self._indexed_runs(name_of(run_id)) if run_id in state.runs)
        return next(found, None)

    def runs(self) -> Iterator[tuple[str, State]]:
        """Yield the id of each run and the state of its conversation, the oldest first."""
        for name, state in self._indexed_runs():
            yield from ((id_, state) for id_ in state.runs if name_of(id_) == name)

    def remove_runs(self, run_ids: Collection[str]) -> None:
        """Forget runs. Call it in `write`."""
        names = {name_of(id_) for id_ in run_ids}
        for name in self._run_names() if names else ():
            if name.partition("-")[2] in names:
                (self._runs / name).unlink(missing_ok=True)

    def _indexed_runs(self, wanted: str = "") -> Iterator[tuple[str, State]]:
        for name in self._run_names():
            run = name.partition("-")[2]
            if run == wanted or not wanted:
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    state = self._state_at(self._runs / name)
                    if state is not None:
                        yield run, state

    def _run_names(self) -> list[str]:
        return sorted(os.listdir(self._runs))

    # Links

    def add_link(self, digest: str, state: State) -> None:
        """Remember to which conversation a new link leads. Call it in `write`."""
        _write_private(self._links / name_of(digest), _place_of(state))

    def find_link(self, digest: str) -> State | None:
        """Return the state of the conversation that has this link."""
        try:
            state = self._state_at(self._links / name_of(digest))
        except FileNotFoundError:
            return None
        return state if state is not None and digest in state.links else None

    def remove_links(self, digests: Collection[str]) -> None:
        """Forget the conversations of these links. Call it in `write`."""
        for digest in digests:
            (self._links / name_of(digest)).unlink(missing_ok=True)

    # Files

    def _states(self, folder: Path) -> Iterator[State]:
        """Yield the states in an owner's folder. Reads only the files that have changed."""
        names = _names(folder)
        known = self._known.get(folder, {})
        for gone in set(known).difference(names):
            known.pop(gone, None)
        if not names:
            self._known.pop(folder, None)
        yield from (state for name in names if (state := self._state(folder, name)))

    def _state(self, folder: Path, name: str) -> State | None:
        path = folder / name / files.RECORD
        known = self._known.setdefault(folder, {})
        try:
            if name in known and known[name][0] == files.signature_of(path.stat()):
                return known[name][1]
            signature, state = files.read_state(path)
        except FileNotFoundError:
            known.pop(name, None)
            return None
        known[name] = signature, state
        return state

    def _state_at(self, index: Path) -> State | None:
        """Return the state of the conversation that a file of an index names. Raises `FileNotFoundError`."""
        owner, _, conversation = index.read_text().partition("/")
        return self._state(self._owners / owner, conversation)

    def _claim(self, state: State) -> None:
        _write_private(self._ids / name_of(state.id), name_of(state.owner))

    def _prepare(self) -> None:
        for folder in (self.path, self._owners, self._ids, self._runs, self._links):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                with suppress(PermissionError):  # Another user owns the folder and must protect it.
                    folder.chmod(0o700)
        with self._locked(time.monotonic() + self._patience):
            self._repair()

    def _repair(self) -> None:
        """Remove what killed processes left, and make missing indexes."""
        indexed = {name.partition("-")[2] for name in self._run_names()}
        for owner in _subfolders(self._owners):
            for name in _names(owner):
                state = self._state(owner, name)
                if not (owner / name / files.RECORD).exists():
                    shutil.rmtree(owner / name)
                elif state is not None:
                    files.cut(owner / name, state)
                    if not (self._ids / name).exists():
                        self._claim(state)
                    for run_id in (id_ for id_ in state.runs if name_of(id_) not in indexed):
                        self.add_run(run_id, state)
                    for digest in state.links:
                        self.add_link(digest, state)
        kept = {name_of(id_) for id_, _ in self.runs()}
        for name in self._run_names():
            if name.partition("-")[2] not in kept:
                (self._runs / name).unlink(missing_ok=True)
        for index in self._links.iterdir():
            state = self._state_at(index)
            if state is None or index.name not in map(name_of, state.links):
                index.unlink()

    async def _in_turn(self, work: Callable[[], T], deadline: float) -> T:
        async with self._turn:
            with self._naming_errors(HistoryError):
                return await HISTORY_FILES.run(self._alone, work, deadline)

    def _alone(self, work: Callable[[], T], deadline: float) -> T:
        with self._locked(deadline if self._was_locked else time.monotonic() + self._patience):
            return work()

    @contextmanager
    def _locked(self, deadline: float) -> Generator[None]:
        """Hold the lock between processes. The system releases it if this process is killed."""
        with open(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            while not lock_descriptor(file.fileno(), blocking=False):
                if time.monotonic() >= deadline:
                    self._was_locked = True
                    raise OSError(errno.EAGAIN, _("another process keeps it locked"), str(self.path))
                time.sleep(_FOLDER_LOCK_POLL_SECONDS)
            self._was_locked = False
            yield

    @contextmanager
    def _naming_errors(self, raised: type[AgentError]) -> Generator[None]:
        """Turn errors of the disk into a sentence that names the file."""
        try:
            yield
        except OSError as error:
            path = str(error.filename or self.path)
            reason = reason_of(error)
            if raised is HistoryError:  # a visitor can read it
                log.warning("%s cannot be used: %s", path, reason)
                path = Path(path).name
            raise raised(_("The history file {path!r} cannot be used: {error}.", path=path, error=reason)) from error


def find_live(folder: JsonFolder, owner: str, id_: str) -> tuple[State, Record]:
    """Return a conversation that has not expired. Raises `NotFound`."""
    found = folder.find(owner, id_)
    if found is None or not found[0].is_live(folder.clock()):
        raise NotFound(NO_CONVERSATION)
    return found[0], load_stored(folder, *found)


def load_stored(folder: JsonFolder, state: State, text: str) -> Record:
    """Return the record of this text. Raises `HistoryError` if it is damaged."""
    try:
        return load_records([text])[0]
    except HistoryError as error:
        raise files.damaged(folder.folder_of(state.owner, state.id) / files.RECORD) from error


def damaged_records(path: Path) -> Iterator[Path]:
    """Yield the records' files in the folder of a store that cannot be read. Changes nothing."""
    for owner in _subfolders(path / "owners"):
        for folder in _subfolders(owner):
            try:
                found = files.read_record(folder)
                if found:
                    load_records([found[1]])
                    files.read_entries(folder, found[0])
            except (HistoryError, OSError):
                yield folder / files.RECORD


def _subfolders(folder: Path) -> list[Path]:
    return [folder / name for name in _names(folder)]


def _names(folder: Path) -> list[str]:
    """Return the names of the folders in this one."""
    try:
        with os.scandir(folder) as found:
            return [one.name for one in found if one.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _place_of(state: State) -> str:
    """Return what the file of an index says to name this conversation."""
    return f"{name_of(state.owner)}/{name_of(state.id)}"


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
