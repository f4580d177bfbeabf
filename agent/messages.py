"""What people pass in, as messages; what a store holds, made fit to send; a conversation in OpenAI's format."""

import base64
import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError
from agent.responses import whole

Prompt = str | Sequence[UserContent] | Sequence[Mapping[str, Any]] | Sequence[ModelMessage]

UNANSWERED = "(No answer was given.)"
"""Stands for an answer that broke off before any text, so that roles alternate as chat templates demand."""

INTERRUPTED = "The call was interrupted and has no result."

_EPOCH = datetime.fromtimestamp(0, UTC)
"""The time of what we put in ourselves: a fixed one, so that the same history always repairs to the same value."""


def to_messages(prompt: Prompt) -> list[ModelMessage]:
    """A string, a list of parts, OpenAI-format dicts or messages, as messages that end with a request.

    Raises `InputError` for an empty prompt, an unknown part, or a list that ends with the assistant.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InputError("the message is empty")
        return [ModelRequest(parts=[UserPromptPart(whole(prompt))])]
    items: list[Any] = list(prompt)
    if not items:
        raise InputError("the message is empty")
    if all(isinstance(item, ModelRequest | ModelResponse) for item in items):
        messages: list[ModelMessage] = cast(list[ModelMessage], items)
    elif all(isinstance(item, Mapping) and "role" in item for item in items):
        messages = from_openai(cast(list[Mapping[str, Any]], items))
    elif all(isinstance(item, str | BinaryContent | ImageUrl) for item in items):
        content = [whole(item) if isinstance(item, str) else item for item in items]
        messages = [ModelRequest(parts=[UserPromptPart(cast(list[UserContent], content))])]
    else:
        odd = next(item for item in items if not isinstance(item, str | BinaryContent | ImageUrl))
        raise InputError(f"a message may hold text, images and sound, not {type(odd).__name__!r}")
    if not isinstance(messages[-1], ModelRequest):
        raise InputError("the last message must be the user's")
    return messages


def repaired(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The same history with every tool call answered once, right after it, and no result without its call.

    Calls of an interrupted response go, as do calls without a name or with the id of another one beside them.
    Idempotent; messages that need nothing are returned as they are.
    """
    out: list[ModelMessage] = []
    waiting: dict[str, str] = {}
    for message in messages:
        if isinstance(message, ModelResponse):
            if waiting:
                out.append(ModelRequest(parts=[_no_result(id_, name) for id_, name in waiting.items()]))
            parts: list[ModelResponsePart] = []
            waiting = {}
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    if message.state == "interrupted" or not part.tool_name or part.tool_call_id in waiting:
                        continue
                    waiting[part.tool_call_id] = part.tool_name
                parts.append(part)
            out.append(message if len(parts) == len(message.parts) else replace(message, parts=parts))
            continue
        results: list[ModelRequestPart] = []
        others: list[ModelRequestPart] = []
        for part in message.parts:
            if not isinstance(part, ToolReturnPart):
                others.append(part)
            elif part.tool_call_id in waiting:
                del waiting[part.tool_call_id]
                results.append(part)
        results += [_no_result(id_, name) for id_, name in waiting.items()]
        waiting = {}
        if kept := [*results, *others]:
            same = len(kept) == len(message.parts) and all(map(operator.is_, kept, message.parts))
            out.append(message if same else replace(message, parts=kept))
    if waiting:
        out.append(ModelRequest(parts=[_no_result(id_, name) for id_, name in waiting.items()]))
    return out


def to_send(messages: Sequence[ModelMessage], system_message: str = "") -> list[ModelMessage]:
    """The messages a provider is sent: repaired, alternating, the system message first.

    A pure function of its input, so that the bytes of earlier turns stay the same from turn to turn.
    """
    out: list[ModelMessage] = []
    for message in repaired(messages):
        if isinstance(message, ModelResponse):
            if out and isinstance(before := out[-1], ModelResponse):
                out[-1] = replace(message, parts=[*before.parts, *message.parts])
                continue
            if not any(_says_something(part) for part in message.parts):
                message = replace(message, parts=[TextPart(UNANSWERED)])
        elif out and isinstance(out[-1], ModelRequest):
            out.append(ModelResponse(parts=[TextPart(UNANSWERED)], timestamp=_EPOCH))
        out.append(message)
    if system_message and out:
        first = out[0]
        system = SystemPromptPart(system_message)
        if isinstance(first, ModelRequest):
            out[0] = replace(first, parts=[system, *first.parts])
        else:
            out.insert(0, ModelRequest(parts=[system]))
    return out


