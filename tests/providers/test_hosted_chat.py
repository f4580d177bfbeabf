"""Chat Completions at hosted providers and their differences: responses to each wire sequence, and requests."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent

from agent import Agent, Endpoint, Limits, ModelSpec, connect
from agent.models.catalog import load_catalog
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.dialects import Bubble, Case, answered, assert_decoded, called, weather
from tests.support.media_files import MP3, PNG, WAV
from tests.support.replies.chat_completions import ANSWER, ROLE, calls, chunk, ending, piece, reply

ROUTER = replace(load_catalog().find("huggingface:Qwen/Qwen3-8B"), reasoning=True, tools="native")
AUDIO = load_catalog().find("openai:gpt-audio-1.5")
KEY = "hf_averysecretkey1234"
NO_RETRIES = Limits(retries=0)


def sound() -> str:
    """A sound."""
    return "Moo."


# --- what comes out of each sequence ----------------------------------------------------------------------------------


def case(
    replies: Sequence[Reply], said: Sequence[Bubble], finish: str = "stop", detail: str = "", usage: Any = ()
) -> Case:
    return Case(replies, said, finish, detail, usage)


def two(first: str = "call_1", second: str = "call_2") -> list[Bubble]:
    return [
        called(first, city="Rom"),
        called(second, city="Oslo"),
        answered(first, "Rom"),
        answered(second, "Oslo"),
        ("output_text", "Done."),
    ]


def failing(detail: str, reply: Reply, *before: Bubble) -> Case:
    return case([reply], [*before, ("error", detail)], "error", detail)


ONCE, TWICE = (5, 9), (10, 18)
DONE = ("output_text", "Done.")
CUT = "The answer broke off: Hugging Face ended it too early."
UNKNOWN = ""

ROM, SUNNY_ROM = '{"city": "Rom"}', [called("call_1", city="Rom"), answered("call_1", "Rom"), DONE]
CALLS: dict[str, tuple[list[Any], list[Bubble]]] = {
    "arguments split inside an escape": (
        [calls(piece(id="call_1", name="weather")), calls(piece('{"city": "K\\u00')), calls(piece('f6ln"}'))],
        [called("call_1", city="Köln"), answered("call_1", "Köln"), DONE],
    ),
    "parallel calls, their pieces mixed": (
        [
            calls(piece(id="call_1", name="weather")),
            calls(piece(index=1, id="call_2", name="weather")),
            calls(piece('{"city": '), piece('{"city"', index=1)),
            calls(piece('"Rom"}'), piece(': "Oslo"}', index=1)),
        ],
        two(),
    ),
    "parallel calls under one index": (
        [
            calls(piece('{"city": ', id="call_1", name="weather")),
            calls(piece('"Rom"}')),
            calls(piece('{"city": ', id="call_2", name="weather")),
            calls(piece('"Oslo"}')),
        ],
        two(),
    ),
    "parallel calls without an index": (
        [
            calls(piece('{"city": ', None, "call_1", "weather")),
            calls(piece('"Rom"}', None)),
            calls(piece('{"city": ', None, "call_2", "weather"), piece('"Oslo"}', None)),
        ],
        two(),
    ),
    "parallel calls under one index, without ids": (
        [calls(piece(ROM, name="weather")), calls(piece('{"city": ', name="weather")), calls(piece('"Oslo"}'))],
        two(UNKNOWN, UNKNOWN),
    ),
    "a call without arguments, then another, under one index and without ids": (
        [calls(piece(name="sound")), calls(piece(ROM, name="weather"))],
        [
            called(UNKNOWN, "sound"),
            called(UNKNOWN, city="Rom"),
            ("tool_call_result", {"id": "", "name": "sound", "content": "Moo.", "is_error": False}),
            answered(UNKNOWN, "Rom"),
            DONE,
        ],
    ),
    "name and id repeated with each piece": (
        [
            calls(piece('{"city": ', 0, "call_1", "weather")),
            calls(piece('"Rom"}', 0, "call_1", "weather")),
            calls(piece('{"city": "Oslo"', 1, "call_2", "weather")),
            calls(piece("}", 1, "call_2", "weather")),
        ],
        two(),
    ),
    "another id with each piece": (
        [
            calls(piece("", 0, "call_1", "weather")),
            calls(piece('{"city": ', 0, "call_x")),
            calls(piece('"Rom"}', 0, "call_y")),
        ],
        SUNNY_ROM,
    ),
    "empty arguments": (
        [calls(piece("", 0, "call_1", "weather"))],
        [called("call_1"), answered("call_1", "Nowhere"), DONE],
    ),
}
ODD_DELTAS = reply(
    b": keep-alive\n\n",
    chunk(role="assistant", content=None, reasoning=None, tool_calls=None),
    *(chunk(content=""), chunk(reasoning=""), chunk(content="a"), b":\n\n", chunk()),
    chunk(content="b", refusal=None, obfuscation="x8"),
    {**chunk(), "choices": []},
    *ending(),
)
CASES = {
    **{
        name: case([reply(*pieces, *ending("tool_calls")), ANSWER], bubbles, usage=TWICE)
        for name, (pieces, bubbles) in CALLS.items()
    },
    "a role alone, text, the usage alone": case(
        [reply(ROLE, chunk(content="Hel"), chunk(content="lo 👋"), *ending())],
        [("output_text", "Hello 👋")],
        usage=ONCE,
    ),
    "reasoning by its old name": case(
        [reply(ROLE, chunk(reasoning_content="Hm."), chunk(content="So."), *ending())],
        [("reasoning", "Hm."), ("output_text", "So.")],
    ),
    "empty deltas, nulls, comments": case([ODD_DELTAS], [("output_text", "ab")]),
    "refusal": failing(
        'The provider withheld the answer. "I can\'t help".',
        reply(ROLE, chunk(refusal="I can't"), chunk(refusal=" help."), *ending()),
    ),
    "filtered without a delta": failing(
        "The provider withheld the answer.",
        reply(ROLE, {"choices": [{"index": 0, "delta": None, "finish_reason": "content_filter"}]}),
    ),
    "no end but [DONE]": failing(CUT, reply(chunk(content="Hm")), ("output_text", "Hm")),
    "nothing": failing(CUT, Reply()),
    "cut": failing(
        "The connection to {url} broke.", Reply(sse=[chunk(content="Hm")], end="cut"), ("output_text", "Hm")
    ),
    "an error in the middle, of another kind": failing(
        "Hugging Face is getting too many requests.",
        reply({"error": {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": None}}),
    ),
}


running_server, server = dialects.running_server, dialects.server


def agent(server: Playing, spec: ModelSpec = ROUTER, **more: Any) -> Agent:
    return Agent(connect(spec, Endpoint(server.url + "/v1", KEY)), limits=NO_RETRIES, **more)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_stream_is_decoded(server: Playing, case: Case) -> None:
    await assert_decoded(server, agent(server, tools=[weather, sound]), case)


# --- requests ---------------------------------------------------------------------------------------------------------

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "default": "Nowhere"}},
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("wish", [None, True, False])
async def test_router_gets_only_documented_fields(server: Playing, wish: bool | None) -> None:
    made = [piece(f'{{"city":"{city}"}}', at, f"call_{at}", "weather") for at, city in enumerate(("Rom", "Oslo"))]
    server.play(reply(ROLE, chunk(reasoning="Two cities."), calls(*made), *ending("tool_calls")), ANSWER)
    async with agent(server, system_message="Be brief.", tools=[weather]) as one:
        await one.ask("Rom and Oslo?", reasoning=wish, temperature=0.3, max_tokens=77)
    first, second = server.requests
    assert (first.path, first.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    assert first.json == {
        **{"model": "Qwen/Qwen3-8B", "stream": True, "stream_options": {"include_usage": True}},
        **{"temperature": 0.3, "max_tokens": 77, "tools": [TOOL], "tool_choice": "auto"},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rom and Oslo?"}],
    }
    sent = [{"id": one["id"], "type": "function", "function": one["function"]} for one in made]
    assert second.json["messages"][2:] == [
        {"role": "assistant", "content": None, "tool_calls": sent},
        {"role": "tool", "tool_call_id": "call_0", "content": "Sunny in Rom."},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny in Oslo."},
    ]


@pytest.mark.slow
async def test_sound_and_its_answer(server: Playing) -> None:
    wav, mp3 = WAV, MP3
    server.play(ANSWER)
    async with agent(server, AUDIO) as one:
        await one.ask(
            ["What is it?", BinaryContent(wav, media_type="audio/wav"), BinaryContent(mp3, media_type="audio/mpeg")],
            max_tokens=77,
        )
    assert server.requests[0].json == {
        "model": "gpt-audio-1.5",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 77,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav).decode(), "format": "wav"}},
                    {"type": "input_audio", "input_audio": {"data": base64.b64encode(mp3).decode(), "format": "mp3"}},
                ],
            }
        ],
    }


async def test_picture_is_sent_as_data_url(server: Playing) -> None:
    server.play(ANSWER)
    async with agent(server, replace(ROUTER, image=True)) as one:
        await one.ask(["What is it?", BinaryContent(PNG, media_type="image/png")])
    assert server.requests[0].json["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}},
    ]


async def test_openai_account_is_sent_to_openai_only(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")
    server.play(ANSWER, ANSWER)
    for spec in (ROUTER, replace(AUDIO, needs_audio=False)):
        async with agent(server, spec) as one:
            await one.ask("Hello")
    other, own = (json.dumps(dict(request.headers)) for request in server.requests)
    assert "-mine" not in other
    assert "org-mine" in own
