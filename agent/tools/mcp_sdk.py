"""Hides the differences between versions 1 and 2 of the MCP SDK. The page uses 2, the hub of a Gradio Space requires 1.

Answers are JSON values, because the protocol fixes their names and the classes of the versions have different ones.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from mcp.client.stdio import get_default_environment as get_default_environment
from mcp.shared.message import SessionMessage as SessionMessage

from agent.errors import AgentError

IS_FIRST = version("mcp").startswith("1.")
# Only one of the versions is installed, so the names of the other are looked up.
_client: Any = import_module("mcp.client.session" if IS_FIRST else "mcp.client.client")
_errors: Any = import_module("mcp.shared.exceptions")
_http: Any = import_module("httpx" if IS_FIRST else "httpx2")
_streamable_http: Any = import_module("mcp.client.streamable_http")
_types: Any = import_module("mcp.types")

CONNECTION_CLOSED: int = _types.CONNECTION_CLOSED
METHOD_NOT_FOUND: int = _types.METHOD_NOT_FOUND
HttpError: Any = _http.HTTPError
SdkError: Any = _errors.McpError if IS_FIRST else _errors.MCPError
"""The server's refusal. Its `error` has a `code` and a `message`."""


Ask = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a request of the server. An `AgentError` is the answer that it was not done."""
Progress = Callable[[float, float | None, str | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Client:
    """A session with a server after the handshake, or without one: version 2 asks the server for its revisions."""

    _session: Any

    async def request(self, method: str, *args: object, **named: object) -> dict[str, Any]:
        """Return the server's answer to a request, such as `list_tools`, by the name of the SDK's method."""
        return _json(await getattr(self._session, method)(*args, **named))


async def connect(
    stack: AsyncExitStack, transport: AbstractAsyncContextManager[Any], elicit: Ask | None, sample: Ask | None
) -> Client:
    """Return a client that can make requests. The stack closes it and the transport.

    `elicit` and `sample` answer the server's requests to people and to a model; None: the server is told that nobody
    does.
    """
    options: dict[str, Any] = {
        "client_info": _types.Implementation(name="switchboard", version="1"),
        "elicitation_callback": _answering(elicit, _types.ElicitResult),
        "sampling_callback": _answering(sample, _types.CreateMessageResult),
    }
    if not IS_FIRST:
        return Client(await stack.enter_async_context(_client.Client(transport, cache=None, **options)))
    incoming, outgoing, *_ = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(_client.ClientSession(incoming, outgoing, **options))
    await session.initialize()
    return Client(session)


def _answering(ask: Ask | None, kind: Any) -> Any:
    """Return the function with which the SDK answers a request with a result of this kind."""
    if ask is None:
        return None

    async def answer(_context: object, asked: Any) -> Any:
        try:
            return kind.model_validate(await ask(_json(asked)))
        except AgentError as refused:
            await asyncio.sleep(0)  # an error ends the call: let the server's other questions come first
            return _types.ErrorData(code=_types.INTERNAL_ERROR, message=str(refused))

    return answer


async def http_transport(
    stack: AsyncExitStack, url: str, headers: Mapping[str, str], tls: ssl.SSLContext
) -> AbstractAsyncContextManager[Any]:
    """Return the transport to a server at `url`. The stack closes its HTTP client."""
    here = _http.URL(url).host in ("localhost", "127.0.0.1", "::1")  # proxies cannot reach this machine
    timeout = _http.Timeout(30, read=300)
    http = _http.AsyncClient(headers=dict(headers), timeout=timeout, trust_env=not here, verify=tls)
    await stack.enter_async_context(http)
    return _streamable_http.streamable_http_client(url, http_client=http)


def parse_message(line: bytes) -> SessionMessage:
    """Return a message of the server. Raises `ValueError` if the line is none."""
    if IS_FIRST:
        return SessionMessage(_types.JSONRPCMessage.model_validate_json(line))
    return SessionMessage(_types.jsonrpc_message_adapter.validate_json(line, by_name=False))


def _json(answer: Any) -> dict[str, Any]:
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)
