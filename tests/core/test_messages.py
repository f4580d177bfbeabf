"""Prompts become messages, and a conversation round-trips through OpenAI's format."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel

from agent import Context, Endpoint, Image, InputError, Message, ModelSpec, Part, connect
from agent.messages.adapt import adapt_and_prepare
from agent.messages.openai import from_openai, to_openai
from agent.messages.prompt import to_messages
from agent.messages.repair import UNANSWERED, keep_newest, prepare_messages, repair
from tests.support.strategies import TEXT, conversations
from tests.tiers import examples

PICTURE = Image.from_pillow(Pillow.new("RGB", (2, 3), "red"))
SOUND = BinaryContent(b"RIFF\x00\x00\x00\x00WAVEfmt \xff", media_type="audio/wav")
PDF = BinaryContent(b"%PDF-1.7", media_type="application/pdf")


def hello(text: str = "Hello") -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def said(text: str = "Yes.") -> ModelResponse:
    return ModelResponse([TextPart(text)])


# --- in ---------------------------------------------------------------------------------------------------------------


def test_prompt_forms_are_equivalent() -> None:
    forms: list[Any] = ["Hello", ["Hello"], [{"role": "user", "content": "Hello"}], [hello()]]
    contents = []
    for form in forms:
        [message] = to_messages(form)
        contents.append(to_openai([message])[0]["content"])
    assert contents[0] == contents[2] == contents[3] == "Hello"
    assert contents[1] == [{"type": "text", "text": "Hello"}]


def test_parts_keep_order_and_kind() -> None:
    [message] = to_messages(["Look:", PICTURE, "and listen:", SOUND, ImageUrl("https://example.com/a.png")])
    [sent] = to_openai([message])
    assert [part["type"] for part in sent["content"]] == ["text", "image_url", "text", "input_audio", "image_url"]
    assert sent["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert sent["content"][3]["input_audio"]["format"] == "wav"


TOOL = {"role": "tool", "tool_call_id": "c1", "content": "3"}


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ("\n \t", "empty"),
        ([], "empty"),
        ([3], "'int'"),
        ([b"\xff\xd8\xff"], "Image.from_bytes"),
        (b"\xff\xd8\xff", "Image.from_bytes"),
        (None, "'NoneType'"),
        ({}, "not {}"),
        ([[]], "'list'"),
        (["Look", {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "begins with https"),
        (["Look", {"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}], "base64"),
        (["Look", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "no picture"),
        (["Hear", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], "no sound"),
        ([{"role": "user"}], "'NoneType'"),
        ([{"role": "user", "content": 3}], "'int'"),
        ([{"role": "assistant", "tool_calls": [{"id": "c"}]}, {"role": "user", "content": "a"}], "not a tool call"),
        ([{"role": "cook", "content": "b"}], "'cook'"),
        ([{"role": "user", "content": [{"type": "video"}]}], "video"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "last message"),
        ([hello(), said()], "last message"),
        ([TOOL], "before them in the list"),
        ([{"role": "system", "content": "Be brief."}, TOOL], "before them in the list"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, TOOL], "before them in the list"),
        ([ModelRequest([ToolReturnPart("f", "3", tool_call_id="c1")])], "before them in the list"),
        ([{"role": "system", "content": "Be brief."}], "system message"),
        ([{"role": "developer", "content": "Be brief."}], "system message"),
        ([hello(), said(), ModelRequest([SystemPromptPart("Be brief.")])], "system message"),
        ([{"role": "user", "content": " \n"}], "empty"),
        ([{"role": "user", "content": []}], "empty"),
        ([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "\t"}]}], "empty"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, " "], "empty"),
        ([{"type": "text", "text": " "}], "empty"),
        ([TextContent(" ")], "empty"),
        ([ModelRequest([UserPromptPart(["", " "])])], "empty"),
        ([ModelRequest([])], "empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_prompt_is_refused(prompt: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        to_messages(prompt)


@given(st.permutations(range(4)), st.integers(0, 3))
def test_listed_results_have_the_order_of_their_calls(order: list[int], lost: int) -> None:
    """In a list of OpenAI's format and of pydantic-ai's messages, also if a result is missing."""
    called = ModelResponse([ToolCallPart("f", "{}", tool_call_id=f"c{number}") for number in range(4)])
    results = [ToolReturnPart("f", str(number), tool_call_id=f"c{number}") for number in order if number != lost]
    messages = [hello(), called, ModelRequest(results)]
    for prompt in (messages, to_openai(messages)):
        sent = to_openai(to_messages(prompt))
        assert [one["tool_call_id"] for one in sent if one["role"] == "tool"] == ["c0", "c1", "c2", "c3"]


def test_lone_surrogates_are_replaced() -> None:
    assert to_openai(to_messages("a\ud83d"))[0]["content"] == "a\ufffd"
    assert to_openai(to_messages("\ud83d\ude00"))[0]["content"] == "\U0001f600"
    assert to_openai(to_messages(["a\ud83d", PICTURE]))[0]["content"][0]["text"] == "a\ufffd"


# --- out and back -----------------------------------------------------------------------------------------------------

WORDS = TEXT.filter(lambda text: bool(text.strip()))
MEDIA = st.sampled_from([PICTURE, SOUND, PDF, ImageUrl("https://example.com/a.png", vendor_metadata={"detail": "low"})])
PROMPT = WORDS | st.lists(WORDS | MEDIA, min_size=1, max_size=4)
OUTCOME = st.sampled_from(["success", "failed", "denied", "interrupted"])
RESULT = st.tuples(TEXT | st.lists(MEDIA, min_size=1, max_size=2) | MEDIA.map(lambda one: ["see", one]), OUTCOME)
STEP = st.tuples(st.lists(st.tuples(TEXT, RESULT), min_size=1, max_size=3), st.lists(WORDS, max_size=2), TEXT)
ANSWER = st.tuples(st.lists(TEXT.filter(bool), max_size=2), TEXT, st.booleans())
TURN = st.tuples(PROMPT, st.lists(STEP, max_size=2), ANSWER)


def conversation(turns: Any) -> list[ModelMessage]:
    """Return a conversation as runs write it: questions, steps of parallel calls, answers, some broken off."""
    out: list[ModelMessage] = []

    def thought(text: str) -> list[ModelResponsePart]:
        return [ThinkingPart(text, id="reasoning", provider_name="vllm")] if text else []

    for number, (prompt, steps, (texts, thinking, broken)) in enumerate(turns):
        out.append(ModelRequest([UserPromptPart(prompt)]))
        for step, (calls, words, thinks) in enumerate(steps):
            ids = [f"call_{number}_{step}_{index}" for index in range(len(calls))]
            made = [
                ToolCallPart("f", json.dumps({"q": q}), tool_call_id=id_)
                for id_, (q, _) in zip(ids, calls, strict=True)
            ]
            given = [
                ToolReturnPart("f", content, tool_call_id=id_, outcome=outcome)
                for id_, (_, (content, outcome)) in zip(ids, calls, strict=True)
            ]
            said = [*thought(thinks), *map(TextPart, words), *made]
            out += [ModelResponse(said, provider_name="vllm"), ModelRequest(given)]
        state = "interrupted" if broken else "complete"
        out.append(ModelResponse([*thought(thinking), *map(TextPart, texts)], provider_name="vllm", state=state))
    return out


SPEC = ModelSpec(
    id="vllm:Q", name="Q", label="Q", provider="vllm", reasoning=True, image=True, audio=True, context_tokens=10**6
)


Wire = Callable[[list[ModelMessage], str], Any]


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Return a function to the messages of the request body, made by the library's own code."""
    connection = connect(SPEC, Endpoint("http://127.0.0.1:9/v1"))

    async def messages(given: list[ModelMessage], system: str) -> Any:
        model = connection.model()
        assert isinstance(model, OpenAIChatModel)
        return await model._map_messages(adapt_and_prepare(given, SPEC, system), ModelRequestParameters())

    with asyncio.Runner() as runner:
        yield lambda given, system: runner.run(messages(given, system))
        runner.run(connection.aclose())


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TURN, min_size=1, max_size=3), TEXT)
def test_round_trip_sends_the_same(wire: Wire, turns: Any, system: str) -> None:
    messages = [one for one in conversation(turns) if not _holds(one, PDF)]  # this dialect never gets PDFs
    out = json.loads(json.dumps(to_openai(messages, system)))
    back = from_openai(out)
    assert to_openai(back) == out
    assert to_openai(back, system) == out, "the system message is repeated"

    assert wire(back, system) == wire(messages, system)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TURN, min_size=1, max_size=3))
