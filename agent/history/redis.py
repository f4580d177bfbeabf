"""Conversations on a Redis server, or one of its successors. Any number of processes and machines can share them.

It is as durable as the server is set to be, see docs/configuration.md.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from agent.history.key_value import KeyValueStore
from agent.history.records import now
from agent.history.redis_server import RedisServer
from agent.history.redis_storage import RedisStorage


class RedisStore(KeyValueStore):
    """A `HistoryStore` on a server. It owns its connections until `aclose`.

    A cancelled save has stored everything or nothing. If the connection breaks, a save is repeated and stored once. If
    the URL `is_secret`, errors don't name it.
    """

    is_shared = True

    def __init__(self, url: str, *, clock: Callable[[], datetime] = now, is_secret: bool = False) -> None:
        self.server = RedisServer(url, clock, is_secret=is_secret)
        storage = RedisStorage(self.server)
        super().__init__(storage)

    async def find_weaknesses(self) -> Sequence[tuple[str, str]]:
        """Return each setting of the server that can lose conversations, and what to do about it."""
        info, found = await self.server.info(), list[tuple[str, str]]()
        if not info.get("aof_enabled"):
            found.append(("it keeps no log of changes, so a restart can lose conversations", "Set appendonly to yes."))
        if (policy := info.get("maxmemory_policy", "noeviction")) != "noeviction":
            message = f"its maxmemory-policy is {policy}, so it deletes conversations when its memory is full"
            found.append((message, "Set maxmemory-policy to noeviction."))
        if info.get("cluster_enabled"):
            found.append(("it is a node of a cluster, and only one node is asked", "Name a server of its own."))
        return found
