"""The event log of a run: its events say what the responses say, are stored with the messages, and end once."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pydantic_ai.messages import ModelMessage, TextPart, ThinkingPart

from agent import Agent, Endpoint, Limits, connect
from agent.errors import HistoryError, StoreUnavailable
from agent.files.store import MediaStore
from agent.history import Conversation, Entry, HistoryStore, Note
from agent.history.key_value import KeyValueRuns
from agent.history.memory import MemoryStore
from agent.history.values import RunEvent, RunEvents, UnfinishedRun
from agent.i18n.translator import ENGLISH
from agent.responses import Response
from agent.web.chat.answers import LiveRun, LiveRuns, StoredRun
from agent.web.chat.journal import Omitted, StoreJournal
from agent.web.chat.recovery import LostRuns, partial_answer
from agent.web.chat.transcript import AddedBubbles, TurnBubble, to_turns
from agent.web.chat.views import RunningTurn
from agent.web.run_event_routes import CHUNK, RunFrames, StoredFrames, TurnFrames, stream
from tests.support.fakes import Act, Call, FakeConnection, Step, Words
from tests.support.history_stores import end_as_lost
from tests.support.models import QWEN3
from tests.support.scripted_runs import LIMITS, OWNER, QUICK, scripted_tools, steps
from tests.support.scripted_server import Running

CONVERSATION = Conversation(owner=OWNER)


def begin(script: Sequence[Step], store: HistoryStore, limits: Limits | None = None, *, hangs: bool = False) -> LiveRun:
    """Start a run that a store keeps. With `hangs`, nothing cancels it by itself."""
    connection = FakeConnection(script)
    runs: list[Any] = []
    agent = Agent(connection, tools=scripted_tools(lambda: runs[0].cancel()), limits=limits or Limits(retries=0))
    journal = StoreJournal(store, MediaStore(Path("nowhere")), replace(CONVERSATION), Omitted())
    runs.append(run := agent.run("Hello", journal=journal))
    connection.played.cancel = (lambda: None) if hangs else run.cancel
    return LiveRuns(None).start(run, journal)


async def followed(live: LiveRun, *, stop: bool = False) -> list[RunEvent]:
    """Return the events as a reader gets them. `stop` cancels the run after its first text, or before it."""
    seen: list[RunEvent] = []
    async with aclosing(live.updates()) as updates:
        async for _ in updates:
            seen += live.log.events[len(seen) :]
            if stop:
                live.run.cancel()
    return seen


def folded(events: Sequence[RunEvent]) -> list[tuple[str, Any]]:
    """Return type and content of each bubble, read from events as a program would."""
    bubbles: list[list[Any]] = []
    for value in (event.value for event in events):
        if "is_type_switched" not in value:
            continue
        if value["is_type_switched"]:
            bubbles.append([value["type"], value["content"]])
        else:
            bubbles[-1][1] += value["content"]
    return [(kind, content) for kind, content in bubbles]


def shown(responses: Sequence[Response]) -> list[tuple[str, Any]]:
    bubbles: list[TurnBubble] = []
    added = AddedBubbles(bubbles, since=len(responses))  # results in the order of their ends, not of their calls
    for response in responses:
        added.fold(response)
    return [(bubble.first.type, bubble.content) for bubble in bubbles]


@given(script=steps(), limits=LIMITS)
@QUICK
def test_events_say_what_responses_say(script: list[Step], limits: Limits) -> None:
    async def play() -> None:
        store = MemoryStore()
        live = begin(script, store, limits)
        hangs = any(isinstance(item, Act) and item.do == "hang" for step in script for item in step.items)
        async with asyncio.timeout(60):
            seen = await followed(live, stop=hangs)
        assert [event.number for event in seen] == [*range(1, len(seen) + 1)]
        kinds = [event.value["type"] for event in seen]
        assert (kinds[0], kinds[-1], kinds.count("ended")) == ("begun", "ended", 1)
        assert folded(seen) == shown(live.run.responses)
        assert seen[-1].value["finish_reason"] == live.run.result.finish_reason  # pyright: ignore
        assert await store.runs.events(live.run.id, owner=OWNER) == seen
        assert await store.runs.unfinished() == []

    asyncio.run(play())


async def test_message_marks_events_stored_just_before_it() -> None:
    """Otherwise recovery would add the text of these events to the conversation again."""

    class Eager(StoreJournal):
        async def write(self, message: ModelMessage, note: Note) -> None:
            await self.log.publish()
            await self.log.store_events()
            await super().write(message, note)
            marked.append((await store.runs.unfinished())[0].saved if note.ended is None else self.log.number)
            assert marked[-1] == self.log.number

    store, marked = MemoryStore(), list[int]()
    step = Step([Words("output_text", ["Wait."]), Call("fine", "{}", "a")], "tool_call")
    agent = Agent(FakeConnection([step]), tools=scripted_tools(lambda: None), limits=Limits(retries=0))
    journal = Eager(store, MediaStore(Path("nowhere")), replace(CONVERSATION), Omitted())
    live = LiveRuns(None).start(agent.run("Hello", journal=journal), journal)
    assert (await live.run).finish_reason == "stop"
    assert len(marked) == 4


LONE = [{"content": "I count"}, {"wait": 0.4}, {"content": " to two.</th"}, {"content": "ink>\n\nTwo."}, {"wait": 0.4}]


@pytest.mark.parametrize("answer", [LONE, [LONE[0], LONE[1]]], ids=["late", "guessed in vain"])
async def test_text_that_turns_out_to_be_reasoning_is_corrected_in_all_views(server: Running, answer: Any) -> None:
    store = MemoryStore()
    spec = replace(QWEN3, always_reasons=answer is not LONE)
    agent = Agent(connect(spec, Endpoint(server.base_url)))
    journal = StoreJournal(store, MediaStore(Path("nowhere")), replace(CONVERSATION), Omitted())
    live = LiveRuns(None).start(agent.run("!json " + json.dumps(answer), journal=journal), journal)
    views = [[(bubble.first.type, bubble.text) for bubble in bubbles] async for bubbles in live.bubble_updates()]
    right = (
        [("reasoning", "I count to two."), ("output_text", "Two.")] if answer is LONE else [("output_text", "I count")]
    )
    wrong = "output_text" if answer is LONE else "reasoning"
    assert views[-1] == right
    assert [(wrong, "I count")] in views
    events = live.log.events
    assert [event.value["as"] for event in events if event.value["type"] == "relabelled"] == [right[0][0]]
    run = UnfinishedRun(
        run_id=live.run_id,
        conversation_id=CONVERSATION.id,
        owner=OWNER,
        saved=0,
        leased_until=0,
        is_lost=False,
        is_stopped=False,
        is_watched=False,
    )
    elsewhere = StoredRun(store, LostRuns(store, lambda _: False), run, events)
    assert [(bubble.first.type, bubble.text) for bubble in elsewhere.bubbles] == right
    kinds = {"reasoning": ThinkingPart, "output_text": TextPart}
    assert [(type(part), part.content) for part in partial_answer(events)] == [
        (kinds[kind], text) for kind, text in right
    ]
    conversation = await store.get(CONVERSATION.id, owner=OWNER)
    turns = to_turns(await store.history(conversation))
    assert [(bubble.first.type, bubble.text) for bubble in turns[-1].bubbles] == right


class FailingStore(MemoryStore):
    """A store that refuses some saves."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = ""
        self.runs = FailingRuns(self._storage, self)

    async def save(
        self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
    ) -> Conversation:
        if entries and any(part.part_kind == self.refuses for part in entries[-1].message.parts):
            self.refuses = ""
            raise StoreUnavailable("the store is away")
        if self.refuses == "answer" and entries and entries[-1].note.ended:
            raise HistoryError("the disk is full")
        return await super().save(conversation, entries, events)


