"""Gemini: the responses to each wire sequence, and the exact bytes of each request, stable from turn to turn."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Context, Endpoint, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.result import RunResult
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.dialects import Bubble, Case, answered, assert_decoded, called, weather
from tests.support.media_files import PNG, WAV, video
from tests.support.replies.google_generate_content import HI, call, chunk, end, reply, text, thought, wrong

KEY = "AIzaSyAVerySecretKeyOfSomebody1234567"
SPEC = load_catalog().find("google:gemini-3.8-flash")
DUMMY = base64.b64encode(b"skip_thought_signature_validator").decode()


running_server, server = dialects.running_server, dialects.server


def spec(name: str, **more: Any) -> ModelSpec:
    return replace(load_catalog().find(f"google:{name}"), **more)


EMPTY = "The model returned an empty answer."

# --- what comes out of each sequence ----------------------------------------------------------------------------------


def case(replies: Sequence[Reply], said: Sequence[Bubble], finish: str = "stop", usage: Any = (29, 10)) -> Case:
    return Case(replies, said, finish, usage=usage or ())


def calling(said: Sequence[tuple[str, Any]], *events: Any) -> Case:
    """Return a turn with calls of tools and the answer to their results."""
    return case([reply(*events), HI], [*said, ("output_text", "Hi.")], usage=(58, 20))


def broken(*events: Any, said: Sequence[tuple[str, Any]], **more: Any) -> Case:
    return case([reply(*events, **more)], said, "error", None)


def withheld(reason: str) -> tuple[str, Any]:
    category = reason.lower().replace("_", " ")
    return "error", f"The provider withheld the answer (category: {category})."


BROKEN = ("error", "The answer broke off: the model server ended it too early.")
ANY = ("error", None)

CITY_A, CITY_B = call(signed="c2ln", city="A"), call(city="B")
A_AND_B = [called("", city="A"), called("", city="B"), answered("", "A"), answered("", "B")]
A, SAID_I, AB = [("output_text", "a")], [("output_text", "I")], [("output_text", "ab")]
NOT_SAID = {"candidates": [{"finishReason": "STOP", "index": 0}], "usageMetadata": {"promptTokenCount": 29}}
BLOCKED = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 29}}
CASES = {
    "text": case([reply(chunk(text("Hel")), chunk(text("lo.")), end())], [("output_text", "Hello.")]),
    "thoughts": case(
        [reply(chunk(thought("Let ")), chunk(thought("me see.")), chunk(text("Yes.")), end(thoughtsTokenCount=202))],
        [("reasoning", "Let me see."), ("output_text", "Yes.")],
        usage=(29, 212),
    ),
    "parallel calls, the first signed, without ids": calling(A_AND_B, chunk(CITY_A, CITY_B), end()),
    "one call in each chunk": calling(A_AND_B, chunk(CITY_A), chunk(CITY_B), end()),
    "a call without arguments": calling(
        [called(""), answered("", "Nowhere")], chunk({"functionCall": {"name": "weather"}}), end()
    ),
    "text and a call": calling(
        [("output_text", "I look."), called("", city="A"), answered("", "A")],
        *(chunk(text("I look.")), chunk(call(signed="c2ln", id_="own", city="A")), end()),
    ),
    "a call with its own end": calling([called("", city="A"), answered("", "A")], end("STOP", CITY_A)),
    "no content at all": broken(NOT_SAID, said=[("error", EMPTY)]),
    "MAX_TOKENS": case([reply(chunk(text("a")), end("MAX_TOKENS"))], A, "length"),
    "SAFETY": case([reply(chunk(text("I")), end("SAFETY"))], SAID_I, "content_filter"),
    **{
        reason: case([reply(end(reason))], [withheld(reason)], "error")
        for reason in ("PROHIBITED_CONTENT", "BLOCKLIST", "SPII", "MODEL_ARMOR", "IMAGE_RECITATION")
    },
    "SAFETY with thoughts alone": case(
        [reply(chunk(thought("Hm.")), end("SAFETY"))], [("reasoning", "Hm.")], "content_filter"
    ),
    "RECITATION": case([reply(chunk(text("I")), end("RECITATION"))], SAID_I, "content_filter"),
    **{
        reason: broken(end(reason), said=[BROKEN])
        for reason in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "A_REASON_FROM_THE_FUTURE")
    },
    "OTHER": broken(chunk(text("a")), end("OTHER"), said=[*A, BROKEN]),
    "the prompt is blocked": broken(BLOCKED, said=[withheld("PROHIBITED_CONTENT")]),
    "line feeds alone": case([reply(chunk(text("a")), end(), crlf=False)], A),
    "an error in the stream": broken(chunk(text("a")), wrong(503, "UNAVAILABLE"), said=[*A, ANY]),
    "cut before the reason": broken(chunk(text("a")), said=[*A, BROKEN]),
    "cut in a call": broken(chunk(CITY_A), said=[BROKEN]),
    "reset": broken(chunk(text("a")), said=[*A, ANY], end="reset"),
    "malformed": broken(chunk(text("a")), b'data: {"candidates": [\r\n\r\n', end(), said=[*A, ANY]),
    "not an object": broken(chunk(text("a")), b"data: [1]\r\n\r\n", said=[*A, ANY]),
    "an unknown part": case(
        [reply(chunk(text("a")), chunk({"hologram": {"shape": "cube"}}), chunk(text("b")), end())], AB
    ),
    "usage in every chunk": case(
        [reply(chunk(text("a"), candidatesTokenCount=3), chunk(text("b"), candidatesTokenCount=7), end())], AB
    ),
    "an image": case(
        [reply(chunk(text("a"), {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}), end())], A
    ),
}


@pytest.mark.filterwarnings("ignore:[A-Z_]+ is not a valid FinishReason")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_stream_is_decoded(server: Playing, case: Case) -> None:
    agent = Agent(connect(SPEC, Endpoint(server.url, KEY)), tools=[weather])
    await assert_decoded(server, agent, case, reasoning=True)


@pytest.mark.parametrize(("asked", "read"), [(None, 300.0), (900, 900.0), (3, 3.0)])
async def test_failed_connection_is_given_up_soon(
    asked: float | None, read: float, server: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.play(HI)
    seen: list[Mapping[str, float]] = []
    send = httpx2.AsyncHTTPTransport.handle_async_request

    async def look(self: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        seen.append(request.extensions["timeout"])
        return await send(self, request)

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", look)
    async with Agent(connect(SPEC, Endpoint(server.url, KEY))) as agent:
        await agent.ask("Hello", timeout=asked)
    [used] = seen
    assert used == {name: min(most, read) for name, most in {"connect": 5, "write": 30, "pool": 5}.items()} | {
        "read": read
    }


# --- what is really sent ----------------------------------------------------------------------------------------------


def sent(server: Playing) -> list[Any]:
    """Return the bodies in one form: the API accepts two spellings of a name and two alphabets of Base64."""
    return [documented(request.json) for request in server.requests]


def documented(value: Any, name: str = "") -> Any:
    if name in ("args", "response"):  # these values belong to the tool
        return value
    if isinstance(value, dict):
        named = {re.sub("_([a-z])", lambda found: found[1].upper(), key): one for key, one in value.items()}
        return {key: documented(one, key) for key, one in named.items()}
    if isinstance(value, list):
        return [documented(one) for one in value]
    return value.translate({45: "+", 95: "/"}) if name in ("data", "thoughtSignature") else value


async def ask(server: Playing, prompt: Any, spec: ModelSpec = SPEC, **more: Any) -> RunResult:
    """Ask with the tool, in a run against the server's replies."""
    context = more.pop("context", None)
    async with Agent(connect(spec, Endpoint(server.url, KEY)), tools=[weather], system_message="Be brief.") as agent:
        return await agent.ask(prompt, context=context, **more)


