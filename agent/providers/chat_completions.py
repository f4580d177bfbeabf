"""Servers with OpenAI's Chat Completions API: vLLM, llama.cpp, the Hugging Face router, OpenAI's audio models."""

import io
import json
import re
import wave
from base64 import b64decode
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import httpx2
from openai import AsyncOpenAI
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionChunk,
    ChatCompletionContentPartParam,
    ChatCompletionMessageParam,
    ChatCompletionUserMessageParam,
    chat_completion_chunk,
)
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIStreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.providers.vllm import VLLMProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RequestUsage

from agent.i18n.text import LocalizedText
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.plain_text import plain_text
from agent.providers.connection import MOST_SOUND, Endpoint, Reasoning, SoundPiece, is_off, mapped
from agent.providers.discovery import look_up
from agent.providers.http import ClientConnection
from agent.providers.openai_client import sdk_client
from agent.providers.refusals import (
    SENTENCES,
    Ability,
    refused_abilities,
    refused_ability,
    remember,
    without,
    without_refused,
)
from agent.providers.think_tags import TaggedParts
from agent.system.media_types import detect_mime


class ExampleModel(WrapperModel):
    """A model that gets `examples`, pairs of question and answer, between the system prompt and the conversation.

    The examples belong to the model. No other code sees them, so they are never stored, shown or counted as history.
    """

    def __init__(self, wrapped: Model, examples: Sequence[tuple[str, str]]) -> None:
        super().__init__(wrapped)
        self._examples = tuple(examples)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream a response to the messages with the examples; see pydantic-ai."""
        sent = with_examples(messages, self._examples)
        async with self.wrapped.request_stream(sent, model_settings, model_request_parameters, run_context) as stream:
            yield stream


def with_examples(messages: Sequence[ModelMessage], examples: Sequence[tuple[str, str]]) -> list[ModelMessage]:
    """Return the messages with the examples after the leading system prompts. The argument is not changed."""
    exchanges: list[ModelMessage] = []
    for question, answer in examples:
        exchanges += [ModelRequest([UserPromptPart(question)]), ModelResponse([TextPart(answer)])]
    if not messages or not isinstance(first := messages[0], ModelRequest):
        return [*exchanges, *messages]
    system = [part for part in first.parts if isinstance(part, SystemPromptPart)]
    rest = [part for part in first.parts if not isinstance(part, SystemPromptPart)]
    return [*([ModelRequest(system)] if system else []), *exchanges, replace(first, parts=rest), *messages[1:]]


_TEMPLATED = ("vllm", "llama.cpp", "sglang")
"""Providers with servers that fill in the model's own chat template, which has a switch for reasoning."""
_FULL = (*_TEMPLATED, "openai", "azure")
"""Providers that take all that the library sends. The others document neither `strict` nor `max_completion_tokens`."""
_WANT_REASONING = ("deepseek", "openrouter")
"""Other providers that take a model's own reasoning in the messages of a tool loop."""
_REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Fields of a delta in which servers send the reasoning that they have parsed themselves."""
_NO_ARGUMENTS = ("{}", "null")
"""Arguments that some servers send first, and then those of the call."""
_LEAKED_TAG = re.compile(r"(?<![`'\"])</?think>")
"""A tag that a server left in the reasoning."""


class ChatCompletionsConnection(ClientConnection):
    """A `Connection` to one model of a server with the Chat Completions API."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        super().__init__(without_refused(spec, endpoint.base_url), endpoint, provider)

    @asynccontextmanager
    async def slot(self, on_position: Callable[[int], None]) -> AsyncGenerator[None]:
        """Ask the server about a model of which nothing is known, then do as `ClientConnection.slot`."""
        if (spec := await look_up(self.spec, self.endpoint)) is not self.spec:
            self.change_spec(without_refused(spec, self.endpoint.base_url))
        async with super().slot(on_position):
            yield

    def learn(
        self, error: BaseException | None, *, pictures: bool, tools: bool, schema: bool = False, videos: bool = False
    ) -> LocalizedText | None:
        """Implement `LearnsRefusals`. Every later connection to this model of this server knows it, too."""
        possible: dict[Ability, bool] = {
            "tools": tools and self.spec.tools == "native",
            "schema": self.spec.schemas and schema,
            "video": videos and self.spec.video,
            "image": pictures and self.spec.image,
            "switch": self._has_switch,
        }
        ability = refused_ability(error, [one for one, is_used in possible.items() if is_used])
        if ability is None:
            return None
        if self.endpoint.is_own_key and ability != "switch":  # it can be the plan of the visitor that lacks it
            self.change_spec(without(self.spec, {ability}))
        else:
            remember(self.spec, self.endpoint.base_url, ability)
            self.change_spec(without_refused(self.spec, self.endpoint.base_url))
        return LocalizedText(SENTENCES[ability], {"model": self.spec.label})

    @property
    def _has_switch(self) -> bool:
        is_templated = self.spec.reasoning and self.spec.provider in _TEMPLATED
        return is_templated and "switch" not in refused_abilities(self.spec, self.endpoint.base_url)

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return on or off if the chat template has a switch for reasoning. It knows no efforts."""
        if reasoning is None or not self._has_switch:
            return None
        return self.spec.always_reasons or not is_off(reasoning)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the spec's own defaults, and the chat template's switch for models that reason.

        No switch is sent to the Hugging Face router: the providers behind it have none in common.
        """
        named = {name: value for name, value in self.spec.defaults if name in ModelSettings.__annotations__}
        body: dict[str, Any] = {name: value for name, value in self.spec.defaults if name not in named}
        if (on := self.effort(reasoning)) is not None:
            body["chat_template_kwargs"] = {"enable_thinking": on}
        return cast(ModelSettings, {**named, "extra_body": body} if body else named)

    def _open(self, http: httpx2.AsyncClient) -> Model:
        client = sdk_client(self.endpoint, http, self.timeout, vendor=self.spec.provider, end_seconds=self.end_seconds)
        provider = _provider(self.spec.provider, client)
        chat = _Chat(self.spec.name, provider=provider, profile=_profile(self.spec.provider))
        chat.continues = self.spec.continues
        chat.always_reasons = self.spec.always_reasons and self.spec.provider in _TEMPLATED
        return ExampleModel(chat, self.spec.examples) if self.spec.examples else chat


