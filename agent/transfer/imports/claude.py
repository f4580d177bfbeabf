"""Reads a conversation of Claude's export: an object of `conversations.json`, which comes in a ZIP file.

Anthropic publishes no schema. The format was taken from the description in https://github.com/Sinity/polylogue
(docs/providers/claude-ai.md), and from public exports in `withLinda/claude-conversation-exporter`. `chat_messages` have
a `sender`, blocks in `content` and texts in `attachments`. Newer files have `parent_message_uuid`, which makes them a
tree; older ones are a list. The export has only the names of pictures and other `files`.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from html import unescape
from typing import Any

from pydantic_ai.messages import (
    Citation,
    ContentCitationAnchor,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)

from agent.files.parts import fence
from agent.transfer.imported import (
    INTERNAL_MESSAGE,
    UNKNOWN_PART,
    UNKNOWN_SENDER,
    FindFile,
    ImportedConversation,
    LeftOut,
    Node,
)
from agent.transfer.imports.fields import (
    Attachments,
    Messages,
    answer,
    conversation,
    count_labels,
    document_source,
    mapping,
    moment,
    objects,
    prompt,
    quoted,
    sender,
    source_of,
    text,
    texts,
    tool_result,
    web_source,
)

MAX_OPEN_CALLS = 100
"""Calls without a result that a message takes over from those before it."""
_TAG = re.compile(r"<(antArtifact|antThinking)\b([^<>]{0,2000})>")
_ATTRIBUTE = re.compile(r'([a-z]{1,20})="([^"]*+)"')


def is_claude(element: Mapping[str, Any]) -> bool:
    """Return True for an object of Claude's export."""
    return isinstance(element.get("chat_messages"), list)