async def test_first_request(server: Playing) -> None:
    server.play(HI)
    await ask(server, "Hello", reasoning=True, temperature=0.5)
    [request] = server.requests
    assert request.path == f"/v1beta/models/{SPEC.name}:streamGenerateContent?alt=sse"
    assert request.headers["x-goog-api-key"] == KEY
    assert documented(request.json) == {
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "systemInstruction": {"role": "user", "parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "weather",
                        "description": "The weather of a city.",
                        "parametersJsonSchema": {
                            "type": "object",
                            "properties": {"city": {"type": "string", "default": "Nowhere"}},
                            "additionalProperties": False,
                        },
                    }
                ]
            }
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
        "generationConfig": {
            "temperature": 0.5,
            "responseModalities": ["TEXT"],
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "HIGH"},
        },
    }


async def test_signatures_return_on_their_parts(server: Playing) -> None:
    first = reply(
        chunk(thought("Two cities.")),
        chunk(text("I look.", thoughtSignature="dGV4dA==")),
        chunk(call(signed="Y2FsbA+/sig=", id_="one", city="Rome"), call(id_="two", city="Oslo")),
        end(),
    )
    server.play(first, HI)
    await ask(server, "Hello", reasoning=True)
    assert sent(server)[1]["contents"] == [
        {"role": "user", "parts": [{"text": "Hello"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Two cities.", "thought": True},
                {"text": "I look.", "thoughtSignature": "dGV4dA=="},
                {
                    "functionCall": {"id": "one", "name": "weather", "args": {"city": "Rome"}},
                    "thoughtSignature": "Y2FsbA+/sig=",
                },
                {"functionCall": {"id": "two", "name": "weather", "args": {"city": "Oslo"}}},
            ],
        },
        {"role": "user", "parts": [result("one", "Sunny in Rome."), result("two", "Sunny in Oslo.")]},
    ]


def result(id_: str, content: str, key: str = "return_value") -> dict[str, Any]:
    return {"functionResponse": {"id": id_, "name": "weather", "response": {key: content}}}


async def test_signature_on_empty_part_is_kept(server: Playing) -> None:
    server.play(reply(chunk(text("Yes.")), end("STOP", text("", thoughtSignature="bGFzdA=="))), HI)
    context = (await ask(server, "Hello")).context
    await ask(server, "And?", context=Context.from_json(context.to_json()))
    parts = sent(server)[1]["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts][-1] == "bGFzdA=="


async def test_missing_ids_are_made_unique(server: Playing) -> None:
    context = Context()
    for turn in range(3):
        server.play(reply(chunk(call(signed="c2ln", city="A"), call(city="B")), end()), HI)
        context = (await ask(server, f"Turn {turn}", context=context)).context
    ids = [
        part.tool_call_id for message in context.messages for part in message.parts if isinstance(part, ToolCallPart)
    ]
    assert len(set(ids)) == len(ids) == 6
    parts = [part for one in sent(server)[-1]["contents"] for part in one["parts"]]
    assert [part["functionCall"]["id"] for part in parts if "functionCall" in part] == ids
    assert [part["functionResponse"]["id"] for part in parts if "functionResponse" in part] == ids


async def test_media_are_sent_as_base64(server: Playing) -> None:
    server.play(HI)
    png, wav = BinaryContent(PNG, media_type="image/png"), BinaryContent(WAV, media_type="audio/wav")
    clip = BinaryContent(video([(220, 20, 20)] * 2), media_type="video/webm")
    await ask(server, ["See and hear:", png, wav, clip])
    assert sent(server)[0]["contents"][0]["parts"] == [
        {"text": "See and hear:"},
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(png.data).decode()}},
        {"inlineData": {"mimeType": "audio/wav", "data": base64.b64encode(wav.data).decode()}},
        {"inlineData": {"mimeType": "video/webm", "data": base64.b64encode(clip.data).decode()}},
    ]


