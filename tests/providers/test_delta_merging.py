"""Merged deltas: the answer, its bubbles and its token counts are the same as without merging, for any bytes."""

import asyncio
import json
import time
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest, ModelResponse

from agent import Endpoint, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.providers import delta_merging, http
from agent.providers.delta_merging import DeltaMerger, Template, count_deltas, read_delta, reading_each
from agent.providers.http import ClientConnection, ReadPace
from agent.responses import BubbleMarker, StreamDecoder, finalize
from tests.support.read_pauses import read_pauses
from tests.support.replies.openai_responses import completed, created
from tests.tiers import examples

KEY = "sk-a-key-of-some-length"
QUICK = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
CHAT = ModelSpec(id="vllm:Qwen/Qwen3-8B", name="Qwen/Qwen3-8B", label="Qwen3", provider="vllm", reasoning=True)
OPENAI = load_catalog().find("openai:gpt-6-luna")
CLAUDE = load_catalog().find("anthropic:claude-sonnet-5-5")
ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)
FULL, HALVES = "\U0001f600", ("\ud83d", "\ude00")

Event = dict[str, Any] | str
"""A dict is the JSON of an event; a string is put into the stream as it is."""


# --- the words of the dialects ----------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    ["a", " the", "b", "\n", "\n\n", "", "é", FULL, *HALVES, "<", "<think>", "</think>", "think>", '"', "\\", "\u2028"]
)
NOISE = st.sampled_from([": ping", "", "id: 7", "retry: 5", "event: ping", "data: {", 'data: {"a":\ndata: 1}', "data:"])


def chat_event(delta: dict[str, Any], **more: Any) -> Event:
    choice = {"index": 0, "delta": delta, "finish_reason": None} | more.pop("choice", {})
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "m", **more} | {
        "choices": [choice]
    }


def chat_call(text: str) -> Event:
    function = {"name": "f" if text == "a" else None, "arguments": text}
    return chat_event({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]})


CHAT_USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
CHAT_EVENTS = st.one_of(
    TEXTS.map(lambda text: chat_event({"content": text})),
    TEXTS.map(lambda text: chat_event({"content": text})),
    TEXTS.map(lambda text: chat_event({"reasoning": text})),
    TEXTS.map(lambda text: chat_event({"reasoning_content": text})),
    TEXTS.map(lambda text: chat_event({"role": "assistant", "content": text})),
    TEXTS.map(lambda text: chat_event({"content": text, "reasoning": text})),
    TEXTS.map(lambda text: chat_event({"content": text, "refusal": None, "tool_calls": []}, system_fingerprint="x")),
    TEXTS.map(lambda text: chat_event({"content": text}, usage=CHAT_USAGE)),
    TEXTS.map(lambda text: chat_event({"content": text}, created=1_790_000_001)),
    TEXTS.map(lambda text: chat_event({"content": text}, choice={"logprobs": {"content": [{"token": text}]}})),
    TEXTS.map(lambda text: chat_event({"content": text}, choice={"finish_reason": "length"})),
    TEXTS.map(lambda text: chat_event({"content": [{"type": "text", "text": text}]})),
    TEXTS.map(chat_call),
    st.sampled_from([chat_event({"refusal": "No."}), {"error": {"message": "Broken."}}, "data: [DONE]"]),
)


def responses_event(kind: str, text: str, **more: Any) -> Event:
    at = {"item_id": "i1", "output_index": 0, "content_index": 0, "summary_index": 0}
    return {
        "type": f"response.{kind}.delta",
        **at,
        "delta": text,
        "sequence_number": 5,
        "obfuscation": "x" * len(text),
    } | more


RESPONSES_EVENTS = st.one_of(
    TEXTS.map(lambda text: responses_event("output_text", text, logprobs=[])),
    TEXTS.map(lambda text: responses_event("output_text", text, sequence_number=9)),
    TEXTS.map(lambda text: responses_event("output_text", text, content_index=1)),
    TEXTS.map(lambda text: responses_event("output_text", text, logprobs=[{"token": "a", "logprob": -1.0}])),
    TEXTS.map(lambda text: responses_event("reasoning_summary_text", text, item_id="r1")),
    TEXTS.map(lambda text: responses_event("reasoning_text", text, item_id="r2")),
)


def claude_delta(index: int, **delta: str) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": delta}


CLAUDE_START: list[Event] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "m",
            "stop_reason": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
]
CLAUDE_EVENTS = st.one_of(
    TEXTS.map(lambda text: claude_delta(0, type="thinking_delta", thinking=text)),
    TEXTS.map(lambda text: claude_delta(1, type="text_delta", text=text)),
    TEXTS.map(lambda text: claude_delta(2, type="text_delta", text=text)),
    TEXTS.map(lambda text: claude_delta(0, type="signature_delta", signature=text)),
    TEXTS.map(lambda text: claude_delta(1, type="text_delta", text=text, more=text)),
    st.sampled_from([{"type": "ping"}, {"type": "error", "error": {"type": "overloaded_error", "message": "No."}}]),
)


