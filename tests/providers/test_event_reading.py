"""Answers of servers that break the rules: what can be read is read, and a failure quotes the server's own words."""

import asyncio
import base64
import io
import json
import re
import wave
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import Agent, Endpoint, InputError, Limits, ModelSpec, connect, tool
from agent.models.catalog import load_catalog
from agent.providers.http import ClientConnection
from agent.providers.think_tags import CLOSE
from agent.responses import pieces_of
from agent.tools.function_tools import Tool
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.media_files import MP3
from tests.support.replies import anthropic_messages, openai_responses
from tests.support.replies.chat_completions import DONE, ROLE, calls, chunk, ending, piece, reply
from tests.tiers import examples

running_server, server = dialects.running_server, dialects.server
SAMPLES = Path(__file__).parent.parent / "samples/streams"
SPEC = ModelSpec(id="vllm:m", name="m", label="m", provider="vllm", reasoning=True)
AFTER_TOOL = reply(ROLE, chunk(content="It is 42."), *ending())
CALL = ("tool_call", {"name": "calculate", "arguments": {"expression": "6*7"}})
RESULT = ("tool_call_result", {"name": "calculate", "content": "42"})
IT_IS = ("output_text", "It is 42.")


@tool
async def calculate(expression: str) -> str:
    """Calculate."""
    return {"6*7": "42", "1+1": "2", "2+2": "4"}[expression]


async def played(
    server: Playing, *replies: Reply, spec: ModelSpec = SPEC, tools: Sequence[Tool] = (), **more: Any
) -> tuple[list[tuple[str, Any]], Any]:
    """Return the bubbles and the result of a run that gets these replies."""
    connection = connect(spec, Endpoint(f"{server.url}/v1", "none"))
    assert isinstance(connection, ClientConnection)
    connection.end_seconds = 0.05
    server.play(*replies)
    async with Agent(connection, tools=tools or [calculate], limits=Limits(retries=0, **more)) as agent:
        run = agent.run("Hello")
        result = await asyncio.wait_for(run, 60)
    keys = ("name", "arguments", "content")
    return [
        (kind, {key: said[key] for key in keys if key in said} if isinstance(said, Mapping) else said)
        for kind, said in dialects.bubbles(run.responses)
    ], result


SAID: dict[str, list[tuple[str, Any]]] = {
    "args_object": [CALL, RESULT, IT_IS],
    "content_list": [("reasoning", "A greeting, I return it."), ("output_text", "Hello again.")],
    "end_tag_leak": [("reasoning", "Let me think once."), ("output_text", "The answer is 42.")],
    "error_event": [("output_text", "Half"), ("error", 'The model server failed (HTTP 500). "GPU is out of memory".')],
    "finish_open": [("output_text", "Hello finish.")],
    "id_comment": [("output_text", "Hello there.")],
    "json_not_sse": [("output_text", "Hello from a server that does not stream.")],
    "raw_json_error_mid": [
        ("output_text", "Half an answ"),
        ("error", 'The model server failed (HTTP 500). "the worker died".'),
    ],
    "reasoning_newline": [("reasoning", "Hm."), ("output_text", "One two.")],
    "resent_call": [
        ("tool_call", {"name": "calculate", "arguments": {"expression": "1+1"}}),
        ("tool_call", {"name": "calculate", "arguments": {"expression": "2+2"}}),
        ("tool_call_result", {"name": "calculate", "content": "2"}),
        ("tool_call_result", {"name": "calculate", "content": "4"}),
        IT_IS,
    ],
    "retry_only": [("output_text", "Hello.")],
    "tc_null_item": [CALL, RESULT, IT_IS],
    "tool_name_space": [CALL, RESULT, IT_IS],
    "usage_each2": [("output_text", "one two three four five six seven eight nine ten ")],
    "usage_limit": [("output_text", "one two three four five six "), CALL, RESULT, IT_IS],
}


@pytest.mark.parametrize("name", SAID)
async def test_answer_of_a_real_server_is_read(server: Playing, name: str) -> None:
    body = (SAMPLES / f"{name}.sse").read_bytes()
    end = "stall" if name == "finish_open" else "whole"
    bubbles, _ = await played(server, Reply(sse=[body], end=end), AFTER_TOOL)
    assert bubbles == SAID[name]


HTML = b"<!doctype html>\n<html><head><title>Sign in</title></head>\n<body>data</body></html>"
WHOLE = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
}
HI, SAYS_HI = [("output_text", "Hi.")], chunk(content="Hi.")
THOUGHT_HI = [("reasoning", "Hm."), *HI]
END = chunk(finish="stop")
QUOTE = ' "It broke".'
FAILED = [("output_text", "Hi."), ("error", "The model server failed in the middle of the answer." + QUOTE)]
FAILED_AT_ONCE = FAILED[1:]
UNREADABLE = [("error", "The model server sent an answer that can't be read." + QUOTE)]
BROKE = [("error", "The answer broke off: the model server ended it too early.")]


def sse(*events: Any) -> bytes:
    """Return the bytes of events; text and bytes are sent as they are."""
    lines = (one if isinstance(one, str) else f"data: {json.dumps(one)}" for one in events)
    return "".join(f"{line}\n\n" for line in lines).encode() + DONE


def with_choice(**fields: Any) -> Mapping[str, Any]:
    return {**chunk(), "choices": [{"index": 0, "finish_reason": None, **fields}]}


CHANNELS = ("<|chan", "nel|>analysis<|message|>Hm.<|end|><|start|>assis", "tant<|channel|>final<|message|>Hi.")


def choice(index: int, content: str) -> Mapping[str, Any]:
    return {"index": index, "delta": {"content": content}, "finish_reason": None}