def read_claude(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation, with branches if the file has them, or None if it has no messages.

    Counts what is left out in `left_out`.
    """
    messages = dict[str, Mapping[str, Any]]()
    for number, message in enumerate(objects(element.get("chat_messages"))):
        id_ = text(message.get("uuid")) or str(number)
        messages[id_ if id_ not in messages else f"{id_}-{number}"] = message
    is_tree = any(text(message.get("parent_message_uuid")) in messages for message in messages.values())
    attachments = Attachments(find, left_out)
    nodes = dict[str, Node]()
    before: str | None = None
    calls: dict[str | None, dict[str, str]] = {}
    for id_, message in messages.items():
        parent = (text(message.get("parent_message_uuid")) if is_tree else before) or None
        calls[id_] = dict([*calls.get(parent, {}).items()][-MAX_OPEN_CALLS:])
        nodes[id_] = Node(parent=parent, messages=_messages(message, element, calls[id_], attachments, left_out))
        before = id_
    count_labels(element, left_out, "project_uuid", "project")
    return conversation(
        nodes,
        text(element.get("current_leaf_message_uuid")) or before,
        attachments,
        left_out,
        source=source_of("claude", element, "uuid"),
        title=text(element.get("name")),
        created=moment(element.get("created_at")),
        updated=moment(element.get("updated_at")),
        pinned=element.get("is_starred") is True,
    )


def _messages(
    message: Mapping[str, Any],
    element: Mapping[str, Any],
    open_calls: dict[str, str],
    attachments: Attachments,
    left_out: LeftOut,
) -> Messages:
    at = moment(message.get("created_at"))
    content = message.get("content")
    blocks = objects(content) or [{"type": "text", "text": "\n\n".join(texts(content) or texts(message.get("text")))}]
    match sender(message.get("sender") or message.get("role")):
        case "user" | "tool":  # as in Anthropic's API, results can be in the message after the calls
            results = [block for block in blocks if text(block.get("type")).endswith("tool_result")]
            blocks = [block for block in blocks if block not in results]
            told = _answer(results, "", at, open_calls, left_out)
            return told + prompt(_prompt_parts(message, blocks, attachments, left_out), at)
        case "assistant":
            model = text(message.get("model")) or text(element.get("model"))
            return _answer(blocks, model, at, open_calls, left_out)
        case _:
            left_out[UNKNOWN_SENDER] += 1
            return []


def _prompt_parts(
    message: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], attachments: Attachments, left_out: LeftOut
) -> list[UserContent | None]:
    parts: list[UserContent | None] = []
    for block in blocks:
        if written := "\n\n".join(texts(block.get("text"))):
            parts.append(written)
        elif block.get("type") != "text":
            left_out[UNKNOWN_PART] += 1
    for attached in objects(message.get("attachments")):
        if written := text(attached.get("extracted_content")):
            parts.append(quoted(text(attached.get("file_name")), written))
        else:
            parts.append(attachments.part(text(attached.get("id")), text(attached.get("file_name"))))
    files = [*objects(message.get("files")), *objects(message.get("files_v2"))]
    names = {text(file.get("file_uuid")) or text(file.get("file_name")): file for file in files}
    return [*parts, *(attachments.part(name, text(file.get("file_name"))) for name, file in names.items())]


def _answer(
    blocks: Sequence[Mapping[str, Any]], model: str, at: datetime | None, open_calls: dict[str, str], left_out: LeftOut
) -> Messages:
    """Return the messages of an answer. A result without an id belongs to the first call without a result."""
    out, parts_so_far = Messages(), list[ModelResponsePart | None]()
    for block in blocks:
        if text(block.get("type")).endswith("tool_result"):
            call = text(block.get("tool_use_id")) or _call_of(block, open_calls)
            if call not in open_calls:
                left_out[INTERNAL_MESSAGE] += 1
                continue
            out += answer(parts_so_far, model, at)
            parts_so_far = []
            out.append(tool_result(_result(block, call, open_calls.pop(call)), at))
        elif (part := _answer_part(block, left_out)) is not None:
            if isinstance(part, ToolCallPart):
                open_calls[part.tool_call_id] = part.tool_name
            parts_so_far.append(part)
    return out + answer(parts_so_far, model, at)


def _call_of(block: Mapping[str, Any], open_calls: Mapping[str, str]) -> str:
    """Return the id of the call whose result has no id: the first one of the same tool, or the first one."""
    named = [id_ for id_, name in open_calls.items() if name == text(block.get("name"))[:64]]
    return next(iter([*named, *open_calls]), "")


def _answer_part(block: Mapping[str, Any], left_out: LeftOut) -> ModelResponsePart | None:
    written = "\n\n".join(texts(block.get("text")))
    match block.get("type"):
        case "thinking":
            summaries = [text(one.get("summary")) for one in objects(block.get("summaries"))]
            thought = "\n\n".join(texts(block.get("thinking"))) or written or "\n\n".join(filter(None, summaries))
            return ThinkingPart(thought) if thought.strip() else None
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            call, given = text(block.get("id")), block.get("input")
            arguments = dict(mapping(given)) if isinstance(given, dict) else {"input": given}
            name = text(block.get("name"))[:64] or "tool"
            return ToolCallPart(name, arguments, tool_call_id=call) if call else ToolCallPart(name, arguments)
        case "token_budget":
            left_out[INTERNAL_MESSAGE] += 1
        case kind if written.strip() or kind == "text":
            written = _without_tags(written, left_out)
            return TextPart(written, citations=[*_citations(block, written)] or None) if written.strip() else None
        case _:
            left_out[UNKNOWN_PART] += 1
    return None


def _without_tags(written: str, left_out: LeftOut) -> str:
    """Return a text with its artifacts as titles and blocks of code, and without thoughts about them."""
    pieces, at = list[str](), 0
    while tag := _TAG.search(written, at):
        end = written.find(f"</{tag[1]}>", tag.end())
        inside = written[tag.end() : end if end >= 0 else len(written)].strip("\n")
        pieces.append(written[at : tag.start()])
        at = end + len(tag[1]) + 3 if end >= 0 else len(written)
        if tag[1] == "antThinking":
            left_out[INTERNAL_MESSAGE] += 1
            continue
        given = {name: unescape(value) for name, value in _ATTRIBUTE.findall(tag[2])}
        kind = given.get("type", "").rpartition("/")[2].rpartition(".")[2].partition("+")[0]
        language = given.get("language", "") or {"react": "jsx", "code": "", "plain": ""}.get(kind, kind)
        block = inside if kind == "markdown" else fence(inside)
        if kind != "markdown" and re.fullmatch(r"[\w+#-]{1,30}", language):
            ticks = len(block) - len(block.lstrip("`"))
            block = block[:ticks] + language + block[ticks:]
        title = given.get("title", "").replace("*", "").strip()
        pieces.append("\n\n".join(["", *([f"**{title}**"] if title else []), block, ""]))
    pieces.append(written[at:] if pieces else written)
    return "".join(pieces)


def _citations(block: Mapping[str, Any], written: str) -> list[Citation]:
    found = list[Citation]()
    for given in objects(block.get("citations")):
        details = mapping(given.get("details"))
        title = text(given.get("title")) or text(details.get("title"))
        url = text(given.get("url")) or text(details.get("url"))
        source = web_source({"url": url, "title": title}) or document_source(title)
        start, end = (at if type(at := given.get(name)) is int else -1 for name in ("start_index", "end_index"))
        is_placed = 0 <= start < end <= len(written)
        if source is not None:
            found.append(Citation([source], anchor=ContentCitationAnchor(start=start, end=end) if is_placed else None))
    return found


def _result(block: Mapping[str, Any], call: str, name: str) -> ToolReturnPart:
    found = [_shown_result(one) for one in objects(block.get("content"))] or texts(block.get("content"))
    written = "\n\n".join(filter(None, found))
    return ToolReturnPart(name, written, call, outcome="failed" if block.get("is_error") is True else "success")


def _shown_result(item: Mapping[str, Any]) -> str:
    """Return an item of a result: the title and the address of a page or a file, and its text."""
    named = (text(item.get(name)) for name in ("title", "name", "url", "file_path"))
    return "\n".join(filter(None, (*dict.fromkeys(named), *texts(item))))
