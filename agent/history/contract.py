"""The contract of a history store. `tests/history` checks its laws on each store.

Every object has an owner and every call names it. Another owner's object raises the same `NotFound` as a missing one.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol

from agent.errors import NotFound
from agent.history.search import ConversationHit
from agent.history.values import (
    PROGRAM,
    PROGRAM_VECTORS,
    Conversation,
    Entry,
    Folder,
    Link,
    RunEvent,
    RunEvents,
    UnfinishedRun,
    folders_id,
    folders_owner,
    vectors_id,
)


class RunStore(Protocol):
    """The events of runs, and who may write them. A save can store events with a message, see `HistoryStore.save`.

    The process that writes a run renews its lease: with each batch of events, and with `hold` while there are none.
    When the lease has expired, anybody may end the run, and then nobody can write it any more.
    """

    async def append(self, events: RunEvents) -> None:
        """Store new events of a run, which renews its lease.

        Raises `Conflict` if they do not follow the stored ones, if the run has ended or was released, or if they are
        `of_lost` and the lease has not expired. Raises `NotFound` if the owner does not have the conversation.
        """
        ...

    async def hold(self, run_ids: Collection[str], *, release: bool = False) -> Sequence[UnfinishedRun]:
        """Renew the leases of the writer's runs where that is due, and return those that are not lost to it.

        Missing ones have ended, or their conversations are gone. With `release`, the leases end now, for ever.
        """
        ...

    async def look(self, run_id: str, *, owner: str, stop: bool = False) -> UnfinishedRun | None:
        """Say that a page watches this owner's run, with `stop` that it is to stop. Return None if it has ended."""
        ...

    async def would_lose(self, conversation: Conversation) -> bool:
        """Return True if a run without an end would lose this conversation, should somebody delete it now.

        That is any run of a conversation that has not expired, and in an expired one a run with a lease.
        """
        ...

    async def events(self, run_id: str, *, owner: str, after: int = 0) -> Sequence[RunEvent]:
        """Return the stored events with a higher number than `after`, in order. Raises `NotFound`."""
        ...

    async def unfinished(
        self, *, owner: str | None = None, conversation_id: str | None = None, limit: int = 1000
    ) -> Sequence[UnfinishedRun]:
        """Return runs without an end, the oldest first: all, or those of an owner or of one conversation of an owner.

        Those of expired conversations are left out.
        """
        ...

    async def remove(self, before: datetime) -> int:
        """Remove the events of runs that ended before then. Return the number of these runs."""
        ...


class LinkStore(Protocol):
    """Read-only links. Whoever has the token of one may read it, so `get` is the one call that names no owner.

    A link goes with its conversation, and is missing as soon as one of the two has expired.
    """

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Store a new link, and remove the expired ones of its conversation.

        Raises `NotFound` if its owner does not have the conversation, `Conflict` if its digest is stored already, a
        plain `HistoryError` if it would not load again, and `Limited` if the conversation has `most` others. Of links
        that are stored at once, also by several processes, no more than `most` are stored.
        """
        ...

    async def get(self, digest: str) -> Link:
        """Return the link with this digest. Raises `NotFound`."""
        ...

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Return the links to a conversation, the oldest first. Raises `NotFound`."""
        ...

    async def remove(self, digest: str, *, owner: str) -> None:
        """Remove a link of this owner. Raises `NotFound`."""
        ...


