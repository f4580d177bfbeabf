"""Adapts a history to a model that may not have written it. Pure: the stored history does not change.

Each message is adapted by itself, so earlier messages are sent the same way in each turn. A model that can use the
omitted content gets it again when it is chosen again.
"""

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, TypeGuard

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from agent.errors import InputError, MissingExtra, ProviderError, UnknownModel
from agent.files.for_model import may_have_text, takes_document
from agent.files.kinds import DOCX, LABELS, PDF, PPTX, XLSX
from agent.files.parts import extracted_text_of
from agent.i18n.text import N_, LocalizedText, _, listed, ngettext
from agent.messages.repair import prepare_messages
from agent.models.catalog import ModelSpec, load_catalog
from agent.plain_text import is_picture, is_video, plain_text
from agent.providers.connection import default_endpoint

NO_PICTURE = "[A picture was here, which this model cannot see.]"
NO_SOUND = "[A sound was here, which this model cannot hear.]"
NO_VIDEO = "[A video was here, which this model cannot see.]"

NAMED = 3
"""The most models that an error message suggests."""

_PORTABLE_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
"""Tool call ids that every vendor accepts (Anthropic restricts the characters, OpenAI the length)."""
_CHAT_FIELDS = (None, "content", "reasoning", "reasoning_content")
"""The ids of reasoning parts from Chat Completions: the name of the field that they came in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedHistory:
    """The messages that the model can take, and the number of omitted items of each kind."""

    messages: list[ModelMessage]
    reasoning: int = 0
    pictures: int = 0
    sounds: int = 0
    videos: int = 0

    def sentence(self, spec: ModelSpec) -> str:
        """Return the sentence for people about omitted content; "" if nothing was omitted."""
        left_out = [
            *([_("the reasoning of other models")] if self.reasoning else []),
            *([pictures(self.pictures)] if self.pictures else []),
            *([sounds(self.sounds)] if self.sounds else []),
            *([videos(self.videos)] if self.videos else []),
        ]
        if not left_out:
            return ""
        return _("Not sent to {model}, which cannot use it: {what}.", model=spec.label, what=listed(left_out))


def pictures(count: int) -> LocalizedText:
    """Return "2 pictures"."""
    return ngettext("{count} picture", "{count} pictures", count)


def sounds(count: int) -> LocalizedText:
    """Return "2 sounds"."""
    return ngettext("{count} sound", "{count} sounds", count)


def videos(count: int) -> LocalizedText:
    """Return "2 videos"."""
    return ngettext("{count} video", "{count} videos", count)


def adapt(messages: Sequence[ModelMessage], spec: ModelSpec) -> AdaptedHistory:
    """Return the history without content that this model cannot take. Messages that need no change are not copied.

    Another provider's reasoning is removed, and reasoning that the model cannot get as its own, and the ids, signatures
    and other details in other parts that only their provider understands. Media that the model cannot process is
    replaced by a short text, or by its extracted text if there is one. A model that can process the media gets the
    media without the extracted text, because the media says more. Tool calls and results stay.
    """
    adapter = _Adapter(spec)
    out = [adapter.request(one) if isinstance(one, ModelRequest) else adapter.response(one) for one in messages]
    counts = {name: getattr(adapter, name) for name in ("reasoning", "pictures", "sounds", "videos")}
    return AdaptedHistory(messages=out, **counts)


def check_prompt(messages: Sequence[ModelMessage], spec: ModelSpec) -> None:
    """Raise `InputError` if the model cannot take the media of the new prompt, and suggest models that can.

    Raises `MissingExtra` for files that need packages which are not installed. The prompt is everything after the last
    answer. The rest is history, which `adapt` changes instead.
    """
    last = max((number for number, one in enumerate(messages) if isinstance(one, ModelResponse)), default=-1)
    prompts = [part for one in messages[last + 1 :] for part in one.parts if isinstance(part, UserPromptPart)]
    adapted = adapt([ModelRequest(parts=prompts)], spec)
    counts = {"images": adapted.pictures, "audio": adapted.sounds, "videos": adapted.videos}
    if left_out := ["videos"] if adapted.videos else [name for name, count in counts.items() if count]:
        models = ", ".join(_models_that_take(spec, adapted))
        raise InputError(LocalizedText(_REFUSALS[tuple(left_out)], {"model": spec.label, "models": models}))
    for item in (item for message in adapted.messages for item in content_items(message)):
        if isinstance(item, BinaryContent) and not takes_document(spec, item.media_type):
            _check_extra(item.media_type)


def _check_extra(media_type: str) -> None:
    """Raise `MissingExtra` if files of this type need packages of an extra that are not installed."""
    for beginning, (what, extra, modules) in _EXTRAS.items():
        if media_type.startswith(beginning) and not all(map(find_spec, modules)):
            raise MissingExtra(what, extra)


_EXTRAS: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "audio/": ("A sound", "media", ("av", "numpy", "soundfile")),
    "image/heic": ("A picture of the kind HEIC", "media", ("pillow_heif",)),
    **{kind: (f"A document of the kind {LABELS[kind]}", "documents", ("lxml",)) for kind in (DOCX, PPTX, XLSX)},
    PDF: ("A document of the kind PDF", "documents", ("pypdfium2",)),
}
"""The extras that the files of a prompt need, by the beginning of their media type, with their modules."""


_REFUSALS: Mapping[tuple[str, ...], str] = {
    ("images",): N_("{model} cannot take images. Remove them, or use a model that can: {models}."),
    ("audio",): N_("{model} cannot take audio. Remove it, or use a model that can: {models}."),
    ("images", "audio"): N_("{model} cannot take images or audio. Remove them, or use a model that can: {models}."),
    ("videos",): N_("{model} cannot take videos. Remove them, or use a model that can: {models}."),
}


def _models_that_take(spec: ModelSpec, left_out: AdaptedHistory) -> list[str]:
    """Return the ids of a few models that take this, first of the same provider, then of providers with a key."""
    wanted = {"image": left_out.pictures, "audio": left_out.sounds, "video": left_out.videos}

    def rank(one: ModelSpec) -> tuple[bool, bool, bool]:
        other = one.provider != spec.provider
        return other and not _has_key(one.provider), other, not one.menu

    today = datetime.now(UTC).date()
    suitable = [
        one
        for one in load_catalog().models.values()
        if all(getattr(one, ability) for ability, count in wanted.items() if count)
        if one.menu or one.provider == spec.provider
        if not (one.retired or (one.retired_on is not None and one.retired_on <= today))
    ]
    return [one.id for one in sorted(suitable, key=rank)[:NAMED]]


def _has_key(provider: str) -> bool:
    try:
        return default_endpoint(load_catalog().providers[provider]).api_key is not None
    except UnknownModel:
        return False


def adapt_and_prepare(
    messages: Sequence[ModelMessage], spec: ModelSpec, system_message: str = ""
) -> list[ModelMessage]:
    """Return the messages to send to this model: adapted, then prepared by `prepare_messages`.

    Raises `ProviderError` if the model accepts only requests with sound and there is none.
    """
    adapted = adapt(messages, spec).messages
    if spec.needs_audio and not any(_is_sound(item) for message in adapted for item in content_items(message)):
        raise ProviderError(f"{spec.label} answers only what comes with a sound: attach one.", kind="unsupported")
    takes_both = spec.dialect != "chat" or spec.provider in ("openai", "azure")
    prepared = prepare_messages(adapted, system_message, joins_steered=takes_both)
    return [_in_words(message) for message in prepared] if spec.tools == "none" else prepared


def _in_words(message: ModelMessage) -> ModelMessage:
    """Return the message with its tool calls and results as text, for templates that know neither."""
    if isinstance(message, ModelResponse):
        if not any(isinstance(part, ToolCallPart) for part in message.parts):
            return message
        texts = [TextPart(_call(part)) if isinstance(part, ToolCallPart) else part for part in message.parts]
        return replace(message, parts=texts)
    if not any(isinstance(part, ToolReturnPart) for part in message.parts):
        return message
    others: list[ModelRequestPart] = []
    content: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, ToolReturnPart):
            text, files = part.model_response_str_and_user_content(wrap_if_error=False)
            # After "x gave: ...", a small model called x again.
            told = f"Result of {part.tool_name}" if part.outcome == "success" else f"{part.tool_name} failed"
            content += [f"{told}: {text}", *files]
        elif isinstance(part, UserPromptPart):
            content += [part.content] if isinstance(part.content, str) else part.content
        else:
            others.append(part)
    texts = [item for item in content if isinstance(item, str)]
    joined_content = "\n\n".join(texts) if len(texts) == len(content) else content
    return replace(message, parts=[*others, UserPromptPart(joined_content)])


def _call(part: ToolCallPart) -> str:
    return json.dumps({"name": part.tool_name, "arguments": part.args_as_dict()}, ensure_ascii=False)


@dataclass
class _Adapter:
    """One pass over a history. Owns the counts, and the new ids of changed calls by their old ids."""

    spec: ModelSpec
    reasoning: int = 0
    pictures: int = 0
    sounds: int = 0
    videos: int = 0
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def response(self, message: ModelResponse) -> ModelResponse:
        own = (None, self.spec.provider)
        is_plain = message.provider_name in own and plain_text(message) is not None
        if is_plain and getattr(message.parts[0], "provider_name", None) in own:
            return message
        parts: list[ModelResponsePart] = []
        for part in message.parts:
            author = getattr(part, "provider_name", None) or message.provider_name
            if isinstance(part, NativeToolCallPart | NativeToolReturnPart) and author not in own:
                continue  # a search of another provider
            if isinstance(part, ThinkingPart) and not self._is_usable(part, author):
                self.reasoning += not self._is_unsigned(part, author)
                continue
            if isinstance(part, ThinkingPart) and author is None and self.spec.dialect == "chat":
                # Send it back in the field that such servers use for reasoning, as if it were their own.
                id_ = part.id if part.id and part.id in _CHAT_FIELDS else "reasoning"
                part = replace(part, id=id_, signature=None, provider_name=self.spec.provider)
            if isinstance(part, ToolCallPart):
                self.ids.pop(part.tool_call_id, None)
            parts.append(part if author in own else self._without_provider_data(part))
        return message if _same(parts, message.parts) else replace(message, parts=parts)

    def request(self, message: ModelRequest) -> ModelRequest:
        if plain_text(message) is not None:
            return message
        parts = [self._adapt_part(part) for part in message.parts]
        return message if _same(parts, message.parts) else replace(message, parts=parts)

    def _is_usable(self, part: ThinkingPart, author: str | None) -> bool:
        if author not in (None, self.spec.provider):
            return False
        if self.spec.dialect == "chat":  # OpenAI has two dialects, and this one cannot carry encrypted reasoning
            return author is None or (part.id in _CHAT_FIELDS and not part.signature)
        # The other dialects have no place for reasoning that no provider wrote: the caller passed it in.
        return author is not None and self.spec.reasoning and not self._is_unsigned(part, author)

    def _is_unsigned(self, part: ThinkingPart, author: str | None) -> bool:
        """Return True for the model's own reasoning without its signature: cut off, or passed in a list of dicts.

        Anthropic does not accept it as reasoning, and it must not become a message of the user.
        """
        return author == self.spec.provider and self.spec.dialect == "messages" and not part.signature

    def _without_provider_data(self, part: ModelResponsePart) -> ModelResponsePart:
        """Return the part without the data that only its own provider understands."""
        if isinstance(part, ToolCallPart):
            id_ = self.ids[part.tool_call_id] = _portable(part.tool_call_id)
            part = part if id_ == part.tool_call_id else replace(part, tool_call_id=id_)
        if isinstance(part, TextPart | ToolCallPart | FilePart) and (part.id or part.provider_details):
            part = replace(part, id=None, provider_name=None, provider_details=None)
        return part

    def _adapt_part(self, part: ModelRequestPart) -> ModelRequestPart:
        if isinstance(part, UserPromptPart):
            return part if isinstance(part.content, str) else self._adapt_content(part)
        if isinstance(part, ToolReturnPart):
            id_ = self.ids.get(part.tool_call_id, part.tool_call_id)
            return self._adapt_content(part if id_ == part.tool_call_id else replace(part, tool_call_id=id_))
        return part

    def _adapt_content(self, part: UserPromptPart | ToolReturnPart) -> UserPromptPart | ToolReturnPart:
        content: Any = part.content
        items = content if _is_list(content) else [content]
        after = [*items, None][1:]
        new = [self._adapt_item(item) for item, next_ in zip(items, after, strict=True) if self._is_sent(item, next_)]
        if _same(new, items):
            return part
        return replace(part, content=new if _is_list(content) else new[0])

    def _is_sent(self, item: object, after: object) -> bool:
        """Return False for extracted text if the model takes the file, and for an unusable file that has such text."""
        if read := extracted_text_of(item):
            return not self._takes(read["kind"], read.get("media_type", ""))
        unusable = (
            (is_picture(item) and not self.spec.image)
            or (_is_sound(item) and not self.spec.audio)
            or (may_have_text(item) and not self._takes("document", item.media_type))
        )
        return not (unusable and extracted_text_of(after))

    def _takes(self, kind: str, media_type: str) -> bool:
        """Return True if the model takes a file of the kind of which there is extracted text."""
        if kind == "document":
            return takes_document(self.spec, media_type)
        return self.spec.image if kind == "image" else self.spec.audio

    def _adapt_item(self, item: object) -> object:
        if is_picture(item) and not self.spec.image:
            self.pictures += 1
            return NO_PICTURE
        if _is_sound(item) and not self.spec.audio:
            self.sounds += 1
            return NO_SOUND
        if is_video(item) and not self.spec.video:
            self.videos += 1
            return NO_VIDEO
        return item


def has_pictures(messages: Sequence[ModelMessage]) -> bool:
    """Return True if a prompt or the result of a tool has a picture."""
    return any(is_picture(item) for message in messages for item in content_items(message))


def has_videos(messages: Sequence[ModelMessage]) -> bool:
    """Return True if a prompt or the result of a tool has a video."""
    return any(is_video(item) for message in messages for item in content_items(message))


def content_items(message: ModelMessage) -> Iterator[object]:
    """Yield the content items of a message's prompts and tool results."""
    if isinstance(message, ModelRequest):
        for part in message.parts:
            if isinstance(part, UserPromptPart | ToolReturnPart):
                content: Any = part.content
                yield from content if _is_list(content) else [content]


def _portable(id_: str) -> str:
    """Return an id for a call that every vendor accepts. The same input gives the same id."""
    return id_ if _PORTABLE_ID.fullmatch(id_) else f"call_{sha256(id_.encode()).hexdigest()[:24]}"


def _same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _is_sound(item: object) -> bool:
    return isinstance(item, AudioUrl) or (isinstance(item, BinaryContent) and item.is_audio)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)
