"""Vectors of texts (embeddings) from OpenAI's route `/v1/embeddings`, which vLLM, llama.cpp and others have, too."""

import os
from collections.abc import Mapping, Sequence
from typing import cast

import httpx2
from pydantic_ai.embeddings import EmbeddingModel
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.providers.openai import OpenAIProvider

from agent.models.catalog import ProviderSpec, load_catalog
from agent.models.families import can_chat
from agent.providers.connection import Endpoint, server_named
from agent.providers.discovery import discover
from agent.providers.errors import explain
from agent.providers.http import new_client
from agent.providers.openai_client import sdk_client

TIMEOUT = httpx2.Timeout(connect=5.0, read=30.0, write=30.0, pool=5.0)
"""The time-outs of a request in seconds. Somebody waits for the search, which works without vectors, too."""
KEY_NAME = "EMBEDDINGS_API_KEY"
"""The environment variable for the key of a server that is named by its URL."""


class ServerEmbedder:
    """Makes vectors with one model of a server. An empty `model` is the first that does not chat, or the first."""

    def __init__(self, model: str, endpoint: Endpoint, provider: ProviderSpec) -> None:
        self._requested = self._model = model
        self._endpoint, self._provider = endpoint, provider

    async def name(self) -> str:
        if not self._model:
            names = [spec.name for spec in await discover(self._endpoint)]
            self._model = next((name for name in names if not can_chat(name)), names[0])
        return self._model

    async def identity(self) -> str:
        return f"{await self.name()}@{self._endpoint.base_url}"

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]:
        name = await self.name()
        async with new_client(self._endpoint.base_url, timeout=TIMEOUT) as http:
            client = sdk_client(self._endpoint, http, TIMEOUT, vendor=self._provider.id)
            model = OpenAIEmbeddingModel(name, provider=OpenAIProvider(openai_client=client))
            try:
                return await _embedded(model, texts, is_query)
            except Exception as error:
                self._model = self._requested  # the server can have another model now
                url, key = self._endpoint.base_url, self._endpoint.api_key
                given = url if url != self._provider.base_url else ""
                raise explain(error, name, self._provider, key=key, base_url=given, where=url) from error


class ModelEmbedder:
    """Makes vectors with a model of pydantic-ai, such as one of Google or Cohere, which has its own client."""

    def __init__(self, model: EmbeddingModel) -> None:
        self._model = model

    async def name(self) -> str:
        return self._model.model_name

    async def identity(self) -> str:
        return f"{self._model.model_name}@{self._model.base_url or self._model.system}"

    async def embed(self, texts: Sequence[str], *, is_query: bool = False) -> Sequence[Sequence[float]]:
        try:
            return await _embedded(self._model, texts, is_query)
        except Exception as error:
            system = self._model.system
            known = load_catalog().provider(system) or ProviderSpec(
                id=system, label=system, dialect="chat", keys_at="-"
            )
            raise explain(error, self._model.model_name, known) from error


def embedder_named(name: str, env: Mapping[str, str] = os.environ) -> ServerEmbedder:
    """Return the embedder for "provider:model", or for the URL of a server, with "#model" after it if it has several.

    Touches no network. Raises `InputError` for a name or URL that cannot be one, `MissingKey` without a key.
    """
    endpoint, provider, model = server_named(name, env, what="embeddings", key_name=KEY_NAME)
    return ServerEmbedder(model, endpoint, provider)


async def _embedded(model: EmbeddingModel, texts: Sequence[str], is_query: bool) -> Sequence[Sequence[float]]:
    """Return the vectors. Raises what pydantic-ai and the SDK raise."""
    found = await model.embed(list(texts), input_type="query" if is_query else "document")
    vectors = cast(Sequence[object], found.embeddings)
    if len(vectors) != len(texts) or not all(isinstance(one, Sequence) for one in vectors):
        raise UnexpectedModelBehavior(f"{len(vectors)} vectors for {len(texts)} texts")
    return found.embeddings
