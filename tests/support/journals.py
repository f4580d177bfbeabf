"""A journal in memory."""

import asyncio

from pydantic_ai.messages import ModelMessage

from agent.history import Note


class MemoryJournal:
    """A journal in memory. The write of the last message raises `failure`."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.last: Note | None = None
        self._failure = failure

    async def write(self, message: ModelMessage, note: Note) -> None:
        await asyncio.sleep(0)
        if note.ended and self._failure is not None:
            raise self._failure
        self.last = note
