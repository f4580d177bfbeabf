"""Example exchanges for a small model, added before the conversation in each request to it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from agent.providers import StreamingModel


class ExampleModel(StreamingModel, WrapperModel):
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
