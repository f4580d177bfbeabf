"""Sending a history that other models wrote: only parts that the model supports, the same bytes on each turn."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Agent, Context, Endpoint, Limits, ModelSpec, connect
from agent.messages.adapt import NO_PICTURE, NO_SOUND, adapt, adapt_and_prepare
from agent.messages.openai import to_openai
from agent.messages.repair import repair
from tests.support import dialects
from tests.support.dialect_server import Playing
from tests.support.fakes import FakeConnection, Step, Words
from tests.support.media_files import picture, ready, tone
from tests.support.message_rules import assert_accepted, one_prompt_each
from tests.support.scripted_server import Config, Running
from tests.support.strategies import conversations
from tests.tiers import examples

QUICK = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


def spec(provider: str, **more: Any) -> ModelSpec:
    return ModelSpec(id=f"{provider}:m", name="m", label="Model M", provider=provider, **more)


OPENAI = spec("openai", dialect="responses", image=True, reasoning=True)
OPENAI_BLIND = spec("openai", dialect="responses")
OPENAI_AUDIO = spec("openai", dialect="chat", audio=True)
CLAUDE = spec("anthropic", dialect="messages", image=True, reasoning=True)
GEMINI = spec("google", dialect="generate", image=True, audio=True, reasoning=True)
QWEN = spec("vllm", reasoning=True)
SPECS = st.sampled_from([OPENAI, OPENAI_BLIND, OPENAI_AUDIO, CLAUDE, GEMINI, QWEN])
PROVIDERS = st.sampled_from([None, "openai", "anthropic", "google", "vllm"])
IDS = st.sampled_from(["a", "toolu_1", "functions.f:0", "x" * 70, "\u00e9", ""])


@st.composite
def histories(draw: st.DrawFn) -> list[ModelMessage]:
    """Draw messages. Each one, and each of its parts, comes from one of the vendors or has no provider name."""

    def by(part: Any) -> Any:
        if isinstance(part, TextPart | ThinkingPart | ToolCallPart):
            part = replace(part, provider_name=draw(PROVIDERS))
        return replace(part, tool_call_id=draw(IDS)) if isinstance(part, ToolCallPart | ToolReturnPart) else part

    return [
        replace(message, parts=[by(part) for part in message.parts], provider_name=draw(PROVIDERS))
        if isinstance(message, ModelResponse)
        else replace(message, parts=[by(part) for part in message.parts])
        for message in one_prompt_each(draw(conversations(6)))
    ]


def same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def writer(part: Any, message: ModelResponse) -> str | None:
    return part.provider_name or message.provider_name


def hello(text: str = "And now?") -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def sent(messages: Sequence[ModelMessage], model: ModelSpec) -> list[str]:
    """Return what is sent, one JSON text for each message."""
    return [json.dumps(one) for one in to_openai(adapt_and_prepare(messages, model, "Be brief."))]


# --- laws -------------------------------------------------------------------------------------------------------------


@QUICK
@given(histories(), SPECS)
def test_adaptation_is_idempotent_and_pure(messages: list[ModelMessage], model: ModelSpec) -> None:
    before = deepcopy(messages)
    first = adapt(messages, model)
    assert messages == before
    again = adapt(first.messages, model)
    assert same(again.messages, first.messages)
    assert again.sentence(model) == ""


@QUICK
@given(histories(), histories(), SPECS)
def test_later_messages_change_no_earlier_ones(
    messages: list[ModelMessage], more: list[ModelMessage], model: ModelSpec
) -> None:
    assert adapt([*messages, *more], model).messages[: len(messages)] == adapt(messages, model).messages


@QUICK
@given(histories(), SPECS, SPECS)
def test_next_request_extends_the_previous(messages: list[ModelMessage], model: ModelSpec, other: ModelSpec) -> None:
    before = sent(messages, model)
    answer = ModelResponse([ThinkingPart("Hm", signature="s"), TextPart("Yes.")], provider_name=other.provider)
    after = sent([*messages, hello(), answer, hello()], model)
    assert after[: len(before)] == before


def _taken_for_own(new: object, old: ThinkingPart, model: ModelSpec) -> bool:
    """Return True if unsigned reasoning is sent in the field of the server's own reasoning."""
    return isinstance(new, ThinkingPart) and (new.content, new.provider_name) == (old.content, model.provider)


