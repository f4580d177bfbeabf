"""Removes what deletions leave in the file of a SQLite history, in short steps, so that others can write in between.

With `secure_delete` SQLite overwrites a deleted row where it lies, and each page that it frees. But when it balances a
tree it moves rows within a page and to the pages beside it, and leaves their old bytes between the list of a page's
rows and the first row, where nothing reads them. `wipe_pages` overwrites that part of each page in the file itself:
SQLite has no statement for it but `VACUUM`, which copies everything. See docs/decisions/0027.
"""

import json
import os
import sqlite3
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from struct import unpack_from

HIDE = """
UPDATE conversations SET owner = '', expires_at = -1, head_id = NULL, title = '', folded_title = '', pinned = 0,
    record = '', size = 0
"""
"""Takes conversations from their owners, with its `WHERE`. `remove_hidden` removes their content step by step."""
STEP_BYTES = 1 << 20
"""The bytes of text after which a step of this ends."""
WIPE_STEP_SECONDS = 0.02
"""The seconds after which each step ends, because it holds the lock."""
STEP_PAGES = 256
"""Pages that one step moves or gives back to the disk."""
MOST_LOG_BYTES = 16 << 20
"""The bytes of a log that cannot be emptied, above which the file is not made smaller."""
LOG_WAIT_SECONDS = 0.05
"""The most seconds that a step waits for readers or writers, because it holds up others meanwhile."""

_OF_HIDDEN = "conversation_id IN (SELECT id FROM conversations WHERE expires_at < 0 AND (:id IS NULL OR id = :id))"
_PARTS = {
    "entry_texts": ("text", _OF_HIDDEN),
    "run_events": ("events", f"run_id IN (SELECT id FROM runs WHERE {_OF_HIDDEN})"),
    "entries": ("entry", _OF_HIDDEN),
}
"""The tables with the text of conversations, the columns that have it, and the condition for hidden ones."""
_CONVERSATIONS = "DELETE FROM conversations WHERE expires_at < 0 AND (:id IS NULL OR id = :id)"
_MOST_ROWS = 500
# From the newest message to the oldest, because each refers to the one before it.
_PART = """
SELECT hidden_row, length(CAST({column} AS BLOB)) FROM (
    SELECT rowid AS hidden_row FROM {table} WHERE {condition} ORDER BY rowid DESC LIMIT {most}
) CROSS JOIN {table} ON {table}.rowid = hidden_row
"""

_ROOM = {2: 12, 5: 12, 10: 8, 13: 8}
"""The length of the header of a page of a tree, by its first byte."""
_LOCK_BYTE = 1 << 30
_MOST_PAGES = 1 << 25
"""In a file with more pages, the first byte of a page that belongs to no tree could be one of these."""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None, None, None]:
    """Write from here to the end of the block, all or nothing."""
    # IMMEDIATE: a transaction that reads first and writes later cannot wait for another writer, only fail.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


def note_deletion(connection: sqlite3.Connection) -> None:
    """Note in a transaction that it leaves text behind, so that a process which opens the file later wipes it.

    The note is the number of deletions, in the one field of the file's header that is free for applications.
    """
    connection.execute(f"PRAGMA application_id = {_get(connection, 'application_id') % 0x7FFFFFFF + 1}")


def deletions(connection: sqlite3.Connection) -> int:
    """Return the number of deletions since everything was wiped."""
    return _get(connection, "application_id")


def forget_deletions(number: int, connection: sqlite3.Connection) -> bool:
    """Note that everything was wiped. Return False if there were further deletions, after this number of them."""
    with transaction(connection):
        if is_last := _get(connection, "application_id") == number:
            connection.execute("PRAGMA application_id = 0")
    return is_last


def is_unwiped(connection: sqlite3.Connection) -> bool:
    """Return True if a process has not finished a deletion."""
    return deletions(connection) > 0 or has_free_pages(connection)


def remove_hidden(connection: sqlite3.Connection, id_: str | None = None) -> bool:
    """Remove a part of the content of hidden conversations, or of this one, and return whether there is more.

    If a process is killed between two steps, they stay hidden, and the next process goes on.
    """
    size = 0
    with transaction(connection):
        for table, (column, condition) in _PARTS.items():
            numbers = list[int]()
            part = _PART.format(table=table, column=column, condition=condition, most=_MOST_ROWS)
            with closing(connection.execute(part, {"id": id_})) as rows:
                for number, length in rows:
                    numbers.append(number)
                    size += length
                    if size >= STEP_BYTES:
                        break
            if numbers:
                rows_of = f"DELETE FROM {table} WHERE rowid IN (SELECT value FROM json_each(?))"
                connection.execute(rows_of, (json.dumps(numbers),))
            if size >= STEP_BYTES or len(numbers) == _MOST_ROWS:
                return True
        connection.execute(_CONVERSATIONS, {"id": id_})
    return False


