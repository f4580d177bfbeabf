"""The list of a visitor's conversations: pages, search, titles, pins, and a deletion that can be undone.

A deletion expires the conversation at once, so that a crash cannot bring it back, and erases it when it can no longer
be undone. After a restart, housekeeping erases it. Any process that shares a store on a server can undo it: a
conversation that has just expired although its retention period goes on was deleted. The time is counted by the clock
of the database, because those of the processes differ.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from agent.errors import Conflict, HistoryError, InputError, NotFound
from agent.files.store import MediaStore
from agent.history import (
    CHANGED_ELSEWHERE,
    NO_CONVERSATION,
    NO_ENTRY,
    Conversation,
    ConversationHit,
    HistoryStore,
    steady_now,
)
from agent.i18n.text import _
from agent.system.threads import run_to_completion
from agent.web.chat.answers import STILL_WRITING, RunningAnswers
from agent.web.chat.expiry import FOR_EVER, UNDO_SECONDS, RetentionPeriods, delete_conversation
from agent.web.chat.folders import kept_folder
from agent.web.chat.questions import Replies
from agent.web.chat.stored_entries import last_turn
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.transcript import has_visible, is_prompt

PAGE = 50
"""Conversations of a page unless the caller asks for another number."""
MOST = 200
"""The most conversations of a page, and of the pinned ones."""
CURRENT = timedelta(hours=1)
"""The time after its last message in which a visitor goes on with a conversation."""
SEARCHED = 5_000
"""The newest conversations that are looked through for those of a folder."""
TITLE_CHARACTERS = 120
ATTEMPTS = 5
"""Attempts to delete a conversation that is being saved at the same time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRow:
    """A conversation in the list. `state` says if its answer is being written, or waits for the visitor.

    `naming`: the model is writing its title.
    """

    id: str
    title: str
    pinned: bool
    updated_at: datetime
    state: Literal["", "answering", "waiting"] = ""
    naming: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the list, the one with the newest message first. The first page has the pinned conversations, too.

    `next_offset` is the offset of the next page, or None after the last one.
    """

    pinned: Sequence[ListRow]
    rows: Sequence[ListRow]
    next_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlace:
    """The place of a message: the visitor's message of its turn, and whether that is on the branch that is shown."""

    prompt: str
    is_answer: bool
    is_shown: bool


@dataclass(frozen=True, slots=True)
class _Deleted:
    """A conversation that is hidden since `at`. `conversation` has its former expiry, and `timer` will erase it."""

    conversation: Conversation
    at: datetime
    timer: asyncio.TimerHandle


