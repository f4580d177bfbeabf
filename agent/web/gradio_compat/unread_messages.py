"""The messages of Gradio's events that the pages have not read yet, in place of the unlimited queues of Gradio."""

import asyncio
import logging
from contextlib import suppress

import orjson
from gradio.server_messages import EventMessage, ProcessCompletedMessage
from gradio.utils import LRUCache

FAILED = "Something went wrong."

log = logging.getLogger(__name__)


class UnreadMessages:
    """The messages that a page has not read, with the methods of `asyncio.Queue` that Gradio calls.

    `size` is the bytes of their outputs. asyncio's queue has five deques and two events and takes 4 KB even if it is
    empty, so there is one only while a message or a reader waits. It can't go with its session: Gradio's page opens its
    stream again after it has been told all, and shows an error if that stream is refused.
    """

    __slots__ = ("_queue", "_read", "_readers", "size")

    def __init__(self) -> None:
        self.size = 0
        self._queue: asyncio.Queue[tuple[int, EventMessage]] | None = None
        self._readers = 0
        self._read: asyncio.Event | None = None

    def qsize(self) -> int:
        """Return the number of messages."""
        return 0 if self._queue is None else self._queue.qsize()

    def empty(self) -> bool:
        """Return True if there is no message."""
        return not self.qsize()

    def put_nowait(self, item: EventMessage) -> None:
        """Add a message."""
        try:
            size = _size(item)
        except TypeError as error:  # the stream would fail on it, too, and end for the whole page
            log.error("an event gave what JSON cannot carry: %s", error)
            item = ProcessCompletedMessage(event_id=item.event_id, output={"error": FAILED}, success=False)
            size = _size(item)
        self.size += size
        self._queue_in_use().put_nowait((size, item))

    async def put(self, item: EventMessage) -> None:
        """Add a message. Gradio's heartbeat does so every 15 s while a page reads, so that no proxy ends the stream."""
        self.put_nowait(item)

    async def get(self) -> EventMessage:
        """Wait for a message and remove it."""
        queue = self._queue_in_use()
        self._readers += 1
        try:
            return self._removed(*await queue.get())
        finally:
            self._readers -= 1
            self._drop_idle_queue()

    def get_nowait(self) -> EventMessage:
        """Remove a message. Raises `asyncio.QueueEmpty`."""
        if self._queue is None:
            raise asyncio.QueueEmpty
        message = self._removed(*self._queue.get_nowait())
        self._drop_idle_queue()
        return message

    def clear(self) -> None:
        """Drop all messages."""
        while not self.empty():
            self.get_nowait()

    async def wait_for_read(self, seconds: float) -> None:
        """Wait until a message is removed, or for so many seconds."""
        self._read = self._read or asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._read.wait(), seconds)

    def _removed(self, size: int, message: EventMessage) -> EventMessage:
        self.size -= size
        if self._read is not None:
            self._read.set()
            self._read = None
        return message

    def _queue_in_use(self) -> asyncio.Queue[tuple[int, EventMessage]]:
        if self._queue is None:
            self._queue = asyncio.Queue()
        return self._queue

    def _drop_idle_queue(self) -> None:
        if not self._readers and self.empty():
            self._queue = None


class Sessions(LRUCache[str, UnreadMessages]):
    """The messages of each page session. Gradio deletes a session once for each of its closed streams."""

    def __setitem__(self, key: str, value: "UnreadMessages | asyncio.Queue[EventMessage]") -> None:
        """Keep the messages of a session. A queue that Gradio has made for a session is empty and is replaced."""
        super().__setitem__(key, value if isinstance(value, UnreadMessages) else UnreadMessages())

    def __delitem__(self, session: str) -> None:
        if session in self:
            super().__delitem__(session)


def _size(message: EventMessage) -> int:
    output = getattr(message, "output", None)
    return len(orjson.dumps(output, default=str)) if output else 100
