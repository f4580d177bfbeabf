"""Read-only links to one chat: the owner's list of them, and what their readers see."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from agent.errors import InputError, NotFound
from agent.history import NO_LINK, Conversation, Entry, HistoryStore, Link, digest_of, new_token, now
from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.providers.connection import RequestQueue
from agent.settings import Settings
from agent.transfer.document import DOCUMENT_THREADS, Branch
from agent.transfer.shared import shared_entries
from agent.web.chat.titles import all_first_words, without_number, words_with_files
from agent.web.chat.transcript import has_first_words, is_prompt

MAX_LINKS = 10
"""The most links to one chat."""
MAX_DAYS = 3650
MAX_BRANCHES = 64
"""The most branches whose files are remembered."""
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
    stored: Branch

    @property
    def began_at(self) -> datetime:
        """The time of the first message."""
        return self.stored.begins[0].note.at

    def entries(self, translator: Translator) -> Iterator[Entry]:
        """Yield the messages as a reader sees them. Only for threads, see `Branch`."""
        return shared_entries(self.stored, translator, with_files=self.link.with_files)


class ChatLinks:
    """Creates, lists, revokes and opens links. All of it is missing where links are off."""

    def __init__(self, store: HistoryStore, settings: Settings) -> None:
        self._store = store
        self.is_on = settings.public is None or settings.public.links
        self.default_days = settings.link_days or None
        self._files = dict[tuple[str, str], Set[str]]()
        """By conversation and last entry: the files of that branch, the branch used last at the end.

        What leads to an entry never changes. A page asks for each of its files, and each time for a whole branch.
        """
        self._reading = RequestQueue(1)

    async def create(self, owner: str, conversation: str, choices: LinkChoices) -> tuple[str, Link]:
        """Return the token of a new link, which is stored nowhere, and the link.

        Raises `HistoryError`, `InputError` and `Limited`.
        """
        self._check_on()
        token = new_token()
        record = await self._store.get(conversation, owner=owner)
        if record.head_id is None:
            raise InputError(_("This chat has no messages to share."))
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
        await self._store.links.put(link, most=MAX_LINKS)
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
        try:
            stored = await Branch.open(self._store, replace(record, head_id=link.head_id or record.head_id))
        except NotFound as error:
            raise NotFound(NO_LINK) from error
        begins = await self._store.find(record, after=[None])
        return await DOCUMENT_THREADS.run(_shared_chat, link, record, begins, stored)

    async def owner_of_file(self, token: str, id_: str) -> str:
        """Return the owner of a file that the readers of a link see. Raises `NotFound`."""
        self._check_on()
        link = await self._store.links.get(digest_of(token))
        if not link.with_files:
            raise NotFound(NO_LINK)
        record = await self._store.get(link.conversation_id, owner=link.owner)
        if id_ not in await self._files_of(replace(record, head_id=link.head_id or record.head_id)):
            raise NotFound(NO_LINK)
        return link.owner

    async def _files_of(self, record: Conversation) -> Set[str]:
        """Return the ids of the files on the branch of a record. Reads one branch at a time, and readers take turns."""
        branch = (record.id, record.head_id or "")
        if (known := self._remembered(branch)) is not None:
            return known
        async with self._reading.slot():
            if (known := self._remembered(branch)) is not None:
                return known
            self._files[branch] = files = (await Branch.open(self._store, record)).files
        if len(self._files) > MAX_BRANCHES:
            del self._files[next(iter(self._files))]
        return files

    def _remembered(self, branch: tuple[str, str]) -> Set[str] | None:
        if branch in self._files:
            self._files[branch] = self._files.pop(branch)
        return self._files.get(branch)

    def _check_on(self) -> None:
        if not self.is_on:
            raise NotFound(OFF)


def _shared_chat(link: Link, record: Conversation, begins: Sequence[Entry], stored: Branch) -> SharedChat:
    """Return the chat of a link, from its first messages and its branch. Raises `NotFound` if the branch is empty."""
    if not stored.begins:
        raise NotFound(NO_LINK)
    # First words can be names of attached files, once also their texts, and can have the number of a branch. Any
    # title can be about another version of the first message.
    words = all_first_words(begins) | {words_with_files(entry) for entry in begins if is_prompt(entry)}
    is_hidden = {record.title, without_number(record.title)} & words or not has_first_words(begins, stored.begins)
    return SharedChat(link=link, title="" if is_hidden else record.title, stored=stored)