def run_of(make: Callable[[str], Event]) -> st.SearchStrategy[list[Event]]:
    """Events that can be merged, as far as their texts allow."""
    return st.lists(TEXTS, max_size=6).map(lambda texts: [make(text) for text in texts])


CHAT_RUNS = [run_of(lambda text: chat_event({"content": text})), run_of(lambda text: chat_event({"reasoning": text}))]
RESPONSES_RUNS = [
    run_of(lambda text: responses_event("output_text", text)),
    run_of(lambda text: responses_event("reasoning_summary_text", text, item_id="r1")),
]
CLAUDE_RUNS = [
    run_of(lambda text: claude_delta(0, type="thinking_delta", thinking=text)),
    run_of(lambda text: claude_delta(1, type="text_delta", text=text)),
]


@dataclass(frozen=True)
class Dialect:
    """A dialect: its model, its events, and the events at the start and the end of every stream."""

    spec: ModelSpec
    events: st.SearchStrategy[Any]
    runs: Sequence[st.SearchStrategy[list[Event]]]
    named: bool = False
    start: Sequence[Event] = ()
    end: Sequence[Event] = ()


DIALECTS = {
    "chat": Dialect(
        CHAT, CHAT_EVENTS, CHAT_RUNS, end=[chat_event({}, choice={"finish_reason": "stop"}), "data: [DONE]"]
    ),
    "responses": Dialect(
        OPENAI, RESPONSES_EVENTS, RESPONSES_RUNS, True, [dict(e) for e in created()], [dict(e) for e in completed()]
    ),
    "messages": Dialect(CLAUDE, CLAUDE_EVENTS, CLAUDE_RUNS, True, CLAUDE_START, [{"type": "message_stop"}]),
}


def wire(events: Sequence[Event], *, named: bool, line_end: str, escaped: bool) -> bytes:
    """Return the bytes of the stream. Half a surrogate pair has no UTF-8, so it is always escaped."""
    out: list[bytes] = []
    for event in events:
        if isinstance(event, str):
            text = event
        else:
            data = json.dumps(event, ensure_ascii=False)
            data = json.dumps(event) if escaped or any(half in data for half in HALVES) else data
            text = (f"event: {event.get('type', '')}\n" if named else "") + f"data: {data}"
        out.append((text + "\n\n").replace("\n", line_end).encode())
    return b"".join(out)


# --- the law ----------------------------------------------------------------------------------------------------------


class Bytes(httpx2.AsyncByteStream):
    """A stream of chunks. Where `waits` says so, the network has no more bytes for a moment. At last it can break."""

    def __init__(self, chunks: Sequence[bytes], waits: Sequence[bool], *, breaks: bool) -> None:
        self._chunks, self._waits, self._breaks = chunks, waits, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk, wait in zip(self._chunks, self._waits, strict=True):
            if wait:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            yield chunk
        if self._breaks:
            raise httpx2.ReadError("broken")


