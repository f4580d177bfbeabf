"""Memory stores that are careless with what they save and read back, each in one way. See `careless_stores`."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic_ai.messages import BinaryContent, ModelRequest, ToolCallPart, ToolReturnPart

from agent.errors import Conflict, HistoryError, NotFound
from agent.history import Entry, Record
from agent.history.codec import load_entries
from agent.history.memory import MemoryStore, _StoredRun, _walk
from agent.history.run_events import RunEvent, RunEvents


class EditsMessages(MemoryStore):
    """Changes each message before it is stored."""

    def edit(self, entry: Entry) -> Entry:
        return entry

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        with suppress(AttributeError):  # no message
            entries = [self.edit(entry) for entry in deepcopy(entries)]
        return await super().save(record, entries, events)


class LosesNotes(EditsMessages):
    def edit(self, entry: Entry) -> Entry:
        return replace(entry, note=replace(entry.note, detail=""))


class CutsBytes(EditsMessages):
    """Takes a NUL for the end of the data."""

    def edit(self, entry: Entry) -> Entry:
        for part in entry.message.parts:
            content: Any = getattr(part, "content", None)
            for media in content if isinstance(content, list) else ():
                if isinstance(media, BinaryContent):
                    media.data = media.data.rstrip(b"\0")
        return entry


class LosesMetadata(EditsMessages):
    def edit(self, entry: Entry) -> Entry:
        for part in entry.message.parts:
            if isinstance(part, ToolReturnPart):
                part.metadata = None
        return entry


class LosesCallDetails(EditsMessages):
    def edit(self, entry: Entry) -> Entry:
        for part in entry.message.parts:
            if isinstance(part, ToolCallPart):
                part.provider_details = None
        return entry


class CutsLongTexts(EditsMessages):
    def edit(self, entry: Entry) -> Entry:
        if isinstance(entry.message, ModelRequest):
            for part in entry.message.parts:
                if isinstance(content := part.content, str):
                    part.content = content[:1_000_000]
        return entry


class ComparesAllForEach(MemoryStore):
    """Compares all pairs of messages for each message of a history."""

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        entries = await super().history(record, limit=limit)
        sum(range(len(entries) ** 3 // 25))
        return entries


class ReadsHeadOnly(MemoryStore):
    async def entries(self, record: Record) -> Sequence[Entry]:
        if not await super().entries(record):
            return []
        kept = self._data.conversations[record.id]
        return load_entries([text for text, _ in _walk(kept.entries, kept.record.head_id)][::-1])


class MovesWithEachSave(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(record, entries, events)
        self._data.conversations[record.id] = self._data.conversations.pop(record.id)
        return saved


class NeedsEntries(MemoryStore):
    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        found = await super().history(record, limit=limit)
        if not self._data.conversations[record.id].entries:
            raise NotFound("There is nothing.")
        return found


class FindsNothingForNothing(MemoryStore):
    """Returns an empty history for an entry that it does not have."""

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        await self.get(record.id, owner=record.owner)
        try:
            return await super().history(record, limit=limit)
        except NotFound:
            return []


class LeadsElsewhere(MemoryStore):
    """Finds the last entry of a history in any conversation."""

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        await self.get(record.id, owner=record.owner)
        try:
            return await super().history(record, limit=limit)
        except NotFound:
            for kept in self._data.conversations.values():
                if record.head_id in kept.entries:
                    return load_entries([*_walk(kept.entries, record.head_id)][::-1])
            raise


class SharesEntryIds(MemoryStore):
    """Has one table of entries for all conversations."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._all: dict[str, Entry] = {}

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(record, entries, events)
        self._all |= {entry.id: entry for entry in await super().entries(record)}
        return saved

    async def history(self, record: Record, *, limit: int | None = None) -> list[Entry]:
        return [deepcopy(self._all[entry.id]) for entry in await super().history(record, limit=limit)]


class ClosesOnce(MemoryStore):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1
        if self.closed == 2:
            raise HistoryError("It is closed already.")


