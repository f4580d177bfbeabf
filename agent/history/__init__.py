"""Conversations: the values that are stored, and the contract of the stores.

`agent.history.records` describes the values, `agent.history.contract` the contract.
"""

from agent.history.contract import HistoryStore, RetentionStore, RunStore
from agent.history.open_store import open_store
from agent.history.records import (
    CHANGED_ELSEWHERE,
    NO_CONVERSATION,
    NO_ENTRY,
    SCHEMA,
    Entry,
    Note,
    Record,
    Timings,
    new_id,
    now,
)
from agent.history.run_events import RunEvent, RunEvents, UnfinishedRun
from agent.history.search import SearchHit

__all__ = [
    "CHANGED_ELSEWHERE",
    "NO_CONVERSATION",
    "NO_ENTRY",
    "SCHEMA",
    "Entry",
    "HistoryStore",
    "Note",
    "Record",
    "RetentionStore",
    "RunEvent",
    "RunEvents",
    "RunStore",
    "SearchHit",
    "Timings",
    "UnfinishedRun",
    "new_id",
    "now",
    "open_store",
]