ODD: dict[str, tuple[bytes, list[tuple[str, Any]]]] = {
    "BOM": (b"\xef\xbb\xbf" + sse(SAYS_HI, END), HI),
    "one line end": (sse(SAYS_HI, END).replace(b"\n\n", b"\n"), HI),
    "CR": (sse(SAYS_HI, END).replace(b"\n", b"\r"), HI),
    "no space": (sse(SAYS_HI, END).replace(b"data: ", b"data:"), HI),
    "no end": (sse(SAYS_HI, END).removesuffix(b"\n\n" + DONE), HI),
    "several lines": (sse(SAYS_HI, END).replace(b'{"id"', b'{\ndata: "id"'), HI),
    "comments and fields": (b": hello\n\nevent: ping\ndata\n\nid: 7\nretry: 5\n\n" + sse(SAYS_HI, END), HI),
    "unknown field": (b"foo: bar\n\n" + sse(SAYS_HI, END), HI),
    "no chunks": (sse("data: 1", 'data: "ping"', "data: null", "data: [7]", "data: ping", SAYS_HI, END), HI),
    "list of chunks": (sse([SAYS_HI, END]), HI),
    "events in events": (sse(SAYS_HI, END).replace(b"data: ", b"data: data: "), HI),
    "thoughts in details": (
        sse(chunk(reasoning_details=[{"type": "reasoning.text", "text": "Hm."}]), SAYS_HI, END),
        THOUGHT_HI,
    ),
    "no data field": (b"".join(json.dumps(one).encode() + b"\n" for one in (SAYS_HI, END)), HI),
    "message": (sse(with_choice(message={"role": "assistant", "content": "Hi."}), END), HI),
    "message repeated": (sse(SAYS_HI, with_choice(delta={}, message={"content": "Hi."}), END), HI),
    "one choice": (sse({**chunk(), "choices": SAYS_HI["choices"][0]}, END), HI),
    "odd choices": (sse({**chunk(), "choices": [None, 7]}, {"choices": None}, SAYS_HI, END), HI),
    "text delta": (sse(with_choice(delta="Hi."), with_choice(delta=None), END), HI),
    "finish object": (sse(SAYS_HI, with_choice(delta={}, finish_reason={"type": "stop"})), HI),
    "finish text": (sse(with_choice(delta={"content": "Hi."}, finish_reason=""), END), HI),
    "odd fields": (sse({**SAYS_HI, "id": 7, "model": {}, "created": "now", "moderation": []}, END), HI),
    "content object": (sse(chunk(content={"type": "text", "text": "Hi."}), END), HI),
    "two in one": (sse(chunk(content="H"), chunk(content="i."), END).replace(b"\n\ndata: {", b"{"), HI),
    "two in one line": (sse(chunk(content="H"), chunk(content="i."), END).replace(b"\n\ndata: {", b" data: {"), HI),
    "a line without a field": (sse(chunk(content="H"), chunk(content="i."), END).replace(b"\n\ndata: {", b"\n{"), HI),
    "indented": (b"data: " + json.dumps(SAYS_HI, indent=1).encode() + b"\n\n" + sse(END), HI),
    "BOM in the middle": (sse(SAYS_HI, END).replace(b"data: ", b"data: \xef\xbb\xbf"), HI),
    "two choices": (sse({**chunk(), "choices": [choice(0, "Hi."), choice(1, "Ho.")]}, END), HI),
    "two choices in turn": (sse(*({**chunk(), "choices": [choice(at, "Hi.")]} for at in (0, 1)), END), HI),
    "PHP's list": (sse({**chunk(), "choices": {"0": choice(0, "Hi.")}}, END), HI),
    "number": (sse(chunk(content="H"), chunk(content=1), chunk(content="."), END), [("output_text", "H1.")]),
    "half a character": (sse(SAYS_HI, END).replace(b"Hi.", b"Hi\xf0."), [("output_text", "Hi\ufffd.")]),
    "raw line end": (sse(SAYS_HI, END).replace(b"Hi.", b"Hi\t."), [("output_text", "Hi\t.")]),
    "thinking": (sse(chunk(thinking="Hm."), SAYS_HI, END), THOUGHT_HI),
    "reasoning object": (sse(chunk(reasoning={"text": "Hm."}), SAYS_HI, END), THOUGHT_HI),
    "tags in reasoning": (
        sse(*(chunk(reasoning=one) for one in ("<think>", "Hm.", "</think>")), SAYS_HI, END),
        THOUGHT_HI,
    ),
    "a tag that ends in the text": (
        sse(chunk(reasoning_content="<think>Hm."), chunk(content="</think>\nHi."), END),
        THOUGHT_HI,
    ),
    "channels": (sse(*(chunk(content=one) for one in CHANNELS), END), THOUGHT_HI),
    "one channel": (sse(chunk(content="<|channel|>final<|mes"), chunk(content="sage|>Hi."), END), HI),
    "whole, indented": (json.dumps(WHOLE, indent=2).encode(), HI),
    "whole, as an event": (sse(WHOLE), HI),
    "whole without reason": (json.dumps(WHOLE).replace('"stop"', "null").encode(), HI),
    **{
        f"an end that leaks, {leak}": (sse(*(chunk(content=one) for one in ("Hi.", leak[:3], leak[3:])), END), HI)
        for leak in ("<|im_end|>", "<|eot_id|>\n", "<|endoftext|><|im_end|>", "</s>", "</s> </s>\n", "<end_of_turn>")
    },
    "half an end": (sse(chunk(content="Hi.<|im"), END), [("output_text", "Hi.<|im")]),
    "an end in the middle": (
        sse(chunk(content="a<|im_end|>"), chunk(content="b</s>c"), END),
        [("output_text", "a<|im_end|>b</s>c")],
    ),
    "an end in code": (sse(chunk(content="```\n</s>"), END), [("output_text", "```\n</s>")]),
    "the end of an element": (sse(chunk(content="<s>old</s>"), END), [("output_text", "<s>old</s>")]),
    "an end after thoughts": (
        sse(chunk(content="<think>Hm.</think>Hi."), chunk(content="<|im_end|>"), END),
        THOUGHT_HI,
    ),
    "error after the end": (sse(SAYS_HI, END, {"error": "It broke."}), HI),
    "error": (sse(SAYS_HI, {"error": {"message": "It broke."}}), FAILED),
    "error text": (sse(SAYS_HI, {"error": "It broke."}), FAILED),
    "error without data": (sse(SAYS_HI, "error: It broke."), FAILED),
    "error object without data": (sse(SAYS_HI, 'error: {"message": "It broke."}'), FAILED),
    "error event": (sse(SAYS_HI, 'event: error\ndata: {"message": "It broke."}'), FAILED),
    "error event, text": (sse(SAYS_HI, "event: error\ndata: It broke."), FAILED),
    "error event, in an envelope": (sse(SAYS_HI, 'event: error\ndata: {"error": "It broke."}'), FAILED),
    "error in a choice": (sse(SAYS_HI, with_choice(error={"message": "It broke."}, delta={})), FAILED),
    "error, raw": (sse(SAYS_HI, '{"error": {"message": "It broke."}}'), FAILED),
    "error, indented": (sse(SAYS_HI, '{\n "error": {\n  "message": "It broke."\n }\n}'), FAILED),
    "error detail": (json.dumps({"detail": "It broke."}).encode(), FAILED_AT_ONCE),
    "error object": (sse({"object": "error", "message": "It broke."}), FAILED_AT_ONCE),
    "errors": (sse({"errors": [{"message": "It broke."}]}), FAILED_AT_ONCE),
    "error in an error": (sse({"error": {"message": {"detail": [{"msg": "It broke."}]}}}), FAILED_AT_ONCE),
    "error of a gateway, with other JSON": (
        sse({"error": {"message": "It broke.", "metadata": {"raw": '{"e": 1}'}}}),
        FAILED_AT_ONCE,
    ),
    "error of a gateway": (
        sse({"error": {"message": "Provider error", "metadata": {"raw": '{"error": {"message": "It broke."}}'}}}),
        FAILED_AT_ONCE,
    ),
    "error as JSON": (sse({"error": '{"message": "It broke."}'}), FAILED_AT_ONCE),
    "no text": (b"\x1f\x8b\x08\x00\xfe\xff", [(UNREADABLE[0][0], UNREADABLE[0][1][: -len(QUOTE)])]),
    "error flag": (sse({"error": True, "message": "It broke."}), FAILED_AT_ONCE),
    "words as data": (sse(SAYS_HI, "data: It broke."), [*HI, *UNREADABLE]),
    "words": (b"It broke.\n", UNREADABLE),
    "HTML": (HTML, [("error", "What answers at {url} is no model server. Check the base URL.")]),
    "HTML in the answer": (sse(SAYS_HI)[:-14] + HTML, [*HI, (UNREADABLE[0][0], UNREADABLE[0][1][: -len(QUOTE)])]),
    "nothing": (b"", BROKE),
    "another API": (b'{"status": "ok"}', [("error", "The model server sent an answer that can't be read.")]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "body"])
