"""A conversation in OpenAI's Chat Completions format, tool calls and results included, out and in."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n\n".join(str(part.get("text", "")) for part in cast(list[Mapping[str, Any]], content))
