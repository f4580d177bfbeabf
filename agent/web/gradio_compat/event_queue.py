"""Gradio's queue for the calls of programs, with bounds: nobody takes all its slots or memory, and it never stops.

Only programs use it and its streams: an event of the page is answered at once.

Cookies are free, so a share per visitor is not enough. A network address can therefore have at most as many events as
there are free slots. This is half of all slots if the address is alone, a third if one other address takes its full
share, and so on. Hundreds of people behind one address still have room, and others always find free slots.

Gradio keeps a message list of unlimited length for each session, and runs a limited number of events at once. Its
processing loop ends for good if anything raises inside it. See https://github.com/gradio-app/gradio/issues/13154.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from time import monotonic, time
from traceback import format_tb
from typing import Any, cast

import fastapi
import orjson
from gradio.blocks import Blocks
from gradio.exceptions import Error
from gradio.queueing import Event, Queue
from gradio.server_messages import EventMessage, ProcessCompletedMessage, UnexpectedErrorMessage
from gradio.utils import LRUCache, run_coro_in_background, set_task_name
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.web.client_address import client_address, has_full_share
from agent.web.middleware.isolation import API, session_hash_of
from agent.web.middleware.requests import refuse
from agent.web.middleware.visitor_cookie import GUEST

EVENTS_PER_VISITOR = 32
EVENTS_OF_GUESTS = 64
"""The most events that wait or run at once for one visitor, and for all guests together."""
MIN_EVENTS_PER_ADDRESS = 8
MIN_GUEST_EVENTS_PER_ADDRESS = 4
"""Events that one network address can always have at once: of all its visitors, and of its guests."""
WAITING_EVENTS = 1000
SESSIONS_PER_VISITOR = 32
SESSIONS_OF_GUESTS = 256
SESSIONS = 2000
"""Sessions with stored messages. Those without events are dropped first, and the same visitor's before others'."""
UNREAD_BYTES = 8_000_000
"""The most unread bytes per session. The newest message does not count and can have any size."""
UNREAD_MESSAGES = 2
"""An event pauses while its page has more than this many unread messages."""
UNREAD_SECONDS = 60.0
"""Seconds after which an event ends if nobody reads its messages."""
STUCK_SECONDS = 30.0
"""The queue counts as stuck if an event has waited this many seconds for a slot."""
RESTART_SECONDS = 0.01
"""Seconds before the processing loop starts again after a failure."""
FAILED_SECONDS = 10.0
"""Seconds for which a failure of the processing loop is reported."""

READER_SECONDS = 0.05
"""Seconds between two looks whether the messages of a session were read. Gradio's stream looks as often."""
NO_EVENT = "none"
"""The id in the message that ends an idle stream. No event has it."""
FAILED = "Something went wrong."
BUSY = "Too many requests at once. Try again in a moment."
NOT_READ = "The updates were not read."

log = logging.getLogger(__name__)


class UnreadMessages(asyncio.Queue[EventMessage]):
    """The messages that a program has not read. `size` is the bytes of their outputs."""

    size = 0

    def _put(self, item: EventMessage) -> None:
        self.size += _size(item)
        super()._put(item)

    def _get(self) -> EventMessage:
        item = super()._get()
        self.size -= _size(item)
        return item


class Sessions(LRUCache[str, UnreadMessages]):
    """The messages of each session. Gradio deletes a session once for each of its closed streams."""

    def __setitem__(self, key: str, value: asyncio.Queue[EventMessage]) -> None:
        """Keep the messages of a session. A queue that Gradio has made for a session is empty and is replaced."""
        super().__setitem__(key, value if isinstance(value, UnreadMessages) else UnreadMessages())

    def __delitem__(self, session: str) -> None:
        if session in self:
            super().__delitem__(session)


def _size(message: EventMessage) -> int:
    output = getattr(message, "output", None)
    return len(orjson.dumps(output, default=str)) if output else 100