async def test_odd_answer_is_read(server: Playing, name: str, is_stream: bool) -> None:
    body, said = ODD[name]
    bubbles, _ = await played(server, Reply(sse=[body]) if is_stream else Reply(body=body))
    assert bubbles == [(kind, text.replace("{url}", server.url)) for kind, text in said]


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
PICTURES: dict[str, list[Mapping[str, Any]]] = {
    "images": [chunk(images=[{"type": "image_url", "image_url": {"url": URL}}])],
    "an image": [chunk(images={"image_url": URL})],
    "a part": [chunk(content=[{"type": "text", "text": "Hi."}, {"type": "image_url", "image_url": {"url": URL}}])],
    "Base64 alone": [chunk(images=[{"b64_json": URL.partition(",")[2]}])],
    "in a message": [with_choice(message={"content": "Hi.", "images": [{"image_url": {"url": URL}}]})],
}


@pytest.mark.parametrize("name", PICTURES)
async def test_picture_in_a_delta_is_a_file_of_the_answer(server: Playing, name: str) -> None:
    text = [] if "Hi." in str(PICTURES[name]) else [SAYS_HI]
    bubbles, result = await played(server, reply(*text, *PICTURES[name], END))
    assert bubbles[0] == HI[0]
    assert [(file.media_type, file.data) for file in result.files] == [("image/png", PNG)]


TONE = bytes(range(240)) * 4
HALVES = [base64.b64encode(half).decode() for half in (TONE[:480], TONE[480:])]


def wav(samples: bytes, rate: int = 24_000, width: int = 2) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, width, rate, 0, "NONE", ""))
        file.writeframes(samples)
    return out.getvalue()


def omni(data: bytes) -> dict[str, Any]:
    """Return a chunk of vLLM-Omni with sound."""
    return {**chunk(content=base64.b64encode(data).decode()), "modality": "audio"}


def in_parts(data: bytes) -> list[Mapping[str, Any]]:
    """Return chunks with a sound that is cut in the head of its file and in its samples."""
    parts = data[:2], data[2:20], data[20:300], data[300:]
    return [SAYS_HI, *(chunk(audio={"data": base64.b64encode(part).decode()}) for part in parts), END]


