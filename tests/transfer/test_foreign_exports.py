"""The exports of ChatGPT, Claude and Open WebUI: branches, attachments, tool calls, and a count of what is left out."""

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import (
    AudioUrl,
    FilePart,
    ImageUrl,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import InputError
from agent.history import Entry
from agent.transfer import ImportedConversation
from agent.web.chat.transcript import to_turns
from tests.support.media_files import random_png, sound
from tests.support.transfers import branch, found_in, texts_of


def one(value: object, folder: Path, **files: bytes) -> tuple[ImportedConversation, dict[str, int]]:
    """Return the only conversation in an export, and what was left out."""
    [found], reader = found_in(value, folder, **files)
    return found.read(), dict(reader.left_out)


def shown(conversation: ImportedConversation) -> list[Entry]:
    return branch(conversation.entries, conversation.record.head_id)


def parts_of(entries: Sequence[Entry], kind: type[Any]) -> list[Any]:
    found = [part for entry in entries for part in entry.message.parts]
    items = [item for part in found if isinstance(part, UserPromptPart) for item in part.content]
    results = [item for part in found if isinstance(part, ToolReturnPart) for item in part.content]
    return [one for one in [*found, *items, *results] if isinstance(one, kind)]


# ChatGPT


def node(id_: str, parent: str | None, role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    """Return a node of ChatGPT's tree with a text, or with other content."""
    kind = "text" if all(isinstance(part, str) for part in parts) else "multimodal_text"
    content = more.pop("content", {"content_type": kind, "parts": [*parts]})
    message = {"author": {"role": role}, "content": content, "create_time": 1.7e9, "metadata": {}, "recipient": "all"}
    return {"id": id_, "parent": parent, "children": [], "message": {**message, **more}}


def chatgpt(*nodes: dict[str, Any], current: str | None = None, **more: Any) -> list[dict[str, Any]]:
    tree = {"root": {"id": "root", "parent": None, "message": None}, **{one["id"]: one for one in nodes}}
    fields = {"title": "Bread", "create_time": 1.7e9, "update_time": 1.7e9 + 60, "default_model_slug": "gpt-x"}
    return [{**fields, "mapping": tree, "current_node": current or nodes[-1]["id"], **more}]


def test_chatgpt_branches(tmp_path: Path) -> None:
    conversation, left_out = one(
        chatgpt(
            node("u", "root", "user", "How long does dough rest?"),
            node("a1", "u", "assistant", "An hour."),
            node("a2", "u", "assistant", "A day.", metadata={"model_slug": "gpt-y"}),
            node("u2", "a2", "user", "Why?"),
            node("u3", "a2", "user", "Where?"),
            current="u2",
        ),
        tmp_path,
    )
    record = conversation.record
    assert texts_of(shown(conversation)) == ["How long does dough rest?", "A day.", "Why?"]
    others = [texts_of(branch(conversation.entries, end)) for end in record.branches]
    assert sorted(others) == [
        ["How long does dough rest?", "A day.", "Where?"],
        ["How long does dough rest?", "An hour."],
    ]
    assert record.title == "Bread"
    assert record.updated_at == datetime.fromtimestamp(1.7e9 + 60, UTC)
    assert [entry.note.model for entry in shown(conversation)] == ["", "gpt-y", ""]
    assert left_out == {}


def test_chatgpt_files(tmp_path: Path) -> None:
    def pointer(url: str, kind: str = "image_asset_pointer") -> dict[str, str]:
        return {"content_type": kind, "asset_pointer": url}

    conversation, left_out = one(
        chatgpt(
            node("u", "root", "user", pointer("file-service://file-aa"), "Look", pointer("sediment://file_bb")),
            node("v", "u", "user", pointer("sediment://file_cc", "audio_asset_pointer"), "Hear"),
            node("a", "v", "assistant", pointer("sediment://file_dd"), "Here."),
            node("w", "a", "user", "Read", metadata={"attachments": [
                {"id": "file-ee", "name": "notes.txt"}, {"id": "file-ff", "name": "a.zip"}, {"id": "file-gg"},
            ]}),
        ),
        tmp_path,
        **{
            "file-aa-photo.png": random_png(),
            "user-1/file_cc-1.wav": sound("wav"),
            "dalle-generations/file_dd-2.png": random_png(),
            "file-ee-notes.txt": b"flour and water",
            "file-ff-a.zip": b"PK\x03\x04\x00\xff",
        },
    )  # fmt: skip
    entries = shown(conversation)
    assert [type(one) for one in parts_of(entries, ImageUrl)] == [ImageUrl]
    assert len(parts_of(entries, AudioUrl)) == 1
    assert len(parts_of(entries, FilePart)) == 1
    assert any("flour and water" in text for text in texts_of(entries))
    assert len(conversation.files) == 3
    assert {source.media_type for source in conversation.files.values()} == {"image/png", "audio/wav"}
    assert left_out == {"missing file": 2, "unusable file": 1}


def test_chatgpt_tools_thoughts_and_hidden_messages(tmp_path: Path) -> None:
    hidden = {"is_visually_hidden_from_conversation": True}
    conversation, left_out = one(
        chatgpt(
            node("s", "root", "system", "You are helpful."),
            node("c", "s", "user", content={"content_type": "user_editable_context"}, metadata=hidden),
            node("u", "c", "user", "Count."),
            node("t", "u", "assistant", content={"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}),
            node("p", "t", "assistant", content={"content_type": "code", "text": "1+1"}, recipient="python"),
            node("r", "p", "tool", content={"content_type": "execution_output", "text": "2"}),
            node("x", "r", "tool", content={"content_type": "tether_browsing_display", "result": "?"}),
            node("a", "x", "assistant", "Two."),
            node("n", "a", "assistant", content={"content_type": "hologram"}),
        ),
        tmp_path,
    )
    entries = shown(conversation)
    [call], [result] = parts_of(entries, ToolCallPart), parts_of(entries, ToolReturnPart)
    assert (call.tool_name, call.args, result.content) == ("python", {"input": "1+1"}, "2")
    assert call.tool_call_id == result.tool_call_id
    assert [part.content for part in parts_of(entries, ThinkingPart)] == ["Hm."]
    assert left_out == {"internal message": 3, "unknown part": 1}
    [turn] = to_turns(entries)
    assert turn.note is not None
    assert turn.note.ended == "stop"


def test_unanswered_prompt_shows_no_failure(tmp_path: Path) -> None:
    conversation, _ = one(chatgpt(node("u", "root", "user", "Hello?")), tmp_path)
    [turn] = to_turns(shown(conversation))
    assert turn.note is not None
    assert (turn.note.ended, turn.note.detail) == ("cancelled", "")


# Claude


def claude(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    times = {"created_at": "2026-01-02T03:04:05.678Z", "updated_at": "2026-01-02T03:05:00Z"}
    return [{"uuid": "x", "name": "Trip", **times, "chat_messages": [*messages], **more}]


def said(uuid: str, sender: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "sender": sender, "content": [*content], "text": "", **more}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_claude_list_with_attachments(tmp_path: Path) -> None:
    attached = [{"file_name": "plan.txt", "extracted_content": "by train"}]
    conversation, left_out = one(
        claude(
            said("1", "human", words("Read this"), attachments=attached, files=[{"file_name": "map.png"}]),
            said("2", "assistant", {"type": "thinking", "thinking": "Hm."}, words("A train."), {"type": "flag"}),
            {"uuid": "3", "sender": "human", "text": "Old form"},
        ),
        tmp_path,
    )
    entries = shown(conversation)
    [first, answer, third] = entries
    assert "by train" in texts_of([first])[1]
    assert texts_of([answer, third]) == ["A train.", "Old form"]
    assert [part.content for part in parts_of(entries, ThinkingPart)] == ["Hm."]
    assert conversation.record.title == "Trip"
    assert conversation.record.created_at == datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    assert left_out == {"missing file": 1, "unknown part": 1}


def test_claude_tree_and_tools(tmp_path: Path) -> None:
    root = "00000000-0000-4000-8000-000000000000"
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "bus"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [words("line 7")], "is_error": False}
    conversation, left_out = one(
        claude(
            said("1", "human", words("Bus?"), parent_message_uuid=root),
            said("2", "assistant", words("Let me look."), call, result, words("Line 7."), parent_message_uuid="1"),
            said("3", "human", words("Tram?"), parent_message_uuid=root),
            said("4", "assistant", {"type": "tool_result", "tool_use_id": "t9"}, parent_message_uuid="3"),
            current_leaf_message_uuid="2",
        ),
        tmp_path,
    )
    entries = shown(conversation)
    assert texts_of(entries) == ["Bus?", "Let me look.", "line 7", "Line 7."]
    assert [isinstance(entry.message, ModelResponse) for entry in entries] == [False, True, False, True]
    assert parts_of(entries, ToolCallPart)[0].args == {"q": "bus"}
    assert [texts_of(branch(conversation.entries, end)) for end in conversation.record.branches] == [["Tram?"]]
    assert left_out == {"internal message": 1}


# Open WebUI


def open_webui(*messages: dict[str, Any], current: str = "", **more: Any) -> list[dict[str, Any]]:
    history = {"messages": {one["id"]: one for one in messages}, "currentId": current or messages[-1]["id"]}
    chat = {"title": "T", "models": ["llama"], "history": history, **more}
    return [{"id": "c", "user_id": "u", "title": "Soup", "chat": chat, "created_at": 1.7e9, "updated_at": 1.7e9}]


def wrote(id_: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id_, "parentId": parent, "role": role, "content": content, "timestamp": 1_700_000_000, **more}


def test_open_webui_branches_and_files(tmp_path: Path) -> None:
    picture = "data:image/png;base64," + b64encode(random_png()).decode()
    document = {"type": "file", "name": "list.txt", "file": {"data": {"content": "leek"}}}
    conversation, left_out = one(
        open_webui(
            wrote("1", None, "user", "What is it?", files=[{"type": "image", "url": picture}, document]),
            wrote("2", "1", "assistant", "Soup.", model="llama"),
            wrote("3", "1", "assistant", "Stew.", model="mistral"),
            wrote("4", None, "user", "x", files=[
                {"type": "image", "url": "https://example.org/x.png"}, {"type": "file", "id": "gone", "name": "a.pdf"},
            ]),
            current="2",
            system="Be brief.",
        ),
        tmp_path,
    )  # fmt: skip
    entries = shown(conversation)
    assert texts_of(entries)[0] == "What is it?"
    assert "leek" in texts_of(entries)[1]
    assert texts_of(entries)[-1] == "Soup."
    [source] = conversation.files.values()
    assert source.media_type == "image/png"
    assert len(conversation.record.branches) == 2
    assert left_out == {"foreign link": 1, "missing file": 1, "internal message": 1}


@pytest.mark.parametrize("form", ["output", "details"])
def test_open_webui_reasoning_and_tools(tmp_path: Path, form: str) -> None:
    output = [
        {"type": "reasoning", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "oven", "arguments": '{"degrees": 200}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "hot"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Ready."}]},
    ]
    arguments = json.dumps('{"degrees": 200}').replace('"', "&quot;")
    details = (
        '<details type="reasoning" done="true" duration="3"><summary>Thought</summary>\n&gt; Hm.\n</details>\n'
        f'<details type="tool_calls" id="c" name="oven" arguments="{arguments}" result="&quot;hot&quot;">'
        "<summary>Ran</summary></details>\nReady."
    )
    more = {"output": output} if form == "output" else {}
    conversation, left_out = one(
        open_webui(wrote("1", None, "user", "Heat"), wrote("2", "1", "assistant", details, **more)), tmp_path
    )
    entries = shown(conversation)
    [call], [result] = parts_of(entries, ToolCallPart), parts_of(entries, ToolReturnPart)
    assert (call.tool_name, call.args_as_dict(), result.content) == ("oven", {"degrees": 200}, "hot")
    assert [part.content for part in parts_of(entries, ThinkingPart)] == ["Hm."]
    assert [text.strip() for text in texts_of(entries)] == ["Heat", "hot", "Ready."]
    assert left_out == {}


# All


def test_formats_can_be_mixed_and_damaged_ones_are_counted(tmp_path: Path) -> None:
    good = [*chatgpt(node("u", "root", "user", "1")), *claude(said("1", "human", words("2")))]
    loop = chatgpt(node("u", "v", "user", "x"), node("v", "u", "user", "y"))
    empty = chatgpt(node("s", "root", "system", ""))
    lost = [{"title": "Lost", "id": "1", "create_time": 1.0}]
    found, reader = found_in([*good, *loop, *empty, *lost], tmp_path)
    assert sorted(texts_of(one.read().entries)[0] for one in found) == ["1", "2"]
    assert dict(reader.left_out) == {"damaged chat": 2, "empty chat": 1}


@pytest.mark.parametrize("value", [[], {}, [1, 2], [{"a": 1}], {"messages": []}, [[]]], ids=str)
def test_other_json_is_no_export(tmp_path: Path, value: object) -> None:
    with pytest.raises(InputError, match=r"not an export|Nothing"):
        found_in(value, tmp_path)


@pytest.mark.parametrize("wrong", [None, 1, "x", [], ["x"], {"x": 1}, True, 1e308, -1])
def test_wrong_types_anywhere_are_survived(tmp_path: Path, wrong: Any) -> None:
    """Each value in each sample, replaced by one of a wrong type, gives a conversation or a count, never a crash."""
    samples = [
        *chatgpt(
            node("u", "root", "user", {"content_type": "image_asset_pointer", "asset_pointer": "sediment://x"}, "Hi"),
            node("p", "u", "assistant", content={"content_type": "code", "text": "1"}, recipient="python"),
            node("r", "p", "tool", content={"content_type": "execution_output", "text": "2"}),
        ),
        *claude(said("1", "human", words("a"), attachments=[{"file_name": "b", "extracted_content": "c"}])),
        *open_webui(wrote("1", None, "user", "d", files=[{"url": "data:,x"}]), wrote("2", "1", "assistant", "e")),
    ]
    for sample in samples:
        for changed in variants(sample, wrong):
            try:
                found, _ = found_in([changed], tmp_path)
            except InputError:
                continue
            for each in found:
                to_turns(shown(each.read()))


def variants(value: Any, wrong: Any) -> list[Any]:
    """Return the value with each of its parts replaced in turn."""
    if isinstance(value, dict):
        return [{**value, name: new} for name, part in value.items() for new in (wrong, *variants(part, wrong))]
    if isinstance(value, list):
        return [
            [*value[:at], new, *value[at + 1 :]]
            for at, part in enumerate(value)
            for new in (wrong, *variants(part, wrong))
        ]
    return []