class BoundedQueue(Queue):
    """Gradio's queue with a bound per visitor and address. Its processing loop restarts after a failure."""

    def __init__(self, blocks: Blocks, slots: int) -> None:
        super().__init__(
            live_updates=True,
            concurrency_count=slots,
            update_intervals=1,
            max_size=WAITING_EVENTS,
            blocks=blocks,
            default_concurrency_limit=None,
        )
        self.pending_messages_per_session = cast(Any, Sessions(SESSIONS + 1))  # `_make_room` drops the surplus
        self._unread = cast("OrderedDict[str, UnreadMessages]", self.pending_messages_per_session)
        self._failed_at: float | None = None
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def problem(self) -> str:
        """A sentence on why events are not processed normally, or ""."""
        now = monotonic()
        if self.stopped or (self._failed_at is not None and now - self._failed_at < FAILED_SECONDS):
            return "The page's event queue has stopped."
        waiting = [queue.queue[0] for queue in self.event_queue_per_concurrency_id.values() if queue.queue]
        if any(now - event.enqueue_time > STUCK_SECONDS for event in waiting):
            return "The page's event queue is full."
        return ""

    @property
    def has_unsent(self) -> bool:
        """True if a page has not been sent the last message of an event."""
        return any(self.pending_event_ids_session.values())

    def has_session(self, session: str) -> bool:
        """Return True if messages of this page session are kept."""
        return session in self._unread

    def is_idle(self, session: str) -> bool:
        """Return True if no event of this page session waits or runs, and the page has read all messages."""
        unread, ids = self._unread.get(session), self.pending_event_ids_session.get(session, ())
        return (unread is None or unread.empty()) and not any(one in self.event_ids_to_events for one in ids)

    def end_stream(self, session: str) -> None:
        """Let Gradio end the stream of an idle session. It does so after the end of the last event."""
        if session in self._unread:
            self.pending_event_ids_session[session] = set()  # the others have ended without a message
            self._unread[session].put_nowait(ProcessCompletedMessage(event_id=NO_EVENT, output={}, success=True))

    def owns_event(self, event_id: str, session: str) -> bool:
        """Return True if this event waits or runs for this page session."""
        event = self.event_ids_to_events.get(event_id)
        return event is not None and event.session_hash == session

    def session_of(self, event_id: str) -> str | None:
        """Return the page session of an event, as long as its messages are kept. None for an unknown event."""
        event = self.event_ids_to_events.get(event_id)
        kept = self.pending_event_ids_session.items()
        return event.session_hash if event else next((one for one, ids in kept if event_id in ids), None)

    async def push(self, body: Any, request: fastapi.Request, username: str | None) -> Any:
        """Add an event, or refuse it beyond the share of its visitor or address. See `Queue.push`."""
        session = str(body.session_hash)
        pending = self._pending()
        if self._is_beyond_share(session, client_address(request.scope)):
            return False, BUSY, "queue_full"
        if session not in self._unread:
            self._make_room(_visitor(session), {event.session_hash for event in pending})
            self._unread[session] = UnreadMessages()
        pushed = await super().push(body=body, request=request, username=username)
        self._changed.set()
        return pushed

    def send_message(self, event: Event, event_message: EventMessage) -> None:
        """Keep a message until it is read. End the event if its session is gone or reads nothing."""
        unread = self._unread.get(event.session_hash)
        if unread is None:
            event.alive = False
        if unread is None or not event.alive:
            return
        older = unread.size
        event_message.event_id = cast(Any, event)._id
        try:
            unread.put_nowait(event_message)
        except TypeError as error:  # the stream would fail on it, too, and end for the whole session
            log.error("an event gave what JSON cannot carry: %s", error)
            failed = ProcessCompletedMessage(event_id=event_message.event_id, output={"error": FAILED}, success=False)
            unread.put_nowait(failed)
        if older > UNREAD_BYTES and unread.qsize() > UNREAD_MESSAGES:
            for other in self._running():
                other.alive = other.alive and other.session_hash != event.session_hash
            while not unread.empty():
                unread.get_nowait()
            unread.put_nowait(UnexpectedErrorMessage(message=NOT_READ))

    async def wait_for_reader(self, event_id: str | None, session: str | None) -> None:
        """Wait until nearly all messages of a session are read.

        Raises `Error` if the session is gone or reads nothing for `UNREAD_SECONDS`.
        """
        end = monotonic() + UNREAD_SECONDS
        event, unread = self.event_ids_to_events.get(event_id or ""), self._unread.get(session or "")
        while unread is not None and unread.qsize() > UNREAD_MESSAGES:
            if monotonic() > end or (event is not None and not event.alive):
                raise Error(NOT_READ, print_exception=False)
            await asyncio.sleep(READER_SECONDS)

    async def start_processing(self) -> None:
        """Process events until the queue is closed. A failure is logged, and no event is lost.

        Gradio's own loop looks for events at intervals. This one sleeps until an event arrives or ends.
        """
        while not self._closed:
            try:
                while None in self.active_jobs and (found := self.get_events()):
                    self._start(*found)
            except Exception:
                log.exception("the event queue failed; it starts again")
                self._failed_at = monotonic()
                await asyncio.sleep(RESTART_SECONDS)
            else:
                await self._changed.wait()
                self._changed.clear()

    async def start_progress_updates(self) -> None:
        """Do nothing, because no event of the page reports its progress. Gradio would look for some every 10 ms."""

    def _start(self, events: list[Event], batch: bool, concurrency_id: str) -> None:
        """Process these events in a task."""
        self.active_jobs[self.active_jobs.index(None)] = events
        queue, begun, event = self.event_queue_per_concurrency_id[concurrency_id], time(), cast(Any, events[0])
        queue.current_concurrency += 1
        queue.start_times_per_fn[event.fn].add(begun)
        task = run_coro_in_background(self.process_events, events, batch, begun, event.fn)
        set_task_name(task, event.session_hash, event.fn._id, event._id, batch)  # Gradio cancels it by its name
        self._asyncio_tasks.add(task)
        task.add_done_callback(self._ended)
        self.broadcast_estimations(concurrency_id)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._asyncio_tasks.discard(task)
        self._changed.set()

    def close(self) -> None:
        """Stop for good and cancel the running events."""
        self._closed = True
        super().close()
        self._cancel_asyncio_tasks()
        self._changed.set()

    def _running(self) -> list[Event]:
        return [event for job in self.active_jobs if job is not None for event in job]

    def _pending(self) -> list[Event]:
        """Return each event that waits or runs."""
        waiting = [event for queue in self.event_queue_per_concurrency_id.values() for event in queue.queue]
        return [*self._running(), *waiting]

    def _is_beyond_share(self, session: str, address: str | None) -> bool:
        """Return True if the session's visitor or address has its full share. An unknown address has no share."""
        pending, visitor = self._pending(), _visitor(session)
        of_visitor = [event for event in pending if _visitor(event.session_hash) == visitor]
        if len(of_visitor) >= (EVENTS_OF_GUESTS if visitor == GUEST else EVENTS_PER_VISITOR):
            return True
        if address is None:
            return False
        if visitor == GUEST and _is_share_full(address, of_visitor, EVENTS_OF_GUESTS, MIN_GUEST_EVENTS_PER_ADDRESS):
            return True
        return _is_share_full(address, pending, self.max_thread_count, MIN_EVENTS_PER_ADDRESS)

    def _make_room(self, visitor: str, pending: set[str]) -> None:
        """Forget the oldest sessions without events, so that one more fits the visitor's share and the total."""
        mine = [session for session in self._unread if _visitor(session) == visitor]
        share = SESSIONS_OF_GUESTS if visitor == GUEST else SESSIONS_PER_VISITOR
        surplus = [
            *[session for session in mine if session not in pending][: max(0, len(mine) + 1 - share)],
            *([one for one in self._unread if one not in pending][:1] if len(self._unread) >= SESSIONS else []),
        ]
        for session in set(surplus):
            self._unread.pop(session, None)
            self.pending_event_ids_session.pop(session, None)