SOUNDS: dict[str, tuple[list[Mapping[str, Any]], bytes]] = {
    "samples with a transcript": (
        [chunk(audio={"id": "a", "transcript": "Hi."}), *(chunk(audio={"data": half}) for half in HALVES), END],
        wav(TONE),
    ),
    "a file in a message": (
        [with_choice(message={"audio": {"data": base64.b64encode(wav(TONE)).decode(), "transcript": "Hi."}}), END],
        wav(TONE),
    ),
    "files after the text": (
        [SAYS_HI, END, omni(wav(TONE[:480], 16_000)), omni(wav(TONE[480:], 16_000))],
        wav(TONE, 16_000),
    ),
    "a file in parts": (in_parts(wav(TONE, 16_000)), wav(TONE, 16_000)),
    "a file of 24 bits in parts": (in_parts(wav(TONE, width=3)), wav(b"")),
    "samples that begin as an MP3 does": (in_parts(b"\xff\xfb\x90\x64" + TONE), wav(b"\xff\xfb\x90\x64" + TONE)),
    "an MP3 without a tag in parts": (in_parts(MP3), MP3),
    "no Base64": ([chunk(content="Hi.", audio={"data": "%"}), omni(b""), END], b""),
}


@pytest.mark.parametrize("name", SOUNDS)
async def test_sound_of_a_model_is_a_file_beside_its_text(server: Playing, name: str) -> None:
    events, data = SOUNDS[name]
    bubbles, result = await played(server, reply(*events))
    assert bubbles[0] == HI[0]
    kind = "audio/mpeg" if data == MP3 else "audio/wav"
    assert [(file.media_type, file.data) for file in result.files] == [(kind, data)] * bool(data)


@pytest.mark.parametrize("name", SOUNDS)
async def test_samples_come_with_the_stream(server: Playing, name: str) -> None:
    """Whatever the pieces are, their samples together are those of the file."""
    events, data = SOUNDS[name]
    connection = connect(SPEC, Endpoint(f"{server.url}/v1", "none"))
    server.play(reply(*events))
    async with Agent(connection, limits=Limits(retries=0)) as agent:
        run = agent.run("Hello")
        await asyncio.wait_for(run, 60)
    assert b"".join(piece.samples for piece in run.sound) == (b"" if data == MP3 else data[44:])
    assert {(piece.rate, piece.channels) for piece in run.sound} <= {(24_000, 1), (16_000, 1)}


async def test_picture_at_an_address_stays_in_the_text(server: Playing) -> None:
    odd = [{"image_url": {"url": url}} for url in ("https://a.test/b.png", "data:image/png;base64,%%", "x")]
    bubbles, result = await played(server, reply(chunk(content="Hi.", images=[*odd, None, 7]), END))
    assert (bubbles, result.files) == ([("output_text", "Hi.\n\n![](https://a.test/b.png)\n\n")], ())


BEGIN: Any = anthropic_messages.begin()
TEXT: list[Any] = [*anthropic_messages.text(0, "H", "i.")]
ENDING: list[Any] = [*anthropic_messages.ends("end_turn")]
LAST, STOP = ENDING
OPEN, *DELTAS, CLOSED = TEXT
HAIKU = "anthropic:claude-haiku-5-5"
MADE: list[Any] = [*anthropic_messages.call(0, "t", '{"expression": "6*7"}', name="calculate")]
CLAUDE_FAILED = [*HI, ("error", 'Anthropic failed in the middle of the answer. "It broke".')]
THOUGHT = [*anthropic_messages.thinking(0, "Hm.", signature="s")]


def typed(event: Mapping[str, Any]) -> bytes:
    """Return an event with its type only as its name."""
    data = {key: value for key, value in event.items() if key != "type"}
    return f"event: {event['type']}\ndata: {json.dumps(data)}\n\n".encode()


def claude(*texts: str) -> bytes:
    return sse(BEGIN, *anthropic_messages.text(0, *texts), *ENDING)


