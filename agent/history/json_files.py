"""Conversations in JSON files, in a folder for each owner. Several processes of one machine can share them.

People and their tools can read these files. A save waits for the disk, and all saves of a folder wait for each other.

    owners/<owner>/<conversation>/   the files of a conversation
    ids/<conversation>               names the owner's folder, so that no two owners have the same id
    runs/<number>-<run>              names the folder of the run's conversation; the numbers are in order of the starts
    links/<digest>                   names the folder of the conversation to which this link leads
    lock                             is locked by the process that writes

`ids`, `runs` and `links` are indexes: a file there counts only if the conversation says the same. `open` makes missing
ones. The files of a conversation are:

    record.jsonl    the `Item` without its conversation, then the conversation as `agent.history.codec` writes it
    entries.jsonl   for each entry its id, its parent's id and the text that is searched, then the entry itself; after
                    entries were erased, this is entries-1.jsonl, and so on
    <run>.events    a line for each event of a run

`record.jsonl` is replaced by a rename, and this rename is the one moment at which a change is made: of every
other file, only as many bytes count as the item says. What a killed process wrote beyond them is cut off by the next
change.
"""

import asyncio
import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Self, TypeVar

from filelock import lock_descriptor
from pydantic import TypeAdapter, ValidationError

from agent.errors import AgentError, ConfigError, HistoryError, NotFound, reason_of
from agent.history.codec import load_conversations
from agent.history.key_value import (
    EntryPlace,
    Item,
    KeyValueStore,
    KnownLogs,
    LocalView,
    SearchedEntry,
    StoredEntry,
    Work,
    finish,
)
from agent.history.uninterrupted import LockWait, UninterruptedWork
from agent.history.values import NO_CONVERSATION, Conversation, RunEvents, join_events, now
from agent.i18n.text import _
from agent.system.threads import HISTORY_FILES

T = TypeVar("T")
Signature = tuple[int, int, int]

RECORD, EVENTS = "record.jsonl", ".events"
_DRAFT = "record.draft"
_ITEM = TypeAdapter(Item)
FOLDER_LOCK_SECONDS = 2.5
"""Seconds that a write waits for other processes, from its call on if the write before it waited in vain."""
_FOLDER_LOCK_POLL_SECONDS = 0.004
log = logging.getLogger(__name__)


class _Replaced(NotFound):
    """A file that an item names is gone."""


class JsonStore(KeyValueStore):
    """A `HistoryStore` in a folder; `open` makes one.

    A killed process or a power cut loses no acknowledged save. A cancelled save has stored everything or nothing.
    """

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, patience: float = FOLDER_LOCK_SECONDS, clock: Callable[[], datetime] = now
    ) -> Self:
        """Open the folder, or create it for this user alone. `patience` is the number of seconds to wait for its lock.

        Raises `ConfigError` if the folder cannot be used.
        """
        storage = JsonStorage(Path(path), patience, clock)
        await storage.open()
        return cls(storage)


