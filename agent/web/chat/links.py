"""Read-only links to one chat: the owner's list of them, and what their readers see."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent.errors import InputError, Limited, NotFound
from agent.history import NO_LINK, Entry, HistoryStore, Link, digest_of, new_token, now
from agent.i18n import _
from agent.i18n.translator import Translator
from agent.settings import Settings
from agent.transfer.shared import shared_entries
from agent.web.chat.transcript import first_words, has_first_words

MAX_LINKS = 10
"""The most links to one chat."""
MAX_DAYS = 3650
OFF = _("Links to chats are turned off on this page.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChoices:
    """The choices for a new link. `days` is None for a link that does not expire.

    `later`: its readers also see later messages. `system_prompt` is the one that they see, "" for none.
    """

    days: float | None
    later: bool = False
    with_files: bool = False
    system_prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChat:
    """The chat of a link: its shown messages as they are stored, and its title.

    The title is empty if it has only first words, or can be about a version of the first message that is not shown.
    """

    link: Link
    title: str
    stored: Sequence[Entry]

    @property
    def began_at(self) -> datetime:
        """The time of the first message."""
        return self.stored[0].note.at

    def entries(self, translator: Translator) -> list[Entry]:
        """Return the messages as a reader sees them."""
        return shared_entries(self.stored, translator, with_files=self.link.with_files)


class ChatLinks:
    """Creates, lists, revokes and opens links. All of it is missing where links are off."""

    def __init__(self, store: HistoryStore, settings: Settings) -> None:
        self._store = store
        self.is_on = settings.public is None or settings.public.links
        self.default_days = settings.link_days or None
        self._creating = asyncio.Lock()

    async def create(self, owner: str, conversation: str, choices: LinkChoices) -> tuple[str, Link]:
        """Return the token of a new link, which is stored nowhere, and the link.

        Raises `HistoryError`, `InputError` and `Limited`.
        """
        self._check_on()
        token = new_token()
        async with self._creating:
            record = await self._store.get(conversation, owner=owner)
            if record.head_id is None:
                raise InputError(_("This chat has no messages to share."))
            if len(await self._store.links.of(conversation, owner=owner)) >= MAX_LINKS:
                raise Limited(_("A chat can have at most {most} links. Revoke one of them first.", most=MAX_LINKS))
            at = now()
            link = Link(
                digest=digest_of(token),
                conversation_id=conversation,
                owner=owner,
                created_at=at,
                expires_at=at + timedelta(days=choices.days) if choices.days else None,
                head_id=None if choices.later else record.head_id,
                system_prompt=choices.system_prompt.strip() or None,
                with_files=choices.with_files,
            )
            await self._store.links.put(link)
        return token, link

    async def list(self, owner: str, conversation: str) -> Sequence[Link]:
        """Return the links to a conversation, the oldest first. Raises `NotFound`."""
        self._check_on()
        return await self._store.links.of(conversation, owner=owner)

    async def revoke(self, owner: str, conversation: str, digest: str) -> None:
        """Remove a link to this conversation. Raises `NotFound`."""
        if all(link.digest != digest for link in await self._store.links.of(conversation, owner=owner)):
            raise NotFound(NO_LINK)
        await self._store.links.remove(digest, owner=owner)

    async def open(self, token: str) -> SharedChat:
        """Return the chat of a link. Raises `NotFound`, with no hint if there ever was one."""
        self._check_on()
        link = await self._store.links.get(digest_of(token))
        record = await self._store.get(link.conversation_id, owner=link.owner)
        entries = await self._store.entries(record)
        stored = _branch(entries, link.head_id or record.head_id)
        if not stored:
            raise NotFound(NO_LINK)
        # First words can be those of an attached file. Any title can be about another version of the first message.
        words = {first_words(entry) for entry in entries if entry.parent_id is None}
        is_hidden = record.title in words or not has_first_words(entries, stored)
        return SharedChat(link=link, title="" if is_hidden else record.title, stored=stored)

    def _check_on(self) -> None:
        if not self.is_on:
            raise NotFound(OFF)


def _branch(entries: Iterable[Entry], head_id: str | None) -> list[Entry]:
    """Return the entries that lead to this one, the oldest first, or nothing if it is not there."""
    known, branch = {entry.id: entry for entry in entries}, list[Entry]()
    while head_id is not None and (entry := known.get(head_id)) is not None:
        branch.append(entry)
        head_id = entry.parent_id
    return branch[::-1]