@dataclass(frozen=True)
class FailingRuns(KeyValueRuns):
    store: FailingStore

    async def append(self, events: RunEvents) -> None:
        if self.store.refuses == "events":
            raise HistoryError("the disk is full")
        await super().append(events)
        if self.store.refuses == "replies":
            raise StoreUnavailable("no reply")


@pytest.mark.parametrize(
    ("refused", "kinds"),
    [
        ("tool-call", ["output_text", "error"]),
        ("tool-return", ["output_text", "tool_call", "tool_call_result", "error"]),
    ],
)
async def test_page_shows_after_a_reload_what_a_write_refused(refused: str, kinds: Sequence[str]) -> None:
    store = FailingStore()
    call = Call("fine", "{}", "c1")
    live = begin([Step([Words("output_text", ["Let me see."]), call], "tool_call")], store)
    store.refuses = refused
    seen = await followed(live)
    stored = to_turns(await store.history(await store.get(CONVERSATION.id, owner=OWNER)))
    assert [bubble.first.type for bubble in stored[-1].bubbles] == kinds
    assert [kind for kind, _ in folded(seen)] == kinds


async def test_end_that_is_not_stored_is_not_announced_as_stored() -> None:
    store = FailingStore()
    store.refuses = "answer"
    live = begin([Step([Words("output_text", ["Hello"])])], store)
    seen = await followed(live)
    assert [event.value["type"] for event in seen[-2:]] == ["error", "ended"]
    assert "could not be saved" in seen[-1].value["detail"]
    assert [run.run_id for run in await store.runs.unfinished()] == [live.run.id]
    assert end_for_page(live) == {}