class JsonStorage(LocalView):
    """A `Storage` of files, until `aclose`. The methods that are not `async` block, and run in a thread.

    Reading needs no lock: a conversation's file is replaced as a whole, and the bytes that it refers to never change.
    """

    def __init__(self, path: Path, patience: float, clock: Callable[[], datetime]) -> None:
        self.path, self.clock = path, clock
        self._owners, self._ids, self._runs, self._links = (path / name for name in ("owners", "ids", "runs", "links"))
        self._lock_wait = LockWait(patience)
        self._turn = asyncio.Lock()
        self._work = UninterruptedWork()
        self._known: dict[Path, dict[str, tuple[Signature, Item | None]]] = {}
        self._logs = KnownLogs()
        self._logs_lock = Lock()

    async def open(self) -> None:
        """Make the folder for this user alone, and remove what killed processes left. Raises `ConfigError`."""
        with self._naming_errors(ConfigError):
            await HISTORY_FILES.run(self._prepare)

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Implement `Storage.read`. Raises `HistoryError` if a file cannot be read."""
        self._work.check_open()
        with self._naming_errors(HistoryError):
            try:
                return await HISTORY_FILES.run(lambda: finish(work(self)))
            except _Replaced:  # by another file, if entries were erased meanwhile
                return await HISTORY_FILES.run(lambda: finish(work(self)))

    async def write(self, work: Work[T], *, is_end: bool = False) -> T:
        """Implement `Storage.write`. No other process writes meanwhile."""
        return await self._work.run(self._in_turn(work, self._lock_wait.deadline(), is_end))

    async def aclose(self) -> None:
        await self._work.finish()

    # Conversations

    async def get(self, owner: str, id_: str) -> Item | None:
        return self._stored(owner, id_)

    def _stored(self, owner: str, id_: str) -> Item | None:
        folder = self._folder(owner, id_)
        try:
            item = self._item(folder.parent, folder.name)
        except FileNotFoundError:
            return None
        if item is None:
            raise damaged(folder / RECORD)
        return item

    async def is_taken(self, id_: str) -> bool:
        try:
            owner = (self._ids / name_of(id_)).read_text()
        except FileNotFoundError:
            return False
        return (self._owners / owner / name_of(id_) / RECORD).exists()

    async def with_run(self, run_id: str) -> Item | None:
        name = name_of(run_id)
        found = (self._item_at(self._runs / index) for index in self._run_names() if index.endswith(f"-{name}"))
        return next((item for item in found if item is not None and run_id in item.runs), None)

    async def with_link(self, digest: str) -> Item | None:
        item = self._item_at(self._links / name_of(digest))
        return item if item is not None and digest in item.links else None

    def items_of(self, owner: str) -> Sequence[Item]:
        """Implement `LocalView.items_of`. Reads only the files that have changed."""
        return sorted(self._items(self._owners / name_of(owner)), key=lambda item: -item.place)

    def all(self, owners: str) -> Iterator[Item]:
        for name in _names(self._owners):
            yield from (item for item in self._items(self._owners / name) if item.owner.startswith(owners))

    def runs(self) -> Iterator[tuple[str, Item]]:
        for index in self._run_names():
            name, item = index.partition("-")[2], self._item_at(self._runs / index)
            yield from ((id_, item) for id_ in (item.runs if item else ()) if item and name_of(id_) == name)

    # Logs

    async def places(self, item: Item) -> Mapping[str, EntryPlace]:
        """Implement `View.places`. Reads only what is new since the last call."""
        path = self._entries_of(item)
        with self._logs_lock, _not_deleted():
            known = self._logs.of(item)
            for head, place, _ in _entries_in(path, known.length, item.length):
                known.places[head["id"]] = place
            known.length = max(known.length, item.length)
        return known.places

    async def texts(self, wanted: Sequence[tuple[Item, EntryPlace]]) -> list[str]:
        found = list[str]()
        for item, pairs in groupby(wanted, lambda pair: pair[0]):
            path = self._entries_of(item)
            with _not_deleted(), path.open("rb") as file:
                try:
                    found += [_read_at(file, place).decode() for _, place in pairs]
                except ValueError as error:
                    raise damaged(path) from error
        return found

    def searched_entries(self, item: Item) -> Sequence[SearchedEntry]:
        return read_entries(self._folder_of(item), item)

    async def events(self, run_id: str, after: int) -> tuple[Item, list[str]] | None:
        item = await self.with_run(run_id)
        if item is None:
            return None
        with _not_deleted():
            lines = _read_lines(self._folder_of(item) / _events_file(run_id), 0, item.runs[run_id].length)
        return item, [line.decode() for line in lines[after:]]

    # Changes

    def put(
        self,
        item: Item,
        entries: Sequence[StoredEntry] = (),
        events: RunEvents | None = None,
        *,
        is_newest: bool = False,
    ) -> None:
        folder, before = self._folder_of(item), self._stored(item.owner, item.id)
        if item.conversation is None:
            raise self.damaged(item)
        item = replace(item, place=self.place_for(item, is_newest=is_newest))
        is_new = before is None
        if before is None:
            _write_private(self._ids / name_of(item.id), name_of(item.owner))
            if folder.exists():  # left by a killed process
                shutil.rmtree(folder)
            before = replace(item, length=0, runs={}, links={})
        for run_id in item.runs.keys() - before.runs.keys():
            self._add_run(run_id, item)
        for digest in item.links.keys() - before.links.keys():
            _write_private(self._links / name_of(digest), _place_of(item))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if entries:
            length = _append(self._entries_of(item), item.length, _lines_of(entries))
            item = replace(item, length=length)
        if events is not None:
            run = item.runs[events.run_id]
            data = f"{join_events(events.events)}\n".encode()
            run = replace(run, length=_append(folder / _events_file(events.run_id), run.length, data))
            item = replace(item, runs={**item.runs, events.run_id: run})
        _replace_conversation(folder, item, is_new=is_new)
        _cut(folder, item)
        self._forget(before.runs.keys() - item.runs.keys(), before.links.keys() - item.links.keys())

    def rewrite(self, item: Item, entries: Sequence[StoredEntry]) -> None:
        """Implement `View.rewrite`. The entries get a new file, so that the conversation's rename is the change."""
        self.put(item, entries)

    def remove(self, items: Sequence[Item]) -> None:
        for item in items:
            folder = self._folder_of(item)
            (folder / RECORD).unlink(missing_ok=True)  # From here on, the conversation is gone.
            _sync_folder(folder)
            shutil.rmtree(folder)
            with suppress(OSError):  # the owner has other conversations
                folder.parent.rmdir()
            self._known.get(folder.parent, {}).pop(folder.name, None)
            (self._ids / name_of(item.id)).unlink(missing_ok=True)
            self._forget(item.runs.keys(), item.links.keys())

    def damaged(self, item: Item) -> HistoryError:
        return damaged(self._entries_of(item) if item.conversation else self._folder_of(item) / RECORD)

    # Indexes and conversations

    def _folder(self, owner: str, id_: str) -> Path:
        """Return the folder for a conversation, whether it exists or not."""
        return self._owners / name_of(owner) / name_of(id_)

    def _folder_of(self, item: Item) -> Path:
        return self._folder(item.owner, item.id)

    def _entries_of(self, item: Item) -> Path:
        return self._folder_of(item) / entries_file(item)

    def _add_run(self, run_id: str, item: Item) -> None:
        self._forget([run_id], ())  # of a save that failed
        numbers = [int(name.partition("-")[0]) for name in self._run_names()]
        _write_private(self._runs / f"{max(numbers, default=0) + 1:016}-{name_of(run_id)}", _place_of(item))

    def _forget(self, run_ids: Collection[str], digests: Collection[str]) -> None:
        """Remove the indexes of runs and links."""
        names = {name_of(id_) for id_ in run_ids}
        for index in self._run_names() if names else ():
            if index.partition("-")[2] in names:
                (self._runs / index).unlink(missing_ok=True)
        for digest in digests:
            (self._links / name_of(digest)).unlink(missing_ok=True)

    def _run_names(self) -> list[str]:
        return sorted(os.listdir(self._runs))

    def _items(self, folder: Path) -> Iterator[Item]:
        """Yield the conversations in an owner's folder. Reads only the files that have changed."""
        names = _names(folder)
        known = self._known.get(folder, {})
        for gone in set(known).difference(names):
            known.pop(gone, None)
        if not names:
            self._known.pop(folder, None)
        for name in names:
            with suppress(FileNotFoundError):
                if (item := self._item(folder, name)) is not None:
                    yield item

    def _item(self, folder: Path, name: str) -> Item | None:
        """Return a conversation in an owner's folder, None if it is damaged. Raises `FileNotFoundError`."""
        path, known = folder / name / RECORD, self._known.get(folder, {})
        try:
            if name in known and known[name][0] == _signature_of(path.stat()):
                return known[name][1]
            signature, item = read_item(path)
        except FileNotFoundError:
            known.pop(name, None)
            raise
        self._known.setdefault(folder, {})[name] = signature, item
        return item

    def _item_at(self, index: Path) -> Item | None:
        """Return the conversation that a file of an index names, None if one of them is gone."""
        with suppress(FileNotFoundError):
            owner, _, conversation = index.read_text().partition("/")
            return self._item(self._owners / owner, conversation)
        return None

    # The folder

    def _prepare(self) -> None:
        for folder in (self.path, self._owners, self._ids, self._runs, self._links):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_mode & 0o077:
                with suppress(PermissionError):  # Another user owns the folder and must protect it.
                    folder.chmod(0o700)
        with self._locked(self._lock_wait.deadline()):
            self._repair()

    def _repair(self) -> None:
        """Remove what killed processes left, and make missing indexes."""
        indexed = {index.partition("-")[2] for index in self._run_names()}
        for folder in _conversations(self.path):
            try:
                item = self._item(folder.parent, folder.name)
            except FileNotFoundError:
                shutil.rmtree(folder)
                continue
            if item is not None:
                _cut(folder, item)
                if not (self._ids / folder.name).exists():
                    _write_private(self._ids / folder.name, name_of(item.owner))
                for run_id in (id_ for id_ in item.runs if name_of(id_) not in indexed):
                    self._add_run(run_id, item)
                for digest in item.links:
                    _write_private(self._links / name_of(digest), _place_of(item))
        kept = {name_of(id_) for id_, _ in self.runs()}
        for index in self._run_names():
            if index.partition("-")[2] not in kept:
                (self._runs / index).unlink(missing_ok=True)
        for index in self._links.iterdir():
            item = self._item_at(index)
            if item is None or index.name not in map(name_of, item.links):
                index.unlink()

    async def _in_turn(self, work: Work[T], deadline: float, is_end: bool) -> T:
        async with self._turn:
            with self._naming_errors(HistoryError):
                return await HISTORY_FILES.run(self._alone, work, deadline, is_end)

    def _alone(self, work: Work[T], deadline: float, is_end: bool) -> T:
        with self._locked(deadline, is_end=is_end):
            return finish(work(self))

    @contextmanager
    def _locked(self, deadline: float, *, is_end: bool = False) -> Generator[None]:
        """Hold the lock between processes. The system releases it if this process is killed."""
        with open(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600), "wb") as file:
            until = time.monotonic() + self._lock_wait.left(deadline, is_end=is_end)
            while not lock_descriptor(file.fileno(), blocking=False):
                if time.monotonic() >= until:
                    self._lock_wait.end(is_in_vain=True)
                    raise OSError(errno.EAGAIN, _("another process keeps it locked"), str(self.path))
                time.sleep(_FOLDER_LOCK_POLL_SECONDS)
            self._lock_wait.end(is_in_vain=False)
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


