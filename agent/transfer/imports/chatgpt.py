"""Reads a conversation of ChatGPT's export: an object of `conversations.json`, with files beside it in the ZIP file.

OpenAI publishes no schema. The format was taken from the description in
https://github.com/mitkury/chatgpt-export-parser (docs/chatgpt-data-export-format.md), and from the sample files of
https://github.com/danny-avila/LibreChat (api/server/utils/import/__data__). `mapping` is a tree of nodes with `parent`
and `message`, and `current_node` is the end of the branch that is shown.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from pydantic_ai.messages import (
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
)

from agent.messages.parts import fence
from agent.transfer import INTERNAL_MESSAGE, UNKNOWN_PART, FindFile, ImportedConversation, LeftOut
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
    text,
    tool_result,
)
from agent.transfer.tree import Node

POINTERS = ("image_asset_pointer", "audio_asset_pointer")
OUTPUTS = ("text", "multimodal_text", "execution_output", "code", "tether_quote", "sonic_webpage", "system_error")
"""The types of content that a tool's message can have."""


def is_chatgpt(element: Mapping[str, Any]) -> bool:
    """Return True for an object of ChatGPT's export."""
    return isinstance(element.get("mapping"), dict)


def read_chatgpt(element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> ImportedConversation | None:
    """Return the conversation with all its branches, or None if it has no messages.

    Counts what is left out in `left_out`. Raises `ValueError` if it is damaged.
    """
    reader = _Reader(element, find, left_out)
    nodes = {id_: reader.node(id_) for id_ in reader.tree}
    return conversation(
        nodes,
        text(element.get("current_node")) or None,
        reader.attachments,
        left_out,
        title=text(element.get("title")),
        created=moment(element.get("create_time")),
        updated=moment(element.get("update_time")),
    )


class _Reader:
    """Converts the nodes of one conversation."""

    def __init__(self, element: Mapping[str, Any], find: FindFile, left_out: LeftOut) -> None:
        self.tree = mapping(element.get("mapping"))
        self._model, self._left_out = text(element.get("default_model_slug")), left_out
        self.attachments = Attachments(find, left_out)

    def node(self, id_: str) -> Node:
        """Return a node with the messages that it becomes."""
        found = mapping(self.tree[id_])
        message = mapping(found.get("message"))
        return Node(parent=text(found.get("parent")) or None, messages=self._messages(id_, message) if message else [])

    def _messages(self, id_: str, message: Mapping[str, Any]) -> Messages:
        content, metadata = mapping(message.get("content")), mapping(message.get("metadata"))
        role, at = text(mapping(message.get("author")).get("role")), moment(message.get("create_time"))
        if metadata.get("is_visually_hidden_from_conversation") or role == "system":
            if any(_strings(content)) or content.get("content_type") == "user_editable_context":
                self._left_out[INTERNAL_MESSAGE] += 1
            return []
        match role:
            case "user":
                return prompt([*self._prompt_parts(content), *self._attached(content, metadata)], at)
            case "assistant":
                model = text(metadata.get("model_slug")) or self._model
                return answer(self._answer_parts(id_, message, content), model, at)
            case "tool":
                return self._tool_result(id_, content, at)
            case _:
                self._left_out[UNKNOWN_PART] += 1
                return []

    def _prompt_parts(self, content: Mapping[str, Any]) -> list[UserContent | None]:
        if text(content.get("content_type")) not in ("text", "multimodal_text", "code"):
            self._left_out[UNKNOWN_PART] += 1
            return []
        parts: list[UserContent | None] = [*_strings(content)]
        for part in objects(content.get("parts")):
            if part.get("content_type") in POINTERS:
                parts.append(self.attachments.part(_pointer(part)))
            elif spoken := text(part.get("text")):  # the transcript of what was spoken
                parts.append(spoken)
            else:
                self._left_out[UNKNOWN_PART] += 1
        return parts

    def _attached(self, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[UserContent | None]:
        """Return the files of a message that its content does not show."""
        shown = {_pointer(part) for part in objects(content.get("parts"))}
        attached = [one for one in objects(metadata.get("attachments")) if text(one.get("id")) not in shown]
        return [self.attachments.part(text(one.get("id")), text(one.get("name"))) for one in attached]

    def _answer_parts(
        self, id_: str, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> list[ModelResponsePart | None]:
        kind, recipient = text(content.get("content_type")), text(message.get("recipient"))
        if recipient not in ("", "all"):
            return [ToolCallPart(recipient[:64], {"input": _joined(content)}, tool_call_id=id_)]
        match kind:
            case "thoughts":
                thoughts = [one for one in objects(content.get("thoughts")) if text(one.get("content"))]
                return [ThinkingPart("\n\n".join(text(one.get("content")) for one in thoughts))] if thoughts else []
            case "reasoning_recap":  # how long the model thought
                self._left_out[INTERNAL_MESSAGE] += 1
                return []
            case "code":
                return [TextPart(fence(text(content.get("text"))))]
            case "text" | "multimodal_text":
                pointed = [_pointer(part) for part in objects(content.get("parts"))]
                written = "\n\n".join(_strings(content))
                files = [made_by_model(self.attachments.part(pointer)) for pointer in pointed if pointer]
                return [TextPart(written) if written.strip() else None, *files]
            case _:
                self._left_out[UNKNOWN_PART] += 1
                return []

    def _tool_result(self, id_: str, content: Mapping[str, Any], at: datetime | None) -> Messages:
        """Return the result of the call that the message answers. What answers no call is not imported."""
        call = self._call_before(id_)
        if call is None or content.get("content_type") not in OUTPUTS:
            self._left_out[INTERNAL_MESSAGE] += 1
            return []
        pointed = [_pointer(part) for part in objects(content.get("parts"))]
        files = [part for pointer in pointed if pointer and (part := self.attachments.part(pointer)) is not None]
        written = _joined(content)
        result: Any = [written, *files] if files else written
        name = text(mapping(self.tree[call]["message"]).get("recipient"))[:64]
        return [tool_result(ToolReturnPart(name, result, call), at)]

    def _call_before(self, id_: str) -> str | None:
        """Return the node of the tool call that this node answers."""
        found = text(mapping(self.tree[id_]).get("parent"))
        message = mapping(mapping(self.tree.get(found)).get("message"))
        role = mapping(message.get("author")).get("role")
        return found if role == "assistant" and text(message.get("recipient")) not in ("", "all") else None


def _pointer(part: Mapping[str, Any]) -> str:
    """Return the id of a file in a pointer such as `sediment://file_1a2b` or `file-service://file-1a2b`."""
    return text(part.get("asset_pointer")).rpartition("://")[2]


def _strings(content: Mapping[str, Any]) -> list[str]:
    parts = content.get("parts")
    found = cast("list[Any]", parts) if isinstance(parts, list) else []
    return [part for part in found if isinstance(part, str) and part.strip()]


def _joined(content: Mapping[str, Any]) -> str:
    fields = (text(content.get(name)) for name in ("text", "result"))
    return "\n\n".join([*_strings(content), *(field for field in fields if field)])