def end_for_page(live: LiveRun) -> dict[str, Any]:
    """Return what the end says to a page."""
    return json.loads(TurnFrames(RunningTurn(live, [], {}), ENGLISH).end())


@pytest.mark.parametrize(
    ("script", "is_complete"),
    [([Words("output_text", ["Hello"])], True), ([Words("output_text", ["Hello"]), Act("hang")], False), ([], False)],
    ids=["answered", "stopped", "empty"],
)
async def test_end_says_whether_a_waiting_message_can_follow(script: list[Words | Act], is_complete: bool) -> None:
    hangs = Act("hang") in script
    live = begin([Step(script)], MemoryStore(), hangs=hangs)
    assert end_for_page(live) == {}
    await followed(live, stop=hangs)
    assert end_for_page(live) == {"stored": True, "complete": is_complete}


async def test_reader_sees_the_end_only_when_it_is_stored() -> None:
    class SlowStore(MemoryStore):
        async def save(
            self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
        ) -> Conversation:
            if entries and entries[-1].note.ended:
                assert live.log.events[-1].value["type"] != "ended"
                assert events is not None
                assert events.has_ended
                for _ in range(50):
                    await asyncio.sleep(0)
                    assert not live.log.is_ended
            return await super().save(conversation, entries, events)

    live = begin([Step([Words("output_text", ["Hello"])])], SlowStore())
    assert [event.value["type"] for event in await followed(live)] == ["begun", "output_text", "ended"]


async def test_stream_beats_while_the_store_is_slow() -> None:
    is_saving, is_heard = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryStore):
        async def save(
            self, conversation: Conversation, entries: Sequence[Entry] = (), events: RunEvents | None = None
        ) -> Conversation:
            if entries and entries[-1].note.ended:
                is_saving.set()
                await is_heard.wait()
            return await super().save(conversation, entries, events)

    live = begin([Step([Words("output_text", ["Hello"])])], SlowStore())
    following = asyncio.create_task(followed(live))
    await is_saving.wait()
    async with asyncio.timeout(60), aclosing(stream(live, RunFrames(live), "")) as texts:
        said = [await anext(texts), await anext(texts)]
    assert said[1] == ": ping\n\n"
    is_heard.set()
    await following


