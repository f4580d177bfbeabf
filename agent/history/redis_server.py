"""The connections to the server of a Redis history, and the sentences about it when it is missing or refuses."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as NoAnswer

from agent.errors import ConfigError, HistoryError
from agent.history.records import shift_of
from agent.history.redis_scripts import Script
from agent.history.server_errors import connection_reason, refusal_reason, unreachable, unusable
from agent.history.uninterrupted import UninterruptedWork
from agent.i18n import _

MAX_CONNECTIONS = 16
"""Connections of one process. Further calls wait for one of them."""
GREETING_SECONDS = 3.0
"""Seconds until a server that does not greet a new connection counts as away."""
ANSWER_SECONDS = 5.0
"""Seconds that a call waits for the answer of a server that has greeted."""
FREE_CONNECTION_SECONDS = 20.0
"""Seconds that a call waits for one of the connections."""
PREFIX = "switchboard"
"""The first word of all keys, unless the URL has another one as `prefix`."""

log = logging.getLogger(__name__)


Argument = str | bytes | int | float


class RedisServer:
    """The connections to one server, until `aclose`. They are made when they are needed."""

    def __init__(self, url: str, clock: Callable[[], datetime], *, is_secret: bool = False) -> None:
        self.clock, self._is_secret = clock, is_secret
        pool_class: Any = BlockingConnectionPool  # its types are incomplete
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query))
            self._prefix = b"{%s}:" % query.pop("prefix", PREFIX).encode()
            self.address = address_of(url)
            pool = pool_class.from_url(
                urlunsplit(parts._replace(query=urlencode(query))),
                max_connections=MAX_CONNECTIONS,
                timeout=FREE_CONNECTION_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=GREETING_SECONDS,
                redis_connect_func=greet,
                protocol=2,  # With 3, the pool does not check whether a connection still has an unread reply.
                retry=Retry(NoBackoff(), 0),  # `run` tries again, and only what can be repeated.
            )
        except (ValueError, TypeError):  # whose text can have the password
            raise ConfigError(
                "SWITCHBOARD_STORE is no URL of a Redis server, such as redis://user:password@host:6379/0. Write "
                "special characters of the password as in %2F."
            ) from None
        self._client: Any = Redis(connection_pool=pool)
        self._work = UninterruptedWork()

    async def run(self, script: Script, *arguments: Argument, again: bool = True) -> Any:
        """Run a script and return its reply.

        If the connection breaks, it runs once more, unless `again` is False: scripts recognise their own repetition. A
        cancelled caller leaves no connection with an unread reply, because the call is always finished.
        """
        values = [_encode(one) for one in (shift_of(self.clock), *arguments)]
        return await self._work.run(self._run(script, values, again))

    async def info(self) -> Mapping[str, Any]:
        """Return what the server says about itself."""
        return await self._work.run(self._info())

    async def aclose(self) -> None:
        """Finish the calls in progress, and close the connections."""
        await self._work.finish()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _run(self, script: Script, values: Sequence[bytes], again: bool) -> Any:
        arguments = (1, self._prefix + b"place", self._prefix, *values)
        try:
            try:
                return await self._client.evalsha(script.sha, *arguments)
            except NoScriptError:  # the server has started since
                return await self._client.eval(script.text, *arguments)
        except (RedisError, OSError) as error:
            broken = isinstance(error, ConnectionError | OSError) and refusal_of(error) is None
            if broken and again:
                return await self._run(script, values, again=False)
            raise self._failure(error) from error

    async def _info(self) -> Mapping[str, Any]:
        try:
            return await self._client.info()
        except (RedisError, OSError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> HistoryError:
        """Return the sentence for an error of the driver. It never has the password."""
        log.debug("Redis at %s: %s", self.address, error)
        refusal = refusal_of(error)
        if refusal is None:
            reason = connection_reason(error, is_secret=self._is_secret)
            sentence = _(
                "Nothing can be kept at the moment: the Redis server {address} cannot be reached ({error}). "
                "Start it, or correct SWITCHBOARD_STORE.",
                address=self.address,
                error=reason,
            )
            return unreachable(sentence, reason, is_secret=self._is_secret)
        reason = refusal_reason(refusal, is_secret=self._is_secret)
        sentence = _("The Redis server {address} refuses: {error}.", address=self.address, error=reason)
        return unusable(sentence, reason, is_secret=self._is_secret)


async def greet(connection: Any) -> None:
    """Log in through a new connection. Raises the driver's `TimeoutError` if the server does not answer."""
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            await connection.on_connect()
    except TimeoutError as error:  # the system's would count as a broken connection, and be tried again
        raise NoAnswer("it does not answer") from error


def refusal_of(error: BaseException | None) -> BaseException | None:
    """Return the server's own answer that led to this error, None if it gave none."""
    while error is not None:
        is_answer = isinstance(error, AuthenticationError | ResponseError)
        if is_answer and not isinstance(error, NoScriptError):
            return error
        error = error.__cause__ or error.__context__
    return None


def address_of(url: str) -> str:
    """Return the host and port of a URL, or the name of its socket, without user, password and options."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return PurePosixPath(parts.path).name
    return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"


def _encode(value: Argument) -> bytes:
    match value:
        case bytes():
            return value
        case str():
            return value.encode("utf-8", "surrogatepass")
        case _:
            return repr(value).encode()
