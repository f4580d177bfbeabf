"""Retention periods of conversations, and the deletion of expired ones and of files that no message names."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from time import monotonic, time
from typing import Self

from agent.errors import HistoryError, NotFound
from agent.files.references import reference_of, references_in
from agent.files.store import MediaStore, ids_in
from agent.history import PROGRAM, PROGRAM_VECTORS, Conversation, HistoryStore, latest_now, steady_now
from agent.settings import Settings
from agent.system.steady_time import BELIEVED_SECONDS, SteadyTime
from agent.system.threads import TEXTS, run_to_completion
from agent.transfer.export import MAX_CONVERSATIONS
from agent.transfer.portable import entries_of
from agent.web.middleware.visitor_cookie import GUEST

log = logging.getLogger(__name__)

GUEST_PREFIX = f"{GUEST}-"
"""Owner prefix of visitors without a cookie. Nobody can come back to their conversations."""
MARGIN = timedelta(hours=1)
"""A conversation with a running answer is kept for at least the longest run time plus this margin."""
RETRY = timedelta(hours=1)
"""The time after which the deletion of a conversation is tried again."""

UNNAMED_SECONDS = 3600.0
"""A file that no message names stays for this long, because the clocks of a place of files and of processes differ."""
UNDO_SECONDS = 60.0
"""Seconds in which the deletion of a conversation can be undone. The page offers it for a shorter time."""

FAR_FUTURE = datetime.max.replace(tzinfo=UTC)
PAGE = 200
"""Conversations that are read at once."""
IMPORT_TIME = timedelta(hours=1)
"""The longest time that an import may take to store its conversations."""
_HIDDEN = timedelta(days=365)
PAUSE = timedelta(days=1)
"""The longest time without a running app after which its clock is believed at once."""
_NOTED_SECONDS = 3600.0
"""Seconds after which the time is noted again in the history."""

IsBusy = Callable[[str], bool]
"""Returns True if this process is writing an answer in a conversation."""
IsOnly = Callable[[], bool]
"""Returns True if no other process uses the history now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPeriods:
    """The time that a conversation is kept after its last message. None keeps it for ever."""

    guest: timedelta | None = None
    visitor: timedelta | None = None
    run: timedelta = timedelta()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the periods from the settings."""
        return cls(
            guest=timedelta(hours=settings.guest_hours),
            visitor=timedelta(days=settings.retention_days) if settings.retention_days else None,
            run=timedelta(seconds=settings.run_seconds),
        )

    def until(self, owner: str, *, running: bool, at: datetime | None = None) -> datetime | None:
        """Return when a conversation expires, or None for never.

        It was last used at `at` (default: now). `running` is True if its run has not ended. A program
        deletes its own conversations.
        """
        if owner in (PROGRAM, PROGRAM_VECTORS):
            return None
        period = self.guest if owner.startswith(GUEST_PREFIX) else self.visitor
        if period is None:
            return None
        if at is None:  # the later one, because a clock can have jumped back
            at = latest_now()
        return at + (max(period, self.run + MARGIN) if running else period)


FOR_EVER = RetentionPeriods()


async def add_missing_expiry(store: HistoryStore, settings: Settings) -> int:
    """Set the expiry of conversations from versions without expiry, counted from their last message or import.

    With a share link, which is temporary, only guests' conversations get an expiry. So no conversation of a private
    page is deleted.
    """
    periods = RetentionPeriods.of(settings)
    if settings.share:
        periods = replace(periods, visitor=None)
    owners = GUEST_PREFIX if periods.visitor is None else ""
    return await store.retention.add_expiry(
        lambda conversation: periods.until(conversation.owner, running=False, at=conversation.used_at), owners=owners
    )


def hidden(conversation: Conversation, imported_at: datetime) -> Conversation:
    """Return the conversation as an import stores it: nobody sees it until all conversations of the import are stored.

    All conversations of one import have the same time.
    """
    return replace(conversation, imported_at=imported_at, expires_at=imported_at - _HIDDEN)


def is_hidden(conversation: Conversation) -> bool:
    """Return True if an import has stored the conversation and has not shown it yet."""
    began, expires_at = conversation.imported_at, conversation.expires_at
    return began is not None and expires_at is not None and expires_at < began - _HIDDEN / 2


class ExpiredConversations:
    """Deletes expired conversations. Remembers those that cannot be deleted, so that they do not stop the others.

    It also ends imports whose process was killed: it deletes their hidden conversations, unless the import had begun
    to show them. Then it shows the rest. `is_importing` returns True if an import of this owner runs here. An import of
    another process may run as long as that process lives. Processes that share a server had the time of an import.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        is_busy: IsBusy,
        is_importing: Callable[[str], bool] = lambda _: False,
        periods: RetentionPeriods = FOR_EVER,
        is_only: IsOnly = lambda: True,
    ) -> None:
        self._store, self._media, self._is_busy, self._is_only = store, media, is_busy, is_only
        self._time = SteadyTime()
        self._noted_at, self._used_until = -_NOTED_SECONDS, NEVER
        self._is_importing, self._periods = is_importing, periods
        self._failed: dict[str, datetime] = {}
        """By id: when to try again."""

    async def delete(self, *, at: datetime | None = None, limit: int = 50) -> int:
        """Delete up to `limit` expired conversations, except busy ones. Return how many."""
        if at is None:  # the earlier one, because a clock can have jumped ahead
            at = min(clock := await self._store.retention.time(), self._time(clock))
            if monotonic() - self._noted_at >= _NOTED_SECONDS:
                await self._note_time(at)
            at = min(at, self._used_until)
        by, deleted = at, 0
        if self._store.is_shared:  # a deletion that another process can still undo
            by -= timedelta(seconds=UNDO_SECONDS)
        skipped = {id_ for id_, retry_at in self._failed.items() if by < retry_at}
        imports = dict[tuple[str, datetime], bool | None]()
        while not deleted and (conversations := await self._store.retention.expiring(by, limit=limit, skip=skipped)):
            for conversation in conversations:
                skipped.add(conversation.id)
                deleted += await self._delete(conversation, by, imports)
        return deleted

    async def _note_time(self, at: datetime) -> None:
        """Note in the history that it is used at this time, if that is believed.

        A machine can start with a wrong clock. If the clock is far ahead of the last use of the history, it is
        believed a day after it was first seen. Until then nothing expires by it.
        """
        try:
            title = (await self._store.get(LAST_USE, owner=PROBE)).title
        except NotFound:
            title = ""
        known = [datetime.fromisoformat(one) for one in title.split()] or [at]
        used, *seen = known
        self._used_until = NEVER
        if at - used > PAUSE and not (seen and at - seen[0] >= timedelta(seconds=BELIEVED_SECONDS)):
            self._used_until, first = used, seen[0] if seen and seen[0] <= at else at
            log.warning(
                "The clock shows %s, and this history was last used at %s. If the clock is right, conversations expire "
                "by it from %s on.",
                *(one.isoformat(" ", "minutes") for one in (at, used, first + timedelta(seconds=BELIEVED_SECONDS))),
            )
            known = [used, first]
        else:
            known = [at]
        self._noted_at = monotonic()
        noted = " ".join(one.isoformat() for one in known)
        try:
            if title:
                await self._store.label(LAST_USE, owner=PROBE, title=noted)
            else:
                await self._store.save(Conversation(id=LAST_USE, owner=PROBE, title=noted, expires_at=NEVER))
        except HistoryError as error:  # a full disk, which the deletion frees, or another process was first
            log.info("when the history was last used could not be noted: %s", error)

    async def _delete(
        self, conversation: Conversation, at: datetime, imports: dict[tuple[str, datetime], bool | None]
    ) -> bool:
        try:
            if await self._belongs_to_import(conversation, at, imports):
                return False
            deleted = await delete_unanswered(self._store, self._media, conversation, self._is_busy)
        except HistoryError as error:
            if conversation.id not in self._failed:
                log.warning("an expired conversation could not be deleted; this is tried again: %s", error)
            self._failed[conversation.id] = at + RETRY
            return False
        self._failed.pop(conversation.id, None)
        return deleted

    async def _belongs_to_import(
        self, conversation: Conversation, at: datetime, imports: dict[tuple[str, datetime], bool | None]
    ) -> bool:
        """Return True if an import runs that has hidden this conversation, or if one was killed while it showed it.

        In the second case, show the conversation. `imports` remembers what is known of each import.
        """
        owner, began = conversation.owner, conversation.imported_at
        if began is None or not is_hidden(conversation):
            return False
        if self._is_importing(owner):
            return True
        if (owner, began) not in imports:
            imports[owner, began] = await self._has_shown(owner, began, at)
        if imports[owner, began]:
            await self._store.retention.set_expiry(conversation, self._periods.until(owner, running=False))
        return imports[owner, began] is not False

    async def _has_shown(self, owner: str, began: datetime, at: datetime) -> bool | None:
        """Return True if a killed import had begun to show its conversations. None: another process may run it."""
        if began + 2 * IMPORT_TIME > at if self._store.is_shared else not self._is_only():
            return None
        listed = await self._store.list(owner, limit=MAX_CONVERSATIONS)
        return any(one.imported_at == began for one in listed)


