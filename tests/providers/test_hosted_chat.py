"""Chat Completions at hosted providers and their differences: responses to each wire sequence, and requests."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent

from agent import Agent, Endpoint, Limits, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.runtime.run import Run
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.media_files import MP3, PNG, WAV
from tests.support.replies.chat_completions import (
    ANSWER,
    ROLE,
    calls,
    chunk,
    ending,
    piece,
    reply,
)

ROUTER = replace(load_catalog().find("huggingface:Qwen/Qwen3-8B"), reasoning=True, tools="native")
AUDIO = load_catalog().find("openai:gpt-audio-1.5")
VLLM = load_catalog().find("vllm:Qwen/Qwen3-8B")
LLAMA = replace(VLLM, id="llama.cpp:Qwen/Qwen3-8B", provider="llama.cpp")
KEY = "hf_averysecretkey1234"
NO_RETRIES = Limits(retries=0)

Bubble = tuple[str, Any]


def weather(city: str = "Nowhere") -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def sound() -> str:
    """A sound."""
    return "Moo."


# --- what comes out of each sequence ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Replies played in turn, the visible bubbles, and the end of the run."""

    name: str
    replies: Sequence[Reply]
    bubbles: Sequence[Bubble]
    finish: str = "stop"
    detail: str = ""
    usage: Mapping[str, int] | None = None


def called(id_: str, name: str = "weather", **arguments: str) -> Bubble:
    return "tool_call", {"id": id_, "name": name, "arguments": arguments}


def result(id_: str, content: str, name: str = "weather") -> Bubble:
    return "tool_call_result", {"id": id_, "name": name, "content": content, "is_error": False}


def two(first: str = "call_1", second: str = "call_2") -> list[Bubble]:
    return [
        called(first, city="Rom"),
        called(second, city="Oslo"),
        result(first, "Sunny in Rom."),
        result(second, "Sunny in Oslo."),
        ("output_text", "Done."),
    ]


def failing(detail: str, *before: Bubble) -> dict[str, Any]:
    return {"bubbles": [*before, ("error", detail)], "finish": "error", "detail": detail}


ONCE = {"input_tokens": 5, "output_tokens": 9}
TWICE = {"input_tokens": 10, "output_tokens": 18}
CUT = "The answer broke off: Hugging Face ended it too early."
UNKNOWN = "<an id of ours>"