def has_free_pages(connection: sqlite3.Connection) -> bool:
    """Return True if the file can shrink."""
    return _get(connection, "auto_vacuum") == 2 and _get(connection, "freelist_count") > 0


def shrink(connection: sqlite3.Connection) -> None:
    """Give some free pages back to the disk. If others use the log, it grows, and the file shrinks later."""
    ends, log = time.monotonic() + WIPE_STEP_SECONDS, _log_of(connection)
    while (empty_log(connection) or log.stat().st_size < MOST_LOG_BYTES) and has_free_pages(connection):
        connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")  # `execute` would end after one page
        if time.monotonic() >= ends:
            break


def empty_log(connection: sqlite3.Connection) -> bool:
    """Copy the log into the file and empty it. Return False if another process reads an older state in it."""
    connection.execute(f"PRAGMA busy_timeout = {LOG_WAIT_SECONDS * 1000:.0f}")
    busy, _frames, _copied = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def wipe_pages(first: int, connection: sqlite3.Connection) -> tuple[int, int] | None:
    """Overwrite the unused parts of some pages, from this number on. Return None if the log is in use.

    Else return the number of the next page, or 0 at the end, and how many pages had something in these parts.
    A process that is killed meanwhile leaves the file as good as it was, because nothing reads what is overwritten.
    """
    if not hasattr(os, "pread"):  # Windows
        connection.execute("VACUUM")
        return 0, 0
    if not empty_log(connection):
        return None
    log = _log_of(connection)
    try:
        with transaction(connection):
            # Without a log and with the lock, nobody writes to the file, and it has the newest state of each page.
            if log.exists() and log.stat().st_size:
                return None
            # A change makes all other connections forget the pages that they keep in memory.
            connection.execute(f"PRAGMA application_id = {_get(connection, 'application_id')}")
            return _overwrite(_descriptor(log.with_name(log.name.removesuffix("-wal"))), first)
    finally:
        connection.execute("PRAGMA shrink_memory")  # This one forgets its pages, too.


def _log_of(connection: sqlite3.Connection) -> Path:
    return Path(f"{connection.execute('PRAGMA database_list').fetchone()[2]}-wal")


def _descriptor(path: Path) -> int:
    """Return the number by which SQLite has opened the file.

    To open it once more and close it would drop the locks of this process: https://www.sqlite.org/howtocorrupt.html
    section 2.2. As long as this process has a lock, SQLite closes none of these numbers.
    """
    import fcntl  # not on Windows

    file = os.stat(path)
    for name in os.listdir("/dev/fd"):
        try:
            number = int(name)
            is_same = os.path.samestat(os.fstat(number), file)
            if is_same and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                return number
        except OSError:  # the number that listed the others
            continue
    raise sqlite3.OperationalError(f"{path} was moved")


def _overwrite(file: int, page: int) -> tuple[int, int]:
    """Overwrite the unused parts of pages for `WIPE_STEP_SECONDS`. Return the next page, and how many had some."""
    header = os.pread(file, 100, 0)
    size = int.from_bytes(header[16:18]) or 1
    size = 65536 if size == 1 else size
    last, wiped = os.fstat(file).st_size // size, 0
    if last >= _MOST_PAGES or header[:15] != b"SQLite format 3" or header[20]:  # the last: pages with checksums
        raise sqlite3.NotSupportedError(f"a file of {last} pages cannot be wiped")
    # A file that can shrink has pages with other numbers at fixed places.
    distance = size // 5 + 1 if any(header[52:56]) else 0
    moved = (
        _LOCK_BYTE // size + 2
    )  # SQLite leaves out the page with the byte that it locks, so this one can have numbers
    ends = time.monotonic() + WIPE_STEP_SECONDS
    while page <= last and time.monotonic() < ends:
        data = os.pread(file, STEP_PAGES * size, (page - 1) * size)
        for start in range(0, len(data), size):
            is_tree = (not distance or (page - 2) % distance) and page != moved
            if is_tree and (unused := _unused(data, start, size, 100 if page == 1 else 0)):
                os.pwrite(file, bytes(unused[1] - unused[0]), (page - 1) * size + unused[0] - start)
                wiped += 1
            page += 1
    return (page if page <= last else 0), wiped


def _unused(data: bytes, start: int, size: int, header: int) -> tuple[int, int] | None:
    """Return where the unused part of the page at `start` begins and ends, if there is anything in it."""
    room = _ROOM.get(data[start + header])
    if room is None:
        return None
    rows, content = unpack_from(">HH", data, start + header + 3)
    begin, end = start + header + room + 2 * rows, start + (content or 65536)
    return (begin, end) if begin < end <= start + size and data.count(0, begin, end) != end - begin else None


def _get(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