def _provider(id_: str, client: AsyncOpenAI) -> Provider[AsyncOpenAI]:
    """Return the library's provider, named after the id. Messages carry it: reasoning goes back only to its writer."""
    match id_:
        case "openai":
            return OpenAIProvider(openai_client=client)
        case "vllm":
            return VLLMProvider(openai_client=client)
        case "llama.cpp":  # the library's facts about vLLM hold for it, too
            return OpenAICompatibleProvider(id_, openai_client=client, profile=VLLMProvider.model_profile)
        case _:
            return OpenAICompatibleProvider(id_, openai_client=client)


def _profile(provider: str) -> ModelProfile:
    """Return the changes to the library's profile of the model.

    The library's Qwen profile drops leading white space of a stream; here the model's text arrives whole. A stream
    without a finish reason was cut, and must not look finished.
    """
    ours = OpenAIModelProfile(
        ignore_streamed_leading_whitespace=False,
        openai_chat_streaming_requires_finish_reason=True,
        supports_json_schema_output=True,  # our catalogue decides
        native_output_requires_schema_in_instructions=False,  # it is in the system message: templates take only one
    )
    if provider not in _FULL:
        if provider not in _WANT_REASONING:
            ours["openai_chat_send_back_thinking_parts"] = False
        ours["openai_supports_strict_tool_definition"] = False
        ours["openai_chat_supports_max_completion_tokens"] = False
    return ours


