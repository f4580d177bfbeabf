"""The read-only links in a PostgreSQL history."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.errors import Conflict, NotFound
from agent.history.links import NO_LINK, USED_DIGEST, Link, dump_link, live_links, load_link
from agent.history.postgres_database import PostgresDatabase
from agent.history.postgres_text import escape
from agent.history.records import NO_CONVERSATION

_LIVE = "(expires_at IS NULL OR expires_at > %(now)s)"
_LIVE_LINK = f"{_LIVE} AND (ends_at IS NULL OR ends_at > %(now)s)"
# The lock keeps the conversation until the link is stored.
_PUT = f"""
WITH owned AS (
    SELECT id FROM conversations WHERE id = %(conversation)s AND owner = %(owner)s AND {_LIVE} FOR KEY SHARE
), expired AS (
    DELETE FROM links USING owned WHERE conversation_id = owned.id AND ends_at <= %(now)s AND digest <> %(digest)s
), stored AS (
    INSERT INTO links (digest, conversation_id, ends_at, link) SELECT %(digest)s, id, %(ends_at)s, %(link)s FROM owned
    ON CONFLICT (digest) DO NOTHING RETURNING 1
)
SELECT EXISTS (SELECT FROM owned), EXISTS (SELECT FROM stored)
"""
_GET = f"SELECT link FROM links JOIN conversations ON id = conversation_id WHERE digest = %(digest)s AND {_LIVE_LINK}"
_OF = f"""
SELECT link FROM conversations LEFT JOIN links ON conversation_id = id
WHERE id = %(conversation)s AND owner = %(owner)s AND {_LIVE}
"""
_REMOVE = f"""
DELETE FROM links USING conversations
WHERE id = conversation_id AND digest = %(digest)s AND owner = %(owner)s AND {_LIVE_LINK} RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class PostgresLinks:
    """The `LinkStore` of a PostgreSQL history."""

    _database: PostgresDatabase

    async def put(self, link: Link) -> None:
        """Implement `LinkStore.put`."""
        ((is_owned, is_stored),) = await self._database.change(
            _PUT,
            digest=escape(link.digest),
            conversation=escape(link.conversation_id),
            owner=escape(link.owner),
            ends_at=link.expires_at.timestamp() if link.expires_at else None,
            link=dump_link(link),
        )
        if not is_owned:
            raise NotFound(NO_CONVERSATION)
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
