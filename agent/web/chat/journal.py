"""The journal of a run on the page: appends each message to the conversation in the store, one save each."""

import asyncio
import logging
import sys
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelMessage

from agent.errors import AgentError
from agent.history import Entry, HistoryStore, Note, Record, new_id
from agent.i18n import joined
from agent.media.references import new_files, reference_of, with_references
from agent.media.store import MediaStore
from agent.messages.repair import open_calls
from agent.run import Run
from agent.system.shield import run_to_completion
from agent.system.threads import TEXTS
from agent.web.chat.expiry import FOR_EVER, RetentionPeriods
from agent.web.chat.first_words import first_words, rename
from agent.web.chat.message_id import NO_MESSAGE_ID, MessageId
from agent.web.chat.run_log import RunLog
from agent.web.chat.run_request import RunRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Omitted:
    """The part of the history that the model was not sent.

    `left_out` is the number of earliest messages left out. `omitted` names what the model could not take.
    """

    left_out: int = 0
    omitted: str = ""

    def on(self, note: Note) -> Note:
        """Return the note with these fields added."""
        return replace(note, left_out=self.left_out, omitted=joined([self.omitted, note.omitted]))


class StoreJournal:
    """Appends a run's messages to a conversation, one save each. Owns the newest record and the event log of the run.

    `omitted` is the part of the history that the model is not sent. `periods` are the retention periods. `request` is
    stored for other processes. `message` is the id of the first message that is written.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        record: Record,
        omitted: Omitted,
        periods: RetentionPeriods = FOR_EVER,
        request: RunRequest | None = None,
        message: MessageId = NO_MESSAGE_ID,
    ) -> None:
        self.record = record
        self.first_write: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.omitted = omitted
        self.log = RunLog(store, media, record, request)
        self._store, self._media, self._periods = store, media, periods
        self._next_id = message.value
        self._saving = asyncio.Lock()
        self._open_calls: tuple[str, ...] = ()
        """The ids of the calls without a result, in the messages that were written."""

    async def claim(self) -> None:
        """Save the conversation for a resumed run, as its first write. Call it before the run starts.

        From now on, changes by others are refused, and the conversation does not expire before the run ends. Raises
        `Conflict` or `NotFound` if it has changed since it was read, for example because another process resumed it.
        """
        try:
            claimed = replace(self.record, expires_at=self._periods.until(self.record.owner, running=True))
            async with self._saving, self.log.saving(Note()) as events:
                self.record = await self._store.save(claimed, (), events)
        except BaseException as failure:
            self._fail(failure)
            raise
        self.first_write.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        if not self.first_write.done():
            self.first_write.set_exception(failure)
            self.first_write.exception()  # not everybody waits for it; the run ends with it anyway

    async def write(self, message: ModelMessage, note: Note) -> None:
        """Store a message with its note. See `agent.run.Journal`.

        The last message of a run that is left to another process is not stored: that one has its text from the events.
        """
        if self.log.is_released and note.ended is not None:
            return
        try:
            await self._save(message, self.omitted.on(replace(note, suspension="")))  # the page asks in its own way
        except BaseException as failure:
            self._fail(failure)
            raise
        if not self.first_write.done():
            self.first_write.set_result(None)

    async def wait_for_first_write(self, run: Run) -> None:
        """Wait for the first write. Raises what prevented it, also if the run ended without any write."""
        end = asyncio.ensure_future(_end(run))
        try:
            await asyncio.wait([self.first_write, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            end.cancel()
        if self.first_write.done():
            self.first_write.result()
        elif run.result is not None:
            raise run.refused or AgentError(run.result.note.detail)

    async def _save(self, message: ModelMessage, note: Note) -> None:
        """Store the files of a message, then the message. If it is refused, remove those that no other one names."""
        id_, self._next_id, is_sent = self._next_id or new_id(), "", False
        try:
            kept = await with_references(self._media, self.record.owner, message, reference_of(self.record.id, id_))
            async with self._saving, self.log.saving(note) as events:
                entry = Entry(id=id_, parent_id=self.record.head_id, message=kept, note=note)
                is_sent = True
                self.record = await self._store.save(self._advance(entry), [entry], events)
                if entry.parent_id is None:
                    await self._rename(entry)
        except BaseException as failure:
            if isinstance(failure, AgentError) or not is_sent:  # otherwise the store may still be saving it
                await run_to_completion(self._remove_files(message, id_))
            raise

    async def _rename(self, first: Entry) -> None:
        try:
            self.record = replace(self.record, title=await rename(self._store, self.record, first))
        except (AgentError, OSError) as error:  # the message is stored, and its answer matters more
            log.warning("the title did not follow the first message: %s", error)

    async def _remove_files(self, message: ModelMessage, entry_id: str) -> None:
        """Remove the files that only this message names, unless it is stored after all."""
        owner = self.record.owner
        try:
            files = await TEXTS.run(new_files, owner, message)
            if files and not await self._store.find(self.record, ids=[entry_id]):
                reference = reference_of(self.record.id, entry_id)
                await self._media.remove_references(owner, {id_: [reference] for id_ in files})
        except (AgentError, OSError) as error:  # `OrphanedFiles` tries again
            log.warning("the files of a refused message were not removed: %s", error)

    def _advance(self, entry: Entry) -> Record:
        self._open_calls = open_calls(self._open_calls, entry.message)
        return replace(
            self.record.extended(entry, self._open_calls),
            expires_at=self._periods.until(self.record.owner, running=entry.note.ended is None),
            title=self.record.title or first_words(entry),
        )


async def _end(run: Run) -> None:
    while not run.done:
        await run.wait_for_update(sys.maxsize)


def branch(record: Record, head_id: str | None) -> Record:
    """Return the conversation with its head at another entry. The old head is kept as the last abandoned branch."""
    left = (record.head_id,) if record.head_id else ()
    others = tuple(end for end in record.branches if end not in left)
    return replace(record, head_id=head_id, pending=(), branches=(*others, *left))
