"""A base class for the models of vendors that take some messages only in another form."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from agent.plain_text import are_many, off_loop
from agent.system.threads import PREPARING

T = TypeVar("T")


async def mapped(messages: Sequence[ModelMessage], begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what the library makes of these messages, in a thread if they are many.

    `begin` begins that again in the loop if it waits for the network, because a file is not in its message, or fails.
    """
    found = await PREPARING.run(_without_waiting, begin) if are_many(messages) else ()
    return found[0] if found else await begin()


def _without_waiting(begin: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T] | tuple[()]:
    mapping = begin()
    try:
        mapping.send(None)
    except StopIteration as ended:
        return (ended.value,)
    except Exception:
        return ()
    finally:
        mapping.close()
    return ()


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
        sent = await off_loop(messages, lambda: [self.rewrite_messages(message) for message in messages])
        async with super().request_stream(sent, model_settings, model_request_parameters, run_context) as stream:
            yield stream
