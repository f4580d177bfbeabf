"""The files of one conversation in a JSON history, in a folder of its own. Every function blocks.

`record.jsonl` has two lines: a `State`, then the record as `agent.history.codec` writes it. It is replaced by a rename,
and this rename is the one moment at which a change is made: of every other file, only as many bytes count as the state
says. What a killed process wrote beyond them is cut off by the next change.

`entries.jsonl` has two lines for each entry: its id, its parent's id and the text that is searched, then the entry as
`agent.history.codec` writes it. `<run>.events` has a line for each event of a run.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from agent.errors import HistoryError
from agent.history.links import Link
from agent.i18n import _

RECORD, ENTRIES, EVENTS = "record.jsonl", "entries.jsonl", ".events"
_DRAFT = "record.draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run: the numbers of its last event and of the last one that the entries contain, and the bytes of its file."""

    last: int = 0
    saved: int = 0
    length: int = 0
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The facts that the store has of a conversation without reading its record.

    `place` orders an owner's conversations by their newest messages: it has the microseconds since 1970, and more where
    the clock stands still or steps back. `length` are the
    bytes of the entries' file, `entries_size` those of the entries alone, and `record_size` those of the record.
    """

    id: str
    owner: str
    revision: int
    head_id: str | None
    place: int
    pinned: bool
    expires_at: float | None
    entries_size: int
    length: int
    record_size: int = 0
    runs: Mapping[str, RunState] = field(default_factory=dict[str, RunState])
    links: Mapping[str, Link] = field(default_factory=dict[str, Link])

    @property
    def size(self) -> int:
        """The number of bytes of its text."""
        return self.entries_size + self.record_size

    def is_live(self, at: datetime) -> bool:
        """Return True if the conversation has not expired then."""
        return self.expires_at is None or self.expires_at > at.timestamp()


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it is stored. `searched` is its text as `agent.history.search.fold` makes it."""

    id: str
    parent_id: str | None
    searched: str
    json: str


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The bytes of an entry in the file of the entries."""

    parent_id: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Addition:
    """Lines to write to a file of the conversation, after its first `start` bytes."""

    file: str
    start: int
    data: bytes


_STATE = TypeAdapter(State)
log = logging.getLogger(__name__)
Signature = tuple[int, int, int]


def name_of(text: str) -> str:
    """Return a file name for any id or owner."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def damaged(path: Path) -> HistoryError:
    """Return the error of a file whose content makes no sense. Visitors can read it, and the log has the whole path."""
    log.warning("%s is damaged", path)
    return HistoryError(
        _("The history file {path!r} cannot be used: {error}.", path=path.name, error=_("it is damaged"))
    )


def signature_of(found: os.stat_result) -> Signature:
    """Return what changes with each change of a record's file."""
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_record(folder: Path) -> tuple[State, str] | None:
    """Return the state and the record's text, or None if there is no such conversation. Raises `HistoryError`."""
    path = folder / RECORD
    try:
        state, record, _end = path.read_bytes().split(b"\n")
        return _STATE.validate_json(state), record.decode()
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise damaged(path) from error


def read_state(path: Path) -> tuple[Signature, State | None]:
    """Return the state in a record's file, None if it is damaged, which is logged. Raises `FileNotFoundError`."""
    with path.open("rb") as file:
        signature, line = signature_of(os.fstat(file.fileno())), file.readline()
    try:
        return signature, _STATE.validate_json(line)
    except ValidationError:
        log.warning("a conversation cannot be read: %s", damaged(path))
        return signature, None


def read_entries(folder: Path, state: State) -> list[StoredEntry]:
    """Return the entries in the order of their storage. Raises `HistoryError`."""
    lines = _read_lines(folder / ENTRIES, state.length)
    try:
        heads: list[dict[str, Any]] = json.loads(b"[%s]" % b",".join(lines[::2]))
        stored = zip(heads, lines[1::2], strict=True)
        return [StoredEntry(head["id"], head["parent_id"], head["text"], text.decode()) for head, text in stored]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder / ENTRIES) from error


def read_places(folder: Path, state: State) -> Mapping[str, EntryPlace]:
    """Return the places of the entries by their ids, in the order of their storage. Raises `HistoryError`.

    Those of a few conversations are remembered, because a long one is read page by page.
    """
    return _places(folder, state.length, signature_of((folder / ENTRIES).stat())) if state.length else {}


