"""The matrix of isolation: which requests try a verb on an object, or why there is no such request.

`CELLS` has every pair of an object and a verb. The tests send the requests of a cell as every principal. A request is
named by the first two fields of its row in `MATRIX` or `PAGE_ROWS`.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from tests.support.foreign_requests import MATRIX
from tests.support.page_events import CHAT, SUBMIT

OBJECTS = (
    "conversation",
    "message",
    "attachment",
    "export",
    "link",
    "suspended run",
    "running answer",
    "event stream",
    "list",
    "search",
)
VERBS = ("read", "append", "rename", "delete", "resume", "cancel", "subscribe", "export")
PAIRS = (*product(OBJECTS, VERBS),)

PAGE_ROWS: list[tuple[str, str, str, str, str | None, int | None]] = [
    # as in MATRIX; the method is EVENT, the path is the event and the conversation that the request says is open
    ("conversation", "show", "EVENT", "chat refresh/$quiet", "{}", 200),
    ("conversation", "choose", "EVENT", "chat open/x", '{"chat": {"chat": "$quiet"}}', 200),
    ("conversation", "load", "EVENT", "load/x", '{"chat": {"chat": "$quiet"}}', 200),
    ("conversation", "say", "EVENT", f"{SUBMIT}/$quiet",
     '{"chat": {"chat": "$quiet"}, "composer": {"text": "!text pear", "files": []}}', None),
    ("conversation", "choose and say", "EVENT", f"chat open > {SUBMIT}/x",
     '{"chat": {"chat": "$quiet"}, "composer": {"text": "!text pear", "files": []}}', None),
    ("conversation", "say queued", "EVENT", "chat queued/$quiet",
     '{"chat": {"chat": "$quiet"}, "composer": {"text": "!text pear", "files": []}}', None),
    ("conversation", "say as program", "EVENT", f"{CHAT}/$quiet", '{"text": "!text pear"}', None),
    ("temporary chat", "say", "EVENT", f"chat open > {SUBMIT}/x",
     '{"chat": {"chat": "$temporary"}, "composer": {"text": "!text pear", "files": []}}', None),
    ("conversation", "stop", "EVENT", "composer stop/$conversation", "{}", None),
    ("suspended run", "show", "EVENT", "chat refresh/$waiting", "{}", 200),
    ("suspended run", "answer in a message", "EVENT", f"{SUBMIT}/$waiting",
     '{"chat": {"chat": "$waiting"}, "composer": {"text": "pear", "files": []}}', None),
    ("suspended run", "answer as program", "EVENT", f"{CHAT}/$waiting", '{"text": "pear"}', None),
    ("suspended run", "stop", "EVENT", "composer stop/$waiting", "{}", 200),
    ("running answer", "load", "EVENT", "load/x", '{"chat": {"chat": "$conversation"}}', 200),
    ("running answer", "load again", "EVENT", "load/$conversation", '{"chat": {"chat": "x"}}', 200),
    ("running answer", "say", "EVENT", f"{SUBMIT}/$conversation",
     '{"chat": {"chat": "$conversation"}, "composer": {"text": "!text pear", "files": []}}', 200),
    ("running answer", "say queued", "EVENT", "chat queued/$conversation",
     '{"chat": {"chat": "$conversation"}, "composer": {"text": "!text pear", "files": []}}', 200),
    ("running answer", "say as program", "EVENT", f"{CHAT}/$conversation", '{"text": "!text pear"}', 200),
]  # fmt: skip
ROWS = [*MATRIX, *PAGE_ROWS]

EXPORT = ("conversation export", "conversation export page", "conversation export text")
PART_OF_A_RUN = "An answer is written by its run. See the row of the running answer."
OF_ITS_CONVERSATION = "It has no name of its own. The row of the conversation renames that."
CELLS: Mapping[tuple[str, str], tuple[str, ...] | str] = {
    ("conversation", "read"): (
        "conversation open",
        "conversation read",
        "conversation read turns",
        "conversation link",
        "conversation config",
        "conversation show",
        "conversation choose",
        "conversation load",
        "temporary chat read",
        "temporary chat page",
        "temporary chat open",
    ),
    ("conversation", "append"): (
        "conversation say",
        "conversation say queued",
        "conversation choose and say",
        "conversation say as program",
        "conversation say over http",
        "conversation page session",
        "conversation import id",
        "temporary chat say",
    ),
    ("conversation", "rename"): ("conversation rename", "conversation pin", "temporary chat rename"),
    ("conversation", "delete"): ("conversation delete", "temporary chat delete"),
    ("conversation", "resume"): ("conversation restore", "temporary chat keep"),
    ("conversation", "cancel"): ("conversation stop",),
    ("conversation", "subscribe"): "A conversation has no events. Those of its answers are below `running answer`.",
    ("conversation", "export"): (*EXPORT, "temporary chat export"),
    ("message", "read"): ("message read", "message read text", "message read before"),
    ("message", "append"): ("message continue over http",),
    ("message", "rename"): ("message edit over http",),
    ("message", "delete"): ("message undo over http",),
    ("message", "resume"): (
        "message retry over http",
        "message show over http",
    ),
    ("message", "cancel"): PART_OF_A_RUN,
    ("message", "subscribe"): PART_OF_A_RUN,
    ("message", "export"): ("message copy over http",),
    ("attachment", "read"): (
        "upload read",
        "upload head",
        "upload read old",
        "upload proxy",
        "picture read",
        "picture head",
        "picture by owner",
        "picture climb",
        "picture as file",
        "passage read",
        "passage read as guest",
        "passage of another chat",
        "linked chat file of another chat",
        "revoked link file",
    ),
    ("attachment", "append"): (
        "upload attach",
        "upload attach over http",
        "picture attach",
        "picture attach over http",
    ),
    ("attachment", "rename"): ("picture name", "picture change"),
    ("attachment", "delete"): ("picture delete",),
    ("attachment", "resume"): "A download goes on with a range of the same address, which `read` asks for.",
    ("attachment", "cancel"): "An upload ends with its own connection, which nobody else can name.",
    ("attachment", "subscribe"): "test_upload_progress_is_private",
    ("attachment", "export"): EXPORT,
    ("export", "read"): EXPORT,
    ("export", "append"): ("conversation import id", "export append"),
    ("export", "rename"): ("export change",),
    ("export", "delete"): ("export delete",),
    ("export", "resume"): "An export is written while it is read, and is not kept: there is nothing to go on with.",
    ("export", "cancel"): "An export ends with its own connection, which nobody else can name.",
    ("export", "subscribe"): "The progress of an import is in the answer to its own request.",
    ("export", "export"): ("conversation export all", "export as owner"),
    ("link", "read"): (
        "link list",
        "link read by id",
        "link read by chat",
        "revoked link read",
        "temporary chat links",
    ),
    ("link", "append"): ("link create", "temporary chat share"),
    ("link", "rename"): ("link change",),
    ("link", "delete"): ("link revoke", "link revoke of another chat"),
    ("link", "resume"): ("link continue by id", "revoked link continue"),
    ("link", "cancel"): "Nothing runs behind a link that could be stopped. `delete` revokes it.",
    ("link", "subscribe"): ("link subscribe",),
    ("link", "export"): ("link export",),
    ("suspended run", "read"): ("suspended run read", "suspended run show"),
    ("suspended run", "append"): (
        "suspended run answer in a message",
        "suspended run answer as program",
        "suspended run answer over http",
    ),
    ("suspended run", "rename"): ("suspended run rename",),
    ("suspended run", "delete"): ("suspended run delete",),
    ("suspended run", "resume"): ("suspended run answer over http", "suspended run answer elsewhere"),
    ("suspended run", "cancel"): ("suspended run stop",),
    ("suspended run", "subscribe"): ("suspended run subscribe", "suspended run subscribe as page"),
    ("suspended run", "export"): ("suspended run export",),
    ("running answer", "read"): (
        "running answer subscribe",
        "running answer subscribe as guest",
        "running answer load",
        "running answer load again",
        "session call",
    ),
    ("running answer", "append"): (
        "running answer say",
        "running answer say queued",
        "running answer say as program",
        "running answer say over http",
        "running answer append",
        "session run",
        "session act",
    ),
    ("running answer", "rename"): OF_ITS_CONVERSATION,
    ("running answer", "delete"): ("running answer delete", "conversation delete"),
    ("running answer", "resume"): ("running answer go on",),
    ("running answer", "cancel"): (
        "conversation stop",
        "running answer stop over http",
        "event cancel",
        "event cancel both",
        "session cancel",
    ),
    ("running answer", "subscribe"): (
        "running answer subscribe as page",
        "ended answer subscribe",
        "ended answer subscribe as page",
        "temporary answer subscribe",
    ),
    ("running answer", "export"): EXPORT,
    ("event stream", "read"): ("session listen", "event read", "event read 2", "session play"),
    ("event stream", "append"): ("event feed", "session serve", "session api"),
    ("event stream", "rename"): "The name of a session is made by its page, and no request gives it another.",
    ("event stream", "delete"): ("event reset", "event close"),
    ("event stream", "resume"): ("session keep", "running answer go on"),
    ("event stream", "cancel"): ("session cancel", "event cancel", "event cancel both"),
    ("event stream", "subscribe"): ("session listen", "running answer subscribe"),
    ("event stream", "export"): ("session link",),
    ("list", "read"): ("list read", "list summary"),
    ("list", "append"): ("list append", "conversation import id"),
    ("list", "rename"): ("list rename",),
    ("list", "delete"): ("list delete", "list delete all"),
    ("list", "resume"): "A page reads the list again from its beginning. Nothing of it is kept for anybody.",
    ("list", "cancel"): "Nothing runs in the list. Its answers are below `running answer`.",
    ("list", "subscribe"): "The list is read again when something has happened. It has no events.",
    ("list", "export"): ("conversation export all", "export as owner"),
    ("search", "read"): ("search words", "conversation find"),
    ("search", "append"): "A search is one GET, and nothing of it is kept.",
    ("search", "rename"): "A search is one GET, and nothing of it is kept.",
    ("search", "delete"): "A search is one GET, and nothing of it is kept.",
    ("search", "resume"): "A search has no further pages, and nothing of it is kept.",
    ("search", "cancel"): "A search is one GET, and ends with its connection.",
    ("search", "subscribe"): "A search is one GET, and has no events.",
    ("search", "export"): ("search export",),
}
"""The names of requests, the name of the test that makes them, or the reason why there is none."""

BY_THE_SCENE: Mapping[str, str] = {
    "session listen": "The first visitor reads the events of its session as long as the scene lasts.",
    "session keep": "It never ends, and changes nothing for anybody.",
    "session act": "The event does not exist for the owner either: its data do not fit.",
    "event read": "It streams the answer of a call, and ends it with its connection. `test_api` reads one.",
    "upload attach over http": "A message takes its files from the uploads, so only one can have this one.",
    "conversation page session": "The page has no such input. It is sent in case that one takes it.",
}
"""The requests that the owner makes in no test of its own, and why."""


def row_named(name: str) -> tuple[Any, ...]:
    """Return the row with this name."""
    return next(row for row in ROWS if f"{row[0]} {row[1]}" == name)
