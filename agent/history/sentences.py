"""The sentences about history stores, by name."""

SENTENCES = {
    "no_conversation": "There is no such conversation.",
    "no_entry": "There is no such message.",
    "changed_elsewhere": "This conversation was changed elsewhere; load it again.",
    "history_damaged": "A stored conversation is damaged: {error}",
    "history_file": "The history file {path!r} cannot be used: {error}.",
    "file_locked": "another process keeps it locked",
    "file_closed": "it cannot be opened",
    "file_damaged": "it is damaged",
    "file_full": "the disk is full",
    "file_other": "it is not a SQLite database",
    "file_fixed": "it cannot be written",
}