class _Chat(OpenAIChatModel):
    """The library's model, with a stream that keeps parallel calls apart.

    It maps messages of one text itself, as the library does, but sooner: most messages of a long conversation are one.
    `always_reasons`: answers begin within reasoning until one of them shows that they don't. `continues`: the model
    continues the answer that a request ends with, instead of beginning another one.
    """

    always_reasons = continues = False

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream a response that knows whether answers of this server begin within reasoning; see pydantic-ai."""
        goes_on = bool(messages) and isinstance(messages[-1], ModelResponse)
        settings = _continuing(model_settings) if goes_on and self.continues else model_settings
        async with super().request_stream(messages, settings, model_request_parameters, run_context) as stream:
            if isinstance(stream, _CompletionStream) and not goes_on:
                body = cast(Mapping[str, Any], (settings or {}).get("extra_body") or {})
                key = self.base_url, self.model_name, str(body.get("chat_template_kwargs"))
                stream.expect_reasoning(key, assumed=self.always_reasons)
            yield stream

    async def _map_messages(
        self,
        messages: Sequence[ModelMessage],
        model_request_parameters: ModelRequestParameters,
        *,
        model_settings: ModelSettings | None = None,
    ) -> list[ChatCompletionMessageParam]:
        return await mapped(messages, lambda: self._mapped(messages, model_request_parameters, model_settings))

    async def _mapped(
        self,
        messages: Sequence[ModelMessage],
        model_request_parameters: ModelRequestParameters,
        model_settings: ModelSettings | None,
    ) -> list[ChatCompletionMessageParam]:
        plain = [_mapped_text(message) for message in messages[1:]]
        has_instructions = any(isinstance(one, ModelRequest) and one.instructions is not None for one in messages[:1])
        if not all(plain) or has_instructions:
            return await super()._map_messages(messages, model_request_parameters, model_settings=model_settings)
        # Only the first message can need more, because the system message is in it.
        first = await super()._map_messages(messages[:1], model_request_parameters, model_settings=model_settings)
        return [*first, *filter(None, plain)]

    async def _map_user_message(self, message: ModelRequest) -> AsyncGenerator[ChatCompletionMessageParam]:
        if (plain := _mapped_text(message)) is not None:
            yield plain
            return
        async for one in super()._map_user_message(message):
            yield one

    async def _map_binary_content_item(self, item: BinaryContent) -> ChatCompletionContentPartParam:
        """Map a file. vLLM, SGLang and OpenRouter have a part for videos, which OpenAI has not."""
        if not item.is_video:
            return await super()._map_binary_content_item(item)
        part = {"type": "video_url", "video_url": {"url": item.data_uri}}
        return cast(ChatCompletionContentPartParam, part)

    def _map_model_response(self, message: ModelResponse) -> ChatCompletionMessageParam | None:
        return _mapped_text(message) or super()._map_model_response(message)

    @property
    def _streamed_response_cls(self) -> type[OpenAIStreamedResponse]:
        return _CompletionStream


def _mapped_text(message: ModelMessage) -> ChatCompletionMessageParam | None:
    """Return the mapped message if it is one text without instructions. An empty answer is not one."""
    if (text := plain_text(message)) is None:
        return None
    if isinstance(message, ModelRequest):
        return ChatCompletionUserMessageParam(role="user", content=text) if message.instructions is None else None
    return ChatCompletionAssistantMessageParam(role="assistant", content=text) if text else None


def _continuing(settings: ModelSettings | None) -> ModelSettings:
    """Return the settings of a request for the rest of an answer. Its reasoning is over, so it is switched off.

    vLLM and llama.cpp know the same two fields. They leave the answer's end open in the filled-in chat template.
    """
    given = cast(Mapping[str, Any], (settings or {}).get("extra_body") or {})
    body: dict[str, Any] = {**given, "continue_final_message": True, "add_generation_prompt": False}
    if "chat_template_kwargs" in body:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return cast(ModelSettings, {**(settings or {}), "extra_body": body})


_Server = tuple[str, str, str]
"""The address of a server, its model, and the model's switch for reasoning."""
_MOST_SERVERS = 1000
_begins_inside: dict[_Server, bool] = {}
"""True for servers whose answers begin within reasoning, because the chat template puts the tag into the prompt.

The first answer that shows it decides, and so does a guess that was wrong, so that no answer is hidden twice.
"""


@dataclass
class _Call:
    """A tool call of a stream: its number among all calls, and its known parts."""

    number: int
    id: str = ""
    name: str = ""
    arguments: str = ""

    def is_whole(self) -> bool:
        try:
            return self.arguments.endswith("}") and isinstance(json.loads(self.arguments), dict)
        except ValueError:
            return False


