"""OpenAI's SDK for one endpoint, without its own retries and without its scan of every message of the history."""

from contextlib import suppress
from typing import Any, cast

import httpx2
from openai import AsyncOpenAI
from openai._models import FinalRequestOptions
from openai._streaming import SSEDecoder
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses
from openai.types.chat import ChatCompletionChunk
from pydantic_core import to_json

from agent.providers.connection import Endpoint
from agent.providers.event_reading import EventReader
from agent.providers.http import END_SECONDS


def sdk_client(
    endpoint: Endpoint,
    http: httpx2.AsyncClient,
    timeout: httpx2.Timeout,
    *,
    vendor: str,
    end_seconds: float = END_SECONDS,
) -> AsyncOpenAI:
    """Return the SDK's client over `http`. `vendor` is the provider's id; `end_seconds` is as in `EventReader`."""
    client = PlainClient(
        base_url=endpoint.base_url, api_key=endpoint.api_key or "none", max_retries=0, timeout=timeout, http_client=http
    )
    client.end_seconds = end_seconds
    if vendor != "openai":
        # The SDK reads these from the environment and would reveal the owner's OpenAI account to other vendors.
        client.organization = client.project = None
    client.chat.__dict__["completions"] = PlainCompletions(client)  # presets a cached property
    client.__dict__["responses"] = PlainResponses(client)
    return client


class PlainClient(AsyncOpenAI):
    """A client that makes the chunks of a stream from the chunk before, as far as only their text differs.

    The SDK builds the objects of each chunk from their types, which takes ten times as long as copying them. It also
    writes the JSON of a request with the standard library, which takes four times as long for 400 turns.
    """

    end_seconds = END_SECONDS

    def _make_sse_decoder(self) -> SSEDecoder:
        return cast(SSEDecoder, EventReader(self.end_seconds))

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> httpx2.Request:
        body: Any = options.json_data
        if isinstance(body, dict) and not options.files:
            with suppress(ValueError):  # the SDK says what cannot be sent
                options.json_data, options.extra_json = to_json({**body, **(options.extra_json or {})}), None
        return super()._build_request(options, retries_taken=retries_taken)

    def _process_response_data(self, *, data: Any, cast_to: type[Any], response: httpx2.Response) -> Any:
        if cast_to is not ChatCompletionChunk or (text := _only_text(data)) is None:
            return super()._process_response_data(data=data, cast_to=cast_to, response=response)
        data["choices"][0]["delta"]["content"] = ""
        before, chunk = response.extensions.get(_LAST_CHUNK, (None, None))
        if before != data:
            chunk = super()._process_response_data(data=data, cast_to=cast_to, response=response)
            response.extensions[_LAST_CHUNK] = data, chunk
        return _with_text(cast(ChatCompletionChunk, chunk), text)


_LAST_CHUNK = "switchboard.last_chunk"
"""The key of a stream's last chunk with text, and of its JSON, both without the text."""


def _only_text(data: Any) -> str | None:
    """Return the text of a chunk with one choice and no tool call, or None for any other chunk."""
    match data:
        case {"choices": [{"delta": {"content": str(text), **more}}]} if text and not more.get("tool_calls"):
            return text
        case _:
            return None


def _with_text(chunk: ChatCompletionChunk, text: str) -> ChatCompletionChunk:
    choice = chunk.choices[0]
    delta = choice.delta.model_copy(update={"content": text})
    return chunk.model_copy(update={"choices": [choice.model_copy(update={"delta": delta})]})


class PlainCompletions(AsyncCompletions):
    """A `create` that sends the messages as they are.

    The SDK compares each message with each TypedDict it could be, to find names to change. There are none, and at 400
    turns the search takes 125 ms of CPU in the event loop before the request leaves. It does not search `extra_body`.
    """

    async def create(self, **request: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Create a completion; see the SDK."""
        extra: dict[str, Any] = request.pop("extra_body", None) or {}
        messages = list(request.pop("messages"))
        plain: Any = super()
        return await plain.create(messages=[], extra_body={**extra, "messages": messages}, **request)


class PlainResponses(AsyncResponses):
    """A `create` that sends the input as it is. The same search takes 3.4 s here at 400 turns."""

    async def create(self, **request: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Create a response; see the SDK."""
        extra: dict[str, Any] = request.pop("extra_body", None) or {}
        items = list(request.pop("input"))
        plain: Any = super()
        return await plain.create(extra_body={**extra, "input": items}, **request)