def name_of(text: str) -> str:
    """Return a file name for any id or owner."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def damaged(path: Path) -> HistoryError:
    """Return the error of a file whose content makes no sense. Visitors can read it, and the log has the whole path."""
    log.warning("%s is damaged", path)
    return HistoryError(
        _("The history file {path!r} cannot be used: {error}.", path=path.name, error=_("it is damaged"))
    )


def damaged_conversations(path: Path) -> Iterator[Path]:
    """Yield the conversations' files in the folder of a store that cannot be read. Changes nothing."""
    for folder in _conversations(path):
        try:
            _signature, item = read_item(folder / RECORD)
            if item is None or item.conversation is None:
                yield folder / RECORD
            else:
                read_entries(folder, item)
        except FileNotFoundError:
            continue  # a killed process left it
        except (HistoryError, OSError):
            yield folder / RECORD


def read_item(path: Path) -> tuple[Signature, Item | None]:
    """Return what a conversation's file has, None if it is damaged, which is logged. Raises `FileNotFoundError`."""
    with path.open("rb") as file:
        signature, data = _signature_of(os.fstat(file.fileno())), file.read()
    line, _, text = data.partition(b"\n")
    try:
        item = _ITEM.validate_json(line)
    except ValidationError:
        log.warning("a conversation cannot be read: %s", damaged(path))
        return signature, None
    conversation = _conversation_in(path, text)
    return signature, replace(
        item, conversation=conversation, text=text.decode().removesuffix("\n") if conversation else ""
    )


