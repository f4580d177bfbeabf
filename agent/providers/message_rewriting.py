"""A base class for the models of vendors that take some messages only in another form."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext


class MessageRewriting(Model):
    """A mixin for a model of pydantic-ai. It sends each message as `rewrite_messages` returns it.

    The library's own hook for this, `prepare_messages`, is not called for a single request.
    """

    @staticmethod
    @abstractmethod
    def rewrite_messages(message: ModelMessage) -> ModelMessage:
        """Return the message as the vendor takes it. Pure, so that a turn is the same bytes each time it is sent."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream a response to the rewritten messages; see pydantic-ai."""
        sent = [self.rewrite_messages(message) for message in messages]
        async with super().request_stream(sent, model_settings, model_request_parameters, run_context) as stream:
            yield stream
