"""Stores the conversations of an uploaded export as new ones of a visitor: all of them, or none.

The file is read twice: once to find everything that is wrong and the room that is needed, and once to store it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import BinaryIO, TypeVar

from pydantic_ai.messages import BinaryContent

from agent.errors import AgentError, Busy, Conflict, InputError, Limited
from agent.history import HistoryStore, Record
from agent.i18n import LocalizedText, _, joined, listed, ngettext
from agent.media.mime import detect_mime
from agent.media.references import reference_of
from agent.media.sandbox import open_image
from agent.media.store import MediaStore, type_of_id
from agent.runtime.shield import run_to_completion
from agent.settings import Settings
from agent.transfer import UNUSABLE_FILE, FileSource, ImportedConversation, LeftOut, left_out_texts
from agent.transfer.archive import ImportFile, ImportLimits
from agent.transfer.export import MAX_CONVERSATIONS
from agent.transfer.file_links import FileLinks
from agent.transfer.portable import stored_size
from agent.transfer.reading import Check, FoundConversation, ImportReader
from agent.web.chat.expiry import IsBusy, RetentionPeriods, delete_conversation
from agent.web.chat.storage_quota import StorageQuota
from agent.web.chat.title_numbers import NumberedTitles
from agent.web.chat.transcript import has_visible
from agent.web.chat.visitor import Visitor

STEP_SECONDS = 0.2
"""Seconds of work between two reports."""
AT_ONCE = 2
"""Imports that are read at once; others wait. Each can take a few hundred MB of memory."""
JSON_TIMES = 4
"""A ZIP file can unpack to this many times the largest upload of JSON."""
BUSY = _("Another import of yours is running. Try again when it has ended.")
STOPPED = _("Everything of yours was deleted meanwhile, so nothing was imported.")
STOP_SECONDS = 10.0
"""The longest wait for the end of an import that was stopped. Its reader can be slow to take the progress."""
COOKIE_NEEDED = _("Allow cookies for this page to import chats.")

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """`done` of `total` steps of a phase: bytes that were read, or conversations that were stored."""

    phase: str
    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The ids of the new conversations, the newest last, and what was left out."""

    conversations: Sequence[str]
    left_out: Sequence[LocalizedText]

    @property
    def text(self) -> str:
        """The result in one or two sentences."""
        count = len(self.conversations)
        done = ngettext("{count} chat was imported.", "{count} chats were imported.", count)
        return joined([done, _("Left out: {things}.", things=listed(self.left_out)) if self.left_out else ""])


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
        show: Check,
    ) -> None:
        self._store, self._media, self._quota, self._is_busy, self._show = store, media, quota, is_busy, show
        self._periods = RetentionPeriods.of(settings)
        file_bytes = int(settings.uploads.mb_per_request * 1_000_000)
        self.limits = ImportLimits(
            file_bytes=file_bytes, json_bytes=JSON_TIMES * file_bytes, attachment_bytes=settings.max_upload_bytes
        )
        self._owners, self._stopped = set[str](), set[str]()
        self._storing = dict[str, asyncio.Event]()
        self._places = asyncio.Semaphore(AT_ONCE)

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

        Raises `AgentError` with a sentence. If it fails or is closed before its end, it has stored nothing.
        """
        async with self._places:
            opened = await asyncio.to_thread(ImportFile, file, folder, self.limits)
            try:
                reader = ImportReader(opened, self.limits.attachment_bytes, self._show)
                found = list[FoundConversation]()
                steps = reader.find()
                while (batch := await asyncio.to_thread(_batch, steps)) is not None:
                    found += [one for one in batch if one is not None]
                    yield ImportProgress(phase="reading", done=reader.position, total=reader.size)
                if not found:
                    things = listed(left_out_texts(reader.left_out))
                    raise InputError(_("Nothing in the file could be imported: {things}.", things=things))
                async with aclosing(self._store_all(visitor, found, reader.left_out)) as events:
                    async for event in events:
                        yield event
            finally:
                await run_to_completion(asyncio.to_thread(opened.close))

    async def add(self, visitor: Visitor, conversation: ImportedConversation) -> str:
        """Store one conversation, as `run` does with those of a file. Return its id."""
        size = stored_size(conversation.entries) + conversation.file_bytes
        found = FoundConversation(updated_at=conversation.record.updated_at, size=size, read=lambda: conversation)
        async with self._places, aclosing(self._store_all(visitor, [found], LeftOut())) as events:
            async for _event in events:
                pass
        return conversation.record.id

    async def _store_all(
        self, visitor: Visitor, found: Sequence[FoundConversation], left_out: LeftOut
    ) -> AsyncGenerator[ImportProgress | ImportResult]:
        stored, ended = list[Record](), asyncio.Event()
        self._storing[visitor.owner] = ended
        try:
            async with self._quota.reservation(visitor, self._is_busy) as reserve:
                size = sum(one.size for one in found)
                try:
                    await reserve(size)
                except Limited as error:
                    raise Limited(
                        _(
                            "There is no room here for the {size:.1f} MB of this import, so nothing was imported.",
                            size=size / 1e6,
                        )
                    ) from error
                records = await self._store.list(visitor.owner, limit=MAX_CONVERSATIONS)
                titles = NumberedTitles([record.title for record in records if record.title])
                # In the list, those that are stored last come first.
                for one in sorted(found, key=lambda one: one.updated_at):
                    conversation = await asyncio.to_thread(one.read)
                    self._check_not_stopped(visitor.owner)
                    await self._store_one(visitor.owner, conversation, titles, left_out, stored)
                    yield ImportProgress(phase="storing", done=len(stored), total=len(found))
                self._check_not_stopped(visitor.owner)
        except BaseException:
            await run_to_completion(self._remove(stored))
            raise
        finally:
            del self._storing[visitor.owner]
            ended.set()
        yield ImportResult(conversations=[record.id for record in stored], left_out=left_out_texts(left_out))

    def _check_not_stopped(self, owner: str) -> None:
        if owner in self._stopped:
            raise Conflict(STOPPED)

    async def _store_one(
        self,
        owner: str,
        conversation: ImportedConversation,
        titles: NumberedTitles,
        left_out: LeftOut,
        stored: list[Record],
    ) -> None:
        """Store the files and then the messages that name them. Adds the record to `stored`."""
        title = conversation.record.title
        record = replace(
            conversation.record,
            title=titles.title_for(title) if has_visible(title) else "",
            owner=owner,
            expires_at=self._periods.until(owner, running=False),
            revision=0,
        )
        ids, log_reference = dict[str, str](), reference_of(record.id)

        async def store() -> None:
            for id_, source in conversation.files.items():
                data = await asyncio.to_thread(_usable, id_, source, self.limits.attachment_bytes)
                if data is None:
                    left_out[UNUSABLE_FILE] += 1
                    continue
                content = BinaryContent(data, media_type=type_of_id(id_))
                ids[id_] = await self._media.add(owner, content, log_reference)
            links = FileLinks(lambda _: None, ids)
            entries = [links.renewed_entry(entry) for entry in conversation.entries]
            stored.append(await self._store.save(record, entries))

        try:
            await run_to_completion(store())
        except (AgentError, OSError):
            references = {id_: [log_reference] for id_ in ids.values()}
            await run_to_completion(self._remove_references(owner, references))
            raise

    async def _remove_references(self, owner: str, references: Mapping[str, Sequence[str]]) -> None:
        try:
            await self._media.remove_references(owner, references)
        except OSError as error:
            log.warning("files of an import that failed could not be removed: %s", error)

    async def _remove(self, records: Sequence[Record]) -> None:
        """Remove what was stored of an import that failed."""
        for record in records:
            try:
                await delete_conversation(self._store, self._media, record, self._is_busy)
            except AgentError as error:
                log.warning("a conversation of an import that failed could not be removed: %s", error)


def _batch(steps: Iterator[T]) -> list[T] | None:
    """Return the next steps of some `STEP_SECONDS`, or None at the end."""
    batch, until = list[T](), monotonic() + STEP_SECONDS
    for step in steps:
        batch.append(step)
        if monotonic() >= until:
            break
    return batch or None


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