def newest_that_fit(messages: Sequence[ModelMessage], tokens: int) -> list[ModelMessage]:
    """The newest whole turns of at most about `tokens` tokens, all messages where they fit.

    A token is counted as three bytes, a little less than text has. Turns are given up in blocks, down to 70 %, and
    the same ones at the next turn: a prompt that lost one turn each time would miss the server's cache each time.
    The newest turn stays, however long it is.
    """
    turns: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if not turns or (
            isinstance(message, ModelRequest) and any(isinstance(p, UserPromptPart) for p in message.parts)
        ):
            turns.append((index, 0))
        turns[-1] = (turns[-1][0], turns[-1][1] + _bytes(message) // 3)
    first, total = 0, 0
    for number, (_, size) in enumerate(turns):
        total += size
        if total > tokens:
            while total > 0.7 * tokens and first < number:
                total -= turns[first][1]
                first += 1
    return list(messages[turns[first][0] :]) if turns else []


def to_openai(messages: Sequence[ModelMessage], system_message: str = "") -> list[dict[str, Any]]:
    """The conversation in Chat Completions format, tool calls and results included; `from_openai` reads it back."""
    out: list[dict[str, Any]] = [{"role": "system", "content": system_message}] if system_message else []
    for message in messages:
        if isinstance(message, ModelResponse):
            out.append(_assistant(message))
            continue
        for part in message.parts:
            match part:
                case SystemPromptPart():
                    out.append({"role": "system", "content": part.content})
                case UserPromptPart():
                    out.append({"role": "user", "content": _user_content(part.content)})
                case ToolReturnPart():
                    out.append(
                        {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
                    )
                case _:
                    continue
    return out


def from_openai(items: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Chat Completions messages as our own. Raises `InputError` for an unknown role or part."""
    out: list[ModelMessage] = []
    names: dict[str, str] = {}
    for item in items:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            parts: list[ModelResponsePart] = []
            if reasoning := item.get("reasoning"):
                parts.append(ThinkingPart(str(reasoning)))
            if text := _text(content):
                parts.append(TextPart(text))
            for call in cast(list[Mapping[str, Any]], item.get("tool_calls") or []):
                function = cast(Mapping[str, Any], call["function"])
                names[call["id"]] = function["name"]
                parts.append(ToolCallPart(function["name"], function.get("arguments"), tool_call_id=call["id"]))
            out.append(ModelResponse(parts=parts))
            continue
        if role in ("system", "developer"):
            part: ModelRequestPart = SystemPromptPart(_text(content))
        elif role == "user":
            part = UserPromptPart(_parts(content))
        elif role == "tool":
            id_ = str(item.get("tool_call_id"))
            part = ToolReturnPart(names.get(id_, "tool"), _text(content), tool_call_id=id_)
        else:
            raise InputError(f"a message's role must be system, user, assistant or tool, not {role!r}")
        if out and isinstance(out[-1], ModelRequest) and not isinstance(part, UserPromptPart):
            out[-1] = replace(out[-1], parts=[*out[-1].parts, part])
        else:
            out.append(ModelRequest(parts=[part]))
    return out


def _no_result(id_: str, name: str) -> ToolReturnPart:
    return ToolReturnPart(name, INTERRUPTED, tool_call_id=id_, outcome="interrupted", timestamp=_EPOCH)


def _says_something(part: ModelResponsePart) -> bool:
    return isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and bool(part.content.strip()))


def _assistant(message: ModelResponse) -> dict[str, Any]:
    texts = [part.content for part in message.parts if isinstance(part, TextPart) and part.content]
    reasoning = [part.content for part in message.parts if isinstance(part, ThinkingPart) and part.content]
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    out: dict[str, Any] = {"role": "assistant", "content": "\n\n".join(texts) if texts or not calls else None}
    if reasoning:
        out["reasoning"] = "\n\n".join(reasoning)
    if calls:
        out["tool_calls"] = calls
    return out


def _user_content(content: str | Sequence[UserContent]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    out: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, str):
            out.append({"type": "text", "text": part})
        elif isinstance(part, BinaryContent):
            data = base64.b64encode(part.data).decode()
            if part.media_type.startswith("audio/"):
                out.append({"type": "input_audio", "input_audio": {"data": data, "format": part.format}})
            else:
                url = f"data:{part.media_type};base64,{data}"
                out.append({"type": "image_url", "image_url": {"url": url}})
        elif isinstance(part, ImageUrl):
            out.append({"type": "image_url", "image_url": {"url": part.url}})
    return out


def _parts(content: Any) -> str | list[UserContent]:
    if isinstance(content, str):
        return content
    out: list[UserContent] = []
    for part in cast(list[Mapping[str, Any]], content or []):
        match part:
            case {"type": "text", "text": str(text)}:
                out.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                out.append(BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url))
            case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format_)}}:
                kind = "audio/mpeg" if format_ == "mp3" else f"audio/{format_}"
                out.append(BinaryContent(base64.b64decode(data), media_type=kind))
            case _:
                raise InputError(f"a message may hold text, images and sound, not {json.dumps(part)[:80]}")
    return out


def _bytes(message: ModelMessage) -> int:
    total = 0
    for part in message.parts:
        content: Any = getattr(part, "content", None) or getattr(part, "args", None)
        if isinstance(content, str):
            total += len(content.encode("utf-8", "replace"))
        elif isinstance(content, list):
            items = cast(list[Any], content)
            total += sum(len(item.encode("utf-8", "replace")) if isinstance(item, str) else 3000 for item in items)
        elif content is not None:
            total += len(str(content))
    return total


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(str(part.get("text", "")) for part in cast(list[Mapping[str, Any]], content))