@QUICK
@given(histories(), SPECS)
@example([ModelResponse([ThinkingPart("Hm"), TextPart("Yes")], provider_name="anthropic")], CLAUDE)
def test_only_unsupported_parts_are_removed(messages: list[ModelMessage], model: ModelSpec) -> None:
    """Check every part against rules written independently of the code."""
    fit = adapt(messages, model)
    reasoning = pictures = sounds = 0
    assert len(fit.messages) == len(messages)
    for old, new in zip(messages, fit.messages, strict=True):
        assert replace(new, parts=[]) == replace(old, parts=[])  # type: ignore[arg-type]
        left = list(new.parts)
        for part in old.parts:
            foreign = isinstance(old, ModelResponse) and writer(part, old) not in (None, model.provider)
            if isinstance(part, ThinkingPart):
                assert isinstance(old, ModelResponse)
                nobodys = writer(part, old) is None and model.dialect == "chat"
                if left and (left[0] is part or (nobodys and _taken_for_own(left[0], part, model))):
                    assert not foreign
                    left.pop(0)
                else:
                    nobodys_elsewhere = writer(part, old) is None and model.dialect != "chat"
                    unsigned = model.dialect == "messages" and not part.signature
                    # The model's own reasoning is not "the reasoning of other models".
                    reasoning += not (unsigned and writer(part, old) == model.provider)
                    assert foreign or nobodys_elsewhere or unsigned or not model.reasoning or model.dialect == "chat"
                continue
            kept: Any = left.pop(0)
            if isinstance(part, UserPromptPart | ToolReturnPart):
                was: list[Any] = part.content if isinstance(part.content, list) else [part.content]
                now: list[Any] = kept.content if isinstance(part.content, list) else [kept.content]
                for a, b in zip(was, now, strict=True):
                    picture = isinstance(a, ImageUrl) or (isinstance(a, BinaryContent) and a.is_image)
                    sound = isinstance(a, AudioUrl) or (isinstance(a, BinaryContent) and a.is_audio)
                    if picture and not model.image:
                        assert b == NO_PICTURE
                        pictures += 1
                    elif sound and not model.audio:
                        assert b == NO_SOUND
                        sounds += 1
                    else:
                        assert b is a
                if isinstance(part, ToolReturnPart):
                    assert (kept.tool_name, kept.outcome) == (part.tool_name, part.outcome)
            elif not foreign:
                assert kept is part
            elif isinstance(part, TextPart):
                assert kept.content == part.content
                assert not kept.id
                assert not kept.provider_details
            else:
                assert isinstance(part, ToolCallPart)
                assert (kept.tool_name, kept.args) == (part.tool_name, part.args)
                assert not kept.id
                assert not kept.provider_details
        assert left == []
    assert (fit.reasoning, fit.pictures, fit.sounds) == (reasoning, pictures, sounds)
    assert (fit.sentence(model) == "") is (reasoning + pictures + sounds == 0)


@QUICK
@given(histories(), SPECS)
def test_every_call_keeps_its_result(messages: list[ModelMessage], model: ModelSpec) -> None:
    fit = adapt(repair(messages), model).messages
    assert same(repair(fit), fit)
    for message in fit:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and isinstance(message, ModelResponse):
                foreign = writer(part, message) not in (None, model.provider)
                assert not foreign or (part.tool_call_id.replace("_", "").replace("-", "").isalnum())


# --- examples ---------------------------------------------------------------------------------------------------------

PICTURE = BinaryContent(picture("PNG", (4, 4)), media_type="image/png")
SOUND = BinaryContent(ready(tone(0.05)), media_type="audio/wav")


def test_note_counts_removed_parts() -> None:
    messages: list[ModelMessage] = [
        ModelRequest([UserPromptPart(["Look", PICTURE, SOUND, AudioUrl("/media/a.wav", media_type="audio/wav")])]),
        ModelResponse([ThinkingPart("Hm"), TextPart("Yes.")], provider_name="google"),
    ]
    assert (
        adapt(messages, spec("anthropic", dialect="messages", reasoning=True)).sentence(CLAUDE)
        == "Not sent to Model M, which cannot use it: the reasoning of other models, 1 picture, 2 sounds."
    )
    assert adapt(messages, GEMINI).sentence(GEMINI) == ""
    only_pictures = adapt([ModelRequest([UserPromptPart([PICTURE, ImageUrl("/media/b.png")])])], QWEN)
    assert only_pictures.sentence(QWEN) == "Not sent to Model M, which cannot use it: 2 pictures."


