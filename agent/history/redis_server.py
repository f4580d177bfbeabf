"""The connections to the server of a Redis history, and the sentences about it when it is missing or refuses."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha1
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from agent.errors import ConfigError, HistoryError
from agent.history.server_errors import connection_reason, refusal_reason, unreachable, unusable
from agent.history.uninterrupted import UninterruptedWork
from agent.i18n.text import _

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

DRIVER_ERRORS = (RedisError, OSError)
"""The errors of the driver."""
log = logging.getLogger(__name__)

Argument = str | bytes | int | float
RedisCommand = Sequence[Argument]

COMMIT = """
local token, at = ARGV[1], 1
local function take() at = at + 1; return ARGV[at] end
local function command()
    local words = {}
    for number = 1, tonumber(take()) do words[number] = take() end
    return words
end
for _ = 1, tonumber(take()) do
    local found, wanted = redis.call(unpack(command())), take()
    if token ~= '' and found == token then return 1 end
    if tostring(found or '') ~= wanted then return 0 end
end
while at < #ARGV do
    local words = command()
    local name, key = words[1], words[2]
    if name == 'FIRST' then
        local first = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
        local place = math.max(tonumber(words[3]), tonumber(first[2] or 0) + 1)
        redis.call('ZADD', key, string.format('%.0f', place), words[4])
    elseif name == 'COUNT' then
        if redis.call('HINCRBY', key, words[4], words[5]) > 0 then
            redis.call('ZADD', words[3], 0, words[4])
        else
            redis.call('HDEL', key, words[4])
            redis.call('ZREM', words[3], words[4])
        end
    else
        redis.call(unpack(words))
    end
end
return 1
"""
"""Runs commands if nothing has changed that they depend on: all or nothing, and nothing comes between.

Its arguments are a token, the number of checks, each check with the reply that it must have, and the commands; each
command comes after the number of its words. If a check finds the token, the commands have run already, and the
connection has broken since. Two commands are its own: FIRST is a ZADD with a score that is above all others, and COUNT
adds to a number in a hash and keeps the names of those that are not 0 in a sorted set.
"""
_COMMIT_SHA = sha1(COMMIT.encode(), usedforsecurity=False).hexdigest()


class RedisServer:
    """The connections to one server, until `aclose`. They are made when they are needed."""

    def __init__(self, url: str, clock: Callable[[], datetime], *, is_secret: bool = False) -> None:
        self.clock, self._is_secret = clock, is_secret
        pool_class: Any = BlockingConnectionPool  # its types are incomplete
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query))
            self.prefix = b"{%s}:" % query.pop("prefix", PREFIX).encode()
            self.address = address_of(url)
            pool = pool_class.from_url(
                urlunsplit(parts._replace(query=urlencode(query))),
                max_connections=MAX_CONNECTIONS,
                timeout=FREE_CONNECTION_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=GREETING_SECONDS,
                redis_connect_func=greet,
                protocol=2,  # With 3, the pool does not check whether a connection still has an unread reply.
                retry=Retry(NoBackoff(), 0),  # `_tried` tries again, and only what can be repeated.
            )
        except (ValueError, TypeError):  # whose text can have the password
            raise ConfigError(
                "SWITCHBOARD_STORE is no URL of a Redis server, such as redis://user:password@host:6379/0. Write "
                "special characters of the password as in %2F."
            ) from None
        self._client: Any = Redis(connection_pool=pool)
        self.work = UninterruptedWork()

    async def ask(self, commands: Sequence[RedisCommand]) -> list[Any]:
        """Send commands in one round trip, and return their replies.

        If the connection breaks, they are sent once more: they must be such that can be repeated. Call this in `work`,
        so that it is always finished: a connection with an unread reply would be of no use to others.
        """
        return await self._tried(commands, again=True)

    async def commit(
        self, token: bytes, checks: Sequence[tuple[RedisCommand, bytes]], commands: Sequence[RedisCommand]
    ) -> bool:
        """Run the commands if each check has this reply. Return False if one has not.

        If the connection breaks, this is repeated if there is a token: a check finds it if the commands have run.
        """
        values: list[Argument] = [token, len(checks)]
        for check, wanted in checks:
            values += [len(check), *check, wanted]
        for command in commands:
            values += [len(command), *command]
        arguments = (1, self.prefix, *values)
        try:
            (reply,) = await self._tried([("EVALSHA", _COMMIT_SHA, *arguments)], again=bool(token))
        except NoScriptError:  # the server has started since
            (reply,) = await self._tried([("EVAL", COMMIT, *arguments)], again=bool(token))
        return bool(reply)

    async def info(self) -> Mapping[str, Any]:
        """Return what the server says about itself."""
        return await self.work.run(self._info())

    async def aclose(self) -> None:
        """Finish the calls in progress, and close the connections."""
        await self.work.finish()
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    def failure(self, reason: str) -> HistoryError:
        """Return the error that the history on this server cannot be used."""
        return self._failure(HistoryError(reason))

    async def _tried(self, commands: Sequence[RedisCommand], *, again: bool) -> list[Any]:
        try:
            return await self.exchange([[_encode(word) for word in command] for command in commands])
        except NoScriptError:
            raise
        except DRIVER_ERRORS as error:
            broken = isinstance(error, ConnectionError | OSError) and refusal_of(error) is None
            if broken and again:
                return await self._tried(commands, again=False)
            raise self._failure(error) from error

    async def exchange(self, commands: Sequence[Sequence[bytes]]) -> list[Any]:
        """Send commands and read their replies. Raises the driver's errors, of replies only after the last one."""
        pool: Any = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            replies = [await _reply(connection) for _ in commands]
        finally:
            await pool.release(connection)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _info(self) -> Mapping[str, Any]:
        try:
            return await self._client.info()
        except DRIVER_ERRORS as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> HistoryError:
        """Return the sentence for an error of the driver. It never has the password."""
        log.debug("Redis at %s: %s", self.address, error)
        refusal = error if isinstance(error, HistoryError) else refusal_of(error)
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


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


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