def test_nothing_is_dropped(turns: Any) -> None:
    messages = conversation(turns)
    back = from_openai(to_openai(messages))
    assert _media(back) == _media(messages)
    assert _outcomes(back) == _outcomes(messages)


@pytest.mark.parametrize("alone", [True, False])
def test_message_of_role_and_contents_is_a_prompt(alone: bool) -> None:
    message = Message(role="user", contents=[Part.Text("What is this?"), "Look.", PICTURE])
    assert (message.role, message.contents[0]) == ("user", {"type": "text", "text": "What is this?"})
    messages = to_messages(message) if alone else to_messages([Message("system", "Be brief."), message])
    prompt = messages[-1].parts[-1]
    assert isinstance(prompt, UserPromptPart)
    assert [getattr(one, "media_type", one) for one in prompt.content] == ["What is this?", "Look.", "image/png"]
    assert json.loads(json.dumps(message)) == message


def _items(messages: list[ModelMessage]) -> list[Any]:
    """Return the items of prompts and results, one by one."""
    contents: list[Any] = [
        part.content for one in messages for part in one.parts if isinstance(part, UserPromptPart | ToolReturnPart)
    ]
    return [item for content in contents for item in (content if isinstance(content, list) else [content])]


def _holds(message: ModelMessage, item: Any) -> bool:
    return any(one == item for one in _items([message]))


