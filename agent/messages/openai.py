"""Converts a conversation to and from OpenAI's Chat Completions format, including tool calls and results.

Extra fields extend the format: `reasoning` or `reasoning_content` beside `content`, as in servers for open weights, and
its provider as `reasoning_by`; `reasoning_details` with what a provider needs to get its reasoning back, such as a
signature; `is_error` on a tool's message (with `outcome`, if that is not "failed"). The format cannot carry other data
of vendors, such as the ids of items. Pass a `Context` on if a conversation must keep these.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Literal, TypeGuard, cast, get_args

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

from agent.errors import InputError
from agent.files.parts import AUDIO_FORMATS, Audio, Image, from_base64, from_data_url
from agent.keyword_arguments import explains_arguments, shown
from agent.messages.repair import join_continued
from agent.responses import fix_surrogates

_Outcome = Literal["failed", "denied", "interrupted"]
_ROLES = {"user": ("human", "customer"), "assistant": ("ai", "model", "bot", "agent"), "tool": ("function",)}
"""The roles of other libraries."""
_CONTENTS = ("parts", "text", "message", "value")
"""The keys of other libraries for the content of a message."""
_REASONING = ("reasoning", "reasoning_content")
_FORMATS = {kind: name for name, kind in AUDIO_FORMATS.items()}


class Part:
    """The parts of a `Message`, beside pictures, sounds and files: `Part.Text("Hello")`."""

    def __init__(self, *_: object, **__: object) -> None:
        raise InputError('a part of a text is Part.Text("..."); pictures and sounds are Image and Audio')

    @staticmethod
    def Text(text: str) -> dict[str, Any]:
        """Return a text."""
        if not isinstance(cast(object, text), str):
            raise InputError(f"Part.Text takes a text, not {shown(text)}; pictures and sounds are Image and Audio")
        return {"type": "text", "text": text}


class Message(dict[str, Any]):
    """A message of a prompt: `agent.ask([Message(role="user", contents=[Part.Text("What is this?"), picture])])`.

    It is a message in OpenAI's format. `contents` is a text, or a list of texts, parts, pictures, sounds and files.
    """

    @explains_arguments
    def __init__(self, role: str, contents: str | Sequence[object] = "") -> None:
        if not isinstance(contents, str):
            contents = [cast(object, one) if isinstance(one, Mapping) else _content_part(one) for one in contents]
        super().__init__(role=role, content=contents)

    @property
    def role(self) -> str:
        """The sender: "system", "user", "assistant" or "tool"."""
        return self["role"]

    @property
    def contents(self) -> Any:
        """The text, or the parts in OpenAI's format."""
        return self["content"]


def to_openai(messages: Sequence[ModelMessage], system_message: str = "") -> list[dict[str, Any]]:
    """Return the conversation in Chat Completions format with tool calls and results. `from_openai` reads it back.

    `system_message` replaces a system message at the beginning of the conversation.
    """
    out: list[dict[str, Any]] = [{"role": "system", "content": system_message}] if system_message else []
    for number, message in enumerate(join_continued(messages)):
        if isinstance(message, ModelResponse):
            out.append(_assistant(message))
            continue
        for part in message.parts:
            match part:
                case SystemPromptPart():
                    if number or not system_message:
                        out.append({"role": "system", "content": part.content})
                case UserPromptPart():
                    out.append({"role": "user", "content": _content(part.content)})
                case ToolReturnPart():
                    out.append(_tool(part))
                case _:
                    continue
    return out


def from_openai(items: Sequence[Mapping[str, Any]]) -> list[ModelMessage]:
    """Parse Chat Completions messages. Raises `InputError` for an unknown or malformed role or part."""
    out: list[ModelMessage] = []
    names: dict[str, str] = {}
    parts: list[ModelRequestPart] = []  # of the last request, which continues until there is an answer
    asked = False
    for item in items:
        if item.get("role") == "assistant":
            out.append(ModelResponse(parts=_answer(item, names)))
            parts, asked = [], False
            continue
        part = _request_part(item, names)
        question = isinstance(part, UserPromptPart)
        # A prompt after an unanswered prompt starts a new request. All other parts share one request.
        if not parts or (asked and question):
            parts, asked = [], False
            out.append(ModelRequest(parts=parts))
        parts.append(part)
        asked = asked or question
    return out


def _request_part(item: Mapping[str, Any], names: Mapping[str, str]) -> ModelRequestPart:
    """Parse a system, user or tool message. Raises `InputError`."""
    _check_keys(item)
    role, content = item.get("role"), item.get("content")
    match role:
        case "system" | "developer":
            return SystemPromptPart(_text(content))
        case "user":
            return UserPromptPart(fix_surrogates(content) if isinstance(content, str) else _parts(content))
        case "tool":
            return _result(item, names)
        case _:
            meant = next((name for name, others in _ROLES.items() if role in others), None)
            hint = f": write {meant!r}" if meant else ""
            raise InputError(f"a message's role must be system, user, assistant or tool, not {role!r}{hint}")


