"""A ledger as keys of a Redis server, which can be the server of the history."""

from datetime import datetime

from agent.errors import ConfigError
from agent.history import now
from agent.history.redis_server import DRIVER_ERRORS, RedisServer, refusal_of
from agent.suspension.ledger import ledger_error

CLOCK_SECONDS = 3600.0
"""An id is kept that much longer than it must be, in case that the clocks of two machines differ."""


class RedisLedger:
    """A `Ledger` on a server, for any number of machines. Uses are rare, so each opens its own connection.

    `prefix` in the URL is the first word of its keys, as for a history. Raises `ConfigError` if the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._server()

    async def use(self, id: str, expires_at: datetime | None) -> bool:
        """Implement `Ledger.use`. Raises `HistoryError`, as `StoreUnavailable` if the server is away."""
        server = self._server()
        command = [b"SET", server.prefix + b"used:" + id.encode("utf-8", "surrogatepass"), b"1", b"NX"]
        if expires_at is not None:
            left = max(0.0, (expires_at - now()).total_seconds()) + CLOCK_SECONDS
            command += [b"PX", b"%d" % round(left * 1000)]
        try:
            # It is never sent again: if the reply is lost, it is unknown whether this was the first use.
            return (await server.exchange([command])) != [None]
        except DRIVER_ERRORS as error:
            raise ledger_error(server.address, error, refusal_of(error)) from error
        finally:
            await server.aclose()

    def _server(self) -> RedisServer:
        try:
            return RedisServer(self._url, now)
        except ConfigError as error:
            raise ConfigError(str(error).replace("SWITCHBOARD_STORE", "SUSPENSION_LEDGER")) from None
