"""Reads a conversation of Open WebUI's export: an object of the array in its JSON file.

The schema is in https://docs.openwebui.com/features/chat-conversations/data-controls/import-export/. `chat.history` has
`messages`, a tree with `parentId`, and `currentId`, the end of the branch that is shown. Answers of newer versions have
their parts in `output`; older ones have reasoning and tool calls as `<details>` in their text.
"""

import html
import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic_ai.messages import (
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)

from agent.media.mime import detect_mime
from agent.transfer import (
    FOREIGN_LINK,
    INTERNAL_MESSAGE,
    UNKNOWN_PART,
    FileSource,
    FindFile,
    ImportedConversation,
    LeftOut,
)
from agent.transfer.imports.fields import (
    Attachments,
    Messages,
    answer,
    conversation,
    made_by_model,
    mapping,
    moment,
    objects,
    prompt,
    quoted,
    text,
    tool_result,
)
from agent.transfer.tree import Node

Part = ModelResponsePart | ToolReturnPart | None

_ATTRIBUTE = re.compile(r'([a-z_]{1,20})="([^"]*+)"')
_DETAILS, _DETAILS_END, _SUMMARY_END = '<details type="', "</details>", "</summary>"


def is_open_webui(element: Mapping[str, Any]) -> bool:
    """Return True for an object of Open WebUI's export."""
    chat = mapping(element.get("chat")) or element
    return isinstance(mapping(chat.get("history")).get("messages"), dict)


def read_open_webui(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation with all its branches, or None if it has no messages.

    Counts what is left out in `left_out`. Raises `ValueError` if it is damaged.
    """
    chat = mapping(element.get("chat")) or element
    history = mapping(chat.get("history"))
    if text(chat.get("system")) or text(mapping(chat.get("params")).get("system")):
        left_out[INTERNAL_MESSAGE] += 1
    attachments = Attachments(find, left_out)
    nodes = dict[str, Node]()
    for id_, raw in mapping(history.get("messages")).items():
        message = mapping(raw)
        parent = text(message.get("parentId")) or None
        nodes[id_] = Node(parent=parent, messages=_messages(id_, message, attachments, left_out))
    return conversation(
        nodes,
        text(history.get("currentId")) or None,
        attachments,
        left_out,
        title=text(element.get("title")) or text(chat.get("title")),
        created=moment(element.get("created_at")),
        updated=moment(element.get("updated_at")),
    )


def _messages(id_: str, message: Mapping[str, Any], attachments: Attachments, left_out: LeftOut) -> Messages:
    at = moment(message.get("timestamp"))
    match message.get("role"):
        case "user":
            files = [_file(id_, number, file, attachments, left_out) for number, file in _numbered(message)]
            return prompt([*_texts(message.get("content")), *files], at)
        case "assistant":
            parts = _output(message, left_out) or _with_details(id_, "\n\n".join(_texts(message.get("content"))))
            made = [_file(id_, number, file, attachments, left_out) for number, file in _numbered(message)]
            parts += [made_by_model(part) for part in made]
            return _split(parts, text(message.get("model")), at)
        case "system":
            left_out[INTERNAL_MESSAGE] += 1
        case _:
            left_out[UNKNOWN_PART] += 1
    return []


def _numbered(message: Mapping[str, Any]) -> enumerate[Mapping[str, Any]]:
    return enumerate(objects(message.get("files")))


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content] if content.strip() else []
    return [found for part in objects(content) if (found := text(part.get("text")))]


def _file(
    id_: str, number: int, file: Mapping[str, Any], attachments: Attachments, left_out: LeftOut
) -> UserContent | None:
    """Return a file of a message: a picture as a data URL, or the text that was extracted from a document."""
    url, inner = text(file.get("url")), mapping(file.get("file"))
    name = text(file.get("name")) or text(inner.get("filename")) or text(file.get("id"))
    if extracted := text(mapping(inner.get("data")).get("content")):
        return quoted(name, extracted)
    if url.startswith("data:"):
        try:
            data = b64decode(url.partition(",")[2], validate=True)
        except (Base64Error, ValueError):
            left_out[UNKNOWN_PART] += 1
            return None
        read: Callable[[], bytes] = lambda: data  # noqa: E731
        return attachments.part_of(
            FileSource(name=f"{id_}/{number}", media_type=detect_mime(data), size=len(data), read=read)
        )
    if url.startswith(("http:", "https:")):
        left_out[FOREIGN_LINK] += 1
        return None
    return attachments.part(text(file.get("id")), url.rpartition("/")[2], name)


def _output(message: Mapping[str, Any], left_out: LeftOut) -> list[Part]:
    """Return the parts of an answer of a newer version."""
    parts, names = list[Part](), dict[str, str]()
    for item in objects(message.get("output")):
        written = "".join(_texts(item.get("content")))
        match item.get("type"):
            case "message":
                parts.append(TextPart(written) if written.strip() else None)
            case "reasoning":
                parts.append(ThinkingPart(written) if written.strip() else None)
            case "function_call" if call := text(item.get("call_id")):
                names[call] = text(item.get("name"))[:64] or "tool"
                parts.append(ToolCallPart(names[call], text(item.get("arguments")) or None, tool_call_id=call))
            case "function_call_output" if (call := text(item.get("call_id"))) in names:
                given = item.get("output")
                result = given if isinstance(given, str) else "\n\n".join(_texts(given))
                parts.append(ToolReturnPart(names[call], result, call))
            case _:
                left_out[UNKNOWN_PART] += 1
    return [part for part in parts if part is not None]


def _with_details(id_: str, content: str) -> list[Part]:
    """Return the parts of an answer of an older version. The search is linear in the text."""
    parts, at = list[Part](), 0
    while (start := content.find(_DETAILS, at)) >= 0 and (end := content.find(_DETAILS_END, start)) >= 0:
        head, _, body = content[start:end].partition(">")
        found = {name: html.unescape(value) for name, value in _ATTRIBUTE.findall(head)}
        before, at = content[at:start], end + len(_DETAILS_END)
        parts.append(TextPart(before) if before.strip() else None)
        if found.get("type") == "tool_calls" and found.get("name"):
            call = found.get("id") or f"{id_}-{start}"
            parts.append(ToolCallPart(found["name"][:64], _plain(found.get("arguments", "")), tool_call_id=call))
            parts.append(ToolReturnPart(found["name"][:64], str(_plain(found.get("result", ""))), call))
        else:
            inside = html.unescape(body.rpartition(_SUMMARY_END)[2] if _SUMMARY_END in body else body)
            lines = (line.removeprefix("> ").removeprefix(">") for line in inside.strip().splitlines())
            parts.append(ThinkingPart("\n".join(lines)) if inside.strip() else None)
    rest = content[at:]
    return [part for part in (*parts, TextPart(rest) if rest.strip() else None) if part is not None]


def _plain(written: str) -> Any:
    """Return a value that is JSON once or twice over: arguments are a JSON string in an attribute."""
    for _ in range(2):
        try:
            value: Any = json.loads(written)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        written = value if isinstance(value, str) else json.dumps(value)
    return written


def _split(parts: list[Part], model: str, at: Any) -> Messages:
    """Return the messages of these parts: tool results are messages of their own between the model's."""
    out, so_far = Messages(), list[ModelResponsePart | None]()
    for part in parts:
        if isinstance(part, ToolReturnPart):
            out += answer(so_far, model, at)
            so_far = []
            out.append(tool_result(part, at))
        else:
            so_far.append(part)
    return out + answer(so_far, model, at)