async def delete_unanswered(
    store: HistoryStore, media: MediaStore, conversation: Conversation, is_busy: IsBusy
) -> bool:
    """Do the same as `delete_conversation`, unless another process is writing an answer in the conversation.

    A process that begins to write after this was asked saves the conversation first, which keeps it, too.
    """
    if await store.runs.would_lose(conversation):
        return False
    return await delete_conversation(store, media, conversation, is_busy)


async def delete_conversation(
    store: HistoryStore, media: MediaStore, conversation: Conversation, is_busy: IsBusy
) -> bool:
    """Delete a conversation with its files, unless it is busy. Return True if it was deleted.

    It is kept if it was saved after `conversation` was loaded. Files that other messages name stay. The files go last,
    so that no stored conversation lacks its files. If the process is killed in between, `OrphanedFiles` removes them.
    Raises `HistoryError`.
    """
    references = await _references(store, media, conversation)
    if is_busy(conversation.id):
        return False
    return await _erase(
        partial(store.retention.erase, conversation),
        partial(media.remove_references, conversation.owner, references),
    )


async def delete_unused(
    store: HistoryStore, media: MediaStore, owner: str, conversations: Sequence[Conversation], is_busy: IsBusy
) -> bool:
    """Delete all conversations and files of an owner, unless the owner has used one. Return True if they were deleted.

    `conversations` are all that the owner had, see `RetentionStore.erase_unused`. Files stay that no message names and
    that are new, because the message may just be on its way. Raises `HistoryError`.
    """
    references = list[str]()
    named = conversations if await _has_files(media, owner) else ()
    for conversation in named:  # no message is decoded
        references.append(reference_of(conversation.id))
        with suppress(HistoryError):  # a damaged conversation
            references += [reference_of(conversation.id, id_) for id_ in await store.following(conversation, None)]
    if any(is_busy(conversation.id) for conversation in conversations):
        return False
    before = time() - UNNAMED_SECONDS

    async def remove_files() -> None:
        await media.forget(owner, references)
        await media.remove_unused(owner, [*await media.files(owner)], before)

    return await _erase(partial(store.retention.erase_unused, owner, conversations), remove_files)


