"""Claude: the responses to each wire sequence, and the exact bytes of each request, stable from turn to turn."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
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
from tests.support.media_files import PNG
from tests.support.replies.anthropic_messages import (
    CALLS,
    HI,
    PING,
    begin,
    call,
    closes,
    delta,
    ends,
    fails,
    opens,
    redacted,
    reply,
    text,
    thinking,
)

KEY = "sk-ant-a-very-secret-key"
SPEC = load_catalog().find("anthropic:claude-sonnet-5-5")
ADAPTIVE = {"type": "adaptive", "display": "summarized"}


TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "additionalProperties": False,
        "properties": {"city": {"default": "Nowhere", "type": "string"}},
        "type": "object",
    },
}


running_server, server = dialects.running_server, dialects.server


def spec(name: str, **more: Any) -> ModelSpec:
    return replace(load_catalog().find(f"anthropic:{name}"), **more)


# --- what comes out of each sequence ----------------------------------------------------------------------------------


def case(replies: Sequence[Reply], said: Sequence[Bubble], finish: str = "stop", usage: Any = (12, 9)) -> Case:
    return Case(replies, said, finish, usage=usage or ())


def whole(*blocks: Any, reason: str = "end_turn", **more: Any) -> Reply:
    """Return an answer with these blocks, which ends for this reason."""
    return reply(begin(), *blocks, ends(reason, **more))


def calling(said: Sequence[tuple[str, Any]], *blocks: Any) -> Case:
    """Return a turn with calls of tools and the answer to their results."""
    return case([reply(begin(), *blocks, CALLS), HI], [*said, ("output_text", "Hi.")], usage=(24, 39))


def broken(*events: Any, error: tuple[str, Any] | None = None) -> Case:
    """Return an answer that fails after "a"."""
    return case([reply(begin(), text(0, "a"), *events)], [("output_text", "a"), error or ANY], "error", None)


BROKEN = ("error", "The answer broke off: the model server ended it too early.")
ANY = ("error", None)

NO = {"type": "refusal", "category": "cyber", "explanation": "No."}
NO_USAGE = {"id": "m", "type": "message", "role": "assistant", "content": []}
CITY = '{"city": "Z\\u', "00", "fcrich \\ud83c", "\\udf1e", '"}'
YES, AB, A = [("output_text", "Yes.")], [("output_text", "ab")], [("output_text", "a")]
CASES = {
    "text": case([whole(text(0, "Hel", "lo."))], [("output_text", "Hello.")]),
    "no usage": case(
        [
            reply(
                {"type": "message_start", "message": NO_USAGE},
                text(0, "Hi."),
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
                {"type": "message_stop"},
            )
        ],
        [("output_text", "Hi.")],
        usage=(0, 1),
    ),
    "thinking": case(
        [whole(thinking(0, "Let ", "me see.", signature="Eq+1"), text(1, "Yes."))], [("reasoning", "Let me see."), *YES]
    ),
    "thinking that is omitted": case([whole(thinking(0, signature="Eq+1"), text(1, "Yes."))], YES),
    "redacted thinking": case([whole(redacted(0, "EmwK"), text(1, "Yes."))], YES),
    "thinking between text and a call": calling(
        [
            *(("reasoning", "First."), ("output_text", "I look."), ("reasoning", "Second.")),
            *(called("toolu_1", city="Rome"), answered("toolu_1", "Rome")),
        ],
        thinking(0, "First.", signature="a"),
        text(1, "I look."),
        thinking(2, "Second.", signature="b"),
        call(3, "toolu_1", '{"city": "Rome"}'),
    ),
    "pings and comments anywhere": case(
        [
            reply(
                *(PING, begin(), b": a comment\n\n"),
                [event for one in text(0, "a", "b") for event in (one, PING, b": still here\n\n")],
                *(PING, ends("end_turn"), PING),
            )
        ],
        AB,
    ),
    "empty deltas": calling(
        [("reasoning", "Hm."), *AB, called("toolu_1", city="Oslo"), answered("toolu_1", "Oslo")],
        thinking(0, "", "Hm.", "", signature="a"),
        text(1, "", "a", "", "b", ""),
        call(2, "toolu_1", "", '{"city":', "", '"Oslo"}', ""),
    ),
    "arguments split inside an escape": calling(
        [called("toolu_1", city="Zürich 🌞"), answered("toolu_1", "Zürich 🌞")], call(0, "toolu_1", *CITY)
    ),
    "no arguments": calling(
        [called("toolu_1"), called("toolu_2"), answered("toolu_1", "Nowhere"), answered("toolu_2", "Nowhere")],
        call(0, "toolu_1"),
        call(1, "toolu_2", ""),
    ),
    "parallel calls": calling(
        [called("toolu_1", city="A"), called("toolu_2", city="B"), answered("toolu_1", "A"), answered("toolu_2", "B")],
        call(0, "toolu_1", '{"city":"A"}'),
        call(1, "toolu_2", '{"city":"B"}'),
    ),
    "max_tokens": case([whole(text(0, "a"), reason="max_tokens")], A, "length"),
    "max_tokens in a call": case([whole(text(0, "a"), call(1, "toolu_1", '{"ci'), reason="max_tokens")], A, "length"),
    "the context is full": case([whole(text(0, "a"), reason="model_context_window_exceeded")], A, "length"),
    "refusal": case([whole(text(0, "a"), reason="refusal", details=NO)], A, "content_filter"),
    "refusal of everything": case(
        [whole(reason="refusal", details=NO)],
        [("error", 'The provider withheld the answer (category: cyber). "No".')],
        "error",
    ),
    "refusal without details": case(
        [whole(reason="refusal")], [("error", "The provider withheld the answer.")], "error"
    ),
    "pause_turn": case([whole(text(0, "a"), reason="pause_turn")], A),
    "a reason from the future": case([whole(text(0, "a"), reason="moon_phase")], A),
    "overloaded in the stream": broken(fails("overloaded_error")),
    "rate limit in the stream": broken(fails("rate_limit_error")),
    "cut before the reason": broken(error=BROKEN),
    "cut in a call": broken(call(1, "toolu_1", '{"city": "Rome"}'), error=BROKEN),
    "malformed": broken(b'event: content_block_delta\ndata: {"type": "content\n\n', ends("end_turn")),
    "no message_stop": case([reply(begin(), text(0, "a"), ends("end_turn")[0])], A),
    "an unknown event": case([whole({"type": "moon_phase", "phase": 3}, text(0, "a"))], A),
    "an unknown block": case(
        [
            whole(
                opens(0, type="hologram", shape="cube"),
                delta(0, type="hologram_delta", side=1),
                closes(0),
                text(1, "a"),
            )
        ],
        A,
    ),
    "usage is cumulative": case(
        [
            reply(
                begin(output_tokens=3),
                text(0, "a"),
                {"type": "message_delta", "delta": {"stop_reason": None}, "usage": {"output_tokens": 7}},
                ends("end_turn", 11),
            )
        ],
        A,
        usage=(12, 11),
    ),
    "usage of the cache": case(
        [reply(begin(cache_read_input_tokens=100, cache_creation_input_tokens=20), text(0, "a"), ends("end_turn"))],
        A,
        usage=(132, 9),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_stream_is_decoded(server: Playing, case: Case) -> None:
    agent = Agent(connect(SPEC, Endpoint(server.url, KEY)), tools=[weather])
    await assert_decoded(server, agent, case, reasoning=True)


# --- what is really sent ----------------------------------------------------------------------------------------------


def sent(server: Playing) -> list[Any]:
    return [request.json for request in server.requests]


async def ask(server: Playing, prompt: Any, spec: ModelSpec = SPEC, **more: Any) -> RunResult:
    """Ask with the tool, in a run against the server's replies."""
    context = more.pop("context", None)
    async with Agent(connect(spec, Endpoint(server.url, KEY)), tools=[weather], system_message="Be brief.") as agent:
        return await agent.ask(prompt, context=context, **more)