def _check_keys(item: Mapping[str, Any]) -> None:
    """Raise `InputError` for a message whose content has another key, such as `contents`."""
    if item.get("content") is None and not item.get("tool_calls"):
        close = [*get_close_matches("content", [*map(str, item)], 1), *(key for key in _CONTENTS if key in item)]
        if found := next((key for key in close if key != "content"), None):
            raise InputError(f"a message has its text or parts in 'content', not in {found!r}")


def part_from_openai(part: Any) -> str | BinaryContent | ImageUrl:
    """Parse one part of a message: text, a picture, a sound or a file. Raises `InputError`."""
    match part:
        case {"type": "text", "text": str(text)}:
            return fix_surrogates(text)
        case {"type": "image_url", "image_url": {"url": str(url), **more}}:
            picture = Image.from_url(url)
            detail = cast(dict[str, Any], more).get("detail")
            return replace(picture, vendor_metadata={"detail": detail}) if detail else picture
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(format_)}}:
            return Audio.from_bytes(from_base64(data), format=format_)
        case {"type": "video_url", "video_url": {"url": str(data)}} if data.startswith("data:"):
            return from_data_url(data)
        case {"type": "file", "file": {"file_data": str(data)}} if data.startswith("data:"):
            return from_data_url(data)
        case {"content": _}:
            raise InputError("a message in OpenAI's format needs a role: {'role': 'user', 'content': ...}")
        case _:
            meant = "it is {'role': 'user', 'content': ...}"
            if isinstance(part, Mapping) and "type" in part:
                meant = "a part is {'type': 'text', 'text': ...} or {'type': 'image_url', 'image_url': {'url': ...}}"
            raise InputError(
                f"a message may hold text, pictures and sound, not {json.dumps(part, default=str)[:80]}; in OpenAI's "
                f"format {meant}"
            )


# --- out --------------------------------------------------------------------------------------------------------------


def _assistant(message: ModelResponse) -> dict[str, Any]:
    texts = [part.content for part in message.parts if isinstance(part, TextPart) and part.content]
    thoughts = [part for part in message.parts if isinstance(part, ThinkingPart) and part.content]
    files = [_content_part(part.content) for part in message.parts if isinstance(part, FilePart)]
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
            **_provider_data(part, message),
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    text = "\n\n".join(texts)
    content = [*([_content_part(text)] if texts else []), *files] if files else text
    out: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if thoughts:
        first = thoughts[0]
        field = first.id if first.id in _REASONING else _REASONING[0]
        out[field] = "\n\n".join(part.content for part in thoughts)
        if by := first.provider_name or message.provider_name:
            out["reasoning_by"] = by
    own = [part for part in message.parts if isinstance(part, ThinkingPart)]
    if any(part.signature or part.provider_details for part in own):
        out["reasoning_details"] = [_detail(part, message) for part in own]
    if calls:
        out["tool_calls"] = calls
    return out


def _detail(part: ThinkingPart, message: ModelResponse) -> dict[str, Any]:
    """Return a piece of reasoning with what its provider needs to get it back. Redacted reasoning has no text."""
    given = {"id": part.id, "text": part.content, "signature": part.signature}
    return {name: value for name, value in given.items() if value is not None} | _provider_data(part, message)


def _provider_data(part: ThinkingPart | ToolCallPart, message: ModelResponse) -> dict[str, Any]:
    """Return the provider of a part that has data of it, and these data. {} for a call without."""
    provider = part.provider_name or message.provider_name
    if not provider or (isinstance(part, ToolCallPart) and not part.provider_details):
        return {}
    return {"provider": provider} | ({"provider_details": part.provider_details} if part.provider_details else {})


