"""OpenAI and xAI over the Responses API. The vendor stores nothing, so encrypted reasoning stays in the history."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast, get_args

import httpx2
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model, StreamedResponse
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.profiles.grok import GrokModelProfile, grok_model_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile, openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings

from agent.i18n.text import LocalizedText
from agent.models.catalog import ModelSpec, ProviderSpec
from agent.providers.chat_completions import ChatCompletionsConnection
from agent.providers.connection import Effort, Endpoint, MessageRewriting, Reasoning, is_off, least, mapped, nearest
from agent.providers.errors import missing_route
from agent.providers.http import ClientConnection
from agent.providers.openai_client import sdk_client
from agent.providers.refusals import CHAT_ONLY, remember_chat_only
from agent.providers.think_tags import find_reasoning

XAI_TIMEOUT = httpx2.Timeout(connect=5.0, read=900.0, write=30.0, pool=5.0)
"""xAI's models can be silent for that long while they reason. Its documentation asks for a time-out of 15 minutes."""


class OpenAIResponsesConnection(ClientConnection):
    """A `Connection` to one model of OpenAI or xAI, or of another server that speaks the same API.

    If that server turns out to speak only Chat Completions, the requests go over that from then on.
    """

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        super().__init__(spec, endpoint, provider)
        self._chat: ChatCompletionsConnection | None = None
        if provider.id == "xai":
            self.timeout = XAI_TIMEOUT

    def learn(
        self, error: BaseException | None, *, pictures: bool, tools: bool, schema: bool = False, videos: bool = False
    ) -> LocalizedText | None:
        url = self.endpoint.base_url
        if self._chat is not None:
            sentence = self._chat.learn(error, pictures=pictures, tools=tools, schema=schema, videos=videos)
            self.spec = self._chat.spec
            return sentence
        if url == self.provider.base_url or not isinstance(error, ModelHTTPError):
            return None
        if missing_route(error.status_code, error.body, url) != "no_route":
            return None
        remember_chat_only(url)
        spec = replace(self.spec, dialect="chat", assumed=False)
        self._chat = ChatCompletionsConnection(spec, self.endpoint, self.provider)
        self.spec = self._chat.spec
        return LocalizedText(CHAT_ONLY)

    def model(self) -> Model:
        return self._chat.model() if self._chat is not None else super().model()

    async def aclose(self) -> None:
        if self._chat is not None:
            await self._chat.aclose()
        await super().aclose()

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return one of the model's efforts. On is medium or the nearest one. Off is "none" if the model has it."""
        if self._chat is not None:
            return self._chat.effort(reasoning)
        if not self.spec.reasoning or reasoning is None:
            return None
        if is_off(reasoning):
            return None if self.spec.always_reasons else least(self._efforts)
        return nearest("medium" if reasoning is True else cast(Effort, reasoning), self._efforts)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return settings that store nothing and, for models that reason, ask for a visible summary and an effort."""
        if self._chat is not None:
            return self._chat.settings(reasoning)
        given = OpenAIResponsesModelSettings(openai_store=False)
        if not self.spec.reasoning:
            return given
        effort = self.effort(reasoning)
        if effort != "none":
            given["openai_reasoning_summary"] = "auto"
        if isinstance(effort, str):
            given["openai_reasoning_effort"] = effort
        return given

    @property
    def _efforts(self) -> Collection[str]:
        """The efforts that the model takes, according to the library. An unknown newer model gets today's efforts."""
        if self.spec.provider == "xai":
            return cast(GrokModelProfile, grok_model_profile(self.spec.name) or {}).get("grok_reasoning_efforts", ())
        known = cast(OpenAIModelProfile, openai_model_profile(self.spec.name) or {})
        if (pinned := known.get("openai_reasoning_efforts")) is not None:
            return pinned
        missing = {
            "none": self.spec.always_reasons or known.get("thinking_always_enabled", False),
            "minimal": not known.get("openai_supports_minimal_reasoning_effort", True),
            "max": not known.get("openai_responses_supports_max_reasoning_effort", False),
        }
        return [effort for effort in get_args(Effort) if not missing.get(effort, False)]

    def _open(self, http: httpx2.AsyncClient) -> Model:
        id_ = self.spec.provider
        client = sdk_client(self.endpoint, http, self.timeout, vendor=id_, end_seconds=self.end_seconds)
        # Each message carries the name of its provider: what xAI encrypted must never be sent to OpenAI.
        provider = (
            OpenAIProvider(openai_client=client)
            if id_ == "openai"
            else OpenAICompatibleProvider(id_, openai_client=client)
        )
        return _Stateless(self.spec.name, provider=provider, profile=_profile(self.spec))


def _profile(spec: ModelSpec) -> OpenAIModelProfile:
    """Return our catalog's facts about the model. They override the library's, which come from known names only."""
    ours = OpenAIModelProfile(
        supports_thinking=spec.reasoning,
        thinking_always_enabled=spec.always_reasons,
        openai_supports_encrypted_reasoning_content=spec.reasoning,
        openai_supports_reasoning=not spec.temperature,  # its only effect: the library removes a temperature
        # It would name the previous answer, but the vendor does not store one to compare with.
        openai_responses_supports_prompt_cache_diagnostics=False,
    )
    if spec.provider == "xai":
        # Models without efforts refuse a request for one.
        grok: GrokModelProfile = {**(grok_model_profile(spec.name) or {})}
        ours["openai_reasoning_efforts"] = frozenset(grok.get("grok_reasoning_efforts", ()))
    return ours


class _Stateless(MessageRewriting, OpenAIResponsesModel):
    """The library's model, which sends only reasoning that the vendor can decrypt again."""

    async def _map_messages(self, messages: list[ModelMessage], *args: Any, **named: Any) -> Any:
        begin = super()._map_messages
        return await mapped(messages, lambda: begin(messages, *args, **named))

    async def _process_streamed_response(self, *args: Any, **named: Any) -> StreamedResponse:  # pyright: ignore[reportIncompatibleMethodOverride]
        stream = await super()._process_streamed_response(*args, **named)
        find_reasoning(stream)
        return stream

    @staticmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """Return the message without reasoning that never got its signature because the answer broke off.

        The vendor looks such an item up by its id, but has not stored it. The parts that it wrote after it are then
        sent without ids: the vendor refuses a part with its own id if the reasoning before it is missing.
        """
        if not isinstance(message, ModelResponse):
            return message
        thoughts = [part for part in message.parts if isinstance(part, ThinkingPart)]
        sealed = {part.id for part in thoughts if part.id and part.signature}
        if all(part.id in sealed for part in thoughts):
            return message
        kept: list[ModelResponsePart] = []
        for part in message.parts:
            if isinstance(part, TextPart | ToolCallPart):
                part = replace(part, id=None)
            if not isinstance(part, ThinkingPart) or part.id in sealed:
                kept.append(part)
        return replace(message, parts=kept)
