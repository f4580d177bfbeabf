"""The read-only links in a PostgreSQL history."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from psycopg import AsyncConnection

from agent.errors import Conflict, NotFound
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link, too_many
from agent.history.postgres_database import LIVE, NOW, PostgresDatabase, Value, fetch
from agent.history.postgres_text import escape
from agent.history.records import NO_CONVERSATION

_LIVE_LINK = f"{LIVE} AND (ends_at IS NULL OR ends_at > {NOW})"
# The lock keeps the conversation until the link is stored, and lets one link after the other be counted and stored. The
# next statement must be another one: a statement does not see what was committed while it waited for its own lock.
_LOCK = f"""
SELECT 1 FROM conversations WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE} FOR NO KEY UPDATE
"""
_PUT = f"""
WITH expired AS (
    DELETE FROM links WHERE conversation_id = %(conversation)s AND ends_at <= {NOW} AND digest <> %(digest)s
), counted AS (
    SELECT count(*) >= %(most)s::int AS is_full FROM links
    WHERE conversation_id = %(conversation)s AND (ends_at IS NULL OR ends_at > {NOW})
), stored AS (
    INSERT INTO links (digest, conversation_id, ends_at, link)
    SELECT %(digest)s, %(conversation)s, %(ends_at)s, %(link)s FROM counted WHERE is_full IS NOT TRUE
    ON CONFLICT (digest) DO NOTHING RETURNING 1
)
SELECT is_full IS TRUE, EXISTS (SELECT FROM stored) FROM counted
"""
_GET = f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = %(digest)s AND {_LIVE_LINK}"
_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = %(conversation)s AND owner = %(owner)s AND {LIVE}
"""
_REMOVE = f"""
DELETE FROM links USING conversations
WHERE id = conversation_id AND digest = %(digest)s AND owner = %(owner)s AND {_LIVE_LINK} RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class PostgresLinks:
    """The `LinkStore` of a PostgreSQL history."""

    _database: PostgresDatabase

    async def put(self, link: Link, *, most: int | None = None) -> None:
        """Implement `LinkStore.put`."""
        values: dict[str, Value] = {
            "digest": escape(link.digest),
            "conversation": escape(link.conversation_id),
            "owner": escape(link.owner),
            "ends_at": link.expires_at.timestamp() if link.expires_at else None,
            "link": dump_link(link),
            "most": most,
            "shift": self._database.shift,
        }
        is_full, is_stored = await self._database.write(partial(_put, values))
        if is_full and most is not None:
            raise too_many(most)
        if not is_stored:
            raise Conflict(USED_DIGEST)

    async def get(self, digest: str) -> Link:
        """Implement `LinkStore.get`."""
        texts = await self._database.texts(_GET, digest=escape(digest))
        if not texts:
            raise NotFound(NO_LINK)
        return self._load(texts)[0]

    async def of(self, conversation_id: str, *, owner: str) -> Sequence[Link]:
        """Implement `LinkStore.of`."""
        rows = await self._database.rows(_OF, conversation=escape(conversation_id), owner=escape(owner))
        if not rows:
            raise NotFound(NO_CONVERSATION)
        return live_links(self._load([row[0] for row in rows if row[0] is not None]), self._database.clock())

    async def remove(self, digest: str, *, owner: str) -> None:
        """Implement `LinkStore.remove`."""
        if not await self._database.change(_REMOVE, digest=escape(digest), owner=escape(owner)):
            raise NotFound(NO_LINK)

    def _load(self, texts: Sequence[str]) -> list[Link]:
        return self._database.load(lambda texts: [load_link(text) for text in texts], texts)


async def _put(values: dict[str, Value], connection: AsyncConnection) -> tuple[bool, bool]:
    """Store a link. Return whether there are too many, and whether it is stored. Raises `NotFound`."""
    if not await fetch(connection, _LOCK, values):
        raise NotFound(NO_CONVERSATION)
    ((is_full, is_stored),) = await fetch(connection, _PUT, values)
    return is_full, is_stored