class Network(httpx2.AsyncBaseTransport):
    """Answers a request with a stream."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, merge: bool) -> None:
        self._stream, self._merge = stream, merge

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        stream = http._BatchedStream(self._stream, DeltaMerger()) if self._merge else self._stream
        return httpx2.Response(200, headers=headers, stream=stream, request=request)


@dataclass
class Seen:
    """The result of reading a stream: bubbles, their token counts, the answer, and the error."""

    bubbles: list[tuple[str, str]]
    tokens: int
    answer: ModelResponse | None
    error: str


async def seen(dialect: Dialect, stream: httpx2.AsyncByteStream, *, merge: bool) -> Seen:
    """Read the stream through the dialect's real SDK and pydantic-ai."""
    connection = connect(dialect.spec, Endpoint("http://127.0.0.1:9/v1", KEY))
    assert isinstance(connection, ClientConnection)
    mark, live, deltas = BubbleMarker(), StreamDecoder(), count_deltas()
    found = Seen([], 0, None, "")
    async with httpx2.AsyncClient(transport=Network(stream, merge=merge)) as client:
        try:
            async with model_request_stream(
                connection._open(client), [ModelRequest.user_text_prompt("Hello")]
            ) as response:
                try:
                    async for event in response:
                        for piece in live.feed(event):
                            found.tokens += deltas.take()
                            said = mark(piece)
                            if said.is_type_switched:
                                found.bubbles.append((said.type, ""))
                            found.bubbles[-1] = said.type, found.bubbles[-1][1] + str(said.content)
                finally:
                    answer = finalize(response.get(), state="complete")
                    found.answer = replace(answer, timestamp=ANY_TIME)
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.parametrize("name", DIALECTS)
@QUICK
@given(st.data())
def test_merging_changes_nothing(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    single = (dialect.events | NOISE).map(lambda event: [event])
    runs = st.lists(st.one_of(*dialect.runs, single), max_size=5)
    middle = [event for run in data.draw(runs) for event in run]
    sent = wire(
        [*dialect.start, *middle, *(dialect.end if data.draw(st.booleans()) else ())],
        named=dialect.named,
        line_end=data.draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])),
        escaped=data.draw(st.booleans()),
    )
    cuts = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=6)))
    chunks = [sent[start:end] for start, end in pairwise([0, *cuts, len(sent)])]
    waits = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    breaks = data.draw(st.booleans())

    async def check() -> None:
        plain = await seen(dialect, Bytes(chunks, waits, breaks=breaks), merge=False)
        assert await seen(dialect, Bytes(chunks, waits, breaks=breaks), merge=True) == plain

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's, about values of a wrong type
        patch.setattr(http, "READ_INTERVAL_SECONDS", 0.0)
        asyncio.run(check())


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_consecutive_deltas_become_one_event(name: str, line_end: str) -> None:
    events: list[Event] = {
        "chat": [chat_event({"content": word}) for word in "abc"],
        "responses": [responses_event("output_text", word, sequence_number=n) for n, word in enumerate("abc")],
        "messages": [claude_delta(1, type="text_delta", text=word) for word in "abc"],
    }[name]
    sent = wire(events, named=DIALECTS[name].named, line_end=line_end, escaped=True)
    [(merged, count)] = DeltaMerger().feed(sent)
    [data] = [line for line in merged.decode().splitlines() if line.startswith("data: ")]
    delta = read_delta(data.removeprefix("data: ").encode())
    assert delta is not None
    assert (delta.text, count) == ("abc", 3)
    assert delta.counters == ({"sequence_number": 2, "obfuscation": "x"} if name == "responses" else {})


@given(st.binary() | st.text('d:a{}\r\n "').map(str.encode), st.integers(0, 9))
def test_every_byte_is_given_out_with_its_batch(sent: bytes, cut: int) -> None:
    merger = DeltaMerger()
    for batch in (sent[:cut], sent[cut:]):
        assert b"".join(piece for piece, _ in merger.feed(batch)) == batch


@given(
    st.lists(
        st.text('ab"\\\\/\n<\u00e9\U0001f600\x00\u2028u0d8') | st.sampled_from(["other", "content", "\ud83d"]),
        min_size=2,
    )
)
@example(["one", "two", "<b", "three", 'fo"ur', "\ud83d", "\ude00", "six", "\n", "seven"])
@settings(max_examples=examples(300))
def test_template_reads_what_the_parser_reads(texts: list[str]) -> None:
    """The same deltas in two spellings, one of them with all characters escaped."""
    merger, parsed = DeltaMerger(), DeltaMerger()
    for escaped in (False, True):
        events = [json.dumps(chat_delta(text), ensure_ascii=escaped).encode(errors="ignore") for text in texts]
        batch = b"".join(b"data: %s\n\n" % event for event in events)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Template, "of", lambda *_: None)
            expected = list(parsed.feed(batch))
        assert list(merger.feed(batch)) == expected


def chat_delta(text: str) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None}


def test_equal_deltas_are_hardly_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(data: bytes) -> Any:
        nonlocal count
        count += 1
        return read_delta(data)

    monkeypatch.setattr(delta_merging, "read_delta", counted)
    events = [b"data: %s\n\n" % json.dumps(chat_delta(f"word{number} ")).encode() for number in range(500)]
    merger = DeltaMerger()
    pieces = [piece for at in range(0, 500, 10) for piece in merger.feed(b"".join(events[at : at + 10]))]
    assert sum(deltas for _, deltas in pieces) == 500
    assert count < 10


# --- the pause between reads ------------------------------------------------------------------------------------------


def test_pause_grows_with_open_streams() -> None:
    pace = ReadPace()
    with ExitStack() as streams:
        pauses = [pace.seconds]
        for _ in range(300):
            streams.enter_context(pace.stream())
            pauses.append(pace.seconds)
    assert pauses[0] == pauses[1] == http.READ_INTERVAL_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[50] < pauses[100] < pauses[175] < pauses[180] == pauses[300] == http.MAX_READ_INTERVAL_SECONDS
    assert pace.seconds == http.READ_INTERVAL_SECONDS, "the streams have ended"