@dataclass
class _CompletionStream(OpenAIStreamedResponse):
    """A stream that finds reasoning in tags, and does not rely on the numbers of its tool calls.

    The library goes by `index` alone. Some servers leave it out, send 0 for each of several calls, or repeat a call's
    name with each piece of its arguments. The library would then join two calls into one, or call `namename`.
    """

    _calls: list[_Call] = field(default_factory=list[_Call], init=False)
    _latest: dict[int | None, _Call] = field(default_factory=dict[int | None, _Call], init=False)
    _server: _Server | None = field(default=None, init=False)
    """The server to remember, None for an answer that says nothing about others."""
    _blank: str = field(default="", init=False)
    """White space sent as reasoning within a text. Servers send it beside the text, and it must not split it."""
    _is_text_open: bool = field(default=False, init=False)
    _sound: bytearray = field(default_factory=bytearray, init=False)
    _samples: "_Samples" = field(default_factory=lambda: _Samples(), init=False)
    _is_over: bool = field(default=False, init=False)

    @cached_property
    def _parts_manager(self) -> TaggedParts:  # pyright: ignore[reportIncompatibleVariableOverride]
        return TaggedParts(self)

    def expect_reasoning(self, server: _Server, *, assumed: bool) -> None:
        """Take text for reasoning from the beginning if earlier answers began so. `assumed` counts before the first."""
        self._server = server
        self._parts_manager.tags.begins_inside = _begins_inside.get(server, assumed)

    def _remember(self, *, begins_inside: bool, is_certain: bool) -> None:
        if self._server is not None and (is_certain or self._server not in _begins_inside):
            while len(_begins_inside) >= _MOST_SERVERS:
                del _begins_inside[next(iter(_begins_inside))]
            _begins_inside[self._server] = begins_inside

    def _add_usage(self, usage: RequestUsage, *, reported: bool, cumulative: bool = False) -> None:
        # Servers that send usage with each chunk count from the beginning of the answer.
        super()._add_usage(usage, reported=reported, cumulative=reported or cumulative)

    async def _validate_response(self) -> AsyncGenerator[ChatCompletionChunk]:
        # Azure's filter sends a finish reason without a delta, and the library skips such a choice.
        last: ChatCompletionChunk | None = None
        async for last in super()._validate_response():
            for choice in last.choices or ():
                choice.delta = choice.delta or ChoiceDelta()
            yield last
        if self._sound and last is not None:  # its pieces can follow the end of the text
            self._is_over = True
            choice = chat_completion_chunk.Choice(index=0, delta=ChoiceDelta(), finish_reason=None)
            yield last.model_copy(update={"choices": [choice], "usage": None})

    def _map_part_delta(self, choice: chat_completion_chunk.Choice) -> Iterable[ModelResponseStreamEvent]:
        delta, parts = choice.delta, self._parts_manager
        if name := next((name for name in _REASONING_FIELDS if getattr(delta, name, None)), None):
            thought = self._blank + _LEAKED_TAG.sub("", getattr(delta, name))
            is_held = self._is_text_open and thought.isspace()
            self._blank = thought if is_held else ""
            if not thought.isspace():  # the server finds reasoning itself
                parts.tags.begins_inside, self._server = False, None
            setattr(delta, name, None if is_held else thought or None)
            self._is_text_open = is_held
        if delta.tool_calls or (name and not self._is_text_open):
            yield from self._end_text()
            self._is_text_open = False
        yield from super()._map_part_delta(choice)
        if pictures := cast(list[str] | None, getattr(delta, "images", None)):
            yield from self._end_text()
            yield from self._map_pictures(choice, pictures)
        if len(self._sound) < MOST_SOUND and (sound := _decoded(getattr(delta, "audio", None))):
            self._sound += sound
            if piece := self._samples.take(sound):
                yield cast(ModelResponseStreamEvent, piece)
        if self._is_over:
            if piece := self._samples.take(b"", is_whole=True):
                yield cast(ModelResponseStreamEvent, piece)
            yield from self._end_text()
            self._content_generation += 1
            yield self._parts_manager.handle_part(vendor_part_id=None, part=FilePart(sound_of(bytes(self._sound))))
        if choice.finish_reason:
            yield from self._end_text()
            yield from self._check_guess(choice.finish_reason)

    def _map_pictures(
        self, choice: chat_completion_chunk.Choice, pictures: Sequence[str]
    ) -> Iterable[ModelResponseStreamEvent]:
        """Make pictures files of the answer. One at an address stays one of the text, which the page asks about."""
        for url in pictures:
            if (file := _picture(url)) is not None:
                self._content_generation += 1
                yield self._parts_manager.handle_part(vendor_part_id=None, part=FilePart(file))
            elif url.startswith(("https://", "http://")) and not re.search(r"[\s()<>]", url):
                yield from super()._map_text_delta(_with_content(choice, f"\n\n![]({url})\n\n"))

    def _end_text(self) -> Iterable[ModelResponseStreamEvent]:
        for event in self._parts_manager.end_text():
            if isinstance(event, PartStartEvent):
                self._advance_part_boundary("content")
            yield event

    def _map_text_delta(self, choice: chat_completion_chunk.Choice) -> Iterable[ModelResponseStreamEvent]:
        had_thoughts = self._parts_manager.has_thoughts
        self._is_text_open = self._is_text_open or bool(choice.delta.content)
        yield from super()._map_text_delta(choice)
        if self._parts_manager.has_thoughts and not had_thoughts:
            self._remember(begins_inside=True, is_certain=False)

    def _check_guess(self, finish_reason: str) -> Iterable[ModelResponseStreamEvent]:
        """Make an answer text that was taken for reasoning and never ended it, unless it was cut off."""
        parts = self._parts_manager
        if parts.tags.is_guess and finish_reason != "length":
            self._remember(begins_inside=False, is_certain=True)
            for index, part in enumerate(parts.get_parts()):
                if isinstance(part, ThinkingPart):
                    yield parts.change(index, TextPart(part.content, provider_name=part.provider_name))
        elif not parts.tags.is_guess and finish_reason == "stop" and not parts.has_thoughts:
            self._remember(begins_inside=False, is_certain=False)

    def _map_tool_call_delta(self, choice: chat_completion_chunk.Choice) -> Iterable[ModelResponseStreamEvent]:
        for delta in choice.delta.tool_calls or []:
            self._number(delta)
        return super()._map_tool_call_delta(choice)

    def _number(self, delta: ChoiceDeltaToolCall) -> None:
        """Give the delta the number of its call, and remove the parts that the call already has."""
        name, id_ = (delta.function.name if delta.function else None) or "", delta.id or ""
        number = cast(int | None, delta.index)
        call = self._latest.get(number)
        if number is None and id_:
            call = next((one for one in self._calls if one.id == id_), call)
        if call is None and self._calls and not (name or id_):  # a piece with another number, or without one
            call = self._calls[-1]
        if call is None or _begins(id_, name, delta, after=call):
            call = self._latest[delta.index] = _Call(len(self._calls))
            self._calls.append(call)
        delta.index = call.number
        if call.id:
            delta.id = None
        if delta.function is not None:
            arguments = delta.function.arguments or ""
            if call.arguments in _NO_ARGUMENTS and arguments:
                call.arguments = ""
            if name == call.name:
                delta.function.name = None
                if id_ == call.id and not call.is_whole():  # the call is sent again
                    arguments = arguments.removeprefix(call.arguments)
            if arguments.startswith(("{", "null")) and call.is_whole():
                arguments = ""
            call.arguments += arguments
            delta.function.arguments = "" if call.arguments in _NO_ARGUMENTS else arguments
        call.id, call.name = call.id or delta.id or "", call.name or name


