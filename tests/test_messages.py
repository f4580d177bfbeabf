"""What people pass in becomes messages, and a conversation goes out in OpenAI's format and comes back."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent import Context, InputError
from agent.messages import UNANSWERED, newest_that_fit, repaired, to_send
from agent.openai_format import from_openai, to_openai
from agent.prompt import to_messages
from tests.strategies import TEXT

PICTURE = BinaryContent(b"\x89PNG\xff", media_type="image/png")
SOUND = BinaryContent(b"RIFF\x00\xff", media_type="audio/wav")


def hello(text: str = "Hello") -> ModelRequest:
    return ModelRequest([UserPromptPart(text)])


def said(text: str = "Yes.") -> ModelResponse:
    return ModelResponse([TextPart(text)])


# --- in ---------------------------------------------------------------------------------------------------------------


def test_every_form_of_a_prompt_says_the_same() -> None:
    forms: list[Any] = ["Hello", ["Hello"], [{"role": "user", "content": "Hello"}], [hello()]]
    contents = []
    for form in forms:
        [message] = to_messages(form)
        contents.append(to_openai([message])[0]["content"])
    assert contents[0] == contents[2] == contents[3] == "Hello"
    assert contents[1] == [{"type": "text", "text": "Hello"}]


def test_parts_keep_their_order_and_kind() -> None:
    [message] = to_messages(["Look:", PICTURE, "and listen:", SOUND, ImageUrl("https://example.com/a.png")])
    [sent] = to_openai([message])
    assert [part["type"] for part in sent["content"]] == ["text", "image_url", "text", "input_audio", "image_url"]
    assert sent["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBOR/8="
    assert sent["content"][3]["input_audio"]["format"] == "wav"


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "empty"),
        ("\n \t", "empty"),
        ([], "empty"),
        ([3], "'int'"),
        (["a", {"role": "user", "content": "b"}], "'dict'"),
        ([{"role": "cook", "content": "b"}], "'cook'"),
        ([{"role": "user", "content": [{"type": "video"}]}], "video"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "last message"),
        ([hello(), said()], "last message"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_asked_is_refused(prompt: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        to_messages(prompt)


def test_half_characters_do_not_get_in() -> None:
    assert to_openai(to_messages("a\ud83d"))[0]["content"] == "a\ufffd"
    assert to_openai(to_messages("\ud83d\ude00"))[0]["content"] == "\U0001f600"
    assert to_openai(to_messages(["a\ud83d", PICTURE]))[0]["content"][0]["text"] == "a\ufffd"


# --- out and back -----------------------------------------------------------------------------------------------------

TURN = st.tuples(TEXT.filter(bool), TEXT.filter(bool), TEXT, st.booleans())


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TURN, min_size=1, max_size=4), TEXT)
def test_openai_format_survives_the_way_there_and_back(turns: list[tuple[str, str, str, bool]], system: str) -> None:
    messages: list[ModelMessage] = []
    for number, (prompt, answer, thought, calls) in enumerate(turns):
        messages.append(ModelRequest([UserPromptPart(["see", PICTURE] if calls else prompt)]))
        if calls:
            call = ToolCallPart("f", json.dumps({"q": thought}), tool_call_id=f"c{number}")
            messages += [ModelResponse([call]), ModelRequest([ToolReturnPart("f", thought, tool_call_id=f"c{number}")])]
        messages.append(ModelResponse([*([ThinkingPart(thought)] if thought else []), TextPart(answer)]))
    out = to_openai(messages, system)
    assert to_openai(from_openai(out)) == out
    assert out[0]["role"] == ("system" if system else "user")
    json.dumps(out).encode()


def test_a_whole_conversation_in_openai_format() -> None:
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
    assert to_openai([ModelResponse([])])[0]["content"] == "", "no content is only for calls"


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
def test_an_answer_that_broke_off_leaves_a_turn_that_alternates(answer: ModelResponse | None, sent: str) -> None:
    history = [hello(), *([answer] if answer else []), hello("And now?")]
    out = to_openai(to_send(history))
    assert [(message["role"], message["content"]) for message in out] == [
        ("user", "Hello"),
        ("assistant", sent),
        ("user", "And now?"),
    ]
    assert "tool_calls" not in out[1]


def test_answers_in_a_row_are_one() -> None:
    sent = to_openai(to_send([hello(), said("One."), said("Two."), hello()]))
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == "One.\n\nTwo."


def test_the_system_message_comes_first_and_is_not_kept() -> None:
    history = [hello(), said()]
    sent = to_send(history, "Be brief.")
    assert isinstance(sent[0].parts[0], SystemPromptPart)
    assert len(history[0].parts) == 1
    assert to_openai(to_send([said(), hello()], "Be brief."))[0] == {"role": "system", "content": "Be brief."}
    assert to_send([], "Be brief.") == []


def test_a_sound_history_is_given_back_as_it_is() -> None:
    call = ModelResponse([ToolCallPart("f", "{}", tool_call_id="c")])
    history = [hello(), call, ModelRequest([ToolReturnPart("f", "1", tool_call_id="c")]), said()]
    assert all(a is b for a, b in zip(repaired(history), history, strict=True))
    assert all(a is b for a, b in zip(to_send(history), history, strict=True))


def test_the_same_id_may_be_used_again_in_a_later_turn() -> None:
    call = ModelResponse([ToolCallPart("f", "{}", tool_call_id="call_1")])
    result = ModelRequest([ToolReturnPart("f", "1", tool_call_id="call_1")])
    history = [hello(), call, result, said(), hello(), call, result, said()]
    assert all(a is b for a, b in zip(repaired(history), history, strict=True))


# --- what fits --------------------------------------------------------------------------------------------------------


def test_a_newest_turn_that_fits_is_not_given_up_with_the_ones_before() -> None:
    history = [hello("x" * 150), said(""), hello("x" * 240), said("")]
    assert newest_that_fit(history, 100) == history[2:], "80 of 100 tokens: more than the block's 70 %, and yet it fits"


def test_a_newest_turn_that_is_too_long_by_itself_is_still_sent() -> None:
    history = [hello("x"), said(), hello("x" * 900), said()]
    assert newest_that_fit(history, 100) == history[2:]
    later = [*history, hello("y"), said()]
    assert newest_that_fit(later, 100) == later[4:]


def test_nothing_fits_nothing() -> None:
    assert newest_that_fit([], 100) == []


# --- the context ------------------------------------------------------------------------------------------------------


def test_a_context_keeps_bytes_and_every_field() -> None:
    picture = BinaryImage(PICTURE.data, media_type="image/png")
    context = Context(session_id="s", messages=(ModelRequest([UserPromptPart(["see", picture])]), said()))
    again = Context.from_json(context.to_json())
    assert again == context
    assert again.to_json() == context.to_json()
    assert context.extended(hello()).messages[:2] == context.messages


@pytest.mark.parametrize("text", ["", "null", "[]", '{"messages": [{}]}', '{"messages": 3}'])
def test_what_is_no_context_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Context.from_json(text)
