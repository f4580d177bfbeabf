"""OpenAI and xAI through Responses: the responses to each wire sequence, and the exact requests, turn after turn."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from openai._utils import _transform as transform
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UserPromptPart,
)

from agent import Agent, Context, Endpoint, Limits, ModelSpec, connect
from agent.models.catalog import load_catalog
from agent.providers.http import TIMEOUT, ClientConnection
from agent.result import RunResult
from tests.support import dialects
from tests.support.dialect_server import Playing, Reply
from tests.support.dialects import Bubble, Case, answered, assert_decoded, called
from tests.support.media_files import PNG, WAV
from tests.support.replies.openai_responses import (
    ANSWER,
    call,
    completed,
    created,
    event,
    incomplete,
    reasoning,
    refusal,
    reply,
    text,
    whole,
)

OPENAI = load_catalog().find("openai:gpt-6-luna")
XAI = load_catalog().find("xai:grok-4.6")
PNG_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
KEY = "sk-proj-a-very-secret-key-1234"
NO_RETRIES = Limits(retries=0)


def weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


# --- responses --------------------------------------------------------------------------------------------------------


def case(
    replies: Sequence[Reply], said: Sequence[Bubble], finish: str = "stop", detail: str = "", usage: Any = ()
) -> Case:
    return Case(replies, said, finish, detail, usage)


def said(*items: Any) -> Reply:
    """Return an answer with these items, which is whole."""
    return reply(created(), *items, completed())


ONCE, TWICE = (5, 7, 2), (10, 14, 4)


def failing(detail: str, sent: Reply, *before: Bubble) -> Case:
    return case([sent], [*before, ("error", detail)], "error", detail)


def broken(code: str, message: str) -> Reply:
    """Return an answer that fails with this error."""
    error = {"code": code, "message": message}
    return reply(created(), [event("response.failed", response=whole("failed", error=error))])


BROKE = "The answer broke off: the model server ended it too early."
LIMIT = "Your input exceeds the context window of this model. Please adjust your input and try again."

QUOTA = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "Pay."}
ROM, HM, CALLED_ROM = (
    call('{"city": "Rom"}'),
    ("output_text", "Hm"),
    [called("call_1", city="Rom"), answered("call_1", "Rom")],
)
OSLO = call('{"city"', ': "Oslo"}', id_="fc_2", call_id="call_2", index=2)
MIXED = ((one := call('{"city": ', '"Rom"}'))[:2], OSLO[:2], one[2:], OSLO[2:])
DONE = ("output_text", "Done.")
CASES = {
    "text": case([said(text("He", "llo", " 👋"))], [("output_text", "Hello 👋")], usage=ONCE),
    "reasoning in two summaries": case(
        [said(reasoning("First, look.", "Then say."), text("So."))],
        [("reasoning", "First, look.\n\nThen say."), ("output_text", "So.")],
    ),
    "reasoning that is sealed and says nothing": case([said(reasoning(), text("So."))], [("output_text", "So.")]),
    "arguments split inside an escape": case(
        [said(call('{"city": "K\\u00', 'f6ln"}')), ANSWER],
        [called("call_1", city="Köln"), answered("call_1", "Köln"), DONE],
        usage=TWICE,
    ),
    "arguments only when they are whole": case([said(ROM[::3]), ANSWER], [*CALLED_ROM, DONE]),
    "parallel calls, their pieces mixed": case(
        [said(*MIXED), ANSWER],
        [
            called("call_1", city="Rom"),
            called("call_2", city="Oslo"),
            answered("call_1", "Rom"),
            answered("call_2", "Oslo"),
            DONE,
        ],
    ),
    "text before a call": case(
        [said(text("I look.", phase="commentary", index=0), ROM), ANSWER],
        [("output_text", "I look."), *CALLED_ROM, DONE],
    ),
    "empty deltas": case([said(text("", "a", "", "b", ""))], [("output_text", "ab")]),
    "comments, a keepalive, events nobody knows": case(
        [
            reply(
                [b": keep-alive\n\n"],
                created(),
                [event("keepalive"), event("response.telepathy.delta", delta="?", item_id="x"), b":\n\n"],
                text("Still"),
                completed(),
            )
        ],
        [("output_text", "Still")],
    ),
    "a keepalive first": case(
        [reply([event("keepalive")], created(), text("Late"), completed())], [("output_text", "Late")]
    ),
    "refusal": failing(
        'The provider withheld the answer. "I can\'t help with that".', said(refusal("I can't help with that."))
    ),
    "refusal after text": case(
        [said(text("Well"), refusal("No, I can't."))],
        [("output_text", "Well")],
        "content_filter",
        'The provider withheld the answer. "No, I can\'t".',
    ),
    "filtered from the beginning": failing(
        "The provider withheld the answer.", reply(created(), incomplete("content_filter"))
    ),
    "withheld for a reason of its own": failing(
        "The provider withheld the answer (category: safety).", reply(created(), incomplete("safety"))
    ),
    "cut at the longest answer": case(
        [reply(created(), text("On and"), incomplete("max_output_tokens"))],
        [("output_text", "On and")],
        *("length", "The answer was cut off at its maximum length.", ONCE),
    ),
    "failed": failing('OpenAI failed (HTTP 500). "Sorry".', broken("server_error", "Sorry.")),
    "failed without a word": failing(
        BROKE, reply(created(), text("Hm"), [event("response.failed", response=whole("failed"))]), HM
    ),
    "failed: too many requests": failing(
        "OpenAI is getting too many requests.", broken("rate_limit_exceeded", "Slow.")
    ),
    "failed: a picture": failing('OpenAI refused the picture. "Too large".', broken("image_too_large", "Too large.")),
    "an error at the start": failing(
        "The conversation is longer than GPT-6 Luna can read. Start a new chat or shorten the message.",
        reply([event("error", code="context_length_exceeded", message=LIMIT, param="input")]),
    ),
    "an error in the middle, in an envelope": failing(
        "The account's quota for 'gpt-6-luna' is used up.",
        reply(created(), text("Hm")[:3], [event("error", error=QUOTA)]),
        HM,
    ),
    "an error under no known code": failing(
        'OpenAI failed in the middle of the answer. "Odd".',
        reply(created(), [event("error", code=None, message="Odd.", param=None)]),
    ),
    "no end": failing(BROKE, reply(created(), text("Hm")), HM),
    "cut": failing("The connection to {url} broke.", reply(created(), text("Hm"), end="cut"), HM),
    "nothing": failing("The answer broke off: OpenAI ended it too early.", Reply()),
    "malformed": failing(
        "OpenAI sent an answer that can't be read.",
        reply(created(), [b"event: response.output_text.delta\ndata: {nope\n\n"]),
    ),
}


running_server, server = dialects.running_server, dialects.server


def agent(server: Playing, spec: ModelSpec = OPENAI, **more: Any) -> Agent:
    return Agent(connect(spec, Endpoint(server.url + "/v1", KEY)), limits=NO_RETRIES, **more)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_stream_is_decoded(server: Playing, case: Case) -> None:
    await assert_decoded(server, agent(server, tools=[weather]), case)


# --- requests ---------------------------------------------------------------------------------------------------------

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
FIRST = {
    "model": "gpt-6-luna",
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto", "context": "all_turns"},
    "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome and Oslo?"}],
}


async def test_first_request(server: Playing) -> None:
    server.play(ANSWER)
    async with agent(server, system_message="Be brief.") as one:
        await one.ask("Rome and Oslo?")
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json == FIRST


async def test_sealed_items_return_after_two_calls(server: Playing) -> None:
    rome = call('{"city":"Rome"}')
    oslo = call('{"city":"Oslo"}', id_="fc_2", call_id="call_2", index=2)
    server.play(reply(created(), reasoning("Two cities.", "Ask twice."), rome, oslo, completed()))
    server.play(reply(created(), reasoning(id_="rs_2", seal="gBBB"), text("Sunny.", id_="msg_2"), completed()), ANSWER)
    async with agent(server, system_message="Be brief.", tools=[weather]) as one:
        first = await one.ask("Rome and Oslo?")
        await one.ask("Thanks.", context=first.context)
    made = [{**FIRST, "tools": [TOOL], "tool_choice": "auto"}]
    made[0]["input"] = list(FIRST["input"])
    assert server.requests[0].json == made[0]
    echoed = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [
                {"type": "summary_text", "text": "Two cities."},
                {"type": "summary_text", "text": "Ask twice."},
            ],
            "encrypted_content": "gAAA",
        },
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "weather", "arguments": '{"city":"Oslo"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny in Rome."},
        {"type": "function_call_output", "call_id": "call_2", "output": "Sunny in Oslo."},
    ]
    assert server.requests[1].json == {**made[0], "input": [*FIRST["input"], *echoed]}
    after = [
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gBBB"},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_2",
            "status": "completed",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
        },
        {"role": "user", "content": "Thanks."},
    ]
    assert server.requests[2].json["input"] == [*FIRST["input"], *echoed, *after]


async def test_picture_is_sent_as_data_url_but_no_sound(server: Playing) -> None:
    server.play(ANSWER, ANSWER)
    async with agent(server) as one:
        await one.ask(["What is it?", BinaryContent(PNG, media_type="image/png")])
        heard = ModelRequest(parts=[UserPromptPart(["Listen.", BinaryContent(WAV, media_type="audio/wav")])])
        answer = ModelResponse(parts=[TextPart("Bells.")])
        await one.ask("Again?", context=Context(messages=(heard, answer)))
    assert server.requests[0].json["input"] == [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is it?"},
                {"type": "input_image", "image_url": PNG_URL, "detail": "auto"},
            ],
        }
    ]
    assert server.requests[1].json["input"][0]["content"] == [
        {"type": "input_text", "text": "Listen."},
        {"type": "input_text", "text": "[A sound was here, which this model cannot hear.]"},
    ]


async def test_sound_is_not_sent_to_responses_api(server: Playing) -> None:
    async with agent(server, replace(OPENAI, audio=True)) as one:
        result = await one.ask(["Listen.", BinaryContent(WAV, media_type="audio/wav")])
    assert result.note.detail == "'gpt-6-luna' can't read this attachment."
    assert server.requests == []


OFF = replace(OPENAI, always_reasons=False)
ALWAYS = replace(OPENAI, name="gpt-6-astra", always_reasons=True)
PLAIN = replace(OPENAI, name="gpt-4o", reasoning=False, temperature=True)
NEWER = replace(OPENAI, name="gpt-9", temperature=True)
GROK = replace(XAI, always_reasons=True)
GROK_43 = replace(XAI, name="grok-4.3", always_reasons=False)
GROK_4 = replace(XAI, name="grok-4-fast-reasoning-9", always_reasons=False)
SUMMARY = {"summary": "auto"}
ALL = {"context": "all_turns"}


@pytest.mark.parametrize(
    ("spec", "wish", "sent"),
    [
        (OFF, True, {**SUMMARY, **ALL, "effort": "medium"}),
        (OFF, False, {**ALL, "effort": "none"}),
        (OFF, None, {**SUMMARY, **ALL}),
        (ALWAYS, True, {**SUMMARY, **ALL, "effort": "medium"}),
        (ALWAYS, False, {**SUMMARY, **ALL}),
        (PLAIN, True, None),
        (PLAIN, False, None),
        (NEWER, True, {**SUMMARY, "effort": "medium"}),
        (NEWER, False, {"effort": "none"}),
        (GROK, True, {**SUMMARY, "effort": "medium"}),
        (GROK, False, SUMMARY),
        (GROK_43, False, {"effort": "none"}),
        (GROK_4, True, SUMMARY),
        (GROK_4, False, SUMMARY),  # it has no efforts, so reasoning cannot be turned off
    ],
)
async def test_reasoning_is_requested_per_model(server: Playing, spec: ModelSpec, wish: bool | None, sent: Any) -> None:
    server.play(ANSWER)
    async with agent(server, spec) as one:
        await one.ask("Hello", reasoning=wish, max_tokens=77)
    body = server.requests[0].json
    assert body.get("reasoning") == sent
    assert body["store"] is False
    assert body["max_output_tokens"] == 77
    assert body.get("include") == (["reasoning.encrypted_content"] if spec.reasoning else None)


@pytest.mark.parametrize("spec", [NEWER, GROK_43, PLAIN], ids=lambda spec: spec.name)
async def test_allowed_temperature_is_sent(server: Playing, spec: ModelSpec) -> None:
    server.play(ANSWER)
    async with agent(server, replace(spec, temperature=True)) as one:
        await one.ask("Hello", temperature=0.3, reasoning=True)
    assert server.requests[0].json["temperature"] == 0.3


def test_xai_gets_long_timeout() -> None:
    def patience(spec: ModelSpec) -> Any:
        connection = connect(spec, Endpoint("http://127.0.0.1:1/v1", KEY))
        assert isinstance(connection, ClientConnection)
        return connection.timeout

    assert patience(XAI).read >= 900
    assert patience(XAI).connect == TIMEOUT.connect
    assert patience(OPENAI) == TIMEOUT


async def asked(server: Playing, spec: ModelSpec, prompt: str, context: Context | None = None) -> RunResult:
    async with agent(server, spec, tools=[weather]) as one:
        return await one.ask(prompt, context=context)


async def test_vendors_never_get_foreign_seals(server: Playing) -> None:
    thought = reply(created(), reasoning("Hm."), call('{"city":"Rome"}'), completed())
    server.play(thought, ANSWER, ANSWER, ANSWER)
    first = await asked(server, XAI, "Rome?")
    written = [one for one in first.context.messages if isinstance(one, ModelResponse)]
    assert {one.provider_name for one in written} == {"xai"}
    assert {part.provider_name for one in written for part in one.parts if isinstance(part, ThinkingPart)} == {"xai"}
    assert "gAAA" in server.requests[1].raw.decode()
    second = await asked(server, OPENAI, "And now?", first.context)
    sent = server.requests[2].raw.decode()
    for bound in ("gAAA", "rs_1", "fc_1", "msg_1", "Hm."):
        assert bound not in sent
    assert '"call_1"' in sent, "calls and results were dropped"
    await asked(server, XAI, "Again?", second.context)
    assert "gAAA" in server.requests[3].raw.decode(), "switching back does not restore it"


async def test_unsealed_reasoning_is_not_sent(server: Playing) -> None:
    server.play(reply(created(), reasoning("I wonder", seal=None), text("So")[:3], end="stall"), ANSWER)
    async with agent(server) as one:
        run = one.run("Hello").start()
        while ("output_text", "So") not in dialects.bubbles(run.responses):
            await run.wait_for_update(len(run.responses), timeout=5)
        run.cancel()
        stopped = await run
        assert any(isinstance(part, ThinkingPart) for part in stopped.context.messages[-1].parts), "it is not stored"
        await one.ask("Go on.", context=stopped.context)
    assert server.requests[1].json["input"] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "So", "phase": "final_answer"},
        {"role": "user", "content": "Go on."},
    ]


async def test_items_after_unsealed_reasoning_have_no_id(server: Playing) -> None:
    half = ModelResponse(
        parts=[
            ThinkingPart("Hm.", id="rs_1", provider_name="openai"),
            TextPart("I look.", id="msg_1", provider_name="openai"),
            ToolCallPart("weather", {"city": "Rome"}, tool_call_id="call_1", id="fc_1", provider_name="openai"),
        ],
        provider_name="openai",
    )
    server.play(ANSWER)
    context = Context(messages=(ModelRequest.user_text_prompt("Rome?"), half))
    await asked(server, OPENAI, "And?", context)
    assert server.requests[0].json["input"][1:4] == [
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "The call was interrupted and has no result."},
    ]


async def test_sdk_does_not_walk_long_history(server: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk over 400 turns would block the event loop for seconds."""
    walk, steps = transform._async_transform_recursive, 0

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        return await walk(*args, **kwargs)

    monkeypatch.setattr(transform, "_async_transform_recursive", counted)
    taken: list[int] = []
    for turns in (1, 400):
        messages: list[Any] = []
        for turn in range(turns):
            messages.append(ModelRequest.user_text_prompt(f"Question {turn}"))
            thought = ThinkingPart("Hm.", id=f"rs_{turn}", signature="gAAA", provider_name="openai")
            text = TextPart("Answer", id=f"msg_{turn}", provider_name="openai")
            messages.append(ModelResponse(parts=[thought, text], provider_name="openai"))
        server.play(ANSWER)
        steps = 0
        assert (await asked(server, OPENAI, "Now?", Context(messages=tuple(messages)))).text == "Done."
        assert len(server.requests[-1].json["input"]) == 3 * turns + 1
        taken.append(steps)
    assert 0 < taken[1] == taken[0]