class ConversationList:
    """Lists and changes the conversations of visitors. Each call names the owner. Owns the deletions to be undone."""

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        running: RunningAnswers,
        replies: Replies,
        is_naming: Callable[[str], bool] = lambda _: False,
        periods: RetentionPeriods = FOR_EVER,
    ) -> None:
        self._is_naming, self._periods = is_naming, periods
        self._store, self._media, self._running, self._replies = store, media, running, replies
        self._deleted = dict[str, _Deleted]()
        self._erasing = set[asyncio.Task[None]]()

    # Queries

    async def page(self, owner: str, *, offset: int = 0, limit: int = PAGE) -> Page:
        """Return a page of the list."""
        limit = min(max(limit, 1), MOST)
        pinned = [] if offset else await self._store.list(owner, limit=MOST, pinned=True)
        conversations = await self._store.list(owner, limit=limit + 1, offset=offset, pinned=False)
        more = offset + limit if len(conversations) > limit else None
        answering = await self._running.conversations(owner)
        return Page(
            pinned=[self._row(conversation, answering) for conversation in pinned],
            rows=[self._row(conversation, answering) for conversation in conversations[:limit]],
            next_offset=more,
        )

    async def in_folders(self, owner: str, folders: Collection[str]) -> Sequence[ListRow]:
        """Return the newest conversations of these folders, up to `MOST` of each, of the newest `SEARCHED`."""
        answering, found, left = await self._running.conversations(owner), list[ListRow](), dict.fromkeys(folders, MOST)
        for offset in range(0, SEARCHED, MOST):
            page = await self._store.list(owner, limit=MOST, offset=offset)
            for conversation in page:
                if left.get(conversation.folder):
                    left[conversation.folder] -= 1
                    found.append(self._row(conversation, answering))
            if len(page) < MOST or not any(left.values()):
                break
        return found

    async def current(self, owner: str, viewed: str = "") -> str | None:
        """Return the id of the conversation with which a visitor goes on, or None for a new one.

        It is the one that was `viewed` last, or else the one that got a message last. After `CURRENT` without a
        message in any, a visitor begins a new one.
        """
        found = await self._store.list(owner, limit=1)
        if not found or await self._store.retention.time() - found[0].updated_at > CURRENT:
            return None
        return viewed if viewed and await self.has(owner, viewed) else found[0].id

    async def row(self, owner: str, conversation_id: str) -> ListRow:
        """Return one conversation. Raises `NotFound`."""
        conversation = await self._store.get(conversation_id, owner=owner)
        return self._row(conversation, await self._running.conversations(owner))

    async def has(self, owner: str, conversation_id: str) -> bool:
        """Return True if the owner has this conversation."""
        with suppress(NotFound):
            return bool(await self._store.get(conversation_id, owner=owner))
        return False

    async def search(self, owner: str, query: str) -> Sequence[tuple[ListRow, ConversationHit]]:
        """Return the conversations with all words of the query, and where these are."""
        hits, answering = await self._store.search(owner, query, limit=PAGE), await self._running.conversations(owner)
        return [(self._row(hit.conversation, answering), hit) for hit in hits]

    async def find_message(self, owner: str, conversation_id: str, entry_id: str) -> MessagePlace:
        """Return where an entry is in its conversation. Raises `NotFound`."""
        conversation = await self._store.get(conversation_id, owner=owner)
        turn = await last_turn(self._store, replace(conversation, head_id=entry_id))
        prompt = next((entry for entry in reversed(turn) if is_prompt(entry)), None)
        if prompt is None:
            raise NotFound(NO_ENTRY)
        is_shown = not conversation.branches or conversation.head_id in await self._store.following(
            conversation, entry_id
        )
        return MessagePlace(prompt=prompt.id, is_answer=prompt.id != entry_id, is_shown=is_shown)

    def is_in_use(self, conversation_id: str) -> bool:
        """Return True if an answer is being written, or a deletion can be undone. It must not be erased then."""
        return self._running.is_written_here(conversation_id) or conversation_id in self._deleted

    # Changes

    async def change(
        self, owner: str, conversation_id: str, *, title: str | None = None, pinned: bool | None = None
    ) -> ListRow:
        """Set the title or the pin. None leaves them as they are. Raises `NotFound` and `InputError`."""
        if title is not None:
            title = " ".join(title.split())[:TITLE_CHARACTERS]
            if not has_visible(title):
                raise InputError(_("A chat needs a title."))
        conversation = await self._store.label(conversation_id, owner=owner, title=title, pinned=pinned)
        return self._row(conversation, await self._running.conversations(owner))

    async def move(self, owner: str, conversation_id: str, folder: str) -> None:
        """Put a conversation into a folder, "" for none. Raises `NotFound`, and `Conflict` during an answer."""
        for _attempt in range(ATTEMPTS):
            conversation = await self._store.get(conversation_id, owner=owner)
            if await self._running.is_busy(conversation_id, owner):
                raise Conflict(STILL_WRITING)
            if folder:
                await kept_folder(self._store, owner, folder, self._periods.until(owner, running=False))
            with suppress(Conflict):
                await self._store.save(replace(conversation, folder=folder))
                return
        raise Conflict(CHANGED_ELSEWHERE)

    async def delete(self, owner: str, conversation_id: str) -> None:
        """Stop the answer, and hide the conversation. It is erased after `UNDO_SECONDS`. Raises `NotFound`."""
        await self._store.get(conversation_id, owner=owner)
        for _attempt in range(ATTEMPTS):
            await self._running.stop([conversation_id], owner, wait=True)
            conversation = await self._store.get(conversation_id, owner=owner)
            await run_to_completion(self._hide(conversation))
            if conversation_id in self._deleted:
                await self._running.stop([conversation_id], owner)  # one that has begun in this moment
                return
        raise Conflict(CHANGED_ELSEWHERE)

    async def restore(self, owner: str, conversation_id: str) -> ListRow:
        """Undo a deletion. Raises `NotFound` if it can no longer be undone."""
        deleted = self._deleted.get(conversation_id)
        if deleted is not None and deleted.conversation.owner == owner:
            await run_to_completion(self._show_again(deleted))
        elif self._store.is_shared:
            await run_to_completion(self._show_again_elsewhere(owner, conversation_id))
        else:
            raise NotFound(NO_CONVERSATION)
        return await self.row(owner, conversation_id)

    def forget(self, conversation_id: str) -> None:
        """Forget a deletion that could be undone, because the conversation was erased."""
        self._take(conversation_id)

    async def aclose(self) -> None:
        """Leave deleted conversations to the housekeeping of the next start, and wait for those being erased."""
        for deleted in self._deleted.values():
            deleted.timer.cancel()
        self._deleted.clear()
        if self._erasing:
            await asyncio.wait(self._erasing)

    # Helpers

    def _row(self, conversation: Conversation, answering: Collection[str]) -> ListRow:
        """Return the row of a conversation. `answering` are the conversations in which other processes write."""
        is_answering = self._running.is_wanted(conversation.id, conversation.owner) or conversation.id in answering
        return ListRow(
            id=conversation.id,
            title=conversation.title,
            pinned=conversation.pinned,
            updated_at=conversation.updated_at,
            state="answering" if is_answering else "waiting" if conversation.pending else "",
            naming=self._is_naming(conversation.id),
            folder=conversation.folder,
        )

    async def _hide(self, conversation: Conversation) -> None:
        """Expire the conversation, unless it was saved meanwhile."""
        at = steady_now() if is_temporary(conversation.id) else await self._store.retention.time()
        self._take(conversation.id)  # a deletion that another process has undone
        timer = asyncio.get_running_loop().call_later(
            UNDO_SECONDS, self._begin_to_erase, conversation.id, context=Context()
        )
        # First, so that no housekeeping erases it in between.
        self._deleted[conversation.id] = _Deleted(conversation, at, timer)
        hidden = False
        try:
            hidden = await self._store.retention.set_expiry(conversation, at)
        finally:
            if not hidden:
                self._take(conversation.id)

    async def _show_again(self, deleted: _Deleted) -> None:
        deleted.timer.cancel()
        try:
            await self._store.retention.set_expiry(deleted.conversation, deleted.conversation.expires_at)
        finally:
            self._take(deleted.conversation.id)

    async def _show_again_elsewhere(self, owner: str, conversation_id: str) -> None:
        """Undo a deletion at another process. Its timer erases only a conversation that still has that expiry."""
        at, skip = await self._store.retention.time(), set[str]()
        while found := await self._store.retention.expiring(at, owners=owner, skip=skip):
            skip.update(conversation.id for conversation in found)
            for conversation in found:
                if (conversation.id, conversation.owner) == (conversation_id, owner) and conversation.expires_at:
                    kept_until = self._periods.until(owner, running=False, at=conversation.used_at)
                    is_deleted = kept_until is None or kept_until > at
                    if is_deleted and at - conversation.expires_at < timedelta(seconds=UNDO_SECONDS):
                        await self._store.retention.set_expiry(conversation, kept_until)
                        return
        raise NotFound(NO_CONVERSATION)

    def _take(self, conversation_id: str) -> None:
        if deleted := self._deleted.pop(conversation_id, None):
            deleted.timer.cancel()

    def _begin_to_erase(self, conversation_id: str) -> None:
        deleted = self._deleted.pop(conversation_id)
        hidden = replace(deleted.conversation, expires_at=deleted.at)
        task = asyncio.create_task(self._erase(hidden), context=Context())
        self._erasing.add(task)
        task.add_done_callback(self._erasing.discard)

    async def _erase(self, conversation: Conversation) -> None:
        """Erase a conversation with its files. If this fails, housekeeping tries again."""
        try:
            await delete_conversation(self._store, self._media, conversation, self.is_in_use)
        except HistoryError as error:
            log.warning("a deleted conversation could not be erased; housekeeping tries again: %s", error)
        self._replies.forget(conversation.id)