CLAUDE: dict[str, tuple[bytes, list[tuple[str, Any]]]] = {
    "no names": (sse(BEGIN, *TEXT, LAST, STOP), HI),
    "comments": (b": PROCESSING\n\nevent: ping\ndata:\n\ndata: null\n\n" + sse(BEGIN, *TEXT, LAST, STOP), HI),
    "types as names": (b"".join(typed(one) for one in (BEGIN, *TEXT, LAST, STOP)), HI),
    "no beginning": (sse(*TEXT, LAST, STOP), HI),
    "an empty beginning": (sse({"type": "message_start"}, *TEXT, LAST, STOP), HI),
    "no block": (sse(BEGIN, *DELTAS, LAST, STOP), HI),
    "no reason": (sse(BEGIN, *TEXT, STOP), HI),
    "no numbers": (sse(BEGIN, *({**one, "index": None} for one in TEXT), LAST, STOP), HI),
    "the same number": (sse(BEGIN, *THOUGHT, *TEXT, LAST, STOP), THOUGHT_HI),
    "a block without texts": (sse(BEGIN, {**OPEN, "content_block": {"type": "text"}}, *DELTAS, LAST, STOP), HI),
    "a delta without a text": (
        sse(BEGIN, OPEN, {**DELTAS[0], "delta": {"type": "text_delta"}}, *DELTAS, LAST, STOP),
        HI,
    ),
    "a delta without a type": (sse(BEGIN, OPEN, {**DELTAS[0], "delta": {"text": "Hi."}}, LAST, STOP), HI),
    "half a character": (sse(BEGIN, *TEXT, LAST, STOP).replace(b"i.", b"i\xf0."), [("output_text", "Hi\ufffd.")]),
    "usage of other types": (
        sse(BEGIN, *TEXT, {**LAST, "usage": {"output_tokens": "9", "input_tokens": None}}, STOP),
        HI,
    ),
    "whole": (json.dumps({**BEGIN["message"], "content": [{"type": "text", "text": "Hi."}]}).encode(), HI),
    "arguments in the block": (
        sse(
            BEGIN,
            {**MADE[0], "content_block": {**MADE[0]["content_block"], "input": {"expression": "6*7"}}},
            LAST,
            STOP,
        ),
        [CALL, RESULT, IT_IS],
    ),
    "arguments twice": (
        sse(
            BEGIN,
            {**MADE[0], "content_block": {**MADE[0]["content_block"], "input": {"expression": "6*7"}}},
            *MADE[1:],
            LAST,
        ),
        [CALL, RESULT, IT_IS],
    ),
    "an empty object before the arguments": (
        sse(BEGIN, MADE[0], {**MADE[1], "delta": {"type": "input_json_delta", "partial_json": "{}"}}, *MADE[1:], LAST),
        [CALL, RESULT, IT_IS],
    ),
    "tags": (claude("<thi", "nk>Hm.</thi", "nk>\n\nHi."), THOUGHT_HI),
    "a lone closing tag": (claude("Hm.", "</th", "ink>Hi."), THOUGHT_HI),
    "a tag after thoughts": (sse(BEGIN, *THOUGHT, *anthropic_messages.text(1, "</think>Hi."), *ENDING), THOUGHT_HI),
    "a tag of the text": (claude("Hi </thing"), [("output_text", "Hi </thing")]),
    "an end that leaks": (claude("Hi.", "<|im_end|>"), HI),
    "error, no name": (sse(BEGIN, *TEXT, {"type": "error", "error": {"message": "It broke."}}), CLAUDE_FAILED),
    "error of another API": (sse(BEGIN, *TEXT, {"error": {"message": "It broke."}}), CLAUDE_FAILED),
    "error, raw": (b'{"detail": "It broke."}', CLAUDE_FAILED[1:]),
    "words": (b"It broke.", [("error", 'Anthropic sent an answer that can\'t be read. "It broke".')]),
    "HTML": (HTML, [("error", "What answers at {url} is no model server. Check the base URL.")]),
}


@pytest.mark.parametrize("name", CLAUDE)
async def test_odd_answer_of_claudes_api_is_read(server: Playing, name: str) -> None:
    body, said = CLAUDE[name]
    answer = anthropic_messages.answer("It is 42.")
    bubbles, _ = await played(server, Reply(sse=[body]), answer, spec=load_catalog().find(HAIKU))
    assert bubbles == [
        (kind, text.replace("{url}", server.url) if isinstance(text, str) else text) for kind, text in said
    ]


ASKED = openai_responses.created()
SAYS = openai_responses.text("H", "i.")
MADE_CALL = openai_responses.call('{"expression": "6*7"}', name="calculate", index=0)
TWO_LATER = openai_responses.call('{"expression": "6*7"}', name="calculate", index=1)
ITEM: Any = SAYS[-1]["item"]
THINKS = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def of(events: Sequence[Any], *kinds: str) -> list[Any]:
    return [one for one in events if one["type"].removeprefix("response.") in kinds]


def ended(*items: Any) -> Any:
    return openai_responses.event("response.completed", response=openai_responses.whole("completed", output=[*items]))


ODD_RESPONSES: dict[str, tuple[bytes, list[tuple[str, Any]]]] = {
    "only the whole text": (sse(*ASKED, *of(SAYS, "output_item.added", "output_text.done"), ended()), HI),
    "only the item": (sse(*ASKED, *of(SAYS, "output_item.done"), ended()), HI),
    "only the end": (sse(*ASKED, ended(ITEM)), HI),
    "only the end, with a call": (sse(*ASKED, ended(MADE_CALL[-1]["item"])), [CALL, RESULT, IT_IS]),
    "text and end": (sse(*ASKED, *SAYS, ended(ITEM)), HI),
    "text as an object": (sse(*ASKED, *({**one, "delta": {"text": one.get("delta")}} for one in SAYS), ended()), HI),
    "other ids": (sse(*ASKED, *SAYS[:-1], {**SAYS[-1], "item": {**ITEM, "id": "other"}}, ended()), HI),
    "types as names": (b"".join(map(typed, (*ASKED, *SAYS, ended()))), HI),
    "a content that is a text": (json.dumps(ended({**ITEM, "content": "Hi."})["response"]).encode(), HI),
    "reasoning text": (
        sse(*ASKED, {"type": "response.reasoning_text.delta", "item_id": "r", "delta": "Hm."}, *SAYS, ended()),
        THOUGHT_HI,
    ),
    "reasoning in the item": (
        sse(*ASKED, {"type": "response.output_item.done", "output_index": 0, "item": THINKS}, *SAYS, ended()),
        THOUGHT_HI,
    ),
    "whole, with reasoning": (json.dumps(ended(THINKS, ITEM)["response"]).encode(), THOUGHT_HI),
    **{
        f"tags, {name}": (sse(*ASKED, *openai_responses.text(*texts), ended()), THOUGHT_HI)
        for name, texts in {
            "cut": ("<thi", "nk>Hm.</thi", "nk>\n\nHi."),
            "a lone one": ("Hm.", "</th", "ink>Hi."),
            "an end": ("<think>Hm.</think>Hi.", "<|im_", "end|>"),
        }.items()
    },
    "tags before a call": (
        sse(*ASKED, *openai_responses.text("<think>Hm.</think>Hi.<|im_end|>"), *TWO_LATER, ended()),
        [("reasoning", "Hm."), *HI, CALL, RESULT, IT_IS],
    ),
    "a tag of the text": (sse(*ASKED, *openai_responses.text("Hi <"), ended()), [("output_text", "Hi <")]),
    "arguments twice": (
        sse(*ASKED, {**MADE_CALL[0], "item": MADE_CALL[-1]["item"]}, *MADE_CALL[1:], ended()),
        [CALL, RESULT, IT_IS],
    ),
}