async def test_first_request(server: Playing) -> None:
    server.play(HI)
    await ask(server, "Hello", reasoning=True)
    [request] = server.requests
    assert request.path.split("?")[0] == "/v1/messages"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", request.headers["anthropic-version"])
    assert KEY not in request.path
    assert request.json == {
        "model": SPEC.name,
        "max_tokens": SPEC.usual_output_tokens,
        "stream": True,
        "system": "Be brief.",
        "cache_control": {"type": "ephemeral", "ttl": "5m"},
        "thinking": ADAPTIVE,
        "tool_choice": {"type": "auto"},
        "tools": [TOOL],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    }


async def test_thinking_and_results_return_verbatim(server: Playing) -> None:
    first = reply(
        begin(),
        thinking(0, "Two ", "cities.", signature="EqQB+/=="),
        redacted(1, "EmwKAhgB+/=="),
        text(2, "I look."),
        thinking(3, signature="Omitted=="),
        call(4, "toolu_1", '{"city": "Rome"}'),
        call(5, "toolu_2", '{"city": ', '"Oslo"}'),
        CALLS,
    )
    server.play(first, HI)
    await ask(server, "Hello", reasoning=True)
    assert sent(server)[1]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Two cities.", "signature": "EqQB+/=="},
                {"type": "redacted_thinking", "data": "EmwKAhgB+/=="},
                {"type": "text", "text": "I look."},
                {"type": "thinking", "thinking": "", "signature": "Omitted=="},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {"role": "user", "content": [result("toolu_1", "Sunny in Rome."), result("toolu_2", "Sunny in Oslo.")]},
    ]


def result(id_: str, content: str, *, is_error: bool = False) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": [{"type": "text", "text": content}],
        "is_error": is_error,
    }


async def test_image_is_sent_as_base64(server: Playing) -> None:
    server.play(HI)
    await ask(server, ["See:", BinaryContent(PNG, media_type="image/png")])
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    assert sent(server)[0]["messages"][0]["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image", "source": source},
    ]


