"""The records in a PostgreSQL history, and the search in their text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agent.history.codec import in_steps, load_entries, load_records
from agent.history.postgres_database import LIVE, PostgresDatabase
from agent.history.postgres_text import escape, like, unescape
from agent.history.records import Entry, Record
from agent.history.search import SearchHit, hits_as_shown, hits_in, hits_with_branches
from agent.history.search_sql import SHOWN_HITS

RECORD = "coalesce(exact, record::text), title, pinned"
"""The columns of a record. A search and a list read them."""
RECENT = 300
"""The conversations in which a search looks first. For a common word, they have enough hits."""
_RECENT_HITS = f"""
SELECT id, place, entry_id FROM (
    SELECT * FROM conversations WHERE owner = %(owner)s AND {LIVE} ORDER BY place DESC LIMIT {RECENT}
) AS recent LEFT JOIN LATERAL (
    SELECT entry_id FROM entry_texts WHERE conversation_id = recent.id AND {{in_text}} ORDER BY number DESC LIMIT 1
) AS found ON TRUE WHERE entry_id IS NOT NULL OR {{in_title}}
"""
_ALL_HITS = f"""
SELECT id, place, entry_id FROM conversations LEFT JOIN (
    SELECT DISTINCT ON (conversation_id) conversation_id, entry_id FROM entry_texts
    WHERE owner = %(owner)s AND {{in_text}} ORDER BY conversation_id, number DESC
) AS found ON conversation_id = id
WHERE owner = %(owner)s AND {LIVE} AND (entry_id IS NOT NULL OR {{in_title}})
"""
# The hits are chosen before the records are read, because turning a record to text costs more than finding it.
_SEARCH = f"""
WITH hits AS MATERIALIZED ({{hits}} ORDER BY place DESC LIMIT %(limit)s)
SELECT {RECORD}, entry FROM hits JOIN conversations ON conversations.id = hits.id
LEFT JOIN entries ON entries.conversation_id = hits.id AND entries.id = hits.entry_id ORDER BY hits.place DESC
"""
_IN_CONVERSATIONS = "conversation_id = ANY(%(ids)s::text[])"


async def search(database: PostgresDatabase, owner: str, words: Sequence[str], limit: int) -> Sequence[SearchHit]:
    """Return the owner's conversations with all words. Without trigrams on the server, it reads all their text."""
    if not words:
        return []
    patterns = {f"word{number}": like(word) for number, word in enumerate(words)}
    conditions = {"in_text": _contains("text", patterns), "in_title": _contains("folded_title", patterns)}
    rows: Sequence[Any] = ()
    for hits in (_RECENT_HITS, _ALL_HITS):
        sql = _SEARCH.format(hits=hits.format(**conditions))
        rows = await database.rows(sql, owner=escape(owner), limit=max(limit, 0), **patterns)
        if len(rows) >= limit:
            break
    load = partial(database.load, load_entries)
    entries = iter(await in_steps(load, [row[3] for row in rows if row[3] is not None]))
    found = [None if row[3] is None else next(entries) for row in rows]
    hits = await hits_in(zip(records_in(database, rows), found, strict=True), words)
    branched, shown = {escape(id_): id_ for id_ in hits_with_branches(hits)}, dict[str, Entry]()
    if branched:
        sql = SHOWN_HITS.format(in_conversations=_IN_CONVERSATIONS, in_text=conditions["in_text"])
        rows = await database.rows(sql, ids=[*branched], **patterns)
        texts = [row[1] for row in rows]
        shown = dict(zip([branched[row[0]] for row in rows], await in_steps(load, texts), strict=True))
    return await hits_as_shown(hits, shown, words)


def records_in(database: PostgresDatabase, rows: Sequence[tuple[Any, ...]]) -> Sequence[Record]:
    """Return the records in rows that begin with `RECORD`."""
    records = database.load(load_records, [row[0] for row in rows])
    return [replace(record, title=unescape(row[1]), pinned=row[2]) for record, row in zip(records, rows, strict=True)]


def _contains(column: str, patterns: dict[str, str]) -> str:
    """Return the condition that the column contains all words, whose parameters have these names."""
    return " AND ".join(f"{column} LIKE %({name})s" for name in patterns)
