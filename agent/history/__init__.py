"""Conversations: the values that are stored, and the contract of the stores.

`agent.history.records` describes the values, `agent.history.contract` the contract.
"""

from agent.history.contract import HistoryStore, LinkStore, RetentionStore, RunStore
from agent.history.open_store import STORE_KINDS, needing_driver, open_store
from agent.history.records import (
    CHANGED_ELSEWHERE,
    NO_CONVERSATION,
    NO_ENTRY,
    NO_LINK,
    PROGRAM,
    PROGRAM_VECTORS,
    SCHEMA,
    ChatSummary,
    Conversation,
    Entry,
    Link,
    Note,
    RunEvent,
    RunEvents,
    Timings,
    UnfinishedRun,
    digest_of,
    latest_now,
    new_id,
    new_token,
    now,
    steady_now,
    vectors_id,
)
from agent.history.search import ConversationHit, excerpt_parts

__all__ = [
    "CHANGED_ELSEWHERE",
    "NO_CONVERSATION",
    "NO_ENTRY",
    "NO_LINK",
    "PROGRAM",
    "PROGRAM_VECTORS",
    "SCHEMA",
    "STORE_KINDS",
    "ChatSummary",
    "Conversation",
    "ConversationHit",
    "Entry",
    "HistoryStore",
    "Link",
    "LinkStore",
    "Note",
    "RetentionStore",
    "RunEvent",
    "RunEvents",
    "RunStore",
    "Timings",
    "UnfinishedRun",
    "digest_of",
    "excerpt_parts",
    "latest_now",
    "needing_driver",
    "new_id",
    "new_token",
    "now",
    "open_store",
    "steady_now",
    "vectors_id",
]