def foreign(by: str | None) -> list[ModelMessage]:
    """Return a turn that another vendor wrote, or that the caller supplied."""
    theirs = [ThinkingPart("Theirs.", id="rs_1", signature="gAAA", provider_name=by)] if by else []
    return [
        ModelRequest(parts=[UserPromptPart(["And ", "\n", "this?"])]),
        ModelResponse(
            parts=[
                *theirs,
                TextPart("\n\n"),
                ToolCallPart("weather", '{"city": "Rome"}', tool_call_id="call_1|fc_2"),
                ToolCallPart("weather", None, tool_call_id="c" * 65),
            ],
            provider_name=by,
            model_name="gpt-6-luna",
        ),
        ModelRequest(
            parts=[
                ToolReturnPart("weather", "Sunny.", tool_call_id="call_1|fc_2"),
                ToolReturnPart("weather", "No.", tool_call_id="c" * 65, outcome="failed"),
            ]
        ),
        ModelResponse(parts=[TextPart("Sunny.")], provider_name=by, model_name="gpt-6-luna"),
    ]


@pytest.mark.parametrize("by", ["openai", None])
async def test_foreign_history_is_accepted(server: Playing, by: str | None) -> None:
    server.play(HI, HI)
    for prompt in ("Hello", "Hello again"):
        await ask(server, prompt, context=Context(messages=tuple(foreign(by))))
    first, second = sent(server)
    assert first["messages"][:-1] == second["messages"][:-1]
    messages = first["messages"]
    ids = [block["id"] for block in messages[1]["content"]]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    assert len(set(ids)) == 2
    assert messages == [
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "this?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": ids[0], "name": "weather", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": ids[1], "name": "weather", "input": {}},
            ],
        },
        {"role": "user", "content": [result(ids[0], "Sunny."), result(ids[1], "No.", is_error=True)]},
        {"role": "assistant", "content": [{"type": "text", "text": "Sunny."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
    ]


# --- thinking, and what goes with it ----------------------------------------------------------------------------------

BUDGET = {"type": "enabled", "budget_tokens": 8192}
THINKING = {
    # on, off, default
    "claude-sonnet-5-5": (ADAPTIVE, {"type": "between_tools"}, ADAPTIVE),
    "claude-sonnet-5": (ADAPTIVE, {"type": "disabled"}, ADAPTIVE),
    "claude-opus-4-8": (ADAPTIVE, None, None),
    "claude-opus-5-5": (ADAPTIVE, {"type": "adaptive"}, ADAPTIVE),
    "claude-haiku-4-5": (BUDGET, None, None),
    "claude-sonnet-4-5-20250929": (BUDGET, None, None),
    "claude-3-7-sonnet-20250219": (BUDGET, None, None),
    "claude-opus-4-20250514": (BUDGET, None, None),
    "claude-opus-7": (ADAPTIVE, None, None),
}


@pytest.mark.filterwarnings("ignore:The model '.*' is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("name", "expected"), THINKING.items(), ids=THINKING)
async def test_thinking_on_off_or_default(
    server: Playing, name: str, expected: Sequence[Mapping[str, Any] | None]
) -> None:
    one = spec(name, reasoning=True, usual_output_tokens=16_384, max_output_tokens=64_000)
    for reasoning in (True, False, None):
        server.play(HI)
        await ask(server, "Hello", one, reasoning=reasoning)
    assert [body.get("thinking") for body in sent(server)] == list(expected)
    assert {body["max_tokens"] for body in sent(server)} == {16_384}


async def test_always_reasoning_model_is_not_told_to_stop(server: Playing) -> None:
    for name in ("claude-opus-5-5", "claude-sonnet-5", "claude-opus-7"):
        server.play(HI)
        await ask(server, "Hello", spec(name, always_reasons=True), reasoning=False)
    assert [body.get("thinking", {}).get("type") for body in sent(server)] == ["adaptive", "adaptive", None]
    assert [body.get("output_config") for body in sent(server)] == [{"effort": "low"}, {"effort": "low"}, None]


@pytest.mark.parametrize(("most", "budget"), [(64_000, 8192), (10_000, 5000), (2048, 1024), (2047, None), (16, None)])
async def test_budget_leaves_room_for_answer(server: Playing, most: int, budget: int | None) -> None:
    server.play(HI)
    one = spec("claude-haiku-4-5", usual_output_tokens=16_384, max_output_tokens=64_000)
    await ask(server, "Hello", one, reasoning=True, max_tokens=most)
    [body] = sent(server)
    assert body["max_tokens"] == most
    assert body.get("thinking") == ({"type": "enabled", "budget_tokens": budget} if budget else None)


async def test_temperature_is_dropped_while_thinking(server: Playing) -> None:
    one = spec("claude-haiku-4-5", temperature=True, usual_output_tokens=16_384, max_output_tokens=64_000)
    for reasoning, most in ((True, None), (False, None), (None, None), (True, 1000)):
        server.play(HI)
        await ask(server, "Hello", one, reasoning=reasoning, temperature=0.3, max_tokens=most)
    assert [body.get("temperature") for body in sent(server)] == [None, 0.3, 0.3, 0.3]