_PACKED = ("audio/ogg", "audio/flac", "audio/mpeg")
LONGEST_HEAD = 4096
"""Bytes in which the samples of a WAV file begin, and the first two frames of an MP3."""
MP3_KBITS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
MP3_KBITS_LOW = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
MP3_RATES = (44_100, 48_000, 32_000)
"""The bit rates of MPEG 1 and of MPEG 2, and the sample rates of MPEG 1, by their numbers in the head of a frame."""
SAMPLES_A_SECOND = 24_000
"""Of sound without a head, as OpenAI sends it: one channel of 16 bits."""


def _decoded(data: object) -> bytes:
    """Return the bytes of pieces of sound in Base64, which can follow each other, b"" if there are none."""
    try:
        return b"".join(b64decode(one) for one in re.findall("[^=]+=*", data)) if isinstance(data, str) else b""
    except ValueError:
        return b""


def _files(data: bytes) -> Iterator[bytes]:
    """Yield the WAV files that follow each other, by the lengths in their heads, or all that is no such file."""
    while data:
        end = 8 + int.from_bytes(data[4:8], "little") if data.startswith(b"RIFF") else len(data)
        yield data[:end]
        data = data[end:]


def _is_mp3_frame(head: bytes) -> bool:
    return len(head) >= 4 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2


def _frame_bytes(head: bytes) -> int:
    """Return the length of an MP3 frame with this head, 0 if it has none. See ISO/IEC 11172-3 and 13818-3."""
    if not _is_mp3_frame(head) or head[2] >> 4 == 15 or head[2] >> 2 & 3 == 3:
        return 0
    version = {3: 1, 2: 2, 0: 4}.get(head[1] >> 3 & 3, 0)  # MPEG 1, 2 and 2.5: by how much the sample rate is lower
    if not version:
        return 0
    kbits = (MP3_KBITS if version == 1 else MP3_KBITS_LOW)[head[2] >> 4]
    samples = 144 if version == 1 else 72
    return samples * kbits * 1000 // (MP3_RATES[head[2] >> 2 & 3] // version) + (head[2] >> 1 & 1)