async def test_stream_counts_as_open_until_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PACE", pace := ReadPace())
    monkeypatch.setattr(http, "READ_INTERVAL_SECONDS", 0.0)
    alone = pace.seconds
    streams = [http._BatchedStream(Endless()) for _ in range(2)]
    readers = [aiter(stream) for stream in streams]
    for reader in readers:
        assert await anext(reader) == b"data: "
    assert pace.seconds > alone
    for stream in streams:
        await stream.aclose()
    assert pace.seconds == alone
    assert [chunk for reader in readers async for chunk in reader] == []


async def test_busy_loop_gets_one_batch_for_each_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = read_pauses(monkeypatch)
    network = Busy(200)
    batches = [batch async for batch in http._BatchedStream(network)]
    assert b"".join(batches) == b"." * 200
    assert 5 < len(batches) <= len(pauses) + 2, "what arrives in a pause comes in one piece"
    assert len(pauses) < 50


async def test_readers_can_ask_for_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, sleep = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(min(seconds, 0.01))

    monkeypatch.setattr(http.asyncio, "sleep", noted)
    with reading_each(0.2):
        stream = http._BatchedStream(Busy(50))
    assert b"".join(await _read_all(stream)) == b"." * 50
    assert {0.2} == {*pauses} - {0}


class Busy(httpx2.AsyncByteStream):
    """A server whose bytes arrive while each turn of the event loop takes long, as with many streams.

    All that has arrived is read at once, as from a socket, and given out as single chunks.
    """

    def __init__(self, count: int) -> None:
        self._left, self._arrived, self._news = count, 0, asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        asyncio.get_running_loop().call_soon(self._turn)
        while self._left or self._arrived:
            self._news.clear()
            await (self._news.wait() if not self._arrived else asyncio.sleep(0))
            arrived, self._arrived = self._arrived, 0
            for _ in range(arrived):
                yield b"."

    def _turn(self) -> None:
        time.sleep(0.005)
        self._left, self._arrived = self._left - 1, self._arrived + 1
        self._news.set()
        if self._left:
            asyncio.get_running_loop().call_soon(self._turn)


async def test_end_and_failure_come_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_INTERVAL_SECONDS", 3600.0)
    read = http._BatchedStream(Failing())
    with pytest.raises(httpx2.ReadError):
        await asyncio.wait_for(_read_all(read), 60)


async def test_second_iteration_reads_the_rest_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK begins one after `[DONE]`, to keep the connection."""
    monkeypatch.setattr(http, "READ_INTERVAL_SECONDS", 3600.0)
    stream = http._BatchedStream(Slow())
    first = aiter(stream)
    assert await anext(first) == b"first"
    assert await asyncio.wait_for(_read_all(stream), 60) == [b"rest"]
    await stream.aclose()


async def test_first_text_comes_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server begins with an event without text, and the model needs time for its first token."""
    monkeypatch.setattr(http, "READ_INTERVAL_SECONDS", 3600.0)
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    text = {"choices": [{"index": 0, "delta": {"content": "Hello"}}]}
    events = [b"data: %s\n\n" % json.dumps(one).encode() for one in (role, text, text, text)]
    chunks = aiter(http._BatchedStream(Apart(events), DeltaMerger()))
    assert [await asyncio.wait_for(anext(chunks), 60) for _ in range(2)] == events[:2]
    with pytest.raises(TimeoutError):  # the texts after it share a pause
        await asyncio.wait_for(anext(chunks), 0.5)


async def test_first_text_beside_the_header_comes_at_once() -> None:
    """The first events can have come in one piece with the header of the answer."""
    texts = [b'data: {"choices": [{"index": 0, "delta": {"content": "%d"}}]}\n\n' % number for number in range(3)]
    chunks = aiter(http._BatchedStream(Apart(texts, at_once=2, seconds=3600), DeltaMerger()))
    assert b'"01"' in await asyncio.wait_for(anext(chunks), 60)


class Apart(httpx2.AsyncByteStream):
    """A server that waits before each event but the first `at_once` ones."""

    def __init__(self, events: Sequence[bytes], at_once: int = 0, seconds: float = 0.05) -> None:
        self._events, self._at_once, self._seconds = events, at_once, seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, event in enumerate(self._events):
            if number >= self._at_once:
                await asyncio.sleep(self._seconds)
            yield event


class Slow(httpx2.AsyncByteStream):
    """A server that takes its time, once."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await asyncio.sleep(0.1)
        yield b"first"
        yield b"rest"


async def _read_all(stream: httpx2.AsyncByteStream) -> list[bytes]:
    return [chunk async for chunk in stream]


class Endless(httpx2.AsyncByteStream):
    """A server that begins an event and falls silent."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"data: "
        await asyncio.sleep(3600)


class Failing(httpx2.AsyncByteStream):
    """A connection that breaks off."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"data: "
        raise httpx2.ReadError("broken")