def read_entries(folder: Path, item: Item) -> list[SearchedEntry]:
    """Return the entries in the order of their storage. Raises `HistoryError`, also if one is no text."""
    path = folder / entries_file(item)
    try:
        with _not_deleted():
            found = [(head, place, text.decode()) for head, place, text in _entries_in(path, 0, item.length)]
        return [SearchedEntry(head["id"], head["parent_id"], head["text"], place) for head, place, _ in found]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error


def _conversation_in(path: Path, text: bytes) -> Conversation | None:
    try:
        return load_conversations([text.decode()])[0]
    except (HistoryError, ValueError) as error:
        log.warning("%s is damaged: %s", path, error if isinstance(error, HistoryError) else "no text")
        return None


def _signature_of(found: os.stat_result) -> Signature:
    """Return what changes with each change of a conversation's file."""
    return found.st_mtime_ns, found.st_ino, found.st_size


def _entries_in(path: Path, start: int, end: int) -> list[tuple[dict[str, Any], EntryPlace, bytes]]:
    """Return the head, the place and the text of each entry in these bytes of a file."""
    lines, found = _read_lines(path, start, end), list[tuple[dict[str, Any], EntryPlace, bytes]]()
    try:
        heads: list[dict[str, Any]] = json.loads(b"[%s]" % b",".join(lines[::2]))
        for head, line, text in zip(heads, lines[::2], lines[1::2], strict=True):
            begin = start + len(line) + 1
            start = begin + len(text) + 1
            found.append((head, EntryPlace(head["parent_id"], begin, start - 1), text))
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(path) from error
    return found


