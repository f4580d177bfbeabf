"""The exports of ChatGPT, Claude and Open WebUI: branches, attachments, tool calls, and a count of what is left out."""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import (
    AudioUrl,
    FilePart,
    ImageUrl,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agent.errors import InputError
from agent.history import Entry, now
from agent.history.codec import dump_conversation
from agent.transfer.imported import ImportedConversation, left_out_texts
from agent.web.chat.transcript import to_turns
from tests.support.media_files import random_png, sound
from tests.support.strategies import JSON
from tests.support.transfers import branch, found_in, texts_of
from tests.tiers import examples

PROPERTY = settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def one(value: object, folder: Path, **files: bytes) -> tuple[ImportedConversation, dict[str, int]]:
    """Return the only conversation in an export, and what was left out."""
    [found], reader = found_in(value, folder, **files)
    return found.read(), dict(reader.left_out)


def shown(imported: ImportedConversation) -> list[Entry]:
    return branch(imported.entries, imported.conversation.head_id)


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
    imported, left_out = one(
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
    conversation = imported.conversation
    assert texts_of(shown(imported)) == ["How long does dough rest?", "A day.", "Why?"]
    others = [texts_of(branch(imported.entries, end)) for end in conversation.branches]
    assert sorted(others) == [
        ["How long does dough rest?", "A day.", "Where?"],
        ["How long does dough rest?", "An hour."],
    ]
    assert conversation.title == "Bread"
    assert conversation.updated_at == datetime.fromtimestamp(1.7e9 + 60, UTC)
    assert [entry.note.model for entry in shown(imported)] == ["", "gpt-y", ""]
    assert left_out == {}


def test_chatgpt_parent_is_known_from_its_children(tmp_path: Path) -> None:
    nodes = [node("u", None, "user", "Why?"), node("a", None, "assistant", "So.")]
    nodes[0]["children"] = ["a"]
    conversation, _left_out = one(chatgpt(*nodes), tmp_path)
    assert texts_of(shown(conversation)) == ["Why?", "So."]


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


def marked(text: str) -> str:
    """Return a text with ChatGPT's marks, written as <cite|turn0search3>."""
    return text.replace("<", "\ue200").replace(">", "\ue201").replace("|", "\ue202")


def page(name: str) -> dict[str, str]:
    return {"title": name, "url": f"https://{name}.example/"}


REFERENCES = [
    {"matched_text": marked("<cite|turn0search3>"), "type": "grouped_webpages", "items": [page("iron"), page("ore")]},
    {"matched_text": marked("<filecite|turn0file0>"), "type": "file", "name": "rent.pdf", "id": "f", "snippet": "900"},
    {"matched_text": " ", "type": "sources_footnote", "sources": [page("iron")]},
    {"matched_text": marked("<product|x>"), "type": "alt_text", "alt": "A pan"},
]
CITATIONS = [
    {"start_ix": 4, "end_ix": 15, "metadata": {"type": "webpage", **page("old")}},
    {"metadata": {"type": "file", "name": "plan.pdf", "id": "g", "extra": {"cited_message_idx": 7}}},
]
GROUPS = [{"entries": [{**page("far"), "ref_id": {"turn_index": 1, "ref_type": "news", "ref_index": 2}}]}]
MARKS: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    "pages": ("It is old. <cite|turn0search3> So.", "It is old. So.", {"It is old.": ["iron", "ore"]}),
    "a file": ("Pay 900 <filecite|turn0file0>.", "Pay 900.", {"Pay 900": ["rent.pdf"]}),
    "at the beginning": ("<cite|turn0search3>\n\nOld.", "\n\nOld.", {"": ["iron", "ore"]}),
    "of a result elsewhere": ("New <cite|turn1news2|turn9news9>!", "New!", {"New": ["far"]}),
    "unknown": ("a <cite|turn5search5> b <navlist|Recent|turn0news1>", "a b", {}),
    "a name": ('By <entity|["people", "N. Example", 0]>.', "By N. Example.", {}),
    "an address": ("See <url|the page|turn0search1> now", "See the page now", {}),
    "pictures": ('<image_group|{"query": ["x"]}>\nText', "\nText", {}),
    "a product": ("Buy <product|x> today", "Buy A pan today", {}),
    "cut": ("Yes. <cite|turn0sea", "Yes.", {}),
    "around words": ("Yes \ue203no\ue204\ue206.", "Yes no.", {}),
    "without private characters": ("Yes citeturn1news2turn0search9.", "Yes.", {"Yes": ["far"]}),
    "old, by place": ("Old 【12†source】", "Old", {"Old": ["old"]}),
    "old, by number": ("Built 【7:0†plan.pdf】.", "Built.", {"Built": ["plan.pdf"]}),
    "old, unknown": ("Big【3†L1-L5】 one", "Big one", {}),
    "Japanese brackets": ("【東京】 x", "【東京】 x", {}),
}


@pytest.mark.parametrize(("text", "expected", "cited"), MARKS.values(), ids=MARKS)
def test_chatgpt_marks_become_citations(tmp_path: Path, text: str, expected: str, cited: dict[str, list[str]]) -> None:
    metadata = {"content_references": REFERENCES, "citations": CITATIONS, "search_result_groups": GROUPS}
    call = {"content_type": "code", "text": "search()"}
    conversation, _ = one(
        chatgpt(
            node("u", "root", "user", marked(text)),
            node("p", "u", "assistant", content=call, recipient="web"),
            node("r", "p", "tool", marked(text)),
            node("a", "r", "assistant", marked(text), metadata=metadata),
        ),
        tmp_path,
    )
    entries = shown(conversation)
    assert not any(mark in repr(texts_of(entries)) for mark in ("ue20", "†", "turn"))
    [part] = parts_of(entries, TextPart)
    assert part.content == expected
    found = {
        part.content[one.anchor.start : one.anchor.end] if one.anchor else "": [
            source.title or "" for source in one.sources
        ]
        for one in part.citations or ()
    }
    if not any("iron" in titles for titles in cited.values()):
        assert found.pop("") == ["iron"], "the list below the answer"
    assert found == cited


def test_chatgpt_contents_of_all_kinds(tmp_path: Path) -> None:
    voice = {"content_type": "audio_transcription", "text": "Hello there"}
    quote = {"content_type": "tether_quote", "title": "T", "text": "quoted", "url": "https://a.example"}
    conversation, left_out = one(
        chatgpt(
            node("c", "root", "user", content={"content_type": "user_editable_context", "user_profile": "x"}),
            node("m", "c", "assistant", content={"content_type": "model_editable_context", "model_set_context": "x"}),
            node("u", "m", "user", voice, author={"role": "user"}),
            node("t", "u", "assistant", content={"content_type": "thoughts", "thoughts": ["Hm."]}),
            node("e", "t", "assistant", content={"content_type": "reasoning_recap", "content": "Thought for 3s"}),
            node("p", "e", "assistant", content={"content_type": "code", "text": "open()"}, recipient="browser"),
            node("q", "p", "tool", content=quote),
            node("a", "q", "assistant", content={"content_type": "text", "parts": "not a list"}),
            node("b", "a", "assistant", content="no object"),
            node("w", "b", "wizard", "lost"),
            node("z", "w", "assistant", content={"content_type": "new kind", "text": "readable"}),
        ),
        tmp_path,
    )
    assert texts_of(shown(conversation)) == ["Hello there", "quoted", "not a list", "no object", "readable"]
    assert [part.content for part in parts_of(shown(conversation), ThinkingPart)] == ["Hm."]
    assert left_out == {"internal message": 3, "message by nobody known": 1}


# Claude


def claude(*messages: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    times = {"created_at": "2026-01-02T03:04:05.678Z", "updated_at": "2026-01-02T03:05:00Z"}
    return [{"uuid": "x", "name": "Trip", **times, "chat_messages": [*messages], **more}]


def said(uuid: str, sender: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "sender": sender, "content": [*content], "text": "", **more}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def test_chatgpt_pictures_that_answer_no_call_are_kept(tmp_path: Path) -> None:
    """A tool that draws says first that it works, and then shows the picture. Code can draw a diagram."""
    png = random_png()
    drawn = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_cat"}
    plot = {"aggregate_result": {"messages": [{"message_type": "image", "image_url": "file-service://file_plot"}]}}
    conversation, left_out = one(
        chatgpt(
            node("1", "root", "user", "Draw"),
            node("2", "1", "assistant", "a cat", recipient="t2uay3k.sj1i4kz"),
            node("3", "2", "tool", "Processing image"),
            node("4", "3", "tool", drawn),
            node("5", "4", "assistant", "print(1)", recipient="python"),
            node("6", "5", "tool", content={"content_type": "execution_output", "text": "1"}, metadata=plot),
        ),
        tmp_path,
        **{"file_cat.png": png, "file_plot.png": png},
    )
    kinds = [type(part).__name__ for entry in shown(conversation) for part in entry.message.parts]
    assert kinds == ["UserPromptPart", "ToolCallPart", "ToolReturnPart", "FilePart", "ToolCallPart", "ToolReturnPart"]
    [made, plotted] = [part for part in parts_of(shown(conversation), ToolReturnPart)]
    assert made.content == "Processing image"
    assert plotted.content[0] == "1"
    assert len(plotted.content) == 2
    assert not left_out


def test_chatgpt_words_that_a_prompt_is_about_are_quoted(tmp_path: Path) -> None:
    about = {"targeted_reply": "two\nlines", "targeted_reply_label": "Replying to:"}
    conversation, _left_out = one(chatgpt(node("1", "root", "user", "Why?", metadata=about)), tmp_path)
    [part] = parts_of(shown(conversation), UserPromptPart)
    assert part.content == ["> two\n> lines", "Why?"]


def test_claude_pages_and_summaries_are_kept(tmp_path: Path) -> None:
    page = {"type": "knowledge", "title": "A page", "url": "https://example.org"}
    conversation, left_out = one(
        [{"uuid": "1", "name": "N", "chat_messages": [
            {"uuid": "2", "sender": "human", "content": [{"type": "text", "text": "Search"}]},
            {"uuid": "3", "sender": "assistant", "content": [
                {"type": "thinking", "thinking": "", "summaries": [{"summary": "A search helps."}]},
                {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "t", "content": [page, {**page, "text": "Words"}]},
                {"type": "tool_use", "id": "u", "name": "repl", "input": {"code": "1"}},
                {"type": "tool_result", "tool_use_id": "u",
                 "content": [{"type": "local_resource", "name": "a.csv", "file_path": "/mnt/a.csv"}]},
            ]},
        ]}],
        tmp_path,
    )  # fmt: skip
    assert [part.content for part in parts_of(shown(conversation), ThinkingPart)] == ["A search helps."]
    assert [part.content for part in parts_of(shown(conversation), ToolReturnPart)] == [
        "A page\nhttps://example.org\n\nA page\nhttps://example.org\nWords",
        "a.csv\n/mnt/a.csv",
    ]
    assert not left_out


def test_claude_list_with_attachments(tmp_path: Path) -> None:
    attached = [{"file_name": "plan.txt", "extracted_content": "by train"}]
    imported, left_out = one(
        claude(
            said("1", "human", words("Read this"), attachments=attached, files=[{"file_name": "map.png"}]),
            said("2", "assistant", {"type": "thinking", "thinking": "Hm."}, words("A train."), {"type": "flag"}),
            {"uuid": "3", "sender": "human", "text": "Old form"},
        ),
        tmp_path,
    )
    entries = shown(imported)
    [first, answer, third] = entries
    assert "by train" in texts_of([first])[1]
    assert texts_of([answer, third]) == ["A train.", "Old form"]
    assert [part.content for part in parts_of(entries, ThinkingPart)] == ["Hm."]
    assert imported.conversation.title == "Trip"
    assert imported.conversation.created_at == datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    assert left_out == {"missing file": 1, "unknown part": 1}


def test_claude_tree_and_tools(tmp_path: Path) -> None:
    root = "00000000-0000-4000-8000-000000000000"
    call = {"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "bus"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [words("line 7")], "is_error": False}
    imported, left_out = one(
        claude(
            said("1", "human", words("Bus?"), parent_message_uuid=root),
            said("2", "assistant", words("Let me look."), call, result, words("Line 7."), parent_message_uuid="1"),
            said("3", "human", words("Tram?"), parent_message_uuid=root),
            said("4", "assistant", {"type": "tool_result", "tool_use_id": "t9"}, parent_message_uuid="3"),
            current_leaf_message_uuid="2",
        ),
        tmp_path,
    )
    entries = shown(imported)
    assert texts_of(entries) == ["Bus?", "Let me look.", "line 7", "Line 7."]
    assert [isinstance(entry.message, ModelResponse) for entry in entries] == [False, True, False, True]
    assert parts_of(entries, ToolCallPart)[0].args == {"q": "bus"}
    assert [texts_of(branch(imported.entries, end)) for end in imported.conversation.branches] == [["Tram?"]]
    assert left_out == {"internal message": 1}


def test_claude_results_without_ids_are_paired(tmp_path: Path) -> None:
    def call(name: str, id_: str | None) -> dict[str, Any]:
        return {"type": "tool_use", "id": id_, "name": name, "input": {}}

    def result(text: Any, id_: str | None, name: str = "") -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id_, "name": name, "content": text}

    conversation, left_out = one(
        claude(
            said("1", "human", words("Go")),
            said("2", "assistant", call("a", None), result("for a", None), call("b", "x"), call("c", None),
                 result([words("for c")], None, "c"), result("for b", None), result("nobody's", None)),
            said("2", "ai", {**words("Blue sky"), "citations": [
                {"start_index": 0, "end_index": 4, "details": {"url": "https://sky.example/"}}, {"title": None},
            ]}),
        ),
        tmp_path,
    )  # fmt: skip
    entries = shown(conversation)
    calls = {part.tool_call_id: part.tool_name for part in parts_of(entries, ToolCallPart)}
    results = {calls[part.tool_call_id]: part.content for part in parts_of(entries, ToolReturnPart)}
    assert results == {"a": "for a", "b": "for b", "c": "for c"}
    [answer] = parts_of(entries, TextPart)
    [citation] = answer.citations
    assert (citation.anchor.start, citation.anchor.end, citation.sources[0].url) == (0, 4, "https://sky.example/")
    assert left_out == {"internal message": 1}


def test_claude_results_in_the_next_message_are_paired(tmp_path: Path) -> None:
    calls = [{"type": "tool_use", "id": id_, "name": id_, "input": {}} for id_ in ("a", "b")]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": f"for {id_}"} for id_ in ("b", "a")]
    imported, left_out = one(
        claude(
            said("1", "human", words("Go")),
            said("2", "assistant", *calls, parent_message_uuid="1"),
            said("3", "human", results[0], parent_message_uuid="2"),
            said("4", "human", results[1], words("And then?"), parent_message_uuid="3"),
            said("5", "human", {**results[1], "tool_use_id": None}, parent_message_uuid="2"),
            current_leaf_message_uuid="4",
        ),
        tmp_path,
    )
    found = {part.tool_call_id: part.content for part in parts_of(shown(imported), ToolReturnPart)}
    assert found == {"a": "for a", "b": "for b"}
    assert texts_of(shown(imported)) == ["Go", "for b", "for a", "And then?"]
    assert len(imported.conversation.branches) == 1
    assert left_out == {}


ARTIFACTS = {
    "code": (
        'type="application/vnd.ant.code" language="python" title="Sum"', "x()", "**Sum**\n\n```python\nx()\n```",
    ),
    "page": ('type="text/html" title="A &amp; B"', "<p>x</p>", "**A & B**\n\n```html\n<p>x</p>\n```"),
    "component": ('type="application/vnd.ant.react"', "x = `a`", "```jsx\nx = `a`\n```"),
    "fences": ('type="application/vnd.ant.code"', "```\na\n```", "````\n```\na\n```\n````"),
    "document": ('type="text/markdown" title="Notes"', "# Plan", "**Notes**\n\n# Plan"),
    "drawing": ('type="image/svg+xml"', "<svg/>", "```svg\n<svg/>\n```"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARTIFACTS)
@pytest.mark.parametrize("end", ["</antArtifact>\nEnd", ""], ids=["whole", "cut"])
def test_claude_artifacts_are_titles_and_code(tmp_path: Path, name: str, end: str) -> None:
    head, inside, expected = ARTIFACTS[name]
    text = f'Here:<antThinking>A new one.</antThinking><antArtifact identifier="x" {head}>{inside}{end}'
    conversation, left_out = one(claude(said("1", "human", words("Go")), said("2", "assistant", words(text))), tmp_path)
    [part] = parts_of(shown(conversation), TextPart)
    assert part.content.strip() == f"Here:\n\n{expected}" + "\n\n\nEnd" * bool(end)
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
    imported, left_out = one(
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
    entries = shown(imported)
    assert texts_of(entries)[0] == "What is it?"
    assert "leek" in texts_of(entries)[1]
    assert texts_of(entries)[-1] == "Soup."
    [source] = imported.files.values()
    assert source.media_type == "image/png"
    assert len(imported.conversation.branches) == 2
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


@pytest.mark.parametrize(
    ("content", "thoughts", "text"),
    [
        ("<think>Hm.</think>\n\nSo.", ["Hm."], "So."),
        ("\n<thinking>\nHm.\n</thinking>So.", ["Hm."], "So."),
        ("Hm.\n</think>\n\nSo.", ["Hm."], "So."),
        ("<think>Hm.", ["Hm."], ""),
        ("<think>a</think><think>b</think>So.", ["a", "b"], "So."),
        ("Write `</think>` to end it.", [], "Write `</think>` to end it."),
    ],
)
def test_open_webui_tags_of_thoughts(tmp_path: Path, content: str, thoughts: list[str], text: str) -> None:
    conversation, _ = one(open_webui(wrote("1", None, "user", "Q"), wrote("2", "1", "assistant", content)), tmp_path)
    entries = shown(conversation)
    assert [part.content for part in parts_of(entries, ThinkingPart)] == thoughts
    assert [part.content for part in parts_of(entries, TextPart)] == [text] * bool(text)


def test_open_webui_sources_are_cited(tmp_path: Path) -> None:
    sources = [
        {"source": {"name": "search"}, "document": ["Iron rusts."], "metadata": [{"source": "https://iron.example/"}]},
        {"source": {"id": "f", "name": "rent.pdf"}, "document": ["900"], "metadata": [{"source": "rent.pdf"}]},
    ]
    message = wrote(
        "2", "1", "assistant", "It rusts [1]. Pay [2]. No [9] or [1](x). `a[1]`\n```\nb[2]\n```", sources=sources
    )
    conversation, _ = one(open_webui(wrote("1", None, "user", "Q"), message), tmp_path)
    [part] = parts_of(shown(conversation), TextPart)
    assert part.content == "It rusts. Pay. No [9] or [1](x). `a[1]`\n```\nb[2]\n```"
    page, document = [citation.sources[0] for citation in part.citations]
    assert (page.url, page.excerpts, document.title) == ("https://iron.example/", ["Iron rusts."], "rent.pdf")


def test_open_webui_merged_answers_files_and_names(tmp_path: Path) -> None:
    files = [{"type": "collection", "id": "k", "name": "Recipes"}, {"type": "file", "id": "f", "name": "a.pdf"}]
    merged = {"status": True, "content": "Both say soup."}
    messages = [
        wrote("1", None, "user", "Q", childrenIds=["2", "3"], files=files[1:]),
        wrote("2", None, "assistant", "Soup.", modelName="Llama", merged=merged, code_executions=[{"code": "x"}]),
        wrote("3", None, "assistant", "Stew.", model="mistral", statusHistory=[{"action": "web_search", "done": True}]),
    ]
    imported, left_out = one(open_webui(*messages, models=["a", "b"], files=files, tags=[{"name": "x"}]), tmp_path)
    assert {entry.note.model for entry in imported.entries} == {"", "Llama", "mistral"}
    ends = [imported.conversation.head_id, *imported.conversation.branches]
    texts = [texts_of(branch(imported.entries, end)) for end in ends]
    assert sorted(texts) == [["Q", "Both say soup."], ["Q", "Soup."], ["Q", "Stew."]]
    assert left_out == {"missing file": 2, "unknown part": 2, "tags": 1}


DETAILS = {
    "another order": '<details id="c" done="true" type="tool_calls" name="oven" arguments="{}" result="hot">',
    "single quotes": "<details type='tool_calls' name='oven' arguments='{}' result='hot'>",
    "no end of the summary": '<details type="tool_calls" name="oven" arguments="{}" result="&quot;hot&quot;">',
}


@pytest.mark.parametrize("name", DETAILS)
def test_open_webui_details_of_other_writers(tmp_path: Path, name: str) -> None:
    content = f"{DETAILS[name]}<summary>Ran</summary></details>\nReady.<details><summary>More</summary>x</details>"
    conversation, left_out = one(
        open_webui(wrote("1", None, "user", "Q"), wrote("2", "1", "assistant", content)), tmp_path
    )
    [result] = parts_of(shown(conversation), ToolReturnPart)
    assert (result.tool_name, result.content) == ("oven", "hot")
    assert texts_of(shown(conversation))[-1].strip() == "Ready.<details><summary>More</summary>x</details>"
    assert left_out == {}


def test_open_webui_ratings_are_named(tmp_path: Path) -> None:
    messages = {
        "1": {"role": "user", "content": "Hello", "childrenIds": ["2", "3"]},
        "2": {"role": "assistant", "content": "A", "parentId": "1", "annotation": {"rating": -1, "comment": "no"}},
        "3": {"role": "assistant", "content": "B", "parentId": "1", "annotation": {"tags": []}},
    }
    _conversation, left_out = one(
        [{"id": "a", "chat": {"history": {"messages": messages, "currentId": "2"}}}], tmp_path
    )
    assert left_out == {"rating": 1}


def test_open_webui_files_of_tools_are_named(tmp_path: Path) -> None:
    head = '<details type="tool_calls" name="draw" arguments="{}" result="{&quot;a&quot;: 1}" files="[&quot;x&quot;]">'
    message = wrote("2", "1", "assistant", f"{head}<summary>Ran</summary></details>")
    conversation, left_out = one(open_webui(wrote("1", None, "user", "Q"), message), tmp_path)
    [result] = parts_of(shown(conversation), ToolReturnPart)
    assert (result.content, left_out) == ('{"a": 1}', {"unusable file": 1})


# All


def test_list_of_chats_in_an_object_is_read(tmp_path: Path) -> None:
    chats = [*claude(said("1", "human", words("a"))), *open_webui(wrote("1", None, "user", "b"))]
    for export in (
        {"version": 1, "conversations": chats, "meta": {"more": [{"title": "none"}]}, "others": [{"title": "none"}]},
        {"user": {"a": [1]}, "chats": chats},
    ):
        found, reader = found_in(export, tmp_path)
        assert len(found) == 2
        assert dict(reader.left_out) == {}


NOON = [1_709_640_000, 1_709_640_000.0, 1_709_640_000_000, "1709640000", 1.70964e15, 1_709_640_000_000_000_000]
NOON += ["2024-03-05T12:00:00Z", "2024-03-05T13:00:00+01:00", "2024-03-05 12:00:00"]


@pytest.mark.parametrize("time", NOON, ids=str)
def test_times_of_all_forms(tmp_path: Path, time: Any) -> None:
    exports = [
        *chatgpt(node("u", "root", "user", "Hi", create_time=time), create_time=time, update_time=time),
        *claude(said("1", "human", words("Hi"), created_at=time), created_at=time, updated_at=time),
        {**open_webui(wrote("1", None, "user", "Hi", timestamp=time))[0], "created_at": time, "updated_at": time},
    ]
    for imported in (found.read() for found in found_in(exports, tmp_path)[0]):
        conversation, [entry] = imported.conversation, imported.entries
        [prompt] = entry.message.parts
        times = {conversation.created_at, conversation.updated_at, entry.note.at, prompt.timestamp}
        assert times == {datetime(2024, 3, 5, 12, tzinfo=UTC)}


@pytest.mark.parametrize("time", [None, 0, -1, "soon", [1], {"at": 1}, True, 1e308, "9999-12-31"], ids=str)
def test_message_without_a_time_has_that_of_the_one_before(tmp_path: Path, time: Any) -> None:
    imported, _ = one(
        chatgpt(node("u", "root", "user", "Hi"), node("a", "u", "assistant", "Oh", create_time=time)), tmp_path
    )
    first, second = imported.entries
    assert second.note.at == first.note.at or (time == "9999-12-31" and second.note.at <= now())
    assert imported.conversation.updated_at == datetime.fromtimestamp(1.7e9 + 60, UTC)


def test_labels_are_kept_or_named(tmp_path: Path) -> None:
    exports = [
        {**chatgpt(node("u", "root", "user", "1"))[0], "is_starred": True, "is_archived": True, "gizmo_id": "g-p-1"},
        *claude(said("1", "human", words("2")), is_starred=True, project={"name": "P"}),
        {**open_webui(wrote("1", None, "user", "3"))[0], "pinned": True, "archived": True, "folder_id": "f",
         "meta": {"tags": ["soup"]}},
    ]  # fmt: skip
    found, reader = found_in(exports, tmp_path)
    assert [one.read().conversation.pinned for one in found] == [True] * 3
    assert dict(reader.left_out) == {"archived state": 2, "folder": 3, "tags": 1}
    assert "the folders of 3 chats" in [str(text) for text in left_out_texts(reader.left_out)]


def test_branch_with_the_newest_message_is_shown_if_none_is_named(tmp_path: Path) -> None:
    messages = [wrote("1", None, "user", "Q"), wrote("2", "1", "assistant", "new", timestamp=1_700_000_100)]
    export = open_webui(*messages, wrote("3", "gone", "assistant", "old"))
    export[0]["chat"]["history"]["currentId"] = None
    conversation, _ = one(export, tmp_path)
    assert texts_of(shown(conversation)) == ["Q", "new"]


ODD = [
    10**4000,
    "\ud800",
    [[["x"]]],
    [{"text": 5}],
    {"content": {"content": [1]}},
    "</think>",
    marked("<cite|"),
    "【1†",
]
WHOLE = [("mapping",), ("chat_messages",), ("chat",), ("chat", "history"), ("chat", "history", "messages")]
"""The paths to all messages of a chat."""


@PROPERTY
@given(data=st.data())
def test_odd_values_lose_no_other_chat(tmp_path: Path, data: st.DataObject) -> None:
    """Any JSON in any field of a chat raises nothing, and the chats beside it are read."""
    good = [
        *chatgpt(
            node("u", "root", "user", "Hi", metadata={"attachments": [{"id": "f", "name": "n"}]}),
            node("t", "u", "assistant", content={"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}),
            node("p", "t", "assistant", content={"content_type": "code", "text": "1"}, recipient="python"),
            node("r", "p", "tool", content={"content_type": "execution_output", "text": "2"}),
            node("a", "r", "assistant", marked("x <cite|turn0search3>"), metadata={
                "content_references": REFERENCES, "citations": CITATIONS, "search_result_groups": GROUPS,
            }),
        ),
        *claude(
            said("1", "human", words("a"), attachments=[{"file_name": "b", "extracted_content": "c"}]),
            said("2", "assistant", {"type": "tool_use", "id": "t", "name": "n", "input": {}},
                 {"type": "tool_result", "tool_use_id": "t", "content": [words("r")]}, {**words("b"), "citations": [
                     {"start_index": 0, "end_index": 1, "details": {"url": "https://b.example"}}]}),
        ),
        *open_webui(
            wrote("1", None, "user", "d", files=[{"url": "data:,x"}, {"file": {"data": {"content": "e"}}}]),
            wrote("2", "1", "assistant", "e [1]", output=[{"type": "message", "content": [{"text": "o"}]}],
                  sources=[{"source": {"name": "n"}, "document": ["d"], "metadata": [{"source": "s"}]}]),
        ),
    ]  # fmt: skip
    number = data.draw(st.integers(0, len(good) - 1))
    places = [*places_in(good[number])]
    path = data.draw(st.sampled_from(places))
    odd = replaced(good[number], path, data.draw(JSON | st.sampled_from(ODD)))
    found, _ = found_in([*good[:number], odd, *good[number + 1 :]], tmp_path)
    assert len(found) >= len(good) - (path in WHOLE)
    for each in found:
        dump_conversation(each.read().conversation)
        to_turns(shown(each.read()))


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in this one."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in items:
        yield (*path, name)
        yield from places_in(part, (*path, name))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = {**value} if isinstance(value, dict) else [*value]
    changed[path[0]] = replaced(changed[path[0]], path[1:], new)
    return changed


def test_formats_can_be_mixed_and_damaged_ones_are_counted(tmp_path: Path) -> None:
    good = [*chatgpt(node("u", "root", "user", "1")), *claude(said("1", "human", words("2")))]
    loop = chatgpt(node("u", "v", "user", "x"), node("v", "u", "user", "y"))
    empty = chatgpt(node("s", "root", "system", ""))
    lost = [{"title": "Lost", "id": "1", "create_time": 1.0}]
    found, reader = found_in([*good, *loop, *empty, *lost], tmp_path)
    assert sorted(texts_of(one.read().entries)[0] for one in found) == ["1", "2", "x"]
    assert dict(reader.left_out) == {"damaged chat": 1, "empty chat": 1}


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