def without_ids(event: Any, place: int | None) -> Any:
    """Return an event of an item that has no id, and a place or none."""
    kept = {key: value for key, value in event.items() if key not in ("item_id", "output_index")}
    if "item" in kept:
        kept["item"] = {key: value for key, value in kept["item"].items() if key not in ("id", "call_id")}
    return kept if place is None else {**kept, "output_index": place}


TWO_CALLS = [
    openai_responses.call(json.dumps({"expression": said}), name="calculate", index=at)
    for at, said in enumerate(("6*7", "1+1"))
]


@pytest.mark.parametrize("order", ["in turn", "interleaved", "no places", "whole items", "only the end"])
async def test_calls_without_ids_are_told_apart(server: Playing, order: str) -> None:
    calls = [
        [without_ids(one, None if order == "no places" else at) for one in call] for at, call in enumerate(TWO_CALLS)
    ]
    events = [one for call in calls for one in call]
    if order == "interleaved":
        events = [one for pair in zip(*calls, strict=True) for one in pair]
    elif order == "whole items":
        events = [call[-1] for call in calls]
    last = ended(*(call[-1]["item"] for call in calls)) if order == "only the end" else ended()
    body = sse(*ASKED, *([] if order == "only the end" else events), last)
    spec = load_catalog().find("openai:gpt-6-luna")
    bubbles, _ = await played(server, Reply(sse=[body]), openai_responses.answer("It is 42."), spec=spec)
    assert [said["content"] for kind, said in bubbles if kind == "tool_call_result"] == ["42", "2"]


@pytest.mark.parametrize("name", ODD_RESPONSES)
async def test_odd_answer_of_responses_is_read(server: Playing, name: str) -> None:
    body, said = ODD_RESPONSES[name]
    spec = load_catalog().find("openai:gpt-6-luna")
    bubbles, _ = await played(server, Reply(sse=[body]), openai_responses.answer("It is 42."), spec=spec)
    assert bubbles == said


# --- any JSON in any field --------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "7", "stop", "error", "null", "text", "function_call", "\ud83d", 10**400])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "content", "index", "id", "name", "arguments", "function", "message", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
CHAT = (
    ROLE,
    chunk(reasoning="Hm."),
    chunk(content="one "),
    {**chunk(content="two "), "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"x": 1}}},
    calls(piece('{"expression": "6*7"}', id="c1", name="calculate")),
    *ending("tool_calls"),
)
RESPONSES = (
    *openai_responses.created(),
    *openai_responses.reasoning("Hm."),
    *openai_responses.text("one ", "two ", phase=None),
    *openai_responses.call('{"expression": "6*7"}', name="calculate", index=2),
    *openai_responses.completed(),
)
MESSAGES = (
    BEGIN,
    *THOUGHT,
    *anthropic_messages.text(1, "one ", "two "),
    *anthropic_messages.call(2, "t", '{"expression": "6*7"}', name="calculate"),
    *anthropic_messages.ends("tool_use"),
)
BASES = {
    "messages": (load_catalog().find(HAIKU), MESSAGES, anthropic_messages.answer("It is 42.")),
    "chat": (SPEC, CHAT, AFTER_TOOL),
    "responses": (load_catalog().find("openai:gpt-6-luna"), RESPONSES, openai_responses.answer("It is 42.")),
}


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where something is in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [path for key, one in inner for path in [(*at, key), *paths(one, (*at, key))]]


@pytest.mark.parametrize("name", BASES)
@pytest.mark.filterwarnings("ignore")  # the library's, about values of a wrong type
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_any_json_in_any_field_is_read(server: Playing, name: str, data: st.DataObject) -> None:
    spec, base, after = BASES[name]
    path = data.draw(st.sampled_from(paths(base)))
    value = data.draw(JSON)
    events = deepcopy(list(base))
    holder: Any = events
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    server.clear()
    bubbles, result = await played(server, Reply(sse=[sse(*events)]), after, after, after, spec=spec)
    faults = r"Error|Exception|Behavior|could not be used|in its log"
    assert not re.search(faults, result.note.detail), result.note
    is_end = path[0] >= len(base) - (1 if name == "responses" else 2)
    if not is_end and not re.search("error|message", f"{value} {path}"):  # an object with a message can be an error
        assert result.finish_reason != "error"
        texts = [said for kind, said in bubbles if kind == "output_text"]
        assert sum(word in "".join(texts) for word in ("one ", "two ")) >= 1


# --- what a run makes of it -------------------------------------------------------------------------------------------


def sample(name: str) -> Reply:
    return Reply(sse=[(SAMPLES / f"{name}.sse").read_bytes()])


async def test_lone_closing_tag_ends_reasoning(server: Playing) -> None:
    _, result = await played(server, sample("only_close"))
    assert result.text == "The answer is 42."
    assert CLOSE not in str(result.context.messages)
    assert [kind for message in result.context.messages for kind, _ in pieces_of(message)] == [
        "reasoning",
        "output_text",
    ]


@pytest.mark.parametrize("name", ["usage_each2", "usage_limit"])
async def test_last_usage_of_a_stream_counts(server: Playing, name: str) -> None:
    bubbles, result = await played(server, sample(name), AFTER_TOOL, tokens=3000)
    told = {"usage_each2": (1000, 10), "usage_limit": (1005, 17)}[name]
    assert (result.note.timings.input_tokens, result.note.timings.output_tokens) == told
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == told
    assert result.finish_reason == "stop", bubbles


@pytest.mark.parametrize(
    "name",
    [
        *("calculate", " calculate\n", "functions.calculate", "functions.calculate:0", "`calculate`"),
        "calculate<|channel|>commentary",
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        '{"expression": "6*7"}',
        '"{\\"expression\\": \\"6*7\\"}"',
        '[{"expression": "6*7"}]',
        '```json\n{"expression": "6*7"}\n```',
        '{"expression": "6*7"}}',
        '{"expression": "6*7"}{"expression": "6*7"}',
    ],
)
async def test_call_of_a_tool_is_mended(server: Playing, name: str, arguments: str) -> None:
    call = chunk(tool_calls=[piece(arguments, id="c", name=name)])
    bubbles, _ = await played(server, reply(call, *ending("tool_calls")), AFTER_TOOL)
    assert bubbles == [CALL, RESULT, IT_IS]


async def test_parameters_are_arguments(server: Playing) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "calculate", "parameters": {"expression": "6*7"}}}
    bubbles, _ = await played(server, reply(chunk(tool_calls=[call]), *ending("tool_calls")), AFTER_TOOL)
    assert bubbles == [CALL, RESULT, IT_IS]


