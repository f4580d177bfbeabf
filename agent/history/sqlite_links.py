"""The read-only links in a SQLite history."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agent.errors import Conflict, NotFound
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.records import NO_CONVERSATION
from agent.history.sqlite_database import SqliteDatabase
from agent.history.sqlite_file import LIVE, transaction

_LIVE_LINK = f"{LIVE} AND (ends_at IS NULL OR ends_at > :now)"
_OWNED = f"SELECT 1 FROM conversations WHERE id = :conversation AND owner = :owner AND {LIVE}"
_FORGET = "DELETE FROM links WHERE conversation_id = :conversation AND ends_at <= :now"
_COUNT = "SELECT count(*) FROM links WHERE conversation_id = :conversation"
_PUT = """
INSERT INTO links (digest, conversation_id, ends_at, link) VALUES (:digest, :conversation, :ends_at, :link)
ON CONFLICT (digest) DO NOTHING
"""
_GET = f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = :digest AND {_LIVE_LINK}"
_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = :conversation AND owner = :owner AND {LIVE}
"""
_REMOVE = f"""
DELETE FROM links WHERE digest = (
    SELECT digest FROM links JOIN conversations ON id = conversation_id
    WHERE digest = :digest AND owner = :owner AND {_LIVE_LINK}
)
"""


@dataclass(frozen=True, slots=True)
class SqliteLinks:
    """The `LinkStore` of a SQLite history."""

    _database: SqliteDatabase

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        values = {
            "digest": link.digest,
            "conversation": link.conversation_id,
            "owner": link.owner,
            "ends_at": link.expires_at.timestamp() if link.expires_at else None,
            "link": dump_link(link),
            "now": self._database.clock().timestamp(),
        }
        await self._database.write(partial(_put, values, most))

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        texts = await self._database.texts(_GET, digest=digest)
        if not texts:
            raise NotFound(NO_LINK)
        return self._load(texts)[0]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        rows = await self._database.rows(_OF, conversation=conversation_id, owner=owner)
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return live_links(self._load([row[0] for row in rows if row[0] is not None]), self._database.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`. The digest is overwritten in the file."""
        if not await self._database.erase(_REMOVE, digest=digest, owner=owner):
            raise NotFound(NO_LINK)

    def _load(self, texts: Sequence[str]) -> list[Link]:
        return self._database.load(lambda texts: [load_link(text) for text in texts], texts)


def _put(values: dict[str, str | float | None], most: int | None, connection: sqlite3.Connection) -> None:
    with transaction(connection):
        if connection.execute(_OWNED, values).fetchone() is None:
            raise NotFound(NO_CONVERSATION)
        connection.execute(_FORGET, values)
        if most is not None:
            (count,) = connection.execute(_COUNT, values).fetchone()
            if count >= most:
                raise too_many(most)
        if connection.execute(_PUT, values).rowcount != 1:
            raise Conflict(USED_DIGEST)