class RetentionStore(Protocol):
    """Expiry and sizes, for housekeeping and quotas. Unlike the other calls, these see expired conversations."""

    async def time(self) -> datetime:
        """Return the current time by the clock of the store, by which conversations and leases expire."""
        ...

    async def expiring(
        self, by: datetime, *, owners: str = "", limit: int = 50, skip: Collection[str] = ()
    ) -> Sequence[Conversation]:
        """Return up to `limit` conversations that expire by then, the earliest first, without the ids in `skip`.

        Their owners begin with `owners`. Of a damaged conversation, the result has what `erase` needs.
        """
        ...

    async def set_expiry(self, conversation: Conversation, expires_at: datetime | None) -> bool:
        """Set when a conversation expires, whether it has expired or not. Return False if `erase` would do nothing.

        Nothing else of the conversation changes, not even its revision.
        """
        ...

    async def add_expiry(self, until: Callable[[Conversation], datetime | None], *, owners: str = "") -> int:
        """Set `expires_at` of conversations without it whose owners begin with `owners`; return their number.

        `until` returns when a conversation expires, None for never. Nothing else of the conversation changes, not even
        its revision. Damaged conversations are left as they are.
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

    async def erase(self, conversation: Conversation) -> bool:
        """Remove a conversation with all its entries, expired or not, and return whether it was removed.

        It returns False if the conversation is gone, belongs to another owner, expires at another time than
        `conversation`, or was saved after that was loaded.
        """
        ...

    async def erase_unused(self, owner: str, conversations: Sequence[Conversation]) -> bool:
        """Remove all conversations of an owner, unless one was used meanwhile, and return whether they were removed.

        `conversations` are all that the owner had. The check and the removal are one step, so that nothing is lost that
        the owner stores in between. It returns False and removes nothing if `erase` would keep one of them, if the
        owner has another conversation now or none, or if one has a run that would lose it (see `RunStore.would_lose`).
        """
        ...

    async def wipe(self) -> None:
        """Remove what deletions have left in the storage, now. A store does this by itself, soon after them."""
        ...


class HistoryStore(Protocol):
    """The calls that all stores answer alike.

    Any number of tasks of one event loop can share a store. A store never changes the values that it is given.
    `is_shared` is True if it is on a server, which processes on several machines can share.
    """

    is_shared: bool
    runs: RunStore
    links: LinkStore
    retention: RetentionStore

    async def save(
        self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
    ) -> Conversation:
        """Store `entries`, the conversation and `events`, all or nothing. Return it with the next revision.

        `conversation.revision` must be the stored one (0: not stored yet), and a stored conversation must have the same
        owner. A save with entries, and the first one, sets `updated_at` and moves the conversation to the top of the
        list. If the conversation has a `source` and its messages are old, `updated_at` is the time of the newest one,
        as the conversation and the entries' notes have it, and the conversation gets the place in the list of that
        time. The store keeps the stored pin, and the stored title unless it is empty: only `label` changes these.
        Raises `Conflict` if another save came first, and leaves everything as it was. Raises `NotFound` if the stored
        conversation belongs to another owner, was deleted, or has expired and `conversation` has not: a conversation
        can be stored step by step while nobody sees it. Raises a plain `HistoryError` if the conversation already has
        an entry's id or lacks a parent or head, or if a message would not load again. `events` are refused as in
        `RunStore.append`.
        """
        ...

    async def remove(self, conversation: Conversation, entry_ids: Collection[str]) -> Conversation:
        """Erase these entries and save the conversation, all or nothing. Return it with its revision raised by one.

        All that follows an erased entry is erased with it: raises a plain `HistoryError` if an entry stays that follows
        one, or if the head does not stay. With them go the links that end with one of them, and the events of all runs
        of the conversation, which have the same text. Its place in the list and its label stay. Raises `Conflict` and
        `NotFound` like `save`, and `Conflict` while a run has no end.
        """
        ...

    async def get(self, conversation_id: str, *, owner: str) -> Conversation:
        """Return the conversation. Raises `NotFound`."""
        ...

    async def history(
        self, conversation: Conversation, *, limit: int | None = None, most_bytes: int | None = None
    ) -> list[Entry]:
        """Return the entries that lead to `conversation.head_id`, oldest first, at most the newest `limit` of them.

        With `most_bytes`, the oldest of them is the first with which they have so many bytes: each its text and
        `ENTRY_BYTES`. Raises `NotFound` if `conversation.owner` does not own the stored conversation.
        """
        ...

    async def entries(self, conversation: Conversation) -> Sequence[Entry]:
        """Return all entries of a conversation in the order of their storage, including branches and expired entries.

        Returns nothing if `conversation.owner` does not own the stored conversation.
        """
        ...

    async def find(
        self,
        conversation: Conversation,
        *,
        ids: Collection[str] = (),
        after: Collection[str | None] = (),
        most_bytes: int | None = None,
    ) -> Sequence[Entry]:
        """Return the entries with these ids and those that follow one of `after` (None: the first ones).

        They come from all branches, in the order of their storage, and no other message is read. With `most_bytes`, the
        last of them is the first with which they have so many bytes: each its text and `ENTRY_BYTES`. Returns nothing
        if `conversation.owner` does not own the stored conversation.
        """
        ...

    async def following(self, conversation: Conversation, entry_id: str | None) -> Sequence[str]:
        """Return the ids of this entry and of all that follow it on any branch, in the order of their storage.

        None stands for all entries of the conversation. No message is read. Returns nothing if there is no such entry,
        or if `conversation.owner` does not own the stored conversation.
        """
        ...

    async def list(
        self, owner: str, *, limit: int = 50, offset: int = 0, pinned: bool | None = None
    ) -> list[Conversation]:
        """Return the owner's conversations after the first `offset` of them. The one that got entries last is first.

        `pinned` leaves only those that are pinned, or only those that are not. Expired ones are left out.
        """
        ...

    async def search(self, owner: str, query: str, *, limit: int = 20) -> Sequence[ConversationHit]:
        """Return the owner's conversations that contain the query in their title or in one message.

        Those that got entries last come first. Each has its newest message with all words, on the branch of `head_id`
        if that has one. See `agent.history.search` for what matches. Expired ones are left out.
        """
        ...

    async def label(
        self,
        conversation_id: str,
        *,
        owner: str,
        title: str | None = None,
        pinned: bool | None = None,
        instead_of: str | None = None,
    ) -> Conversation:
        """Set the title or the pin of a conversation, and return it. None leaves them as they are.

        Nothing else changes, not even the revision or the place in the list, so that a running answer is not disturbed.
        `instead_of` sets the title only if it is this one now. Raises `NotFound`.
        """
        ...

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        """Remove a conversation with all its entries and branches. Raises `NotFound`.

        With a chat of `PROGRAM`, its vectors go: see `delete_vectors`.
        """
        ...

    async def aclose(self) -> None:
        """Release files and connections. A second call does nothing."""
        ...


async def delete_vectors(store: HistoryStore, chat_id: str, owner: str) -> None:
    """Remove the vectors of a chat that is about to be deleted, if it has any: a store calls this first in `delete`.

    If the process ends in between, only the vectors are gone, which can be made again.
    """
    if owner == PROGRAM:
        with suppress(NotFound):
            await store.delete(vectors_id(chat_id), owner=PROGRAM_VECTORS)


async def folders_of(store: HistoryStore, owner: str) -> Sequence[Folder]:
    """Return the folders of an owner, the oldest first."""
    with suppress(NotFound):
        return (await store.get(folders_id(owner), owner=folders_owner(owner))).folders
    return ()