CASES = [
    Case(
        "a role alone, text, the usage alone",
        [reply(ROLE, chunk(content="Hel"), chunk(content="lo 👋"), *ending())],
        [("output_text", "Hello 👋")],
        usage=ONCE,
    ),
    Case(
        "reasoning, then text",
        [reply(ROLE, chunk(reasoning="Let me"), chunk(reasoning=" see."), chunk(content="So."), *ending())],
        [("reasoning", "Let me see."), ("output_text", "So.")],
    ),
    Case(
        "reasoning by its old name",
        [reply(ROLE, chunk(reasoning_content="Hm."), chunk(content="So."), *ending())],
        [("reasoning", "Hm."), ("output_text", "So.")],
    ),
    Case(
        "empty deltas, nulls, comments",
        [
            reply(
                b": keep-alive\n\n",
                chunk(role="assistant", content=None, reasoning=None, tool_calls=None),
                chunk(content=""),
                chunk(reasoning=""),
                chunk(content="a"),
                b":\n\n",
                chunk(),
                chunk(content="b", refusal=None, obfuscation="x8"),
                {**chunk(), "choices": []},
                *ending(),
            )
        ],
        [("output_text", "ab")],
    ),
    Case(
        "arguments split inside an escape",
        [
            reply(
                ROLE,
                calls(piece(id="call_1", name="weather")),
                calls(piece('{"city": "K\\u00')),
                calls(piece('f6ln"}')),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        [called("call_1", city="Köln"), result("call_1", "Sunny in Köln."), ("output_text", "Done.")],
        usage=TWICE,
    ),
    Case(
        "parallel calls, their pieces mixed",
        [
            reply(
                calls(piece(id="call_1", name="weather")),
                calls(piece(index=1, id="call_2", name="weather")),
                calls(piece('{"city": '), piece('{"city"', index=1)),
                calls(piece('"Rom"}'), piece(': "Oslo"}', index=1)),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        two(),
    ),
    Case(
        "parallel calls under one index",
        [
            reply(
                calls(piece('{"city": ', id="call_1", name="weather")),
                calls(piece('"Rom"}')),
                calls(piece('{"city": ', id="call_2", name="weather")),
                calls(piece('"Oslo"}')),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        two(),
    ),
    Case(
        "parallel calls without an index",
        [
            reply(
                calls(piece('{"city": ', None, "call_1", "weather")),
                calls(piece('"Rom"}', None)),
                calls(piece('{"city": ', None, "call_2", "weather"), piece('"Oslo"}', None)),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        two(),
    ),
    Case(
        "parallel calls under one index, without ids",
        [
            reply(
                calls(piece('{"city": "Rom"}', name="weather")),
                calls(piece('{"city": ', name="weather")),
                calls(piece('"Oslo"}')),
                *ending("stop"),
            ),
            ANSWER,
        ],
        two(UNKNOWN, UNKNOWN),
    ),
    Case(
        "a call without arguments, then another, under one index and without ids",
        [reply(calls(piece(name="sound")), calls(piece('{"city": "Rom"}', name="weather")), *ending("stop")), ANSWER],
        [
            called(UNKNOWN, "sound"),
            called(UNKNOWN, city="Rom"),
            result(UNKNOWN, "Moo.", "sound"),
            result(UNKNOWN, "Sunny in Rom."),
            ("output_text", "Done."),
        ],
    ),
    Case(
        "name and id repeated with each piece",
        [
            reply(
                calls(piece('{"city": ', 0, "call_1", "weather")),
                calls(piece('"Rom"}', 0, "call_1", "weather")),
                calls(piece('{"city": "Oslo"', 1, "call_2", "weather")),
                calls(piece("}", 1, "call_2", "weather")),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        two(),
    ),
    Case(
        "another id with each piece",
        [
            reply(
                calls(piece("", 0, "call_1", "weather")),
                calls(piece('{"city": ', 0, "call_x")),
                calls(piece('"Rom"}', 0, "call_y")),
                *ending("tool_calls"),
            ),
            ANSWER,
        ],
        [called("call_1", city="Rom"), result("call_1", "Sunny in Rom."), ("output_text", "Done.")],
    ),
    Case(
        "empty arguments",
        [reply(calls(piece("", 0, "call_1", "weather")), *ending("tool_calls")), ANSWER],
        [called("call_1"), result("call_1", "Sunny in Nowhere."), ("output_text", "Done.")],
    ),
    Case(
        "refusal",
        [reply(ROLE, chunk(refusal="I can't"), chunk(refusal=" help."), *ending())],
        **failing('The provider withheld the answer. "I can\'t help".'),
    ),
    Case(
        "filtered from the beginning",
        [reply(ROLE, *ending("content_filter"))],
        **failing("The provider withheld the answer."),
    ),
    Case(
        "filtered without a delta",
        [reply(ROLE, {"choices": [{"index": 0, "delta": None, "finish_reason": "content_filter"}]})],
        **failing("The provider withheld the answer."),
    ),
    *(
        Case(
            f"withheld: {reason}",
            [reply(ROLE, *ending(reason))],
            **failing(f"The provider withheld the answer (category: {reason.lower()})."),
        )
        for reason in ("SAFETY", "recitation", "blocklist")
    ),
    Case(
        "length",
        [reply(chunk(content="On and"), *ending("length"))],
        [("output_text", "On and")],
        finish="length",
        detail="The answer was cut off at its maximum length.",
        usage=ONCE,
    ),
    Case(
        "filtered",
        [reply(chunk(content="Well"), *ending("content_filter"))],
        [("output_text", "Well")],
        finish="content_filter",
        detail="The provider withheld the answer.",
    ),
    Case("no end", [Reply(sse=[chunk(content="Hm")])], **failing(CUT, ("output_text", "Hm"))),
    Case("no end but [DONE]", [reply(chunk(content="Hm"))], **failing(CUT, ("output_text", "Hm"))),
    Case("nothing", [Reply()], **failing(CUT)),
    Case(
        "cut",
        [Reply(sse=[chunk(content="Hm")], end="cut")],
        **failing("The connection to {url} broke.", ("output_text", "Hm")),
    ),
    Case(
        "an error in the middle",
        [
            reply(
                chunk(content="Hm"),
                {"error": {"message": "Out of memory.", "type": "InternalServerError", "code": 500}},
            )
        ],
        **failing('Hugging Face failed (HTTP 500). "Out of memory".', ("output_text", "Hm")),
    ),
    Case(
        "an error in the middle, of another kind",
        [reply({"error": {"message": "Slow down.", "type": "rate_limit_error", "param": None, "code": None}})],
        **failing("Hugging Face is getting too many requests."),
    ),
    Case(
        "an error in the middle that is a sentence",
        [reply(chunk(content="Hm"), {"error": "The backend went away."})],
        **failing('Hugging Face failed in the middle of the answer. "The backend went away".', ("output_text", "Hm")),
    ),
    Case("malformed", [reply(b"data: {nope\n\n")], **failing("Hugging Face sent an answer that can't be read.")),
]


running_server, server = dialects.running_server, dialects.server


def agent(server: Playing, spec: ModelSpec = ROUTER, **more: Any) -> Agent:
    return Agent(connect(spec, Endpoint(server.url + "/v1", KEY)), limits=NO_RETRIES, **more)


def seen(run: Run) -> list[Bubble]:
    """Return the bubbles, with the server's call ids."""
    return [
        (
            type_,
            content if isinstance(content, str) or content["id"].startswith("call_") else {**content, "id": UNKNOWN},
        )
        for type_, content in dialects.bubbles(run.responses)
    ]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_stream_is_decoded(server: Playing, case: Case) -> None:
    server.play(*case.replies)
    async with agent(server, tools=[weather, sound]) as one:
        run = one.run("Hello")
        ended = await run
    bubbles = [(kind, said.replace(server.url, "{url}") if kind == "error" else said) for kind, said in seen(run)]
    assert bubbles == case.bubbles
    detail = ended.note.detail.replace(server.url, "{url}")
    assert (ended.finish_reason, detail) == (case.finish, case.detail)
    if case.usage:
        assert ended.usage == case.usage
    ids = [response.content["id"] for response in run.responses if response.type == "tool_call"]  # type: ignore[index]
    assert len(set(ids)) == len(ids)


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
    think = chunk(reasoning="Two cities.")
    server.play(
        reply(
            ROLE,
            think,
            calls(piece('{"city":"Rom"}', 0, "call_1", "weather"), piece('{"city":"Oslo"}', 1, "call_2", "weather")),
            *ending("tool_calls"),
        ),
        ANSWER,
    )
    async with agent(server, system_message="Be brief.", tools=[weather]) as one:
        await one.ask("Rom and Oslo?", reasoning=wish, temperature=0.3, max_tokens=77)
    first = {
        "model": "Qwen/Qwen3-8B",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.3,
        "max_tokens": 77,
        "tools": [TOOL],
        "tool_choice": "auto",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rom and Oslo?"}],
    }
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert server.requests[0].json == first
    assert server.requests[1].json["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": f"call_{number}",
                    "type": "function",
                    "function": {"name": "weather", "arguments": f'{{"city":"{city}"}}'},
                }
                for number, city in ((1, "Rom"), (2, "Oslo"))
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny in Rom."},
        {"role": "tool", "tool_call_id": "call_2", "content": "Sunny in Oslo."},
    ]


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


@pytest.mark.parametrize("spec", [VLLM, LLAMA], ids=lambda spec: spec.provider)
@pytest.mark.parametrize("wish", [True, False])
async def test_chat_template_switches_reasoning(server: Playing, spec: ModelSpec, wish: bool) -> None:
    server.play(ANSWER)
    async with agent(server, spec, system_message="Be brief.") as one:
        await one.ask("Hello", reasoning=wish)
    body = server.requests[0].json
    assert body["chat_template_kwargs"] == {"enable_thinking": wish}
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


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