def _media(messages: list[ModelMessage]) -> list[Any]:
    return [getattr(item, "data", item) for item in _items(messages) if not isinstance(item, str)]


def _outcomes(messages: list[ModelMessage]) -> list[Any]:
    return [part.outcome for one in messages for part in one.parts if isinstance(part, ToolReturnPart)]


def test_generated_files_travel_too() -> None:
    out = to_openai([ModelResponse([TextPart("Here:"), FilePart(PICTURE)])])
    assert [part["type"] for part in out[0]["content"]] == ["text", "image_url"]
    [back] = from_openai(out)
    assert [getattr(part.content, "data", part.content) for part in back.parts] == ["Here:", PICTURE.data]  # type: ignore[union-attr]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_agent_system_message_replaces_given_one(role: str) -> None:
    messages = to_messages([{"role": role, "content": "Be long."}, {"role": "user", "content": "Hello"}])
    assert [one["role"] for one in to_openai(prepare_messages(messages))] == ["system", "user"]
    sent = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert to_openai(prepare_messages(messages, "Be brief.")) == to_openai(messages, "Be brief.") == sent


def test_parts_beside_messages_form_one_user_message() -> None:
    history = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]
    picture = Pillow.new("RGBA", (1, 1))
    for more in (["Look:", picture], [{"type": "text", "text": "Look:"}, Image.from_pillow(picture)]):
        out = to_openai(to_messages([*history, *more]))
        assert [one["role"] for one in out] == ["user", "assistant", "user"]
        assert [part["type"] for part in out[-1]["content"]] == ["text", "image_url"]
    assert to_openai(to_messages(picture)) == to_openai(to_messages([picture]))
    assert to_openai(to_messages(history[0])) == history[:1]


def test_whole_conversation_in_openai_format() -> None:
    call = ToolCallPart("add", {"a": 1}, tool_call_id="c1")
    messages: list[ModelMessage] = [
        hello(),
        ModelResponse([ThinkingPart("Hm."), TextPart("Let me see."), call]),
        ModelRequest([ToolReturnPart("add", "3", tool_call_id="c1")]),
        ModelResponse([TextPart("It is"), TextPart("3.")]),
    ]
    function = {"name": "add", "arguments": '{"a":1}'}
    assert to_openai(messages, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "It is\n\n3."},
    ]
    assert to_openai([ModelResponse([call])])[0]["content"] is None
    assert to_openai([ModelResponse([])])[0]["content"] == "", "content is None only beside calls"


# --- what is sent -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "sent"),
    [
        (ModelResponse([]), UNANSWERED),
        (ModelResponse([ThinkingPart("only thoughts")]), UNANSWERED),
        (ModelResponse([TextPart(" \n")]), UNANSWERED),
        (ModelResponse([ToolCallPart("f", '{"a', tool_call_id="c")], state="interrupted"), UNANSWERED),
        (ModelResponse([TextPart("half"), ToolCallPart("f", "", tool_call_id="c")], state="interrupted"), "half"),
        (ModelResponse([TextPart("a"), ToolCallPart("", "{}", tool_call_id="c")]), "a"),
        (None, UNANSWERED),
    ],
    ids=["empty", "only-thoughts", "blank", "half-a-call", "text-and-half-a-call", "nameless-call", "none-at-all"],
)
def test_cut_answer_leaves_alternating_turns(answer: ModelResponse | None, sent: str) -> None:
    history = [hello(), *([answer] if answer else []), hello("And now?")]
    out = to_openai(prepare_messages(history))
    assert [(message["role"], message["content"]) for message in out] == [
        ("user", "Hello"),
        ("assistant", sent),
        ("user", "And now?"),
    ]
    assert "tool_calls" not in out[1]


def test_system_message_is_first_and_not_kept() -> None:
    history = [hello(), said()]
    sent = prepare_messages(history, "Be brief.")
    assert isinstance(sent[0].parts[0], SystemPromptPart)
    assert len(history[0].parts) == 1
    assert to_openai(prepare_messages([said(), hello()], "Be brief."))[0] == {"role": "system", "content": "Be brief."}
    assert prepare_messages([], "Be brief.") == []


