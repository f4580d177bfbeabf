"""A visitor's folders of chats, with their instructions and default model. See `agent.history.Folder`.

All folders of a visitor are one small document in the history, which is in no list. A chat has the id of its folder. A
chat whose folder is gone is outside all folders, so that nothing but the document changes when a folder is deleted.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from agent.errors import Conflict, InputError, Limited, NotFound
from agent.history import (
    CHANGED_ELSEWHERE,
    FOLDER_INSTRUCTIONS,
    FOLDER_NAME,
    MOST_FOLDERS,
    Conversation,
    Folder,
    HistoryStore,
    folders_id,
    folders_of,
    folders_owner,
)
from agent.i18n.text import _
from agent.web.chat.expiry import RetentionPeriods
from agent.web.chat.storage_quota import StorageQuota, size_of
from agent.web.chat.transcript import has_visible
from agent.web.chat.visitor import Visitor

NO_FOLDER = _("This folder is gone. It was deleted meanwhile.")
FULL = _("You can have at most {most} folders. Delete one first.", most=MOST_FOLDERS)
ATTEMPTS = 5
"""Attempts to change the document while other pages of the visitor change it."""
RENEWED = timedelta(minutes=10)
"""The document expires like a chat. It is kept longer when a chat of a folder is used, at most once in this time."""


class Folders:
    """Reads and changes the folders of visitors. Each call names the owner."""

    def __init__(self, store: HistoryStore, periods: RetentionPeriods) -> None:
        self._store, self._periods = store, periods

    async def all(self, owner: str) -> Sequence[Folder]:
        """Return the folders, the oldest first."""
        return await folders_of(self._store, owner)

    async def get(self, owner: str, folder_id: str) -> Folder:
        """Return one folder. Raises `NotFound`."""
        return found_in(await self.all(owner), folder_id)

    async def instructions(self, conversation: Conversation) -> str:
        """Return what models get in this chat because of its folder, and keep the folder as long as the chat."""
        if not conversation.folder:
            return ""
        until = self._periods.until(conversation.owner, running=False)
        with suppress(NotFound):
            return (await kept_folder(self._store, conversation.owner, conversation.folder, until)).instructions
        return ""

    async def add(self, owner: str, *folders: Folder) -> None:
        """Add folders. Raises `Limited` for too many, and `InputError`."""

        def added(before: Sequence[Folder]) -> Sequence[Folder]:
            if len(before) + len(folders) > MOST_FOLDERS:
                raise Limited(FULL)
            return [*before, *map(_checked, folders)]

        await self._change(owner, added)

    async def change(self, owner: str, folder_id: str, **fields: str) -> Folder:
        """Set fields of a folder, and return it. Raises `NotFound` and `InputError`."""

        def changed(before: Sequence[Folder]) -> Sequence[Folder]:
            new = _checked(replace(found_in(before, folder_id), **fields))
            return [new if one.id == folder_id else one for one in before]

        return found_in(await self._change(owner, changed), folder_id)

    async def remove(self, owner: str, folder_id: str) -> None:
        """Remove a folder. Its chats stay. Raises `NotFound`."""

        def left(before: Sequence[Folder]) -> Sequence[Folder]:
            gone = found_in(before, folder_id)
            return [one for one in before if one is not gone]

        await self._change(owner, left)

    async def forget(self, owner: str) -> None:
        """Delete all folders of this owner."""
        with suppress(NotFound):
            await self._store.delete(folders_id(owner), owner=folders_owner(owner))

    async def _change(self, owner: str, change: Callable[[Sequence[Folder]], Sequence[Folder]]) -> Sequence[Folder]:
        for _attempt in range(ATTEMPTS):
            try:
                document = await _document(self._store, owner)
            except NotFound:
                document = Conversation(id=folders_id(owner), owner=folders_owner(owner))
            folders, until = tuple(change(document.folders)), self._periods.until(owner, running=False)
            with suppress(Conflict):
                await self._store.save(replace(document, folders=folders, expires_at=until))
                return folders
        raise Conflict(CHANGED_ELSEWHERE)


async def kept_folder(store: HistoryStore, owner: str, folder_id: str, until: datetime | None) -> Folder:
    """Return one folder. From now on, the folders are kept until then at least. Raises `NotFound`."""
    try:
        document = await _document(store, owner)
    except NotFound as error:
        raise NotFound(NO_FOLDER) from error
    folder = found_in(document.folders, folder_id)
    if until is not None and (document.expires_at is None or until - document.expires_at > RENEWED):
        await store.retention.set_expiry(document, until)
    return folder


async def _document(store: HistoryStore, owner: str) -> Conversation:
    return await store.get(folders_id(owner), owner=folders_owner(owner))


async def reserve_folder(quota: StorageQuota, visitor: Visitor, *texts: str) -> None:
    """Check that there is room for a folder with these texts. Raises `Limited`."""
    async with quota.reservation(visitor) as reserve:
        await reserve(size_of(texts))


def found_in(folders: Sequence[Folder], folder_id: str) -> Folder:
    """Return the folder with this id. Raises `NotFound`."""
    found = next((one for one in folders if one.id == folder_id), None)
    if found is None:
        raise NotFound(NO_FOLDER)
    return found


def _checked(folder: Folder) -> Folder:
    """Return the folder with its name in one line. Raises `InputError` for a name or instructions that do not fit."""
    name, instructions = " ".join(folder.name.split())[:FOLDER_NAME], folder.instructions.strip()
    if not has_visible(name):
        raise InputError(_("A folder needs a name."))
    if len(instructions) > FOLDER_INSTRUCTIONS:
        raise InputError(
            _(
                "The instructions have {count:,} characters; {most:,} is the most.",
                count=len(instructions),
                most=FOLDER_INSTRUCTIONS,
            )
        )
    return replace(folder, name=name, instructions=instructions)
