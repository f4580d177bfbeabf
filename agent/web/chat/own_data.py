"""The stored data of one visitor: a summary, and the deletion of everything."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import time

from agent.files.store import MediaStore, ids_in
from agent.history import Conversation, HistoryStore
from agent.system.threads import TEXTS
from agent.web.chat.conversation_list import ATTEMPTS
from agent.web.chat.conversations import Conversations
from agent.web.chat.expiry import delete_conversation, delete_unused, expiring_of
from agent.web.chat.importer import Importer

BATCH = 200
"""Conversations that are read at once, and messages that are counted at once."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDataSummary:
    """The conversations, messages and files of one visitor.

    `conversations` are those in the list, and `expires_at` is when the first of them is deleted, None for never. A
    deletion that can be undone has expired its conversation, which would be a puzzle in both. The other figures are
    what is stored, also of conversations that have expired and are not erased yet. `messages` are questions and
    answers, without the steps of an answer.
    """

    conversations: int = 0
    messages: int = 0
    text_bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    expires_at: datetime | None = None


class OwnData:
    """Summarizes and deletes everything that is stored of a visitor. `importer` has their imports and copies."""

    def __init__(
        self, conversations: Conversations, store: HistoryStore, media: MediaStore, importer: Importer | None = None
    ) -> None:
        self._conversations, self._store, self._media, self._importer = conversations, store, media, importer

    async def summary(self, owner: str) -> OwnDataSummary:
        """Return what is stored of this owner now, read from the store and the files."""
        conversations, files = await self._listed(owner), await self._media.files(owner)
        expiries = [conversation.expires_at for conversation in conversations if conversation.expires_at is not None]
        return OwnDataSummary(
            conversations=len(conversations),
            messages=await self._messages(owner),
            text_bytes=(await self._store.retention.sizes(owners=owner)).get(owner, 0),
            files=len(files),
            file_bytes=sum(files.values()),
            expires_at=min(expiries, default=None),
        )

    async def _messages(self, owner: str) -> int:
        """Count the questions and answers. No message is decoded."""
        messages = number = 0
        async for text in self._store.retention.texts(owner):
            messages, number = messages + _is_message(text), number + 1
            if not number % BATCH:
                await asyncio.sleep(0)
        return messages

    async def delete_all(self, owner: str) -> OwnDataSummary:
        """Stop the owner's answers and import, and delete everything. Return what is stored afterwards.

        Then nobody can read it any more, and the store wipes it soon. Temporary chats end, too. A conversation that is
        begun meanwhile stays, and is in the result. Raises `HistoryError`.
        """
        self._conversations.temporary.erase_all(owner)
        if self._importer is not None:
            await self._importer.stop(owner)
        began = time()
        await self._conversations.runs.folders.forget(owner)
        conversations = await self._all_conversations(owner)
        deleted = {conversation.id for conversation in conversations}
        for _attempt in range(ATTEMPTS):  # a conversation that was saved since it was read needs another one
            if not conversations:
                break
            await self._conversations.running.stop(
                [conversation.id for conversation in conversations], owner, wait=True
            )
            is_busy = self._conversations.live_runs.is_busy
            if not await delete_unused(self._store, self._media, owner, conversations, is_busy):
                for conversation in conversations:
                    await delete_conversation(self._store, self._media, conversation, is_busy)
            conversations = [
                conversation for conversation in await self._all_conversations(owner) if conversation.id in deleted
            ]
        self._conversations.forget(owner, deleted.difference(conversation.id for conversation in conversations))
        await self._remove_files(owner, began)
        return await self.summary(owner)

    async def _remove_files(self, owner: str, before: float) -> None:
        """Remove the files that no message names, except those of a message that was begun since `before`."""
        try:
            files = set(await self._media.files(owner))
            async for text in self._store.retention.texts(owner):
                files -= await TEXTS.run(ids_in, text)
            await self._media.remove_unused(owner, files, before)
        except OSError:
            log.exception("files of deleted conversations could not be removed; this is tried again")

    async def _listed(self, owner: str) -> Sequence[Conversation]:
        """Return the conversations of the owner that have not expired."""
        conversations = dict[str, Conversation]()
        offset = 0
        while page := await self._store.list(owner, limit=BATCH, offset=offset):
            conversations |= {conversation.id: conversation for conversation in page}
            offset += len(page)
        return [*conversations.values()]

    async def _all_conversations(self, owner: str) -> Sequence[Conversation]:
        """Return all conversations of the owner, also those that have expired and are not erased yet."""
        found = [*await self._listed(owner), *await expiring_of(self._store, owner)]
        return [*{conversation.id: conversation for conversation in found}.values()]


def _is_message(text: str) -> bool:
    """Return True if the stored text of an entry is a question or an answer, and not a step. Also if it is damaged.

    Within a text that people or models wrote, each quotation mark has a backslash before it.
    """
    kinds = {kind for kind in ("user-prompt", "text", "file", "tool-call") if f'"part_kind":"{kind}"' in text}
    is_damaged = '"part_kind":' not in text
    return is_damaged or "user-prompt" in kinds or (not kinds.isdisjoint({"text", "file"}) and "tool-call" not in kinds)
