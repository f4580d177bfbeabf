"""Claude over the Messages API: thinking in the form that each family takes, and the vendor's own prompt cache."""

import re
from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import httpx2
from anthropic import AsyncAnthropic
from anthropic._streaming import SSEDecoder
from anthropic.types.beta import BetaThinkingConfigParam
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.profiles.anthropic import AnthropicModelProfile, anthropic_model_profile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

from agent.providers.connection import Effort, MessageRewriting, Reasoning, is_off, mapped, nearest
from agent.providers.event_reading import MessagesReader
from agent.providers.http import END_SECONDS, ClientConnection
from agent.providers.think_tags import find_reasoning

MIN_REASONING_TOKENS = 1024
"""Tokens: the smallest thinking budget that the API accepts. It is part of `max_tokens`, which must be larger."""


class AnthropicConnection(ClientConnection):
    """A `Connection` to one Claude model."""

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return one of the model's own efforts. For models with a thinking budget, efforts are parts of the answer.

        On (True) names no effort for adaptive models. Off becomes the least effort for models that always think.
        """
        if not self.spec.reasoning or reasoning is None:
            return None
        has_efforts = self._profile.get("anthropic_supports_effort", False)
        if is_off(reasoning):
            always = self._profile.get("thinking_always_enabled", False)
            return False if not always else "low" if has_efforts else None
        if self._is_adaptive and (reasoning is True or not has_efforts):
            return True
        asked = "high" if reasoning is True else cast(Effort, reasoning)
        return nearest(asked, self._efforts if self._is_adaptive else _BUDGET_DIVISORS)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the longest answer (which this API requires), the prompt cache, citations, and the thinking settings.

        Thinking that is on is summarized: otherwise some models would leave its text out. By default (None) it is
        sent for models that think unasked, to make their thoughts visible; the others do not think. With thinking
        off, models that always think do so as little as they can.
        """
        # With one marker for the whole request, the vendor moves its breakpoint by itself: no earlier block changes.
        given = AnthropicModelSettings(max_tokens=self.spec.usual_output_tokens, anthropic_cache=True, citations=True)
        effort = self.effort(reasoning)
        if self.spec.reasoning and is_off(reasoning):
            given["thinking"] = False  # the library sends "low" for models that always think
        elif effort or (self.spec.reasoning and self._profile.get("thinking_enabled_by_default")):
            given["anthropic_thinking"] = self._thinking(effort)
            if isinstance(effort, str) and self._is_adaptive:
                given["anthropic_effort"] = cast(Any, effort)
        return given

    def _open(self, http: httpx2.AsyncClient) -> Model:
        client = _Client(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",
            max_retries=0,
            timeout=self.timeout,
            http_client=http,
        )
        client.end_seconds = self.end_seconds
        always = AnthropicModelProfile(thinking_always_enabled=self._profile.get("thinking_always_enabled", False))
        return _Claude(self.spec.name, provider=AnthropicProvider(anthropic_client=client), profile=always)

    @property
    def _profile(self) -> AnthropicModelProfile:
        profile = cast(AnthropicModelProfile, anthropic_model_profile(self.spec.name) or {})
        if self.spec.always_reasons:
            return {**profile, "thinking_always_enabled": True, "thinking_enabled_by_default": True}
        return profile

    @property
    def _is_adaptive(self) -> bool:
        return bool(self._profile.get("anthropic_supports_adaptive_thinking")) or not _BUDGETED.match(self.spec.name)

    @property
    def _efforts(self) -> Collection[str]:
        more = {"xhigh": "anthropic_supports_xhigh_effort", "max": "anthropic_supports_max_effort"}
        some = [name for name, field in more.items() if self._profile.get(field, name == "max")]
        return ["low", "medium", "high", *some]

    def _thinking(self, effort: Reasoning | None) -> BetaThinkingConfigParam:
        if self._is_adaptive:
            return {"type": "adaptive", "display": "summarized"}
        divisor = _BUDGET_DIVISORS[effort] if isinstance(effort, str) else _BUDGET_DIVISORS["high"]
        return {"type": "enabled", "budget_tokens": max(MIN_REASONING_TOKENS, self.spec.usual_output_tokens // divisor)}


_BUDGET_DIVISORS = {"low": 8, "medium": 4, "high": 2}
"""The divisor of the usual answer's length that gives the thinking budget of an effort."""

_BUDGETED = re.compile(r"claude-(?:[23]|instant|4-|(?:opus|sonnet|haiku)-4(?:-[0125]|@|$))")
"""The families before adaptive thinking. The old ones are listed, because an unknown model is a newer one."""


class _Client(AsyncAnthropic):
    """The SDK's client, with our reader of events."""

    end_seconds = END_SECONDS

    def _make_sse_decoder(self) -> SSEDecoder:
        return cast(SSEDecoder, MessagesReader(self.end_seconds))


class _Claude(MessageRewriting, AnthropicModel):
    """The library's model, which sends only settings that this API accepts together."""

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        settings = cast(AnthropicModelSettings, {**(model_settings or {})})
        return super().prepare_request(_agreeing(settings), model_request_parameters)

    async def _map_message(self, messages: list[ModelMessage], *args: Any, **named: Any) -> Any:
        begin = super()._map_message
        return await mapped(messages, lambda: begin(messages, *args, **named))

    async def _process_streamed_response(self, *args: Any, **named: Any) -> StreamedResponse:  # pyright: ignore[reportIncompatibleMethodOverride]
        stream = await super()._process_streamed_response(*args, **named)
        find_reasoning(stream)
        return stream

    @staticmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """Return the message as the API takes it: ids in its alphabet, and no text of only white space."""
        if isinstance(message, ModelResponse):
            non_empty = [one for one in message.parts if not (isinstance(one, TextPart) and not one.content.strip())]
            return replace(message, parts=[_answer(part) for part in non_empty])
        return replace(message, parts=[_question(part) for part in message.parts])


def _agreeing(settings: AnthropicModelSettings) -> AnthropicModelSettings:
    """Change the settings: no thinking budget that leaves nothing for the answer, no temperature while thinking."""
    thinking = settings.get("anthropic_thinking")
    if thinking is None:
        return settings
    if thinking["type"] == "enabled":
        budget = min(thinking["budget_tokens"], settings.get("max_tokens", thinking["budget_tokens"] * 2) // 2)
        if budget < MIN_REASONING_TOKENS:
            del settings["anthropic_thinking"]
            return settings
        settings["anthropic_thinking"] = {**thinking, "budget_tokens": budget}
    settings.pop("temperature", None)
    return settings


def _answer(part: ModelResponsePart) -> ModelResponsePart:
    return replace(part, tool_call_id=_id(part.tool_call_id)) if isinstance(part, ToolCallPart) else part


def _question(part: ModelRequestPart) -> ModelRequestPart:
    if isinstance(part, ToolReturnPart):
        return replace(part, tool_call_id=_id(part.tool_call_id))
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        return replace(part, content=[one for one in part.content if not isinstance(one, str) or one.strip()])
    return part


def _id(call: str) -> str:
    if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", call):
        return call
    return "toolu_" + sha256(call.encode()).hexdigest()[:32]