async def test_null_is_no_arguments(server: Playing) -> None:
    @tool
    async def now() -> str:
        """Tell the time."""
        return "Noon."

    call = reply(chunk(tool_calls=[piece("null", id="c", name="now")]), *ending("tool_calls"))
    bubbles, _ = await played(server, call, AFTER_TOOL, tools=(now,))
    assert bubbles[:2] == [
        ("tool_call", {"name": "now", "arguments": {}}),
        ("tool_call_result", {"name": "now", "content": "Noon."}),
    ]


ONE = '{"expression": "6*7"}'
RESENT: dict[str, list[Mapping[str, Any]]] = {
    "with its id": [calls(piece(ONE, id="c", name="calculate"))] * 2,
    "growing": [calls(piece(ONE[:at], id="c", name="calculate")) for at in (2, 9, len(ONE))],
    "without an id": [calls(piece(ONE, name="calculate"))] * 2,
    "with another number": [calls(piece(ONE, index=at, id="c", name="calculate")) for at in (0, 1)],
    **{
        f"{first} before it": [calls(piece(first, id="c", name="calculate")), calls(piece(ONE))]
        for first in ("{}", "null", "")
    },
    "without its name": [calls(piece(ONE, id="c", name="calculate")), calls(piece(ONE, id="c"))],
    "without its name and id": [calls(piece(ONE, id="c", name="calculate")), calls(piece(ONE))],
    "before an empty object": [calls(piece(ONE, id="c", name="calculate")), calls(piece("{}"))],
    "in pieces with other ids": [
        calls(piece(ONE[start:end], id=f"c{start}", name="calculate")) for start, end in ((0, 5), (5, None))
    ],
    "in pieces with another number": [
        calls(piece(ONE[:5], index=None, id="c", name="calculate")),
        calls(piece(ONE[5:], index=0)),
    ],
    "in pieces without a number": [
        calls(piece(ONE[:5], index=None, id="c", name="calculate")),
        calls(piece(ONE[5:], index=None, id="c")),
    ],
    "as input": [calls({"id": "c", "type": "tool_use", "name": "calculate", "input": {"expression": "6*7"}})],
    "in a table": [chunk(tool_calls={"0": piece(ONE, id="c", name="calculate")})],
    "in a message": [
        calls(piece(ONE, id="c", name="calculate")),
        with_choice(delta={}, message={"tool_calls": [piece(ONE, id="c", name="calculate")]}),
    ],
}


@pytest.mark.parametrize("name", RESENT)
async def test_call_sent_again_runs_once(server: Playing, name: str) -> None:
    bubbles, _ = await played(server, reply(*RESENT[name], *ending("tool_calls")), AFTER_TOOL)
    assert bubbles == [CALL, RESULT, IT_IS]


async def test_calls_in_turn_are_told_apart_by_their_ids(server: Playing) -> None:
    ids = {"c": ONE, "d": '{"expression": "1+1"}'}
    begun = [piece(said[:5], index=None, id=id_, name="calculate") for id_, said in ids.items()]
    rest = [piece(said[5:], index=None, id=id_) for id_, said in ids.items()]
    bubbles, _ = await played(server, reply(calls(*begun), calls(*rest), *ending("tool_calls")), AFTER_TOOL)
    assert [said["content"] for kind, said in bubbles if kind == "tool_call_result"] == ["42", "2"]


async def test_whole_answer_in_two_choices_is_one(server: Playing) -> None:
    called = {"message": {"tool_calls": [piece(ONE, id="c", name="calculate")]}, "finish_reason": "tool_calls"}
    whole = {**WHOLE, "choices": [*WHOLE["choices"], {"index": 1, **called}]}
    bubbles, _ = await played(server, Reply(body=whole), AFTER_TOOL)
    assert bubbles == [*HI, CALL, RESULT, IT_IS]


BODIES: list[Any] = [
    {"error": {"message": "It broke."}},
    {"error": "It broke."},
    {"detail": "It broke."},
    {"detail": [{"loc": ["body"], "msg": "It broke."}]},
    {"message": {"detail": [{"msg": "It broke."}]}},
    {"code": 7, "msg": "It broke."},
    {"errors": [{"message": "It broke."}]},
    [{"error": {"message": "It broke.", "status": "INVALID_ARGUMENT"}}],
    {"error": '{"message": "It broke."}'},
    {"error": {"message": "Provider returned error", "metadata": {"raw": '{"error": {"message": "It broke."}}'}}},
    b"It broke.",
]


