"""Gemini over generateContent: thinking by level or budget, and streams that close their sockets when abandoned."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import httpx2
from google.genai import Client
from google.genai.types import GenerateContentResponse, HttpOptions
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.profiles.google import GoogleModelProfile, google_model_profile
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from agent.providers.connection import Effort, Reasoning, is_off, least, mapped, nearest
from agent.providers.http import ClientConnection

ERROR_WITHIN = 40
"""The first characters of a line in which an event names itself an error. Text of a model comes later."""
_begun: ContextVar[list[httpx2.Response]] = ContextVar("_begun")
"""The responses that the current request has begun."""


class GoogleConnection(ClientConnection):
    """A `Connection` to one Gemini model."""

    def effort(self, reasoning: Reasoning | None) -> Reasoning | None:
        """Return a level of the model, or a budget if it has none. On is the highest level or an unlimited budget."""
        if not (self.spec.reasoning and self._profile.get("supports_thinking")) or reasoning is None:
            return None
        levelled = self._profile.get("google_supports_thinking_level")
        if is_off(reasoning):
            if not levelled:
                return "minimal" if self._profile.get("thinking_always_enabled") else False
            return False if self._profile.get("google_disables_thinking_with_zero_budget") else least(self._levels)
        if reasoning is True:
            return nearest("high", self._levels) if levelled else True
        return nearest(cast(Effort, reasoning), self._levels)

    def settings(self, reasoning: Reasoning | None) -> ModelSettings:
        """Return the thinking settings. Thoughts are sent only on request. The vendor itself limits the answer.

        True is the highest level or, for models with a budget, as much as the model sees fit. None is the vendor's own
        amount, with its text. Off is none, or the least for models that always think.
        """
        given = GoogleModelSettings()
        if not (self.spec.reasoning and self._profile.get("supports_thinking")):
            return given
        effort = self.effort(reasoning)
        if is_off(reasoning):
            given["thinking"] = False
        elif effort is None:
            given["google_thinking_config"] = {"include_thoughts": True}
        elif effort is True:
            given["google_thinking_config"] = {"include_thoughts": True, "thinking_budget": -1}
        else:
            given["thinking"] = cast(Any, effort)
        return given

    def _open(self, http: httpx2.AsyncClient) -> Model:
        async def note(response: httpx2.Response) -> None:
            _begun.get([]).append(response)
            response.aiter_lines = partial(_lines, response.aiter_lines())

        http.event_hooks = {"response": [note]}
        # All requests go through our client. The SDK makes three more clients that are never used, and reads every
        # certificate twice for them, which takes 300 ms in the event loop. This empty context costs nothing.
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        options = HttpOptions(
            base_url=self.endpoint.base_url,
            httpx_async_client=http,
            timeout=int((self.timeout.read or 0) * 1000) or None,
            async_client_args={"verify": unused, "ssl": unused},
        )
        client = Client(vertexai=False, api_key=self.endpoint.api_key or "none", http_options=options)
        always = GoogleModelProfile(thinking_always_enabled=self._profile.get("thinking_always_enabled", False))
        return _Gemini(self.spec.name, provider=GoogleProvider(client=client), profile=always)

    @property
    def _levels(self) -> Collection[str]:
        """The efforts that the model has. Budgets also go up to "high"."""
        some = self._profile.get("google_thinking_levels")
        return ["minimal", "low", "medium", "high"] if some is None else [level.lower() for level in some]

    @property
    def _profile(self) -> GoogleModelProfile:
        profile = cast(GoogleModelProfile, google_model_profile(self.spec.name) or {})
        return {**profile, "thinking_always_enabled": True} if self.spec.always_reasons else profile


class _Gemini(GoogleModel):
    """The library's model, which also closes its connection and turns unknown finish reasons into errors."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        begun: list[httpx2.Response] = []
        _begun.set(begun)
        try:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            # A finish reason that the library does not know (OTHER, MISSING_THOUGHT_SIGNATURE, ...) is never good.
            if stream.finish_reason is None and (stream.provider_details or {}).get("finish_reason"):
                stream.finish_reason = "error"
        finally:
            # The SDK leaves a partly read stream to the garbage collector.
            for response in begun:
                await response.aclose()

    async def _map_messages(self, messages: list[ModelMessage], *args: Any, **named: Any) -> Any:
        begin = super()._map_messages
        return await mapped(messages, lambda: begin(messages, *args, **named))

    async def _process_streamed_response(
        self, response: AsyncIterator[GenerateContentResponse], model_request_parameters: ModelRequestParameters
    ) -> StreamedResponse:
        return await super()._process_streamed_response(_without_unknown_parts(response), model_request_parameters)


async def _lines(lines: AsyncIterator[str]) -> AsyncGenerator[str]:
    """Yield the lines of a response. Nothing of it is left open after an error, which asyncio would report.

    The SDK raises the error and leaves its generators to asyncio, which would close them while we close the response.
    """
    async with aclosing(cast("AsyncGenerator[str]", lines)) as given:
        async for line in given:
            if '"error"' in line[:ERROR_WITHIN] and line.endswith("}"):  # else the rest comes in further lines
                await given.aclose()
                yield line
                yield ""  # it ends the event
                return
            yield line


async def _without_unknown_parts(
    chunks: AsyncIterator[GenerateContentResponse],
) -> AsyncIterator[GenerateContentResponse]:
    """Yield the chunks without parts of a kind that the SDK does not know. The library would fail on them."""
    async for chunk in chunks:
        for candidate in chunk.candidates or ():
            if candidate.content and candidate.content.parts:
                candidate.content.parts = [part for part in candidate.content.parts if part.model_fields_set]
        yield chunk
