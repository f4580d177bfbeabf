"""Readers of events that were lost with their process: they have higher numbers than the store, and get the end."""

import httpx
import pytest
from fastapi import FastAPI

from agent.history.memory import MemoryStore
from agent.history.values import RunEvent, RunEvents
from agent.web.chat.answers import LiveRuns, RunningAnswer, RunningAnswers
from agent.web.run_event_routes import Frames, RunEventRoutes, RunFrames
from tests.support.history_stores import started

EVENTS = [
    RunEvent.of(1, {"type": "begun"}),
    RunEvent.of(2, {"type": "output_text", "content": "kept", "is_type_switched": True}),
    RunEvent.of(3, {"type": "ended", "finish_reason": "interrupted"}),
]
END = "event: end\ndata: {}\n\n"


async def no_frames(live: RunningAnswer, _: object) -> Frames:
    return RunFrames(live)


@pytest.mark.parametrize(
    ("after", "numbers"), [("", [1, 2, 3]), ("2", [3]), ("3", []), ("57", [3]), ("57&wait=0", [3])]
)
async def test_reader_of_lost_events_gets_the_end(after: str, numbers: list[int]) -> None:
    store, app = MemoryStore(), FastAPI()
    conversation, _ = await started(store, owner="ann")
    run = RunEvents(run_id="run", conversation_id=conversation.id, owner="ann", events=EVENTS, has_ended=True)
    await store.runs.append(run)
    RunEventRoutes(RunningAnswers(store, LiveRuns(None)), store, lambda _: "ann", no_frames).add_to(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answer = await client.get(f"/runs/run/events?after={after}")
    assert answer.text == "".join(f"id: {number}\ndata: {EVENTS[number - 1].json}\n\n" for number in numbers) + END
    assert answer.headers["cache-control"] == "no-store, no-transform", "a proxy must not keep or hold it"
    assert answer.headers["content-type"].startswith("text/event-stream")


class Running:
    """As much of a running answer as its frames read."""

    def __init__(self, *, is_ended: bool) -> None:
        self.events, self.is_ended = EVENTS[: 3 if is_ended else 2], is_ended


@pytest.mark.parametrize(("is_ended", "numbers"), [(False, []), (True, ["3"])], ids=["running", "ended"])
async def test_frames_after_lost_events_are_the_end(*, is_ended: bool, numbers: list[str]) -> None:
    frames = RunFrames(Running(is_ended=is_ended))  # type: ignore[arg-type]
    found = await frames.after("57")
    assert [id_ for id_, _ in found] == numbers
    assert not found or not await frames.after(found[-1][0])