def bound_queue(page: Blocks, slots: int) -> BoundedQueue:
    """Give the page a bounded queue, and make the events of programs wait until these read their messages."""
    queue, untyped = BoundedQueue(page, slots), cast(Any, page)
    process = untyped.process_api

    async def process_api(*args: Any, **given: Any) -> dict[str, Any]:
        if given.get("iterator") is not None:
            await queue.wait_for_reader(given.get("event_id"), given.get("session_hash"))
        try:
            return await process(*args, **given)
        except Error:
            raise
        except Exception as error:  # Gradio would print it, and its text can contain the visitor's message
            where = "".join(format_tb(error.__traceback__))
            log.error("an event failed with %s at\n%s", type(error).__name__, where)
            raise Error(FAILED, print_exception=False) from None

    untyped._queue, untyped.process_api = queue, process_api
    return queue


def _visitor(session: str) -> str:
    """Return the visitor of a session. The isolation middleware names sessions "visitor-session"."""
    return session.partition("-")[0]


def _is_share_full(address: str, events: Collection[Event], slots: int, always: int) -> bool:
    """Return True if an address has its full share of these events."""
    mine = sum(client_address(event.request.scope) == address for event in events)
    return has_full_share(mine, free=slots - len(events), always=always)


CLOSING = b'"msg":"close_stream"'
SETTLE_SECONDS = 0.15
"""Seconds until a program is assumed to have read that its stream closes. Only a join within this time waits."""
IDLE_SECONDS = 1.0
"""Seconds without an event after which a stream ends."""