@pytest.mark.parametrize("body", BODIES, ids=str)
async def test_refusal_quotes_the_servers_words(server: Playing, body: Any) -> None:
    bubbles, _ = await played(server, Reply(status=422, body=body))
    assert bubbles == [("error", 'The model server refused the request (HTTP 422). "It broke".')]


@pytest.mark.parametrize("model", ["vllm", HAIKU, "openai:gpt-6-luna"])
async def test_redirect_names_the_address_without_its_query(server: Playing, model: str) -> None:
    spec = SPEC if model == "vllm" else load_catalog().find(model)
    away = Reply(status=302, body=HTML, headers={"location": "https://ann:pw@login.test/sign/in?next=secret#part"})
    bubbles, _ = await played(server, away, spec=spec)
    assert bubbles == [
        (
            "error",
            f"{server.url} sends requests on to https://login.test/sign/in, as sites that want a login do. "
            "Check the base URL.",
        )
    ]


@pytest.mark.parametrize("end", ["stall", "reset", "cut"])
async def test_answer_has_ended_after_its_reason(server: Playing, end: Any) -> None:
    bubbles, result = await played(server, Reply(sse=[SAYS_HI, END], end=end))
    assert (bubbles, result.finish_reason) == (HI, "stop")


async def test_usage_after_the_reason_counts(server: Playing) -> None:
    _, result = await played(server, Reply(sse=[SAYS_HI, *ending()], end="stall"))
    assert result.usage["output_tokens"] == 9


TEXT_CALLS = {
    "hermes": None,
    "xml": "<tool_call>\n<function=calculate>\n<parameter=expression>6*7</parameter></function></tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "calculate", "arguments": {"expression": "6*7"}}]',
    "llama": '<|python_tag|>{"name": "calculate", "parameters": {"expression": "6*7"}}',
    "harmony": '<|channel|>commentary to=functions.calculate <|message|>{"expression": "6*7"}<|call|>',
    "after words": 'I calculate.\n<tool_call>{"name": "calculate"}</tool_call>',
}


@pytest.mark.parametrize("name", TEXT_CALLS)
async def test_call_as_text_names_the_flags(server: Playing, name: str) -> None:
    text = TEXT_CALLS[name]
    given = reply(chunk(content=text), *ending()) if text else sample("tool_as_text")
    _, result = await played(server, given, spec=replace(SPEC, name="Qwen/Qwen3-8B"))
    assert result.why == (
        "The model wrote the call of a tool as text, so no tool was called. The model server needs its flags for tool "
        "calls (vLLM: --enable-auto-tool-choice --tool-call-parser hermes)."
    )
    assert result.usage["output_tokens"] == (9 if text else 4), "the answer was paid for"


@pytest.mark.parametrize(
    "text",
    ["Write `<tool_call>` and calculate.", "```\n<tool_call>calculate</tool_call>\n```", "<tool_call> is a tag."],
)
async def test_text_about_calls_is_an_answer(server: Playing, text: str) -> None:
    bubbles, result = await played(server, reply(chunk(content=text), *ending()))
    assert (bubbles, result.finish_reason) == ([("output_text", text)], "stop")


# --- connections ------------------------------------------------------------------------------------------------------


async def said_at(url: str, key: str | None = None) -> str:
    async with Agent("m", provider="vllm", base_url=url, api_key=key, limits=Limits(retries=0)) as agent:
        return (await agent.ask("Hello")).why


async def test_failed_connection_names_address_and_cause(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):  # a proxy would be what cannot be reached
        monkeypatch.setenv(name, "*")
    address = f"127.0.0.1:{server.port}"
    who = "The model server cannot be reached: "
    assert await said_at("http://127.0.0.1:1/v1") == who + "no server listens at http://127.0.0.1:1."
    assert await said_at("http://ann:secret@127.0.0.1:1/v1") == who + "no server listens at http://127.0.0.1:1."
    unknown = "no address is known for nowhere.invalid. Check the base URL and the network."
    assert await said_at("http://nowhere.invalid/v1") == who + unknown

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as plain:
        port = plain.sockets[0].getsockname()[1]
        no_tls = f"https://127.0.0.1:{port} does not answer in HTTPS. Check the base URL."
        assert await said_at(f"https://127.0.0.1:{port}/v1") == who + no_tls
    server.play(Reply(sse=[chunk(content="a")], end="reset"))
    assert await said_at(f"http://{address}/v1") == f"The connection to http://{address} broke."


async def test_refused_key_is_the_one_that_was_given(server: Playing) -> None:
    refused = Reply(status=401, body={"error": {"message": "No.", "code": "invalid_api_key"}})
    server.play(refused, refused)
    given = "The model server rejected the API key. Check the key that you gave, or use another one."
    assert await said_at(f"{server.url}/v1", "typed") == given
    assert await said_at(f"{server.url}/v1") == "The server's key was rejected. Tell its owner."


@pytest.mark.parametrize("key", ["abc\n", " abc\r\n", "abc"])
async def test_key_with_a_line_break_is_stripped(server: Playing, key: str) -> None:
    server.play(AFTER_TOOL)
    assert await said_at(f"{server.url}/v1", key) == ""
    assert server.requests[-1].headers["authorization"] == "Bearer abc"


@pytest.mark.parametrize("key", ["abc\ndef", "abc\u20ac", "abc\x00"])
async def test_key_that_no_header_can_hold_is_refused_before_any_request(server: Playing, key: str) -> None:
    before = len(server.requests)
    with pytest.raises(InputError, match="has a line break or another character that no key has") as refused:
        await said_at(f"{server.url}/v1", key)
    assert "abc" not in str(refused.value)
    assert len(server.requests) == before