async def _erase(erase: Callable[[], Awaitable[bool]], remove_files: Callable[[], Awaitable[object]]) -> bool:
    """Erase conversations and then their files, also if the caller is cancelled. Return True if they were erased."""
    erased = False

    async def work() -> None:
        nonlocal erased
        erased = await erase()
        if erased:
            try:
                await remove_files()
            except OSError:  # `OrphanedFiles` tries again
                log.exception("the files of a deleted conversation could not be removed")

    await run_to_completion(work())
    return erased


async def _references(store: HistoryStore, media: MediaStore, conversation: Conversation) -> Mapping[str, set[str]]:
    """Return the references of this conversation to each file. A damaged one has none.

    Only some messages are in memory at a time, and none is read of an owner without files.
    """
    references = dict[str, set[str]]()
    if await _has_files(media, conversation.owner):
        try:
            async for entries, files in entries_of(store, conversation):
                for id_, names in references_in(conversation.id, entries).items() if files else ():
                    references.setdefault(id_, {reference_of(conversation.id)}).update(names)
        except HistoryError:
            return {}
    return references


async def expiring_of(store: HistoryStore, owner: str) -> Sequence[Conversation]:
    """Return the conversations of an owner that have an expiry, also those that have expired and are not erased yet."""
    found, seen = list[Conversation](), set[str]()
    while page := await store.retention.expiring(FAR_FUTURE, owners=owner, limit=PAGE, skip=seen):
        seen.update(conversation.id for conversation in page)
        found += [conversation for conversation in page if conversation.owner == owner]
    return found