@lru_cache(maxsize=8)
def _places(folder: Path, length: int, _: Signature) -> Mapping[str, EntryPlace]:
    places, start = dict[str, EntryPlace](), 0
    lines = _read_lines(folder / ENTRIES, length)
    try:
        heads: list[dict[str, Any]] = json.loads(b"[%s]" % b",".join(lines[::2]))
        for head, first, text in zip(heads, lines[::2], lines[1::2], strict=True):
            start += len(first) + 1
            places[head["id"]] = EntryPlace(head["parent_id"], start, start + len(text))
            start += len(text) + 1
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder / ENTRIES) from error
    return places


def read_at(folder: Path, places: Sequence[EntryPlace]) -> list[str]:
    """Return the entries at these places, as JSON objects. Raises `HistoryError`."""
    with (folder / ENTRIES).open("rb") as file:
        try:
            return [_read_at(file, place).decode() for place in places]
        except ValueError as error:
            raise damaged(folder / ENTRIES) from error


def _read_at(file: BinaryIO, place: EntryPlace) -> bytes:
    file.seek(place.start)
    return file.read(place.end - place.start)


def entry_lines(entries: Sequence[StoredEntry]) -> bytes:
    """Return the lines of these entries."""
    heads = [{"id": one.id, "parent_id": one.parent_id, "text": one.searched} for one in entries]
    lines = zip((json.dumps(head, ensure_ascii=False) for head in heads), (one.json for one in entries), strict=True)
    return "".join(f"{head}\n{text}\n" for head, text in lines).encode()


def events_file(run_id: str) -> str:
    """Return the name of the file with the events of a run."""
    return name_of(run_id) + EVENTS


def read_events(folder: Path, run_id: str, run: RunState) -> list[str]:
    """Return the events of a run, as JSON objects. Raises `HistoryError`."""
    return [line.decode() for line in _read_lines(folder / events_file(run_id), run.length)]


def write(folder: Path, state: State, record: str, additions: Sequence[Addition] = ()) -> None:
    """Store the additions, the state and the record's text, all or nothing, also if the power fails meanwhile.

    Call it with the lock of the store.
    """
    is_new = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for addition in additions:
        _write_lines(folder / addition.file, addition)
    path, draft = folder / RECORD, folder / _DRAFT
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        text = record.encode()
        file.write(_STATE.dump_json(replace(state, record_size=len(text))) + b"\n" + text + b"\n")
        file.flush()
        _set_new_time(draft, path)
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(folder)
    if is_new:
        sync_folder(folder.parent)
        sync_folder(folder.parent.parent)


def cut(folder: Path, state: State) -> None:
    """Remove what a killed process wrote and what does not count. Call it with the lock of the store."""
    lengths = {ENTRIES: state.length} | {events_file(id_): run.length for id_, run in state.runs.items()}
    for file in (folder / ENTRIES, folder / _DRAFT, *folder.glob(f"*{EVENTS}")):
        length = lengths.get(file.name, 0)
        with suppress(FileNotFoundError):
            if not length:
                file.unlink()
            elif file.stat().st_size > length:
                os.truncate(file, length)


def remove(folder: Path) -> None:
    """Remove a conversation. Call it with the lock of the store."""
    (folder / RECORD).unlink(missing_ok=True)  # From here on, the conversation is gone.
    sync_folder(folder)
    shutil.rmtree(folder)
    with suppress(OSError):  # the owner has other conversations
        folder.parent.rmdir()


def sync_folder(folder: Path) -> None:
    """Wait until the names in the folder are on the disk, if the system can do that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _read_lines(path: Path, length: int) -> list[bytes]:
    if not length:
        return []
    with path.open("rb") as file:
        data = file.read(length)
    if len(data) < length or not data.endswith(b"\n"):
        raise damaged(path)
    return data[:-1].split(b"\n")


def _write_lines(path: Path, addition: Addition) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.truncate(addition.start)
        file.seek(addition.start)
        file.write(addition.data)
        file.flush()
        os.fsync(file.fileno())


def _set_new_time(file: Path, before: Path) -> None:
    """Give the file a later time than the one that it replaces, even if the clock stands still or steps back."""
    new = time.time_ns()
    with suppress(FileNotFoundError):
        new = max(new, before.stat().st_mtime_ns + 1000)
    os.utime(file, ns=(new, new))
