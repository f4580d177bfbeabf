"""A ledger as keys of a Redis server, which can be the server of the history."""

import logging
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from agent.errors import ConfigError
from agent.history import now
from agent.history.redis_server import GREETING_SECONDS, PREFIX, address_of, refusal_of
from agent.suspension.ledgers import ledger_error

CLOCK_SECONDS = 3600.0
"""An id is kept that much longer than it must be, in case that the clocks of two machines differ."""

log = logging.getLogger(__name__)


class RedisLedger:
    """A `Ledger` on a server, for any number of machines. Uses are rare, so each opens its own connection.

    `prefix` in the URL is the first word of its keys, as for a history. Raises `ConfigError` if the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query))
            self._prefix = b"{%s}:used:" % query.pop("prefix", PREFIX).encode()
            self._url = urlunsplit(parts._replace(query=urlencode(query)))
            self._address = address_of(url)
            self._client()
        except (ValueError, TypeError):  # whose text can have the password
            raise ConfigError(
                "SUSPENSION_LEDGER is no URL of a Redis server, such as redis://user:password@host:6379/0. Write "
                "special characters of the password as in %2F."
            ) from None

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`. Raises `HistoryError`, as `StoreUnavailable` if the server is away."""
        left = None if expires_at is None else max(0.0, (expires_at - now()).total_seconds()) + CLOCK_SECONDS
        key = self._prefix + id.encode("utf-8", "surrogatepass")
        client = self._client()
        try:
            # It is never sent again: if the reply is lost, it is unknown whether this was the first use.
            return bool(await client.set(key, b"1", nx=True, px=None if left is None else round(left * 1000)))
        except (RedisError, OSError) as error:
            log.debug("the ledger %s: %s", self._address, error)
            raise ledger_error(self._address, error, refusal_of(error)) from error
        finally:
            await client.aclose()

    def _client(self) -> Any:
        kind: Any = Redis  # its types are incomplete
        return kind.from_url(
            self._url,
            socket_timeout=GREETING_SECONDS,
            socket_connect_timeout=GREETING_SECONDS,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
