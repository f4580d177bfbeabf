"""Stores the conversations of an uploaded export as new ones of a visitor: all of them, or none.

The file is read twice: once to find everything that is wrong and the room that is needed, and once to store it. A chat
that the visitor has imported before, or has exported here, is not stored again: it gets the messages that are new.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pydantic_ai.messages import BinaryContent

from agent.errors import AgentError, Busy, Conflict, HistoryError, InputError, Limited, NotFound
from agent.files.references import files_named_in, reference_of
from agent.files.sandbox import open_image
from agent.files.store import MediaStore, type_of_id
from agent.history import MOST_FOLDERS, Conversation, Entry, Folder, HistoryStore, now
from agent.history.search import groups
from agent.i18n.text import LocalizedText, _, joined, listed, ngettext
from agent.messages.repair import count_bytes
from agent.settings import Settings
from agent.system.media_types import detect_mime
from agent.system.request_queue import RequestQueue, acting_for
from agent.system.threads import Threads, run_to_completion
from agent.transfer.export import MAX_CONVERSATIONS
from agent.transfer.imported import (
    BUSY_CHAT,
    FOLDER,
    UNUSABLE_FILE,
    FileLinks,
    FileSource,
    ImportedConversation,
    LeftOut,
    bounded,
    left_out_texts,
)
from agent.transfer.portable import FORMAT, all_ids, entries_of, stored_size
from agent.transfer.reading import EntryCheck, FoundConversation, ImportFile, ImportLimits, ImportReader
from agent.web.chat.expiry import IMPORT_TIME, IsBusy, RetentionPeriods, delete_conversation, hidden
from agent.web.chat.folders import Folders
from agent.web.chat.storage_quota import Reserve, StorageQuota
from agent.web.chat.titles import NumberedTitles
from agent.web.chat.transcript import has_visible
from agent.web.chat.visitor import Visitor

PAGE, PAGE_BYTES = 500, 2_000_000
"""Messages of a conversation that are stored at once, and their bytes."""
AT_ONCE = 2
"""Imports that are read at once, all but one of them of one network address; others wait.

Each can take a few hundred MB of memory.
"""
JSON_TIMES = 4
"""A ZIP file can unpack to this many times the largest upload of JSON."""
BUSY = _("Another import of yours is running. Try again when it has ended.")
STOPPED = _("Everything of yours was deleted meanwhile, so nothing was imported.")
TOO_SLOW = _("The chats could not be stored within an hour, so no new chat was imported. Import fewer chats at once.")
STOP_SECONDS = 10.0
"""The longest wait for the end of an import that was stopped. Its reader can be slow to take the progress."""
COOKIE_NEEDED = _("Allow cookies for this page to import chats.")

IMPORT_THREADS = Threads("import", AT_ONCE)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """`done` of `total` steps of a phase: bytes that were read, or conversations that were stored."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The ids of the new conversations, the newest last, the ids of those that got new messages, and what was left out.

    `known` counts the chats that were there already and have nothing new.
    """

    conversations: Sequence[str]
    updated: Sequence[str]
    known: int
    left_out: Sequence[LocalizedText]

    @property
    def text(self) -> str:
        """The result in a few sentences."""
        count, updated, known = len(self.conversations), len(self.updated), self.known
        return joined(
            [
                ngettext("{count} chat was imported.", "{count} chats were imported.", count)
                if count or not (updated or known)
                else "",
                ngettext("{count} chat got new messages.", "{count} chats got new messages.", updated)
                if updated
                else "",
                ngettext("{count} chat was there already.", "{count} chats were there already.", known)
                if known
                else "",
                _("Left out: {things}.", things=listed(self.left_out)) if self.left_out else "",
            ]
        )


class _Progress:
    """The newest progress of each phase that the reader has not taken."""

    def __init__(self) -> None:
        self._newest, self.has_changed = dict[str, ImportProgress](), asyncio.Event()

    def tell(self, progress: ImportProgress) -> None:
        """Replace what the reader has not taken of this phase."""
        self._newest[progress.phase] = progress
        self.has_changed.set()

    def take(self) -> Sequence[ImportProgress]:
        """Return what is new since the last call."""
        taken = [*self._newest.values()]
        self._newest.clear()
        self.has_changed.clear()
        return taken


@dataclass(slots=True)
class _Outcome:
    """The state of an import: new conversations, the ids of others that got messages, and a count of the rest.

    `folders` are the visitor's by name, with those that the import adds.
    """

    left_out: LeftOut = field(default_factory=LeftOut)
    new: list[Conversation] = field(default_factory=list[Conversation])
    updated: list[str] = field(default_factory=list[str])
    known: int = 0
    folders: dict[str, Folder] = field(default_factory=dict[str, Folder])
    added_folders: list[Folder] = field(default_factory=list[Folder])

    def folder_of(self, imported: ImportedConversation) -> str:
        """Return the id of the visitor's folder with the name of an imported one, which is new if there is none."""
        if (given := imported.folder) is None:
            return ""
        if given.name not in self.folders:
            if len(self.folders) >= MOST_FOLDERS:
                self.left_out[FOLDER] += 1
                return ""
            self.folders[given.name] = given
            self.added_folders.append(given)
        return self.folders[given.name].id

    @property
    def result(self) -> ImportResult:
        """The result for the visitor."""
        new = [conversation.id for conversation in self.new]
        left_out = left_out_texts(self.left_out)
        return ImportResult(conversations=new, updated=self.updated, known=self.known, left_out=left_out)