@pytest.mark.parametrize("refused", ["events", "replies"])
async def test_unstored_events_do_not_end_the_answer(monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    """The events of a write whose reply is lost are stored, and are not sent again."""
    monkeypatch.setattr("agent.web.chat.journal.EVENT_STORE_SECONDS", 0.0)
    store = FailingStore()
    store.refuses = refused
    live = begin([Step([Words("output_text", ["a", "b", "c"])])], store)
    seen = await followed(live)
    assert seen[-1].value["finish_reason"] == "stop"
    assert await store.runs.events(live.run.id, owner=OWNER) == seen  # the end stored them all


def parsed(text: str) -> list[tuple[str, str]]:
    """Return the ids and data in a part of a stream."""
    events = [dict(line.split(": ", 1) for line in one.split("\n") if ": " in line) for one in text.split("\n\n")]
    return [(event["id"], event["data"]) for event in events if "id" in event]


async def read(texts: AsyncGenerator[str], slowly: bool = False) -> str:
    out: list[str] = []
    async with aclosing(texts):
        async for text in texts:
            out.append(text)
            for _ in range(30 if slowly else 0):
                await asyncio.sleep(0)
    return "".join(out)


async def test_slow_and_late_readers_get_the_same_text() -> None:
    live = begin([Step([Words("output_text", ["x" * 50_000, *"word " * 200, "end"])])], MemoryStore())
    fast = asyncio.create_task(read(stream(live, RunFrames(live), "")))
    slow = asyncio.create_task(read(stream(live, RunFrames(live), ""), slowly=True))
    texts = [await fast, await slow, await read(stream(live, RunFrames(live), ""))]
    assert texts[0].startswith(": connected\nretry: ")
    assert all(text.endswith("event: end\ndata: {}\n\n") for text in texts)
    assert parsed(texts[0]) == parsed(texts[1]) == parsed(texts[2])
    assert parsed(texts[0]) == [(str(event.number), event.json) for event in live.log.events]
    for number in (1, 2, live.log.number):
        assert parsed(await read(stream(live, RunFrames(live), str(number)))) == parsed(texts[0])[number:]


async def test_interrupted_answer_keeps_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.web.chat.journal.EVENT_STORE_SECONDS", 0.0)
    store = MemoryStore()
    thought, text = Words("reasoning", ["Let me ", "see."]), Words("output_text", ["The answer ", "is"])
    live = begin([Step([thought, text, Act("hang")])], store, hangs=True)
    async with asyncio.timeout(60), aclosing(live.updates()) as updates:
        async for _ in updates:
            if folded(live.log.events)[-1:] == [("output_text", "The answer is")]:
                await live.log.store_if_due()
                break
    copy = store_as_killed(store)
    live.run.cancel()
    await live.run
    assert await end_as_lost(copy) == 1
    assert await end_as_lost(copy) == 0
    [turn] = to_turns(await copy.history(await copy.get(CONVERSATION.id, owner=OWNER)))
    assert [(bubble.first.type, bubble.text) for bubble in turn.bubbles[:2]] == [
        ("reasoning", "Let me see."),
        ("output_text", "The answer is"),
    ]
    assert turn.note is not None
    assert turn.note.ended == "interrupted"
    assert turn.bubbles[-1].first.type == "error"
    assert (await copy.runs.events(live.run.id, owner=OWNER))[-1].value["finish_reason"] == "interrupted"


def store_as_killed(store: MemoryStore) -> MemoryStore:
    """Return a copy of the store as it is now, as a killed process leaves a file."""
    copy, kept = MemoryStore(), vars(store._storage)
    vars(copy._storage).update(deepcopy({name: kept[name] for name in kept.keys() - {"clock"}}))
    return copy


def test_partial_answer_leaves_out_calls() -> None:
    values = [
        {"type": "tool_call_result", "content": {"id": "1"}, "is_type_switched": True},
        {"type": "output_text", "content": "a", "is_type_switched": True},
        {"type": "waiting", "content": "", "seconds": 0},
        {"type": "output_text", "content": "b", "is_type_switched": False},
        {"type": "tool_call", "content": {"id": "2"}, "is_type_switched": True},
    ]
    parts = partial_answer([RunEvent.of(number, value) for number, value in enumerate(values, 7)])
    assert [getattr(part, "content", None) for part in parts] == ["ab"]


async def test_slow_reader_gets_small_pieces() -> None:
    text = "a \U0001f600 " * 20_000
    live = begin([Step([Words("output_text", [text])])], MemoryStore())
    pieces = [piece async for piece in stream(live, RunFrames(live), "")]
    assert max(map(len, pieces)) <= CHUNK
    sent = [json.loads(line[6:]) for line in "".join(pieces).split("\n") if line.startswith("data: {")]
    assert "".join(value["content"] for value in sent if value.get("type") == "output_text") == text
    read = StoredFrames(live.log.events)
    first = [(await read.after(last))[0] for last in ("", "1")]
    assert first == list(await RunFrames(live).after(""))[:2]


@pytest.mark.parametrize("script", [Words("output_text", ["Hello"]), Act("hang")], ids=["answered", "cancelled"])
async def test_ended_run_is_freed_without_a_collection(script: Words | Act) -> None:
    """A run has its visitor's key and all its messages, and full collections are rare."""
    connection = FakeConnection([Step([script])])
    journal = StoreJournal(MemoryStore(), MediaStore(Path("nowhere")), replace(CONVERSATION), Omitted())
    run = Agent(connection, limits=Limits(retries=0)).run("Hello", journal=journal)
    ended = [weakref.ref(run), weakref.ref(journal)]
    held = [run]
    connection.played.cancel = lambda: held[0].cancel()
    live = LiveRuns(None).start(run, journal)
    gc.disable()
    try:
        seen = await followed(live)
        assert seen[-1].value["type"] == "ended"
        held.clear()
        del live, journal, run
        for _ in range(100):  # the tasks of the run end a moment later
            await asyncio.sleep(0.01 if any(one() for one in ended) else 0)
        assert [one() for one in ended] == [None, None]
    finally:
        gc.enable()
