"""OpenAI and xAI, over Responses: the vendor keeps nothing, so sealed reasoning travels with the conversation."""

from collections.abc import Collection
from dataclasses import replace
from typing import cast, get_args

import httpx2
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.profiles.grok import GrokModelProfile, grok_model_profile
from pydantic_ai.profiles.openai import OpenAIModelProfile, openai_model_profile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings

from agent.models.catalog import ModelSpec, ProviderSpec
from agent.providers import Effort, Endpoint, Reasoning
from agent.providers.http import ClientConnection
from agent.providers.message_rewriting import MessageRewriting
from agent.providers.openai_client import sdk_client
from agent.providers.reasoning import is_off, least, nearest

XAI_TIMEOUT = httpx2.Timeout(connect=5.0, read=900.0, write=30.0, pool=5.0)
"""xAI's models may be silent for that long while they reason; its documentation asks for 15 minutes of patience."""


class OpenAIResponsesConnection(ClientConnection):
    """A `Connection` to one model of OpenAI or xAI."""

    def __init__(self, spec: ModelSpec, endpoint: Endpoint, provider: ProviderSpec) -> None:
        super().__init__(spec, endpoint, provider)
        if provider.id == "xai":
            self.timeout = XAI_TIMEOUT

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """One of the model's own efforts; on is medium or what is next to it. Off is "none", where the model has it."""
        if not self.spec.reasoning or reasoning is None:
            return None
        if is_off(reasoning):
            return None if self.spec.always_reasons else least(self._efforts)
        return nearest("medium" if reasoning is True else cast(Effort, reasoning), self._efforts)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Nothing stored; for models that reason, a summary to be seen, and an effort where that is a choice."""
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
        """Those that the model takes, as far as the library knows them; of a model newer than it, those of today."""
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
        client = sdk_client(self.endpoint, http, self.timeout, vendor=id_)
        # The provider's name is on each message that it wrote: what xAI sealed must never be sent to OpenAI.
        provider = (
            OpenAIProvider(openai_client=client)
            if id_ == "openai"
            else OpenAICompatibleProvider(id_, openai_client=client)
        )
        return _Stateless(self.spec.name, provider=provider, profile=_profile(self.spec))


def _profile(spec: ModelSpec) -> OpenAIModelProfile:
    """What our table says of the model, over what the library goes by, its name: it knows none newer than itself."""
    ours = OpenAIModelProfile(
        supports_thinking=spec.reasoning,
        thinking_always_enabled=spec.always_reasons,
        openai_supports_encrypted_reasoning_content=spec.reasoning,
        openai_supports_reasoning=not spec.temperature,  # all that hangs on it: a temperature is taken away
        # It would name the answer before, which is not kept there to be compared with.
        openai_responses_supports_prompt_cache_diagnostics=False,
    )
    if spec.provider == "xai":
        # Models without efforts refuse to be asked for one.
        grok: GrokModelProfile = {**(grok_model_profile(spec.name) or {})}
        ours["openai_reasoning_efforts"] = frozenset(grok.get("grok_reasoning_efforts", ()))
    return ours


class _Stateless(MessageRewriting, OpenAIResponsesModel):
    """The library's model, sent only reasoning that the vendor can open again."""

    @staticmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """See `_sealed`."""
        return _sealed(message)


def _sealed(message: ModelMessage) -> ModelMessage:
    """The message without reasoning whose seal never came, since the answer broke off.

    The vendor looks such an item up by its id, and has not kept it. What it wrote after it is sent without ids then:
    with its own id it is refused where the reasoning before it is missing.
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