async def test_generated_image_is_kept_and_sent_back(server: Playing) -> None:
    server.play(reply(chunk({"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}), end()), HI)
    context = (await ask(server, "Draw.")).context
    [made] = context.messages[-1].parts
    assert isinstance(made, FilePart)
    assert (made.content.media_type, made.content.data) == ("image/png", b"\x89PNG")


FOREIGN: list[ModelMessage] = [
    ModelRequest(parts=[UserPromptPart("And this?")]),
    ModelResponse(
        parts=[
            TextPart("I look.", provider_name="openai"),
            ToolCallPart("weather", '{"city": "Rome"}', tool_call_id="call_1|fc_2"),
            ToolCallPart("weather", None, tool_call_id="call_2"),
        ],
        provider_name="openai",
        model_name="gpt-6-luna",
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("weather", "Sunny.", tool_call_id="call_1|fc_2"),
            ToolReturnPart("weather", "No.", tool_call_id="call_2", outcome="failed"),
        ]
    ),
    ModelResponse(parts=[TextPart("Sunny.")], provider_name="openai", model_name="gpt-6-luna"),
]


async def test_foreign_calls_get_dummy_signature(server: Playing) -> None:
    server.play(HI)
    await ask(server, "Hello", context=Context(messages=tuple(FOREIGN)))
    foreign = sent(server)[0]["contents"][1]["parts"][1]["functionCall"]["id"]
    assert sent(server)[0]["contents"] == [
        {"role": "user", "parts": [{"text": "And this?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "I look."},
                {
                    "functionCall": {"id": foreign, "name": "weather", "args": {"city": "Rome"}},
                    "thoughtSignature": DUMMY,
                },
                {"functionCall": {"id": "call_2", "name": "weather", "args": {}}},
            ],
        },
        {"role": "user", "parts": [result(foreign, "Sunny."), result("call_2", "No.", "error")]},
        {"role": "model", "parts": [{"text": "Sunny."}]},
        {"role": "user", "parts": [{"text": "Hello"}]},
    ]


# --- thinking ---------------------------------------------------------------------------------------------------------

SEEN = {"includeThoughts": True}
HIGH = {"includeThoughts": True, "thinkingLevel": "HIGH"}
DYNAMIC = {"includeThoughts": True, "thinkingBudget": -1}
THINKING = {
    # on, off, default
    "gemini-3.8-flash": (HIGH, {"thinkingLevel": "LOW"}, SEEN),
    "gemini-3.5-flash": (HIGH, {"thinkingLevel": "MINIMAL"}, SEEN),
    "gemini-3.1-pro-preview": (HIGH, {"thinkingLevel": "LOW"}, SEEN),
    "gemini-9-neon": (HIGH, {"thinkingLevel": "MINIMAL"}, SEEN),
    "gemini-2.5-flash": (DYNAMIC, {"thinkingBudget": 0}, SEEN),
    "gemini-2.5-pro": (DYNAMIC, {"thinkingBudget": 128}, SEEN),
    "gemini-2.0-flash": (None, None, None),
}


@pytest.mark.parametrize(("name", "expected"), THINKING.items(), ids=THINKING)
async def test_thinking_on_off_or_default(
    server: Playing, name: str, expected: Sequence[Mapping[str, Any] | None]
) -> None:
    for reasoning in (True, False, None):
        server.play(HI)
        await ask(server, "Hello", spec(name, reasoning=True, temperature=True), reasoning=reasoning)
    assert [body["generationConfig"].get("thinkingConfig") for body in sent(server)] == list(expected)


async def test_always_reasoning_model_is_not_told_to_stop(server: Playing) -> None:
    for name in ("gemini-2.5-flash", "gemini-3.8-flash"):
        server.play(HI)
        await ask(server, "Hello", spec(name, always_reasons=True), reasoning=False)
    least = [{"thinkingBudget": 128}, {"thinkingLevel": "LOW"}]
    assert [body["generationConfig"]["thinkingConfig"] for body in sent(server)] == least


async def test_environment_key_stays_from_named_server(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", KEY)
    server.play(HI)
    await Agent(connect(SPEC, Endpoint(server.url))).ask("Hello")
    assert KEY not in str(server.requests[0].headers)
