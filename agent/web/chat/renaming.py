"""The title of a conversation when another message takes the place of its first one: an edit, an undo, another version.

A title that is only the first words of such a message follows. One that somebody or a model wrote stays.
"""

from collections.abc import Sequence

from agent.history import Entry, HistoryStore, Record
from agent.web.chat.first_words import all_first_words, first_words
from agent.web.chat.title_numbers import without_number


async def rename(store: HistoryStore, record: Record, first: Entry, begins: Sequence[Entry] | None = None) -> str:
    """Let the title of the conversation follow `first`, with which it begins now, and return the title.

    `begins` are all messages with which it has begun. They are read if they are needed and not given.
    """
    words, title = first_words(first), record.title
    if not title or words in ("", title, without_number(title)):
        return title
    earlier = all_first_words(await store.find(record, after=[None]) if begins is None else begins)
    if not earlier & {title, without_number(title)}:
        return title
    return (await store.label(record.id, owner=record.owner, title=words, instead_of=title)).title