async def _has_files(media: MediaStore, owner: str) -> bool:
    try:
        return bool(await media.files(owner))
    except NotFound:  # files are not stored under such a name
        return False
    except OSError:  # `_remove_files` says so
        return True


PROBE = "readiness"
"""The owner of the conversations of the app itself, see `agent.web.health`. No visitor can be this owner."""


KEPT_SECONDS = 24 * 3600.0
"""Files stay for this long, because a file is stored before the message that names it. Also the time between checks."""
LAST_USE = "last-use"
"""The id of the conversation whose title is when the history was last used. It is made with a new history."""
KNOWN_SECONDS = 3600.0
"""Seconds after which a history is no new one. An older one that is empty was emptied, and not lost."""
_LOSS, NEVER = "lost-history", datetime(2999, 1, 1, tzinfo=UTC)
"""The id of the conversation whose title is when the history was found to be empty, and when that expires."""


class OrphanedFiles:
    """The housekeeping of stored files. `clock` returns Unix time in seconds.

    The first check of the only process that uses the history ends the deletions of killed ones: what was stored before
    its start belongs to no message that is on its way.
    """

    def __init__(
        self,
        store: HistoryStore,
        media: MediaStore,
        clock: Callable[[], float] = lambda: steady_now().timestamp(),
        is_only: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._media, self._clock, self._is_only = store, media, clock, is_only
        self._next_check, self._began = 0.0, clock()

    async def remove(self) -> int:
        """Count the stored files again. Once a day, remove those that no message names, and return how many."""
        await self._media.recount()
        now = self._clock()
        if now < self._next_check:
            return 0
        is_first, self._next_check = not self._next_check, now + KEPT_SECONDS
        before = self._began if is_first and not self._store.is_shared and self._is_only() else now - KEPT_SECONDS
        stored = await self._media.stored_before(before)
        found = await self._media.stored_before(now) if is_first else stored  # before visitors fill a new history
        is_empty = not {*await self._store.retention.sizes()} - {PROBE}
        if any(found.values()) and is_empty and await self._is_new():
            log.error(
                "The history is empty, but %d visitors have files. If it was lost, restore it: no file is removed. "
                "Otherwise remove the files.",
                sum(map(bool, found.values())),
            )
            await self._note_loss(now)
            return 0
        kept = await self._media.stored_before(await self._lost_at())
        return sum(
            [await self._remove(owner, files - kept.get(owner, set()), before) for owner, files in stored.items()]
        )

    async def _note_loss(self, at: float) -> None:
        """Store in the new history that it has no messages of the files from before this Unix time."""
        try:
            conversation = await self._store.get(_LOSS, owner=PROBE)
        except NotFound:
            conversation = await self._store.save(Conversation(id=_LOSS, owner=PROBE, expires_at=NEVER))
        await self._store.label(conversation.id, owner=PROBE, title=repr(at))

    async def _lost_at(self) -> float:
        """Return the Unix time at which the history was found to be empty, or 0."""
        try:
            return float((await self._store.get(_LOSS, owner=PROBE)).title or 0)
        except NotFound:
            return 0.0

    async def _is_new(self) -> bool:
        try:
            made = (await self._store.get(LAST_USE, owner=PROBE)).created_at.timestamp()
        except NotFound:
            return True
        return made > self._began - KNOWN_SECONDS

    async def _remove(self, owner: str, files: set[str], before: float) -> int:
        """Remove those of an owner's files that no message names, and that none refers to since this Unix time."""
        if not files:
            return 0
        orphaned = set(files)
        async for text in self._store.retention.texts(owner):
            orphaned -= await TEXTS.run(ids_in, text)
            if not orphaned:
                return 0
        try:
            return await self._media.remove_unused(owner, orphaned, before)
        except OSError:
            log.exception("files that no message names could not be removed; this is tried again")
            return 0