@pytest.mark.parametrize(
    ("part", "by", "model", "kept"),
    [
        (ThinkingPart("a", signature="s", provider_name="anthropic"), "anthropic", CLAUDE, True),
        (ThinkingPart("", signature="s", id="redacted_thinking", provider_name="anthropic"), "anthropic", CLAUDE, True),
        (ThinkingPart("a", signature="s", provider_name="anthropic"), "anthropic", OPENAI, False),
        (ThinkingPart("a", id="rs_1", signature="s", provider_name="openai"), "openai", OPENAI, True),
        (ThinkingPart("a", id="rs_1", signature="s", provider_name="openai"), "openai", OPENAI_BLIND, False),
        (ThinkingPart("a", id="rs_1", signature="s", provider_name="openai"), "openai", OPENAI_AUDIO, False),
        (ThinkingPart("a", id="rs_1", provider_name="openai"), "openai", OPENAI_AUDIO, False),
        (ThinkingPart("a", id="rs_1", signature="s", provider_name="xai"), "xai", OPENAI, False),
        (ThinkingPart("a", id="reasoning", provider_name="vllm"), "vllm", QWEN, True),
        (ThinkingPart("a", id="reasoning", provider_name="vllm"), "vllm", replace(QWEN, reasoning=False), True),
        (ThinkingPart("a", id="reasoning", provider_name="huggingface"), "huggingface", QWEN, False),
        (ThinkingPart("a", provider_name="anthropic"), "anthropic", CLAUDE, False),
        (ThinkingPart("a"), None, QWEN, True),
        (ThinkingPart("a"), None, CLAUDE, False),
        (ThinkingPart("a"), None, OPENAI, False),
        (ThinkingPart("a"), None, GEMINI, False),
        (ThinkingPart("a"), "google", QWEN, False),
    ],
)
def test_reasoning_goes_to_its_own_vendor(part: ThinkingPart, by: str | None, model: ModelSpec, kept: bool) -> None:
    message = ModelResponse([part, TextPart("Yes.")], provider_name=by)
    sent = adapt([message], model).messages[0].parts
    assert any(isinstance(one, ThinkingPart) and one.content == part.content for one in sent) is kept


def test_vendor_data_stays_and_ids_become_portable() -> None:
    signed = {"thought_signature": "c2ln"}
    call = ToolCallPart("f", "{}", tool_call_id="functions.f:0", provider_name="google", provider_details=signed)
    messages: list[ModelMessage] = [
        hello(),
        ModelResponse([call], provider_name="google"),
        ModelRequest([ToolReturnPart("f", "1", tool_call_id="functions.f:0")]),
    ]
    assert same(adapt(messages, GEMINI).messages, messages)
    _, asked, answered = adapt(messages, CLAUDE).messages
    [other], [result] = asked.parts, answered.parts
    assert isinstance(other, ToolCallPart)
    assert isinstance(result, ToolReturnPart)
    assert (other.provider_details, other.provider_name) == (None, None)
    assert other.tool_call_id == result.tool_call_id
    assert other.tool_call_id.startswith("call_")


@pytest.mark.parametrize("by", ["message", "part"])
def test_text_of_another_vendor_loses_its_data(by: str) -> None:
    name = {"provider_name": "google"}
    text = TextPart("Yes.", id="m1", provider_details={"a": 1}, **(name if by == "part" else {}))
    [kept] = adapt([ModelResponse([text], **(name if by == "message" else {}))], QWEN).messages
    assert kept.parts == [TextPart("Yes.")]


def test_model_keeps_its_own_ids() -> None:
    """This also holds if another model used the same id before."""
    turns: list[ModelMessage] = []
    for provider in ("google", "vllm"):
        turns += [
            hello(),
            ModelResponse([ToolCallPart("f", "{}", tool_call_id="functions.f:0")], provider_name=provider),
            ModelRequest([ToolReturnPart("f", "1", tool_call_id="functions.f:0")]),
        ]
    fit = adapt(turns, QWEN).messages
    assert same(fit[3:], turns[3:])
    assert same(repair(fit), fit)


def test_media_in_results_become_text() -> None:
    single = ToolReturnPart("draw", PICTURE, tool_call_id="a")
    several = ToolReturnPart("draw", ["Here:", PICTURE], tool_call_id="b")
    fit = adapt([ModelRequest([single, several])], QWEN)
    assert [part.content for part in fit.messages[0].parts] == [NO_PICTURE, ["Here:", NO_PICTURE]]  # type: ignore[union-attr]
    assert fit.pictures == 2


# --- in a run ---------------------------------------------------------------------------------------------------------


SERVER = Config(models=("m",), rate=0)


@pytest.fixture
async def agent(server: Running) -> AsyncIterator[Agent]:
    async with Agent(connect(QWEN, Endpoint(server.base_url)), system_message="Be brief.") as agent:
        yield agent


