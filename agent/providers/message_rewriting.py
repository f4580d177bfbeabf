"""The vendors' own dialects, one module each, imported when it is first spoken; and what two of them share."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext


class MessageRewriting(Model):
    """Stands before a model of the library: each message is sent as `taken` gives it.

    The library's own step for this, `prepare_messages`, is left out for a single request.
    """

    @staticmethod
    @abstractmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """The message as the vendor takes it. A pure function: a turn is the same bytes each time it is sent."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """See the library."""
        sent = [self.rewrite_messages(message) for message in messages]
        async with super().request_stream(sent, model_settings, model_request_parameters, run_context) as stream:
            yield stream
