"""The query of the searches in SQL that SQLite and PostgreSQL share."""

SHOWN_HITS = """
WITH RECURSIVE matches AS MATERIALIZED (
    SELECT conversation_id, entry_id FROM entry_texts WHERE {in_conversations} AND {in_text}
), chain AS (
    SELECT conversations.id AS conversation_id, head_id AS id FROM conversations
    WHERE conversations.id IN (SELECT conversation_id FROM matches)
    UNION ALL
    SELECT conversation_id, parent_id FROM chain JOIN entries USING (conversation_id, id)
    WHERE (conversation_id, id) NOT IN (SELECT conversation_id, entry_id FROM matches)
)
SELECT conversation_id, entry FROM chain JOIN entries USING (conversation_id, id)
WHERE (conversation_id, id) IN (SELECT conversation_id, entry_id FROM matches)
"""
"""The newest message with all words on the branch that is shown, of each conversation with such a message.

The fields are the conditions that a text is in one of the conversations, and that it has all words.
"""
