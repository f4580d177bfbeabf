"""Servers that speak OpenAI's Chat Completions: vLLM, llama.cpp, the Hugging Face router, OpenAI's audio models."""

from typing import Any, cast

import httpx2
from openai import AsyncOpenAI
from pydantic_ai import ModelProfile
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.vllm import VLLMProvider
from pydantic_ai.settings import ModelSettings

from agent.providers.client import TIMEOUT, ClientConnection
from agent.providers.completions import PlainCompletions
from agent.providers.router import RouterModel


class Connection(ClientConnection):
    """A `Connection` to one model of a server that speaks Chat Completions."""

    def settings(self, reasoning: bool | None) -> ModelSettings:
        """The spec's own defaults, and the chat template's switch for models that reason."""
        named = {name: value for name, value in self.spec.defaults if name in ModelSettings.__annotations__}
        body: dict[str, Any] = {name: value for name, value in self.spec.defaults if name not in named}
        if self.spec.reasoning and reasoning is not None:
            body["chat_template_kwargs"] = {"enable_thinking": reasoning}
        return cast(ModelSettings, {**named, "extra_body": body} if body else named)

    def _open(self, http: httpx2.AsyncClient) -> Model:
        client = AsyncOpenAI(
            base_url=self.endpoint.base_url,
            api_key=self.endpoint.api_key or "none",
            max_retries=0,
            timeout=TIMEOUT,
            http_client=http,
        )
        provider = VLLMProvider(openai_client=PlainCompletions.into(client))
        model = OpenAIChatModel(self.spec.name, provider=provider, profile=_profile(provider, self.spec.name))
        return RouterModel(model) if self.spec.tools == "router" else model


def _profile(provider: VLLMProvider, name: str) -> ModelProfile:
    base = provider.model_profile(name) or ModelProfile()
    # The library's Qwen profile drops leading white space of a stream; what a model says arrives whole here. A stream
    # without a finish reason was cut, and must not look finished.
    ours = OpenAIModelProfile(
        ignore_streamed_leading_whitespace=False, openai_chat_streaming_requires_finish_reason=True
    )
    return cast(ModelProfile, {**base, **ours})
