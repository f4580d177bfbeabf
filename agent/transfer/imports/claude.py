"""Reads a conversation of Claude's export: an object of `conversations.json`, which comes in a ZIP file.

Anthropic publishes no schema. The format was taken from the description in https://github.com/Sinity/polylogue
(docs/providers/claude-ai.md), and from public exports in `withLinda/claude-conversation-exporter`. `chat_messages` have
a `sender`, blocks in `content` and texts in `attachments`. Newer files have `parent_message_uuid`, which makes them a
tree; older ones are a list. The export has only the names of pictures and other `files`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_ai.messages import (
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)

from agent.transfer import INTERNAL_MESSAGE, UNKNOWN_PART, FindFile, ImportedConversation, LeftOut
from agent.transfer.imports.fields import (
    Attachments,
    Messages,
    answer,
    conversation,
    mapping,
    moment,
    objects,
    prompt,
    quoted,
    text,
    tool_result,
)
from agent.transfer.tree import Node


def is_claude(element: Mapping[str, Any]) -> bool:
    """Return True for an object of Claude's export."""
    return isinstance(element.get("chat_messages"), list)


def read_claude(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation, with branches if the file has them, or None if it has no messages.

    Counts what is left out in `left_out`. Raises `ValueError` if it is damaged.
    """
    messages = objects(element.get("chat_messages"))
    ids = [text(message.get("uuid")) or str(number) for number, message in enumerate(messages)]
    known = set(ids)
    if len(known) != len(ids):
        raise ValueError("two messages have one id")
    is_tree = any(text(message.get("parent_message_uuid")) in known for message in messages)
    attachments = Attachments(find, left_out)
    nodes = dict[str, Node]()
    before: str | None = None
    for id_, message in zip(ids, messages, strict=True):
        parent = text(message.get("parent_message_uuid")) if is_tree else before
        nodes[id_] = Node(parent=parent or None, messages=_messages(message, element, attachments, left_out))
        before = id_
    return conversation(
        nodes,
        text(element.get("current_leaf_message_uuid")) or before,
        attachments,
        left_out,
        title=text(element.get("name")),
        created=moment(element.get("created_at")),
        updated=moment(element.get("updated_at")),
    )


def _messages(
    message: Mapping[str, Any], element: Mapping[str, Any], attachments: Attachments, left_out: LeftOut
) -> Messages:
    at = moment(message.get("created_at"))
    blocks = objects(message.get("content")) or [{"type": "text", "text": text(message.get("text"))}]
    if message.get("sender") == "human":
        parts: list[UserContent | None] = []
        for block in blocks:
            if block.get("type") == "text":
                parts.append(text(block.get("text")))
            else:
                left_out[UNKNOWN_PART] += 1
        for attached in objects(message.get("attachments")):
            parts.append(quoted(text(attached.get("file_name")), text(attached.get("extracted_content"))))
        files = [*objects(message.get("files")), *objects(message.get("files_v2"))]
        names = {text(file.get("file_uuid")) or text(file.get("file_name")): file for file in files}
        parts += [attachments.part(name, text(file.get("file_name"))) for name, file in names.items()]
        return prompt(parts, at)
    if message.get("sender") != "assistant":
        left_out[UNKNOWN_PART] += 1
        return []
    model, out, parts_so_far = text(element.get("model")), Messages(), list[ModelResponsePart | None]()
    names_of_calls = dict[str, str]()
    for block in blocks:
        if block.get("type") == "tool_result":
            call = text(block.get("tool_use_id"))
            if call not in names_of_calls:
                left_out[INTERNAL_MESSAGE] += 1
                continue
            out += answer(parts_so_far, model, at)
            parts_so_far = []
            out.append(tool_result(_result(block, call, names_of_calls[call]), at))
        elif (part := _answer_part(block, left_out)) is not None:
            if isinstance(part, ToolCallPart):
                names_of_calls[part.tool_call_id] = part.tool_name
            parts_so_far.append(part)
    return out + answer(parts_so_far, model, at)


def _answer_part(block: Mapping[str, Any], left_out: LeftOut) -> ModelResponsePart | None:
    match block.get("type"):
        case "text":
            return TextPart(text(block.get("text"))) if text(block.get("text")).strip() else None
        case "thinking":
            return ThinkingPart(text(block.get("thinking"))) if text(block.get("thinking")) else None
        case "tool_use":
            call, given = text(block.get("id")), block.get("input")
            arguments = dict(mapping(given)) if isinstance(given, dict) else {"input": given}
            name = text(block.get("name"))[:64] or "tool"
            return ToolCallPart(name, arguments, tool_call_id=call) if call else ToolCallPart(name, arguments)
        case "token_budget":
            left_out[INTERNAL_MESSAGE] += 1
        case _:
            left_out[UNKNOWN_PART] += 1
    return None


def _result(block: Mapping[str, Any], call: str, name: str) -> ToolReturnPart:
    given: Any = block.get("content")
    found = [text(one.get("text")) for one in objects(given)]
    written = given if isinstance(given, str) else "\n\n".join(one for one in found if one)
    return ToolReturnPart(name, written, call, outcome="failed" if block.get("is_error") else "success")
