"""Reads conversations from the store, as far as an action or a view needs them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from agent.errors import Conflict, NotFound
from agent.history import NO_ENTRY, Conversation, Entry, HistoryStore
from agent.i18n.text import _
from agent.web.chat.sent_message import NO_MESSAGE_ID, MessageId
from agent.web.chat.temporary_stores import is_temporary
from agent.web.chat.transcript import is_prompt

CHAT_CHANGED = _("This chat has gone on since then; the page shows its current state.")
PAGE, LARGEST_PAGE, PAGE_BYTES = 16, 256, 2_000_000
"""Entries that are read first from the end of a conversation, and at most at once, and the bytes after which each page
ends. Few turns have more."""
WINDOW = 30
"""Bubbles shown at first. The cost of an update depends on their number alone."""
VIEW_BYTES = 4_000_000
"""The bytes after which the messages end that are read for these bubbles, and those of their other versions."""
TEMPORARY_GONE = _("The temporary chat is over, so this message was not sent. Your text stays here.")


async def get_or_begin(
    store: HistoryStore, conversation_id: str | None, owner: str, message: MessageId = NO_MESSAGE_ID
) -> Conversation:
    """Return the stored conversation, or a new one that begins with this message if there is none.

    Raises `Conflict` if a temporary one is gone: what is meant for it must not be stored.
    """
    if conversation_id is not None and is_temporary(conversation_id):
        try:
            return await store.get(conversation_id, owner=owner)
        except NotFound as error:
            raise Conflict(TEMPORARY_GONE) from error
    if conversation_id is not None:
        with suppress(NotFound):
            return await store.get(conversation_id, owner=owner)
    return Conversation(id=message.conversation(owner), owner=owner) if message.value else Conversation(owner=owner)


async def newest_entries(
    store: HistoryStore, owner: str, conversation_id: str | None, window: int
) -> tuple[Conversation, list[Entry], bool]:
    """Return the conversation, entries for `window` bubbles, and True if there are older ones. Raises `NotFound`."""
    if conversation_id is None:
        raise NotFound("there is no conversation")
    conversation = await store.get(conversation_id, owner=owner)
    return conversation, *await entries_before(store, conversation, window)


async def entries_before(store: HistoryStore, conversation: Conversation, window: int) -> tuple[list[Entry], bool]:
    """Return enough entries for `window` bubbles before the head of `conversation`, and True if there are older ones.

    There are fewer if they are long. Raises `NotFound`.
    """
    most = window * 2  # a question and its answer show at least one bubble each
    entries = await store.history(conversation, limit=most, most_bytes=VIEW_BYTES * window // WINDOW)
    return entries, bool(entries) and entries[0].parent_id is not None


async def newest_first(store: HistoryStore, conversation: Conversation) -> AsyncGenerator[Entry]:
    """Yield the entries that lead to the head of `conversation`, the newest first. Reads them in pieces that grow."""
    page = PAGE
    while conversation.head_id is not None:
        entries = await store.history(conversation, limit=page, most_bytes=PAGE_BYTES)
        for entry in reversed(entries):
            yield entry
        conversation, page = replace(conversation, head_id=entries[0].parent_id), min(page * 4, LARGEST_PAGE)


async def first_until(store: HistoryStore, conversation: Conversation, parent_id: str | None) -> Entry:
    """Return the entry after the one with this id, on the branch to the head of `conversation`.

    With None, it is the first one of all. Raises `NotFound` if the branch does not pass that entry.
    """
    async with aclosing(newest_first(store, conversation)) as entries:
        async for entry in entries:
            if entry.parent_id == parent_id:
                return entry
    raise NotFound(NO_ENTRY)


async def last_turn(store: HistoryStore, conversation: Conversation) -> list[Entry]:
    """Return the entries from the visitor's last message on, or all if there is none. Raises `NotFound`."""
    turn = list[Entry]()
    async with aclosing(newest_first(store, conversation)) as entries:
        async for entry in entries:
            turn.append(entry)
            if is_prompt(entry):
                break
    return turn[::-1]


async def entries_of_turn(store: HistoryStore, conversation: Conversation, message: str) -> list[Entry]:
    """Return a visitor's message on the shown branch and what follows it up to the next one. Raises `NotFound`.

    No other message is read.
    """
    ids = await store.following(conversation, message)
    turn = [*await store.find(conversation, ids=[message])] if conversation.head_id in ids else list[Entry]()
    if not any(map(is_prompt, turn)):
        raise NotFound(NO_ENTRY)
    async with aclosing(_after(store, conversation, ids)) as later:
        async for entry in later:
            if is_prompt(entry):
                break
            turn.append(entry)
    return turn


async def _after(store: HistoryStore, conversation: Conversation, ids: Sequence[str]) -> AsyncGenerator[Entry]:
    """Yield the entries of the shown branch after the first of `ids`, which are all that follow it, and itself."""
    if not conversation.branches:
        at = 1
        while page := await store.find(conversation, ids=ids[at : at + PAGE], most_bytes=PAGE_BYTES):
            for entry in page:
                yield entry
            at += len(page)
        return
    last = ids[0]
    while last != conversation.head_id:
        nexts = await store.find(conversation, after=[last], most_bytes=VIEW_BYTES)
        if all(map(is_prompt, nexts)):  # the turn is over, or was deleted meanwhile
            return
        entry = nexts[0] if len(nexts) == 1 else await first_until(store, conversation, last)
        yield entry
        last = entry.id


def last_prompt(entries: Sequence[Entry], entry_id: str) -> Entry:
    """Return the visitor's last message. Raises `Conflict` if its id differs."""
    last = next((entry for entry in reversed(entries) if is_prompt(entry)), None)
    if last is None or last.id != entry_id:
        raise Conflict(CHAT_CHANGED)
    return last


async def waits_for_answer(store: HistoryStore, conversation: Conversation) -> bool:
    """Return True if the last answer is suspended and waits for a person. The note of the last message says so."""
    if not conversation.revision:  # not stored yet
        return False
    with suppress(NotFound):
        newest = await store.history(conversation, limit=1)
        return bool(newest) and newest[-1].note.ended == "suspended"
    return False