def _tool(part: ToolReturnPart) -> dict[str, Any]:
    text = part.model_response_str(wrap_if_error=False)
    files = [_content_part(file) for file in part.files]
    content = [*([_content_part(text)] if text else []), *files] if files else text
    out: dict[str, Any] = {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
    if part.outcome != "success":
        out["is_error"] = True
        if part.outcome in ("denied", "interrupted"):
            out["outcome"] = part.outcome
    return out


def _content(content: object) -> str | list[dict[str, Any]]:
    return [_content_part(part) for part in content] if _is_list(content) else str(content)


def _content_part(part: object) -> dict[str, Any]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case TextContent():
            return {"type": "text", "text": part.content}
        case ImageUrl():
            return _picture(part.url, part.vendor_metadata)
        case BinaryContent() if part.is_image:
            return _picture(part.data_uri, part.vendor_metadata)
        case BinaryContent() if part.media_type in _FORMATS:
            data = base64.b64encode(part.data).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": _FORMATS[part.media_type]}}
        case BinaryContent() if part.is_video:
            return {"type": "video_url", "video_url": {"url": part.data_uri}}
        case BinaryContent():
            return {"type": "file", "file": {"file_data": part.data_uri}}
        case _:
            raise InputError(f"OpenAI's format has no place for {type(part).__name__!r}")


def _picture(url: str, more: Mapping[str, Any] | None) -> dict[str, Any]:
    detail = {"detail": more["detail"]} if more and "detail" in more else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


# --- in ---------------------------------------------------------------------------------------------------------------


def _answer(item: Mapping[str, Any], names: dict[str, str]) -> list[ModelResponsePart]:
    """Return the parts of an assistant message, and add the names of its calls to `names` by id."""
    _check_keys(item)
    out: list[ModelResponsePart] = [*_thoughts(item.get("reasoning_details"))]
    for field in () if out else _REASONING:
        if reasoning := item.get(field):
            by = item.get("reasoning_by")
            name = by if isinstance(by, str) else None
            out.append(ThinkingPart(fix_surrogates(str(reasoning)), id=field, provider_name=name))
            break
    content = item.get("content")
    if text := _text(content):
        out.append(TextPart(text))
    for part in content if _is_list(content) else ():
        if not _is_text(part):
            file = part_from_openai(part)
            if isinstance(file, BinaryContent):
                out.append(FilePart(file))
    for call in item.get("tool_calls") or ():
        match call:
            case {"id": str(id_), "function": {"name": str(name), **more}}:
                names[id_] = name
                provider, details = _read_provider_data(call)
                arguments = cast(dict[str, Any], more).get("arguments")
                out.append(
                    ToolCallPart(name, arguments, tool_call_id=id_, provider_name=provider, provider_details=details)
                )
            case _:
                raise InputError(f"not a tool call: {json.dumps(call, default=str)[:80]}")
    return out


def _thoughts(given: object) -> Iterator[ThinkingPart]:
    """Yield the reasoning that `to_openai` wrote for its provider. Other libraries' entries name no provider."""
    found = [(detail, *_read_provider_data(detail)) for detail in (given if _is_list(given) else ())]
    if not all(provider for _detail, provider, _data in found):
        return
    for detail, provider, details in found:
        texts = {
            name: fix_surrogates(one)
            for name in ("text", "id", "signature")
            if isinstance(one := detail.get(name), str)
        }
        yield ThinkingPart(
            texts.get("text", ""),
            id=texts.get("id"),
            signature=texts.get("signature"),
            provider_name=provider,
            provider_details=details,
        )


def _read_provider_data(item: Any) -> tuple[str | None, dict[str, Any] | None]:
    """Return the provider and its data, or None for each that is missing or malformed."""
    given = cast(Mapping[str, Any], item) if isinstance(item, Mapping) else dict[str, Any]()
    provider, details = given.get("provider"), given.get("provider_details")
    if not isinstance(provider, str) or not provider:
        return None, None
    kept = dict[str, Any]()
    for name, value in cast(dict[str, Any], details).items() if isinstance(details, dict) else ():
        if name != "thought_signature" or isinstance(value, str):
            kept[name] = fix_surrogates(value) if isinstance(value, str) else value
    return fix_surrogates(provider), kept or None


def _result(item: Mapping[str, Any], names: Mapping[str, str]) -> ToolReturnPart:
    id_, content = str(item.get("tool_call_id")), item.get("content")
    files = [part_from_openai(part) for part in content if not _is_text(part)] if _is_list(content) else []
    text = _text(content)
    outcome = item.get("outcome")
    failed = outcome if outcome in get_args(_Outcome) else "failed"
    return ToolReturnPart(
        names.get(id_, "tool"),
        [*([text] if text else []), *files] if files else text,
        tool_call_id=id_,
        outcome=cast(_Outcome, failed) if item.get("is_error") else "success",
    )


def _parts(content: object) -> list[str | BinaryContent | ImageUrl]:
    if not _is_list(content):
        raise InputError(f"a message's content is a string or a list of parts, not {type(content).__name__!r}")
    return [part_from_openai(part) for part in content]


def _text(content: object) -> str:
    """Return the text of a content that can be a string, a list of parts, or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return fix_surrogates(content)
    if not _is_list(content):
        raise InputError(f"a message's content is a string or a list of parts, not {type(content).__name__!r}")
    return "\n\n".join(str(part["text"]) for part in content if _is_text(part))


def _is_text(part: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(part, Mapping) and part.get("type") in ("text", "refusal") and "text" in part  # pyright: ignore[reportUnknownMemberType]


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)
