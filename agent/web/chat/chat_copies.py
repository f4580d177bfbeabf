"""Copies the chat of a read-only link into the conversations of its reader."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.errors import NotFound
from agent.history import Entry, Record
from agent.i18n import _
from agent.i18n.translator import Translator
from agent.media.references import files_named_in
from agent.media.store import MediaStore
from agent.transfer import FileSource, ImportedConversation
from agent.transfer.document import DOCUMENT_THREADS, title_of
from agent.transfer.portable import renewed
from agent.web.chat.importer import Importer
from agent.web.chat.links import SharedChat
from agent.web.chat.questions import is_question
from agent.web.chat.transcript import to_turns, unanswered_tool_calls
from agent.web.chat.visitor import Visitor

STOPPED = _("Stopped.")


class ChatCopies:
    """Makes copies. They have only what the link shows, and new ids."""

    def __init__(self, media: MediaStore, importer: Importer) -> None:
        self._media, self._importer = media, importer

    async def make(self, chat: SharedChat, visitor: Visitor, translator: Translator) -> str:
        """Return the id of a new copy. Raises `AgentError` with a sentence; then nothing is stored."""
        entries = await DOCUMENT_THREADS.run(lambda: _with_ending([*chat.entries(translator)]))
        title = await DOCUMENT_THREADS.run(title_of, chat.title, entries, translator)
        async with self._importer.place(visitor):
            files = await self._files(chat.link.owner, entries)
            copy = await DOCUMENT_THREADS.run(_renewed, title, entries, files)
            return await self._importer.add(visitor, copy)

    async def _files(self, owner: str, entries: Sequence[Entry]) -> dict[str, FileSource]:
        """Return the files that these messages name, by id. A thread can read them."""
        loop, found = asyncio.get_running_loop(), dict[str, FileSource]()

        def read(id_: str) -> bytes:
            try:
                return asyncio.run_coroutine_threadsafe(self._media.read(owner, id_), loop).result().data
            except NotFound as error:  # deleted meanwhile
                raise FileNotFoundError(id_) from error

        for id_ in await DOCUMENT_THREADS.run(files_named_in, [entry.message for entry in entries]):
            try:
                file = await self._media.find(owner, id_)
            except NotFound:  # deleted
                continue
            found[id_] = FileSource(
                name=id_, media_type=file.media_type, size=file.size, read=lambda id_=id_: read(id_)
            )
        return found


def _renewed(title: str, entries: Sequence[Entry], files: Mapping[str, FileSource]) -> ImportedConversation:
    return renewed(Record(owner="", title=title, head_id=entries[-1].id), entries, files.get)


def _with_ending(entries: Sequence[Entry]) -> list[Entry]:
    """Return the messages with an end of the last answer. One that is being written cannot go on in a copy.

    One that asks can, unless it asks for permission to call a tool, which a stranger could have prepared.
    """
    *before, last = entries
    turn = to_turns(entries, replies={})[-1]
    ended = "" if turn.note is None else turn.note.ended
    is_over = any(entry.note.ended for entry in entries if entry.note.run_id == last.note.run_id)
    asks = ended == "suspended" and all(map(is_question, unanswered_tool_calls(turn.bubbles)))
    if not is_over or (ended == "suspended" and not asks):
        last = replace(last, note=replace(last.note, ended="cancelled", detail=STOPPED))
    return [*before, last]