class EventStreamMiddleware:
    """Middleware behind the isolation middleware: prevents lost events while a stream closes, and ends idle streams.

    Gradio ends a stream when no event of its session is pending, and tells the program so. A message sent at that
    moment is queued, but the program still believes that its stream is open, opens no new one, and waits for ever. So
    the answer to a join request waits until the program has read that its stream is closed.

    Gradio ends a stream only after the end of an event. A program that opens one at a process that has none of its
    events, for example because a proxy has moved it there, would keep it for ever, and open none at the process that
    gets its next event. So a stream ends after a second without an event. The stream of a session that the queue does
    not know is refused: Gradio would start an answer and then fail with a traceback in the log.
    """

    def __init__(self, app: ASGIApp, events: BoundedQueue) -> None:
        self._app, self._events = app, events
        self._closed: OrderedDict[str, float] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, note when a stream closes, and delay the answers to joins that would overtake it."""
        session = session_hash_of(scope)
        is_join = scope.get("path") == f"{API}queue/join"  # the start of the app has no path
        if session is not None and not is_join and scope.get("method") != "POST":  # the stream of an event
            if not self._events.has_session(session):
                await refuse(send, 404)
                return
            send = self._note_closing(session, send)
            watch = asyncio.create_task(self._end_when_idle(session))
            try:
                await self._app(scope, receive, send)
            finally:
                watch.cancel()
            return
        if session is not None and is_join:
            send = self._delay_after_closing(session, send)
        await self._app(scope, receive, send)

    async def _end_when_idle(self, session: str) -> None:
        """End the stream of a session that is idle at two looks, half a second apart."""
        was_idle = False
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            is_idle = self._events.is_idle(session)
            if is_idle and was_idle:
                self._events.end_stream(session)
            was_idle = is_idle

    def _note_closing(self, session: str, send: Send) -> Send:
        async def send_and_note(message: Message) -> None:
            if CLOSING in message.get("body", b""):
                now = monotonic()
                self._closed[session] = now
                self._closed.move_to_end(session)
                while now - next(iter(self._closed.values())) > SETTLE_SECONDS:
                    self._closed.popitem(last=False)
            await send(message)

        return send_and_note

    def _delay_after_closing(self, session: str, send: Send) -> Send:
        async def delayed_send(message: Message) -> None:
            if message["type"] == "http.response.start" and (closed := self._closed.get(session)):
                await asyncio.sleep(max(0.0, closed + SETTLE_SECONDS - monotonic()))
            await send(message)

        return delayed_send