def test_call_id_can_repeat_in_later_turn() -> None:
    call = ModelResponse([ToolCallPart("f", "{}", tool_call_id="call_1")])
    result = ModelRequest([ToolReturnPart("f", "1", tool_call_id="call_1")])
    history = [hello(), call, result, said(), hello(), call, result, said()]
    assert all(a is b for a, b in zip(repair(history), history, strict=True))


# --- what fits --------------------------------------------------------------------------------------------------------


def test_fitting_newest_turn_is_kept() -> None:
    history = [hello("x" * 150), said(""), hello("x" * 240), said("")]
    assert keep_newest(history, 100) == history[2:], "80 of 100 tokens fit, although they are more than 70 %"


def test_oversized_newest_turn_is_still_sent() -> None:
    history = [hello("x"), said(), hello("x" * 900), said()]
    assert keep_newest(history, 100) == history[2:]
    later = [*history, hello("y"), said()]
    assert keep_newest(later, 100) == later[4:]


def test_new_message_gets_room() -> None:
    history = [hello("x" * 150), said(""), hello("x" * 90), said("")]
    assert keep_newest(history, 100, beside=20) == history
    assert keep_newest(history, 100, beside=30) == history[2:]
    assert keep_newest(history, 100, beside=75) == history[2:], "the estimate of 30 tokens is cautious"
    assert keep_newest(history, 100, beside=80) == []


def with_lists(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with each prompt of one text as a list of it."""
    return [
        replace(one, parts=[listed(part) for part in one.parts]) if isinstance(one, ModelRequest) else one
        for one in messages
    ]


def listed(part: ModelRequestPart) -> ModelRequestPart:
    if isinstance(part, UserPromptPart) and isinstance(part.content, str):
        return replace(part, content=[part.content])
    return part


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.integers(1, 200))
def test_plain_texts_are_prepared_as_lists_of_texts(messages: list[ModelMessage], tokens: int) -> None:
    kept = keep_newest(messages, tokens)
    assert with_lists(kept) == keep_newest(with_lists(messages), tokens)
    for spec in (SPEC, replace(SPEC, provider="openai", image=True)):
        assert with_lists(adapt_and_prepare(messages, spec)) == adapt_and_prepare(with_lists(messages), spec)


# --- the context ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "null", "[]", '{"messages": [{}]}', '{"messages": 3}'])
def test_invalid_context_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Context.from_json(text)


@pytest.mark.parametrize("more", [{"version": 2}, {"version": 2, "files": ["a"]}, {"files": []}, {"version": "next"}])
def test_context_of_newer_version_is_refused(more: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(Context(messages=(hello(),)).to_json()), **more})
    with pytest.raises(InputError, match="another version of this program"):
        Context.from_json(text)


def json_objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every JSON object within a value, with its path."""
    if isinstance(value, dict):
        yield path, value
        for name, one in value.items():
            yield from json_objects(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from json_objects(one, f"{path}[{number}]")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.data())
def test_field_of_context_is_kept_or_named(messages: list[ModelMessage], data: st.DataObject) -> None:
    plain = json.loads(Context(messages=tuple(messages)).to_json())
    assert json.loads(Context.from_json(json.dumps(plain)).to_json()) == plain
    path, holder = data.draw(st.sampled_from([*json_objects(plain)]))
    holder["tone"] = 1
    refused = ""
    try:
        again = Context.from_json(json.dumps(plain)).to_json()
    except InputError as error:
        refused = str(error)
    else:
        assert json.loads(again) == plain, "a field was dropped silently"
    if refused:
        assert "another version of this program" in refused
        assert repr(f"{path}.tone" if path else "tone") in refused


def test_new_field_of_picture_is_not_dropped() -> None:
    plain = json.loads(Context(messages=(ModelRequest([UserPromptPart(["see", PICTURE])]),)).to_json())
    plain["messages"][0]["parts"][0]["content"][1]["depth"] = 8
    with pytest.raises(InputError, match=r"messages\[0\]\.parts\[0\]\.content\[1\]\.depth"):
        Context.from_json(json.dumps(plain))


def test_former_names_of_fields_are_read() -> None:
    plain = json.loads(Context(messages=(said(),)).to_json())
    answer = plain["messages"][0]
    for old, new in (("vendor_details", "provider_details"), ("vendor_id", "provider_response_id")):
        del answer[new]
        answer[old] = {"a": 1} if old == "vendor_details" else "id"
    answer["usage"] = {"requests": 1, "request_tokens": 3, "response_tokens": 4, "total_tokens": 7}
    (message,) = Context.from_json(json.dumps(plain)).messages
    assert isinstance(message, ModelResponse)
    assert (message.provider_details, message.provider_response_id) == ({"a": 1}, "id")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 4)