class Importer:
    """Imports files. Owns the places of running imports, and who has stopped theirs.

    `show` renders entries as the page does. A conversation for which it fails is left out: the page could not open it.
    """

    def __init__(
        self,
        settings: Settings,
        store: HistoryStore,
        media: MediaStore,
        quota: StorageQuota,
        is_busy: IsBusy,
        show: EntryCheck,
        *,
        longest: timedelta = IMPORT_TIME,
    ) -> None:
        self._store, self._media, self._quota, self._is_busy, self._show = store, media, quota, is_busy, show
        self._longest = longest
        self._periods = RetentionPeriods.of(settings)
        self._folders = Folders(store, self._periods)
        file_bytes = int(settings.uploads.mb_per_request * 1_000_000)
        self.limits = ImportLimits(
            file_bytes=file_bytes, json_bytes=JSON_TIMES * file_bytes, attachment_bytes=settings.max_upload_bytes
        )
        self._owners, self._stopped = set[str](), set[str]()
        self._storing = dict[str, asyncio.Event]()
        self._places = RequestQueue(AT_ONCE, slots_per_visitor=AT_ONCE - 1)

    @asynccontextmanager
    async def place(self, visitor: Visitor) -> AsyncGenerator[None]:
        """Hold the visitor's only place in the block. Raises `Busy`, and `InputError` for a guest."""
        if visitor.guest:
            raise InputError(COOKIE_NEEDED)
        if visitor.owner in self._owners:
            raise Busy(BUSY)
        self._owners.add(visitor.owner)
        try:
            yield
        finally:
            self._owners.discard(visitor.owner)
            self._stopped.discard(visitor.owner)

    async def stop(self, owner: str) -> None:
        """Let this owner's running import, if there is one, fail and leave nothing. Wait until it stores nothing."""
        if owner not in self._owners:
            return
        self._stopped.add(owner)
        if (ended := self._storing.get(owner)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await ended.wait()

    async def run(
        self, visitor: Visitor, file: BinaryIO, folder: Path
    ) -> AsyncGenerator[ImportProgress | ImportResult]:
        """Import a file, and yield the progress and at last the result. `folder` is for temporary files.

        Raises `AgentError` with a sentence. If it fails or is closed before its end, it has stored no new chat. It does
        not wait for a slow reader, who would keep others waiting.
        """
        progress, outcome, is_told = _Progress(), _Outcome(), False
        work = asyncio.create_task(self._import(visitor, file, folder, outcome, progress.tell))
        work.add_done_callback(lambda _: progress.has_changed.set())
        try:
            while not work.done():
                await progress.has_changed.wait()
                for one in progress.take():
                    yield one
            work.result()
            yield outcome.result
            is_told = True
        finally:
            work.cancel()
            await run_to_completion(self._end(work, [] if is_told else outcome.new))

    async def _end(self, work: asyncio.Task[None], untold: list[Conversation]) -> None:
        """Wait for an import that ends, and remove what it has stored if nobody was told."""
        await asyncio.wait([work])
        await self._remove(untold)

    async def _import(
        self,
        visitor: Visitor,
        file: BinaryIO,
        folder: Path,
        outcome: _Outcome,
        tell: Callable[[ImportProgress], None],
    ) -> None:
        opened = list[ImportFile]()

        async with AsyncExitStack() as stack:
            with acting_for(visitor.address or visitor.owner):
                await stack.enter_async_context(self._places.slot())
            try:
                await IMPORT_THREADS.run(lambda: opened.append(ImportFile(file, folder, self.limits)))
                reader = ImportReader(opened[0], self.limits.attachment_bytes, self._show)
                found = list[FoundConversation]()
                async with aclosing(IMPORT_THREADS.steps(reader.find())) as steps:
                    async for batch in steps:
                        found += [one for one in batch if one is not None]
                        tell(ImportProgress(phase="reading", done=reader.position, total=reader.size))
                if not found:
                    things = listed(left_out_texts(reader.left_out))
                    raise InputError(_("Nothing in the file could be imported: {things}.", things=things))
                outcome.left_out = reader.left_out
                await self._store_all(visitor, found, outcome, tell)
            finally:
                for one in opened:
                    await run_to_completion(IMPORT_THREADS.run(one.close))

    async def add(
        self, visitor: Visitor, title: str, size: int, pages: AsyncIterator[Sequence[Entry]], links: FileLinks
    ) -> str:
        """Store a branch that comes in pages, hidden until it is whole. Return the id of the new conversation.

        `size` is about the bytes that it needs, with its files. `links` finds the files of the pages so far.
        """
        outcome, ids, stored = _Outcome(), dict[str, str](), set[str]()
        async with self._storage(visitor, outcome) as (conversations, reserve):
            await _reserve(reserve, size)
            numbered = NumberedTitles([one.title for one in conversations if one.title]).title_for(title)
            conversation = hidden(Conversation(owner=visitor.owner, title=numbered), now())

            async def store(page: Sequence[Entry]) -> None:
                nonlocal conversation
                files = {id_: source for id_, source in links.files.items() if id_ not in stored}
                stored.update(files)
                conversation = await self._add_page(
                    replace(conversation, head_id=page[-1].id), page, files, outcome, ids
                )

            async for page in pages:
                await run_to_completion(store(page))
                self._check_not_stopped(visitor.owner)
        return conversation.id

    @asynccontextmanager
    async def _storage(
        self, visitor: Visitor, outcome: _Outcome
    ) -> AsyncGenerator[tuple[Sequence[Conversation], Reserve]]:
        """Yield the visitor's conversations and what reserves room. The block stores new conversations hidden.

        They are shown at its end, and removed if it fails, is cancelled or takes too long.
        """
        ended, time = asyncio.Event(), asyncio.timeout(self._longest.total_seconds())
        self._storing[visitor.owner] = ended
        try:
            async with time, self._quota.reservation(visitor) as reserve:
                yield await self._store.list(visitor.owner, limit=MAX_CONVERSATIONS), reserve
                await run_to_completion(self._show_stored(outcome.new))
                self._check_not_stopped(visitor.owner)
        except BaseException as error:
            await run_to_completion(self._remove(outcome.new))
            if isinstance(error, TimeoutError) and time.expired():
                raise HistoryError(TOO_SLOW) from None
            raise
        finally:
            del self._storing[visitor.owner]
            ended.set()

    async def _store_all(
        self,
        visitor: Visitor,
        found: Sequence[FoundConversation],
        outcome: _Outcome,
        tell: Callable[[ImportProgress], None],
    ) -> None:
        """Store the new conversations hidden, add to those that are stored already, and then show the new ones."""
        began = now()
        async with self._storage(visitor, outcome) as (conversations, reserve):
            known = {source: conversation for conversation in conversations for source in _sources_of(conversation)}
            new, others, size = await self._sorted_out(found, known, outcome)
            outcome.folders = {one.name: one for one in await self._folders.all(visitor.owner)}
            await _reserve(reserve, size)
            titles = NumberedTitles([conversation.title for conversation in conversations if conversation.title])
            work = [partial(self._store_new, visitor.owner, began, versions, titles) for versions in new]
            work += [partial(self._update, known[one.source], one) for one in others]
            # In the list, those that are stored last come first. The new ones are first: a failure removes them.
            for done, store in enumerate(work, 1):
                await store(outcome)
                self._check_not_stopped(visitor.owner)
                tell(ImportProgress(phase="storing", done=done, total=len(work)))
            if outcome.added_folders:
                await self._folders.add(visitor.owner, *outcome.added_folders)

    @property
    def is_running(self) -> bool:
        """True while chats of anybody are imported or copied."""
        return bool(self._owners)

    def is_storing(self, owner: str) -> bool:
        """Return True if an import of this owner has stored conversations that are not shown yet."""
        return owner in self._storing

    async def _show_stored(self, conversations: list[Conversation]) -> None:
        """Show the conversations of an import. If a failure comes, those that are shown are the first to be removed.

        If the process is killed meanwhile, `ExpiredConversations` shows the rest.
        """
        for number in reversed(range(len(conversations))):
            conversation = conversations[number]
            expires_at = self._periods.until(conversation.owner, running=False)
            if not await self._store.retention.set_expiry(conversation, expires_at):
                raise HistoryError("a conversation of an import was deleted before it was shown")
            conversations[number] = replace(conversation, expires_at=expires_at)

    async def _sorted_out(
        self, found: Sequence[FoundConversation], known: Mapping[str, Conversation], outcome: _Outcome
    ) -> tuple[list[list[FoundConversation]], list[FoundConversation], int]:
        """Return the new conversations, those that can add messages to others, and the bytes that both will take.

        `known` are the stored conversations by their sources. Those without anything new are counted. A file can have
        several versions of a new conversation.
        """
        new, others, size = dict[str | int, list[FoundConversation]](), list[FoundConversation](), 0
        for number, one in enumerate(sorted(found, key=lambda one: one.updated_at)):
            if (stored := known.get(one.source)) is not None:
                added = await IMPORT_THREADS.run(_added_bytes, stored, await all_ids(self._store, stored), one)
                if not added:
                    outcome.known += 1
                    continue
                size += added
                others.append(one)
            else:
                size += one.size
                new.setdefault(one.source or number, []).append(one)
        return [*new.values()], others, size

    async def _update(self, stored: Conversation, found: FoundConversation, outcome: _Outcome) -> None:
        """Add the new messages of a conversation to the stored one."""
        known, imported = await all_ids(self._store, stored), await IMPORT_THREADS.run(found.read)
        conversation, entries, files = await IMPORT_THREADS.run(_added, stored, known, imported)
        if not entries:
            outcome.known += 1
            return
        try:
            if self._is_busy(stored.id) or await self._store.runs.would_lose(stored):
                raise Conflict(STOPPED)
            expires_at = self._periods.until(stored.owner, running=False)
            await self._save(replace(conversation, expires_at=expires_at), entries, files, outcome.left_out, [])
        except (Conflict, NotFound):
            outcome.left_out[BUSY_CHAT] += 1
        else:
            outcome.updated.append(stored.id)

    def _check_not_stopped(self, owner: str) -> None:
        if owner in self._stopped:
            raise Conflict(STOPPED)

    async def _store_new(
        self,
        owner: str,
        began: datetime,
        versions: Sequence[FoundConversation],
        titles: NumberedTitles,
        outcome: _Outcome,
    ) -> None:
        """Store one conversation hidden. Its later versions add to the first."""
        conversation, entries, files = Conversation(owner=owner), list[Entry](), dict[str, FileSource]()
        for number, one in enumerate(versions):
            imported = await IMPORT_THREADS.run(one.read)
            if not number:
                conversation, added, more = imported.conversation, imported.entries, imported.files
                conversation = replace(conversation, folder=outcome.folder_of(imported))
            else:
                ids = [entry.id for entry in entries]
                conversation, added, more = await IMPORT_THREADS.run(_added, conversation, ids, imported)
                outcome.known += not added
            entries += added
            files |= more
        title = titles.title_for(conversation.title) if has_visible(conversation.title) else ""
        stored, ids = hidden(replace(conversation, title=title, owner=owner, revision=0), began), dict[str, str]()
        *first, last = await IMPORT_THREADS.run(lambda: [*groups(entries, _page_bytes, PAGE_BYTES)]) or [[]]
        for page in first:
            stored = replace(stored, head_id=page[-1].id, branches=())
            stored, files = await self._add_page(stored, page, files, outcome, ids), {}
        stored = replace(stored, head_id=conversation.head_id, branches=conversation.branches)
        await self._add_page(stored, last, files, outcome, ids)

    async def _add_page(
        self,
        conversation: Conversation,
        page: Sequence[Entry],
        files: Mapping[str, FileSource],
        outcome: _Outcome,
        ids: dict[str, str],
    ) -> Conversation:
        """Store a page of a hidden conversation, and return the stored conversation, which is then the last new one.

        The text of all messages at once would need as much memory as they do.
        """
        await self._save(conversation, page, files, outcome.left_out, outcome.new, ids)
        if conversation.revision:
            del outcome.new[-2]
        return outcome.new[-1]

    async def _save(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        files: Mapping[str, FileSource],
        left_out: LeftOut,
        stored: list[Conversation],
        ids: dict[str, str] | None = None,
    ) -> None:
        """Store the files and then the messages that name them. Adds the conversation to `stored`.

        `ids` has the ids that earlier messages of the conversation got for their files, and gets those of these.
        """
        owner, log_reference = conversation.owner, reference_of(conversation.id)
        ids = dict[str, str]() if ids is None else ids

        async def store() -> None:
            for id_, source in files.items():
                data = await IMPORT_THREADS.run(_usable, id_, source, self.limits.attachment_bytes)
                if data is None:
                    left_out[UNUSABLE_FILE] += 1
                    continue
                content = BinaryContent(data, media_type=type_of_id(id_))
                ids[id_] = await self._media.add(owner, content, log_reference)
            renewed = entries
            if ids:  # otherwise they name no stored file, and a copy of them all takes memory
                links = FileLinks(lambda _: None, ids)
                renewed = await IMPORT_THREADS.run(lambda: [links.renewed_entry(entry) for entry in entries])
            stored.append(await self._store.save(conversation, renewed))

        try:
            await run_to_completion(store())
        except (AgentError, OSError):
            await run_to_completion(self._remove_files(conversation, {*ids.values()}))
            raise

    async def _remove_files(self, conversation: Conversation, ids: set[str]) -> None:
        """Remove the files of messages that were refused, unless stored messages of the conversation name them."""
        try:
            async for entries, named in entries_of(self._store, conversation):
                ids -= named.union(*(entry.note.attachments for entry in entries))
            references = {id_: [reference_of(conversation.id)] for id_ in ids}
            await self._media.remove_references(conversation.owner, references)
        except (AgentError, OSError) as error:  # `OrphanedFiles` tries again
            log.warning("files of an import that failed could not be removed: %s", error)

    async def _remove(self, conversations: list[Conversation]) -> None:
        """Remove what was stored of an import that failed, also from the list."""
        while conversations:
            conversation = conversations.pop()
            try:
                await delete_conversation(self._store, self._media, conversation, self._is_busy)
            except AgentError as error:
                log.warning("a conversation of an import that failed could not be removed: %s", error)


async def _reserve(reserve: Reserve, size: int) -> None:
    """Reserve room for an import. Raises `Limited`."""
    try:
        await reserve(size)
    except Limited as error:
        sentence = _(
            "There is no room here for the {size:.1f} MB of this import, so nothing was imported.", size=size / 1e6
        )
        raise Limited(sentence) from error


def _added(
    stored: Conversation, stored_ids: Sequence[str], imported: ImportedConversation
) -> tuple[Conversation, list[Entry], dict[str, FileSource]]:
    """Return the conversation with what a newer export of its chat adds to it, the new entries, and their files.

    The new branch is shown if the visitor has not gone on with the chat here.
    """
    known = {*stored_ids}
    originals = ((entry.id, imported.ids.get(entry.id, "")) for entry in imported.entries)
    ids: dict[str | None, str] = {id_: original if original in known else id_ for id_, original in originals}
    new = [
        replace(entry, id=ids[entry.id], parent_id=ids.get(entry.parent_id))
        for entry in imported.entries
        if ids[entry.id] not in known
    ]
    added, given = {entry.id for entry in new}, imported.conversation
    head = ids.get(given.head_id)
    if head not in added or stored.pending or stored.head_id not in (None, *ids.values()):
        head = stored.head_id
    ends = [stored.head_id, *stored.branches, *(ids[id_] for id_ in (*given.branches, given.head_id) if id_ in ids)]
    kept = {stored.head_id, *stored.branches, *added} - {head, None} - {entry.parent_id for entry in new}
    conversation = replace(
        stored,
        head_id=head,
        branches=tuple(dict.fromkeys(end for end in ends if end is not None and end in kept)),
        updated_at=max(stored.updated_at, given.updated_at),
        imported_at=now(),
    )
    conversation = bounded(conversation)
    named = {*files_named_in(entry.message for entry in new)}
    named.update(id_ for entry in new for id_ in entry.note.attachments)
    return conversation, new, {id_: source for id_, source in imported.files.items() if id_ in named}


def _added_bytes(stored: Conversation, stored_ids: Sequence[str], found: FoundConversation) -> int:
    """Return the bytes that a newer export of a stored chat adds to it, 0 if it has nothing new."""
    _conversation, added, files = _added(stored, stored_ids, found.read())
    return stored_size(added) + sum(source.size for source in files.values())


def _sources_of(conversation: Conversation) -> list[str]:
    """Return the sources of exports of a stored conversation: its own, and the one from which it was imported."""
    return [f"{FORMAT}:{conversation.id}", *([conversation.source] if conversation.source else [])]


def _page_bytes(entry: Entry) -> int:
    """Return what an entry adds to a page, which has at most `PAGE` entries."""
    return max(count_bytes(entry.message), PAGE_BYTES // PAGE)


def _usable(id_: str, source: FileSource, most: int) -> bytes | None:
    """Return the bytes of a file, or None if it is too large, or is a picture that the sandbox cannot decode."""
    if source.size > most:
        return None
    try:
        data = source.read()
        if type_of_id(id_).startswith("image/"):
            media_type, png = open_image(data)
            return None if png or media_type != type_of_id(id_) or detect_mime(data) != media_type else data
    except (ValueError, InputError, OSError):
        return None
    return data
