"""The contract of a history store, and the values it keeps.

A conversation is a `Record` that points at its newest `Entry`; an entry holds one message and points at the entry
before it. Retry, edit and undo are therefore branches: nothing is overwritten. Every object has an owner and every
call names it. Another owner's object raises the same `NotFound` as a missing one.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

from pydantic_ai.messages import ModelMessage

from agent.history.run_events import RunEvent, RunEvents, UnfinishedRun
from agent.i18n import _
from agent.i18n.stored_text import StoredText

SCHEMA = 1


def new_id() -> str:
    """Return 128 random bits in hexadecimal. Ids cannot be guessed, but knowing one gives no permission."""
    return uuid4().hex


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


NO_CONVERSATION = _("There is no such conversation.")
NO_ENTRY = _("There is no such message.")
CHANGED_ELSEWHERE = _("This conversation was changed elsewhere; load it again.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The duration of a run in seconds, and its tokens.

    `queued` is the time in the queue of a busy model server; `first_token` and `total` do not include it.
    `generating` is the time in which `generated` tokens were seen to arrive. `reasoning` has the time of each reasoning
    bubble. `cached_tokens` of the `input_tokens` were read from the provider's cache. `estimated` is True if the server
    sent no usage and the tokens were counted here.
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
    """The facts that a reload needs around a message to show the same page. They are never sent to a model.

    `ended` is None while the run goes on, else how the run ended (see `agent.result.FinishReason`), or "interrupted" if
    its process was killed. `detail` is the sentence shown with it. `attachments` are ids, never bytes. `left_out`
    counts earlier messages that were not sent because they did not fit. `omitted` is the sentence on parts that the
    model cannot take. `cost` is in US dollars, None if unknown.
    """

    run_id: str = ""
    model: str = ""
    ended: str | None = None
    detail: StoredText = ""
    timings: Timings | None = None
    cost: float | None = None
    attachments: tuple[str, ...] = ()
    left_out: int = 0
    omitted: StoredText = ""
    at: datetime = field(default_factory=now)
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One message of a conversation. `parent_id` is the entry before it, None for the first."""

    id: str = field(default_factory=new_id)
    parent_id: str | None
    message: ModelMessage
    note: Note = field(default_factory=Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A conversation: its owner, the end of its history, and the ends of its other branches.

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
    """The calls that all backends answer alike. All of them pass the suite in `tests/history/test_history.py`.

    Any number of tasks of one event loop can share a store. A store never changes the values that it is given.
    """

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        """Store `entries`, the record and `events`, all or nothing. Return the record with its revision raised by one.

        `record.revision` must be the stored one (0: not stored yet), and a stored record must have the same owner.
        The store sets `updated_at`. Raises `Conflict` if another save came first, and leaves everything as it was.
        Raises `NotFound` if the stored record belongs to another owner, was deleted or has expired. Raises a plain
        `HistoryError` if the conversation already has an entry's id or lacks a parent or head, or if a message would
        not load again. `events` are refused as in `append_events`.
        """
        ...

    async def append_events(self, events: RunEvents) -> None:
        """Store new events of a run.

        Raises `Conflict` if they do not follow the stored ones or if the run has ended, because another process has
        written. Raises `NotFound` if the owner does not have the conversation.
        """
        ...

    async def run_events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Return the stored events with a higher number than `after`, in order. Raises `NotFound`."""
        ...

    async def unfinished_runs(self, *, limit: int = 1000) -> Sequence[UnfinishedRun]:
        """Return runs of all owners that have no end, the oldest first. Those of expired conversations are left out."""
        ...

    async def remove_events(self, before: datetime) -> int:
        """Remove the events of runs that ended before then. Return the number of these runs."""
        ...

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        """Return the record. Raises `NotFound`."""
        ...

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        """Return the entries that lead to `record.head_id`, oldest first, at most the newest `limit` of them.

        Raises `NotFound` if `record.owner` does not own the stored conversation.
        """
        ...

    async def list(self, owner: str, *, limit: int = 50) -> list[Record]:
        """Return the owner's records, the last saved first. Expired ones are left out."""
        ...

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Remove a conversation with all its entries and branches. Raises `NotFound`."""
        ...

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Record]:
        """Return up to `limit` records that expire by then, the earliest first, without the ids in `skip`.

        Their owners begin with `owners`. Of a damaged record, the result has what `erase` needs. Only this call,
        `entries`, `texts` and `erase` still see an expired conversation.
        """
        ...

    async def add_expiry(self, until: Callable[[Record], datetime | None], *, owners: str = "") -> int:
        """Set `expires_at` of records that have none and have owners that begin with `owners`; return their number.

        `until` returns when a record expires, None for never. Nothing else of the record changes, not even its
        revision. Damaged records are left as they are.
        """
        ...

    async def size(self, *, owners: str = "") -> int:
        """Return the number of bytes of text stored for owners that begin with `owners`, including expired text."""
        ...

    async def sizes(self, *, owners: str = "") -> Mapping[str, int]:
        """Return the same number for each of these owners.

        The owners are sorted by the time when their last conversation expires, the earliest first.
        """
        ...

    def texts(self, owner: str) -> AsyncIterator[str]:
        """Yield the stored text of each entry of an owner, in no particular order, also damaged and expired ones."""
        ...

    async def entries(self, record: Record) -> Sequence[Entry]:
        """Return all entries of a conversation in no particular order, including branches and expired entries."""
        ...

    async def erase(self, record: Record) -> bool:
        """Remove a conversation with all its entries, expired or not, and return whether it was removed.

        It returns False if the conversation is gone, belongs to another owner, or was saved after `record` was loaded.
        """
        ...

    async def aclose(self) -> None:
        """Release files and connections. A second call does nothing."""
        ...