def _packed_type(data: bytes) -> str:
    """Return the media type of a sound that is packed, "" for one of samples.

    Samples can begin as the frame of an MP3 does, so a second frame must follow the first.
    """
    kind = detect_mime(data)
    if kind == "audio/mpeg" and _is_mp3_frame(data):
        length = _frame_bytes(data)
        return kind if length and _is_mp3_frame(data[length:]) else ""
    return kind if kind in _PACKED else ""


class _Samples:
    """The samples in the pieces of a sound, as they come. A sound that is packed, such as MP3, has none."""

    def __init__(self) -> None:
        self.packed: str | None = None
        """The media type of a sound that is packed, "" for one of samples, None as long as it is not known."""
        self._rate, self._channels, self._rest = SAMPLES_A_SECOND, 1, b""
        self._begun = b""
        """The beginning of the sound, as long as it does not tell the kind."""
        self._is_wide = True
        """False in a file whose samples have not 16 bits, which is left out."""

    def take(self, data: bytes, *, is_whole: bool = False) -> SoundPiece | None:
        """Return the samples of the next piece, None if it has no whole one. `is_whole`: no other piece follows."""
        if self.packed is None:
            data, self._begun = self._begun + data, b""
            is_cut = data.startswith(b"RIFF") and b"data" not in data[: -len("size")]
            is_cut |= _is_mp3_frame(data)
            if not is_whole and (len(data) < len(b"RIFF") or (is_cut and len(data) < LONGEST_HEAD)):
                self._begun = data
                return None
            self.packed = _packed_type(data)
        if self.packed:
            return None
        out = self._rest + b"".join(map(self._of_file, _files(data)))
        whole = len(out) // (2 * self._channels) * 2 * self._channels
        out, self._rest = out[:whole], out[whole:]
        return SoundPiece(out, self._rate, self._channels) if out else None

    def _of_file(self, data: bytes) -> bytes:
        try:
            with wave.open(io.BytesIO(data)) as file:
                self._rate, self._channels = file.getframerate(), file.getnchannels()
                self._is_wide = file.getsampwidth() == 2
                return file.readframes(len(data)) if self._is_wide else b""
        except (wave.Error, EOFError):
            return data if self._is_wide else b""


def sound_of(data: bytes) -> BinaryContent:
    """Return the sound of an answer as one file. It comes as WAV files, samples without a head, or another file."""
    samples = _Samples()
    piece = samples.take(data, is_whole=True) or SoundPiece(b"", SAMPLES_A_SECOND, 1)
    if samples.packed:
        return BinaryContent(data, media_type=samples.packed)
    whole = io.BytesIO()
    with wave.open(whole, "wb") as file:
        file.setparams((piece.channels, 2, piece.rate, 0, "NONE", ""))
        file.writeframes(piece.samples)
    return BinaryContent(whole.getvalue(), media_type="audio/wav")


def _picture(url: str) -> BinaryContent | None:
    """Return the picture of a data URL, or of Base64 alone; None for others."""
    head, _, data = url.rpartition(",")
    if head and not (head.startswith("data:image/") and head.endswith(";base64")):
        return None
    try:
        content = b64decode("".join(data.split()), validate=True)
    except ValueError:
        return None
    kind = detect_mime(content)
    return BinaryContent.narrow_type(BinaryContent(content, media_type=kind)) if kind.startswith("image/") else None


def _with_content(choice: chat_completion_chunk.Choice, content: str) -> chat_completion_chunk.Choice:
    return choice.model_copy(update={"delta": ChoiceDelta(content=content)})


def _begins(id_: str, name: str, delta: ChoiceDeltaToolCall, *, after: _Call) -> bool:
    """Return True if a delta with this id and name begins another call. Each call has a name; ids can be random."""
    if not name:
        return False
    if after.id:
        given = (delta.function.arguments if delta.function else None) or ""
        is_rest = name == after.name and after.arguments and not (given.startswith("{") or after.is_whole())
        return id_ not in ("", after.id) and not is_rest
    is_repeated = (
        cast(object, delta.index) is not None
        and delta.function is not None
        and delta.function.arguments == after.arguments
    )
    return bool(after.name) and (name != after.name or (after.is_whole() and not is_repeated))
