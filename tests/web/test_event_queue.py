"""The page's event queue starts events at once, survives its own failures, and reports them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import pytest
from fastapi import Request
from gradio.data_classes import PredictBodyInternal
from gradio.exceptions import Error
from gradio.queueing import Event
from gradio.server_messages import ProcessCompletedMessage, ProcessGeneratingMessage

from agent.web.gradio_compat import event_queue
from agent.web.gradio_compat.event_queue import FAILED, UNREAD_MESSAGES, BoundedQueue, UnreadMessages


@asynccontextmanager
async def processing(queue: BoundedQueue) -> AsyncIterator[None]:
    """Let the queue process events inside the block."""
    task = asyncio.create_task(queue.start_processing())
    try:
        yield
    finally:
        queue.close()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def queue() -> BoundedQueue:
    return BoundedQueue(cast(Any, None), 4)


def event(session: str) -> Event:
    """Return an event with only the fields that messages need."""
    fn = SimpleNamespace(concurrency_id="one", fn=None)
    return Event(session, cast(Any, fn), cast(Any, None), None)


def update(text: str) -> ProcessGeneratingMessage:
    return ProcessGeneratingMessage(output={"data": [text]}, success=True)


async def test_queue_restarts_after_failure(queue: BoundedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = asyncio.Event()

    def get_events() -> None:
        taken.set()
        if not queue.problem:
            raise KeyError("a session that is gone")

    monkeypatch.setattr(queue, "get_events", get_events)
    queue.active_jobs = [None]
    async with processing(queue):
        await taken.wait()
        taken.clear()
        await asyncio.wait_for(taken.wait(), 60)
        assert not queue.stopped
        assert queue.problem == "The page's event queue has stopped."
        monkeypatch.setattr(event_queue, "FAILED_SECONDS", 0.0)
        assert queue.problem == ""
    assert queue.problem == "The page's event queue has stopped."


async def test_event_starts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started, ends = list[str](), list[asyncio.Event]()

    async def process(self: BoundedQueue, events: list[Event], *_: object) -> None:
        started.append(events[0].session_hash)
        ends.append(asyncio.Event())
        await ends[-1].wait()
        self.active_jobs[self.active_jobs.index(events)] = None

    monkeypatch.setattr(BoundedQueue, "process_events", process)
    with gr.Blocks(analytics_enabled=False) as page:
        gr.Button().click(lambda: None)
    queue = BoundedQueue(page, 1)
    queue.active_jobs = [None]
    async with processing(queue):
        await turns()
        for session in ("ann-page", "bob-page"):
            body = PredictBodyInternal(fn_index=0, data=[], session_hash=session)
            assert (await queue.push(body, Request({"type": "http", "client": None, "headers": []}), None))[0]
        await turns()
        assert started == ["ann-page"]
        ends[0].set()
        await turns()
        assert started == ["ann-page", "bob-page"]


async def turns() -> None:
    """Let the tasks run that are ready, and those that they make ready. No timer can end meanwhile."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_message_of_an_unknown_session_ends_its_event(queue: BoundedQueue) -> None:
    gone = event("ann-page")
    queue.send_message(gone, update("text"))
    assert not gone.alive


async def test_unread_session_is_bounded(queue: BoundedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_queue, "UNREAD_BYTES", 1000)
    unread = queue.pending_messages_per_session["ann-page"] = UnreadMessages()
    other = queue.pending_messages_per_session["bob-page"] = UnreadMessages()
    mine, others = event("ann-page"), event("bob-page")
    queue.active_jobs = [[mine], [others]]
    queue.send_message(mine, update("x" * 5000))  # a single message can be long
    assert mine.alive
    queue.send_message(others, update("x"))
    queue.send_message(mine, update("x"))
    assert mine.alive
    queue.send_message(mine, update("x"))
    assert not mine.alive
    assert others.alive
    assert other.qsize() == 1
    assert "not read" in (await unread.get()).model_dump()["message"]
    assert unread.size == 0


async def test_event_waits_for_its_reader(queue: BoundedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = queue.pending_messages_per_session["ann-page"] = UnreadMessages()
    mine = event("ann-page")
    queue.event_ids_to_events[mine._id] = mine
    for _ in range(UNREAD_MESSAGES + 1):
        queue.send_message(mine, update("x"))
    waiting = asyncio.create_task(queue.wait_for_reader(mine._id, "ann-page"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await unread.get()
    await asyncio.wait_for(waiting, 60)
    queue.send_message(mine, update("x"))
    monkeypatch.setattr(event_queue, "UNREAD_SECONDS", 0.0)
    with pytest.raises(Error, match="were not read"):
        await queue.wait_for_reader(mine._id, "ann-page")


async def test_non_json_update_fails_its_event_alone(queue: BoundedQueue) -> None:
    unread = queue.pending_messages_per_session["ann-page"] = UnreadMessages()
    for value in (10**400, "\ud800"):
        queue.send_message(event("ann-page"), ProcessGeneratingMessage(output={"data": [value]}, success=True))
        message = unread.get_nowait()
        assert isinstance(message, ProcessCompletedMessage)
        assert (message.success, message.output) == (False, {"error": FAILED})
    queue.send_message(event("ann-page"), update("text"))
    assert unread.get_nowait().success


async def test_queue_that_gradio_makes_is_replaced(queue: BoundedQueue) -> None:
    queue.pending_messages_per_session["ann-page"] = asyncio.Queue()
    assert isinstance(queue.pending_messages_per_session["ann-page"], UnreadMessages)