def _read_lines(path: Path, start: int, end: int) -> list[bytes]:
    if start >= end:
        return []
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(end - start)
    if len(data) < end - start or not data.endswith(b"\n"):
        raise damaged(path)
    return data[:-1].split(b"\n")


def _read_at(file: BinaryIO, place: EntryPlace) -> bytes:
    file.seek(place.start)
    return file.read(place.end - place.start)


def _lines_of(entries: Sequence[StoredEntry]) -> bytes:
    heads = [{"id": one.id, "parent_id": one.parent_id, "text": one.searched} for one in entries]
    lines = zip((json.dumps(head, ensure_ascii=False) for head in heads), (one.json for one in entries), strict=True)
    return "".join(f"{head}\n{text}\n" for head, text in lines).encode()


def entries_file(item: Item) -> str:
    """Return the name of the file with the entries."""
    return f"entries-{item.cuts}.jsonl" if item.cuts else "entries.jsonl"


def _events_file(run_id: str) -> str:
    return name_of(run_id) + EVENTS


def _append(path: Path, start: int, data: bytes) -> int:
    """Write lines after the first `start` bytes of a file, and return where they end."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return start + len(data)


def _replace_conversation(folder: Path, item: Item, *, is_new: bool) -> None:
    """Replace a conversation's file, all or nothing, also if the power fails meanwhile."""
    path, draft = folder / RECORD, folder / _DRAFT
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(_ITEM.dump_json(item, exclude={"conversation", "text"}) + b"\n" + item.text.encode() + b"\n")
        file.flush()
        _set_new_time(draft, path)
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync_folder(folder)
    if is_new:
        _sync_folder(folder.parent)
        _sync_folder(folder.parent.parent)


def _cut(folder: Path, item: Item) -> None:
    """Remove what a killed process wrote and what does not count."""
    lengths = {entries_file(item): item.length} | {_events_file(id_): run.length for id_, run in item.runs.items()}
    for file in (folder / _DRAFT, *folder.glob("entries*.jsonl"), *folder.glob(f"*{EVENTS}")):
        length = lengths.get(file.name, 0)
        with suppress(FileNotFoundError):
            if not length:
                file.unlink()
            elif file.stat().st_size > length:
                os.truncate(file, length)


def _set_new_time(file: Path, before: Path) -> None:
    """Give the file a later time than the one that it replaces, even if the clock stands still or steps back."""
    new = time.time_ns()
    with suppress(FileNotFoundError):
        new = max(new, before.stat().st_mtime_ns + 1000)
    os.utime(file, ns=(new, new))


def _sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk, if the system can do that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@contextmanager
def _not_deleted() -> Generator[None]:
    """Raise `NotFound` instead of an error of a file that is gone."""
    try:
        yield
    except FileNotFoundError:
        raise _Replaced(NO_CONVERSATION) from None


def _conversations(path: Path) -> Iterator[Path]:
    """Yield the folders of all conversations in the folder of a store."""
    for owner in _names(path / "owners"):
        yield from (path / "owners" / owner / name for name in _names(path / "owners" / owner))


def _names(folder: Path) -> list[str]:
    """Return the names of the folders in this one."""
    try:
        with os.scandir(folder) as found:
            return [one.name for one in found if one.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _place_of(item: Item) -> str:
    """Return what the file of an index says to name this conversation."""
    return f"{name_of(item.owner)}/{name_of(item.id)}"


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
