"""The contract of a history store, and the values it keeps.

A conversation is a `Record` that points at its newest `Entry`; an entry holds one message and points at the entry
before it. So retry, edit and undo are branches: nothing is overwritten. Every object has an owner and every call
names it; another owner's object and a missing one are the same `NotFound`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

from pydantic_ai.messages import ModelMessage

from agent.i18n import LocalizedText

SCHEMA = 1


def new_id() -> str:
    """128 random bits in hexadecimal: ids are unguessable, though none of them is a permission."""
    return uuid4().hex


def now() -> datetime:
    """The current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long a run took, in seconds, and how many tokens it had.

    `queued` was spent in line in front of a model server that had no place; neither `first_token` nor `total` has it.
    `generating` is the time in which `generated` tokens were seen to come, `reasoning` that of each reasoning bubble.
    `cached_tokens` of the `input_tokens` were read from the provider's cache. `estimated` is True where the server sent
    no usage and the tokens were counted here.
    """

    first_token: float | None = None
    total: float = 0.0
    queued: float = 0.0
    generating: float = 0.0
    generated: int = 0
    output_tokens: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    reasoning: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a reload needs around a message to show the same page; never sent to a model.

    `ended` is None while more of the run is to come, else how the run ended (see `agent.result.FinishReason`);
    `detail` is the sentence shown with it, `sayings` are the same by name where it is one of ours. `attachments` are
    ids, never bytes. `left_out` earlier messages were not sent, for want of room; `omitted` is the sentence on what
    the model could not take, `omitted_sayings` the same by name. `cost` is in US dollars, None where it is not known.
    """

    run_id: str = ""
    model: str = ""
    ended: str | None = None
    detail: str = ""
    sayings: tuple[LocalizedText, ...] = ()
    timings: Timings | None = None
    cost: float | None = None
    attachments: tuple[str, ...] = ()
    left_out: int = 0
    omitted: str = ""
    omitted_sayings: tuple[LocalizedText, ...] = ()
    at: datetime = field(default_factory=now)
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of a conversation, linked to the one before it (`parent_id` None: it is the first)."""

    id: str = field(default_factory=new_id)
    parent_id: str | None
    message: ModelMessage
    note: Note = field(default_factory=Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A conversation: who owns it, where its history ends, which branches it left.

    `revision` counts saves, 0 before the first. `pending` are the ids of tool calls that wait for an answer.
    """

    id: str = field(default_factory=new_id)
    owner: str
    title: str = ""
    head_id: str | None = None
    branches: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    revision: int = 0
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)
    expires_at: datetime | None = None


class HistoryStore(Protocol):
    """The calls that every backend answers alike; `tests/test_history.py` is the suite that all of them pass.

    A store may be shared by any number of tasks of one event loop. Values given are never changed.
    """

    async def save(self, record: Record, entries: Sequence[Entry] = ()) -> Record:
        """Store `entries` and then the record, all or nothing, and return it with its revision raised by one.

        `record.revision` must be the stored one (0: not stored yet), and a stored record must have the same owner.
        The store sets `updated_at`. Raises `Conflict` where another save came first, and leaves everything as it was;
        raises `NotFound` where the stored record belongs to another owner, was deleted or has expired; raises a plain
        `HistoryError` for an entry id that the conversation has already, a parent or head that it has not, and a
        message that would not load again.
        """
        ...

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Return the record. Raises `NotFound`."""
        ...

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Return the entries that lead to `record.head_id`, oldest first, at most the newest `limit` of them.

        Raises `NotFound` where `record.owner` does not own the stored conversation.
        """
        ...

    async def list(self, owner: str, *, limit: int = 50) -> list[Record]:
        """Return the owner's records, the one saved last first; expired ones are left out."""
        ...

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Remove a conversation with all its entries and branches. Raises `NotFound`."""
        ...

    async def expiring(self, by: datetime, *, owners: str = "", limit: int = 50) -> Sequence[Record]:
        """Return up to `limit` records that expire by then, the earliest first, of owners that begin with `owners`.

        Only this call, `entries` and `erase` still see a conversation that has expired.
        """
        ...

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Set `expires_at` of records that have none, of owners that begin with `owners`; return how many were set.

        `until` says when a record expires, None for never. Nothing else of the record changes, its revision neither.
        """
        ...

    async def size(self, *, owners: str = "") -> int:
        """Return how many bytes of text are stored for owners that begin with `owners`, expired ones included."""
        ...

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Return all entries of a conversation in no particular order, those of its branches and expired ones too."""
        ...

    async def erase(self, record: Record) -> bool:
        """Remove a conversation with all its entries, expired or not, and return whether it was removed.

        False: it is gone, belongs to another owner, or was saved since `record` was loaded.
        """
        ...

    async def aclose(self) -> None:
        """Release files and connections; a second call does nothing."""
        ...