running_server, vendor = dialects.running_server, dialects.server


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("by", ["vllm", "huggingface", "google", "anthropic", "openai", "xai", None])
@pytest.mark.parametrize("model", [OPENAI, OPENAI_AUDIO, CLAUDE, GEMINI, QWEN], ids=lambda one: one.id + one.dialect)
async def test_list_is_sent_as_its_context(vendor: Playing, model: ModelSpec, by: str | None, field: str) -> None:
    """With the same notes. No reasoning becomes a message of the user."""
    thought = ThinkingPart("Secret thoughts", id=field, provider_name=by)
    messages = (hello("What is 2+2?"), ModelResponse([thought, TextPart("4.")], provider_name=by))
    path = "" if model.dialect in ("messages", "generate") else "/v1"
    async with Agent(connect(model, Endpoint(vendor.url + path, "key")), limits=Limits(retries=0)) as agent:
        by_context = await agent.ask("And 3+3?", context=Context(messages=messages))
        listed = [*to_openai(messages), "And 3+3?"]
        by_list = await agent.ask(listed)
        again = await agent.ask([*by_list.to_input_list()[:-2], "And 3+3?"])
    one, *others = [request.json for request in vendor.requests]
    assert [one, one] == others
    assert by_context.notes == by_list.notes == again.notes
    messages_sent = one.get("messages") or one.get("input") or one["contents"]
    assert [turn["role"] for turn in messages_sent if turn.get("role") in ("user", "system")] == ["user", "user"]
    assert any("reasoning" in note for note in by_list.notes) is ("Secret" not in str(one) and by != model.provider)


@pytest.mark.parametrize("model", [OPENAI, CLAUDE, GEMINI], ids=lambda one: one.id)
async def test_list_keeps_signed_reasoning_for_its_provider(vendor: Playing, model: ModelSpec) -> None:
    by = model.provider
    thoughts = [ThinkingPart(f"Thought {n}", id=f"rs_{n}", signature=f"s{n}==", provider_name=by) for n in (1, 2)]
    signed = {"thought_signature": "c2lnbmVk"} if model is GEMINI else None
    call = ToolCallPart("oven", "{}", tool_call_id="c1", provider_name=by, provider_details=signed)
    messages = (
        hello("Is it hot?"),
        ModelResponse([*thoughts, call], provider_name=by),
        ModelRequest([ToolReturnPart("oven", "Hot.", tool_call_id="c1")]),
        ModelResponse([TextPart("Yes.")], provider_name=by),
    )
    path = "/v1" if model is OPENAI else ""
    async with Agent(connect(model, Endpoint(vendor.url + path, "key")), limits=Limits(retries=0)) as agent:
        await agent.ask("And now?", context=Context(messages=messages))
        await agent.ask([*json.loads(json.dumps(to_openai(messages))), "And now?"])
    by_context, by_list = [request.json for request in vendor.requests]
    assert by_list == by_context
    assert ("c2lnbmVk" if signed else "s1==") in json.dumps(by_context)


async def test_run_sends_what_fits_and_keeps_the_rest(agent: Agent, server: Running) -> None:
    messages: tuple[ModelMessage, ...] = (
        ModelRequest([UserPromptPart(["Look", PICTURE])]),
        ModelResponse([ThinkingPart("Secret thoughts", signature="s"), TextPart("A cat.")], provider_name="anthropic"),
    )
    result = await agent.ask("!text Yes.", context=Context(messages=messages))
    body = server.journal()[-1]["body"]["messages"]
    assert_accepted(body)
    assert "Secret thoughts" not in str(body)
    assert "image_url" not in str(body)
    assert NO_PICTURE in str(body)
    assert result.context.messages[:2] == messages


def test_audio_model_needs_audio() -> None:
    async def check() -> None:
        model = replace(OPENAI_AUDIO, needs_audio=True)
        connection = FakeConnection([Step([Words("output_text", ["Heard."])])], spec=model)
        agent = Agent(connection)
        result = await agent.ask("Hello")
        assert result.finish_reason == "error"
        assert result.note.detail == "Model M answers only what comes with a sound: attach one."
        assert connection.played.sent == []
        again = await agent.ask(["Hello", SOUND], context=result.context)
        assert (again.finish_reason, again.text) == ("stop", "Heard.")

    asyncio.run(check())


@QUICK
@given(histories())
def test_model_without_tools_gets_calls_in_words(history: list[ModelMessage]) -> None:
    """Chat templates without tools know neither a call nor the role of a result, and refuse two turns of one role."""
    plain = adapt_and_prepare(history, replace(QWEN, tools="none"))
    parts = [part for message in plain for part in message.parts]
    assert not any(isinstance(part, ToolCallPart | ToolReturnPart) for part in parts)
    assert [type(one) for one in plain] == [type(one) for one in adapt_and_prepare(history, QWEN)]
    words = str([part.content for part in parts if isinstance(part, TextPart | UserPromptPart)])
    native = [part for message in adapt_and_prepare(history, QWEN) for part in message.parts]
    assert all(part.tool_name in words for part in native if isinstance(part, ToolCallPart | ToolReturnPart))