class RestoresEntries(MemoryStore):
    """Gives a new conversation the entries of the deleted one that had its id."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._old: dict[str, Any] = {}

    async def delete(self, conversation_id: str, *, owner: str) -> None:
        old = self._data.conversations.get(conversation_id)
        await super().delete(conversation_id, owner=owner)
        self._old[conversation_id] = old and old.entries

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(record, entries, events)
        self._data.conversations[record.id].entries.update(self._old.get(record.id, {}))
        return saved


class LogsRefusedSaves(MemoryStore):
    """Notes each save before it knows whether that is refused."""

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        try:
            return await super().save(record, entries, events)
        except HistoryError:
            log = RunEvent.of(1, {"title": record.title})
            self._data.runs["log"] = _StoredRun("", "", [log], ended_at=self._data.clock())
            raise


class SavesOneAtATime(MemoryStore):
    _is_saving = False

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if self._is_saving:
            raise Conflict("Something else is being saved.")
        self._is_saving = True
        try:
            await asyncio.sleep(0)
            return await super().save(record, entries, events)
        finally:
            self._is_saving = False


class KeepsRefusedIds(MemoryStore):
    """Takes the ids of a refused save for used."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._used: set[str] = set()

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if self._used.intersection(entry.id for entry in entries):
            raise HistoryError("An id is used.")
        try:
            return await super().save(record, entries, events)
        except HistoryError:
            self._used.update(entry.id for entry in entries)
            raise


class AcceptsAnyHead(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        if record.revision or record.head_id is None or entries:
            return await super().save(record, entries, events)
        saved = await super().save(replace(record, head_id=None), entries, events)
        self._data.conversations[record.id].record = saved = replace(saved, head_id=record.head_id)
        return saved


class AcceptsAnyOrder(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        try:
            return await super().save(record, entries, events)
        except (Conflict, NotFound):
            raise
        except HistoryError:
            return await super().save(record, entries[::-1], events)


class OverwritesEntries(MemoryStore):
    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        kept = self._data.conversations.get(record.id)
        for entry in entries if kept else ():
            kept.entries.pop(entry.id, None)
        return await super().save(record, entries, events)


class TakesTitlesBack(MemoryStore):
    """Stores a title at once, and takes it back if the save is refused."""

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        kept = self._data.conversations.get(record.id)
        if kept and kept.record.owner == record.owner and record.title != kept.record.title:
            before, kept.record = kept.record, replace(kept.record, title=record.title)
            await asyncio.sleep(0)
            kept.record = before
        return await super().save(record, entries, events)


class DatesImportsToday(MemoryStore):
    """Treats an imported conversation like any other."""

    async def save(self, record: Record, entries: Sequence[Entry] = (), events: RunEvents | None = None) -> Record:
        saved = await super().save(replace(record, source=""), entries, events)
        kept = self._data.conversations[record.id]
        kept.record = replace(saved, source=record.source)
        return kept.record


class MixesReplies(MemoryStore):
    """Leaves the reply to a cancelled read to the next reader."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        super().__init__(clock)
        self._replies: list[Record] = []

    async def get(self, conversation_id: str, *, owner: str) -> Record:
        self._replies.append(await super().get(conversation_id, owner=owner))
        await asyncio.sleep(0)
        return self._replies.pop(0)


FAULTS_OF_SAVES: dict[type[MemoryStore], tuple[str, ...]] = {
    LosesNotes: ("saved_history_is_read_back",),
    CutsBytes: ("bytes_come_back",),
    LosesMetadata: ("stray_bytes_are_accepted",),
    LosesCallDetails: ("tool_calls_and_signatures_come_back",),
    CutsLongTexts: ("ten_megabytes_come_back",),
    ComparesAllForEach: ("history_loads_in_linear_time",),
    ReadsHeadOnly: ("entries_include_all_branches",),
    MovesWithEachSave: ("save_without_entries_keeps_the_place", "imported_conversation_stands_at_its_time"),
    NeedsEntries: ("conversation_can_be_empty",),
    FindsNothingForNothing: (
        "unknown_head_is_not_found",
        "old_revision_conflicts_and_changes_nothing",
        "bad_entry_rejects_whole_save",
        "chain_stays_in_its_conversation",
        "delete_leaves_nothing",
    ),
    LeadsElsewhere: ("chain_stays_in_its_conversation",),
    SharesEntryIds: ("conversations_can_share_entry_ids",),
    ClosesOnce: ("second_close_does_nothing",),
    RestoresEntries: ("delete_leaves_nothing",),
    LogsRefusedSaves: ("nothing_of_a_refused_save_is_stored",),
    SavesOneAtATime: ("concurrent_saves_of_conversations_succeed",),
    KeepsRefusedIds: ("bad_entry_rejects_whole_save",),
    AcceptsAnyHead: ("head_must_be_own_entry",),
    AcceptsAnyOrder: ("entry_follows_only_earlier_ones",),
    OverwritesEntries: ("entry_is_never_overwritten",),
    TakesTitlesBack: ("reader_sees_no_refused_save",),
    DatesImportsToday: ("imported_conversation_stands_at_its_time",),
    MixesReplies: ("cancelled_read_spoils_no_other_call",),
}
"""The stores, and all laws that each of them breaks."""
