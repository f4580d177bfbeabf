"""The matrix of isolation: which requests try a verb on an object, or why there is no such request.

`CELLS` has every pair of an object and a verb. The tests send the requests of a cell as every principal. A request is
named by the first two fields of its row in `MATRIX`.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from tests.support.foreign_requests import MATRIX

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

EXPORT = ("conversation export", "conversation export page", "conversation export text")
PART_OF_A_RUN = "An answer is written by its run. See the row of the running answer."
OF_ITS_CONVERSATION = "It has no name of its own. The row of the conversation renames that."
CELLS: Mapping[tuple[str, str], tuple[str, ...] | str] = {
    ("conversation", "read"): (
        "conversation open",
        "conversation read",
        "conversation read turns",
        "conversation read current",
        "conversation window",
        "conversation window as guest",
        "conversation link",
        "conversation config",
        "temporary chat read",
        "temporary chat page",
    ),
    ("conversation", "append"): (
        "conversation say over http",
        "conversation summarize",
        "conversation drop summary",
        "conversation import id",
        "temporary chat say over http",
    ),
    ("conversation", "rename"): (
        "conversation rename",
        "conversation pin",
        "conversation move",
        "temporary chat rename",
    ),
    ("conversation", "delete"): ("conversation delete", "temporary chat delete", "temporary chat leave"),
    ("conversation", "resume"): ("conversation restore", "temporary chat keep"),
    ("conversation", "cancel"): ("running answer stop over http",),
    ("conversation", "subscribe"): "A conversation has no events. Those of its answers are below `running answer`.",
    ("conversation", "export"): (*EXPORT, "temporary chat export"),
    ("message", "read"): (
        "message read",
        "message read text",
        "message read before",
        "message read branches",
        "message find",
        "message render over http",
        "message speak over http",
    ),
    ("message", "append"): (
        "message continue over http",
        "message answer over http",
        "message vote over http",
        "message rate over http",
    ),
    ("message", "rename"): ("message edit over http",),
    ("message", "delete"): ("message undo over http", "message erase over http"),
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
        "upload write down",
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
        "picture fetch over http",
        "picture attach over http",
    ),
    ("attachment", "rename"): ("picture name", "picture change"),
    ("attachment", "delete"): ("picture delete",),
    ("attachment", "resume"): "A download goes on with a range of the same address, which `read` asks for.",
    ("attachment", "cancel"): "An upload ends with its own connection, which nobody else can name.",
    ("attachment", "subscribe"): "The browser tells its page the progress of an upload. The server tells nobody.",
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
    ("suspended run", "read"): ("suspended run read",),
    ("suspended run", "append"): ("suspended run answer over http",),
    ("suspended run", "rename"): ("suspended run rename",),
    ("suspended run", "delete"): ("suspended run delete",),
    ("suspended run", "resume"): ("suspended run answer over http", "suspended run answer elsewhere"),
    ("suspended run", "cancel"): ("suspended run stop over http",),
    ("suspended run", "subscribe"): ("suspended run subscribe", "suspended run subscribe as page"),
    ("suspended run", "export"): ("suspended run export",),
    ("running answer", "read"): (
        "running answer subscribe",
        "running answer subscribe as guest",
        "session call",
    ),
    ("running answer", "append"): (
        "running answer say over http",
        "running answer steer over http",
        "running answer append",
        "session run",
        "session act",
        "session queue",
    ),
    ("running answer", "rename"): OF_ITS_CONVERSATION,
    ("running answer", "delete"): ("running answer delete", "conversation delete"),
    ("running answer", "resume"): ("running answer go on",),
    ("running answer", "cancel"): (
        "running answer stop over http",
        "running answer stop one over http",
        "event cancel",
        "event cancel both",
        "session cancel",
    ),
    ("running answer", "subscribe"): (
        "running answer listen",
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
    ("list", "read"): (
        "list read",
        "list summary",
        "list votes",
        "list folders",
        "list folder",
        "settings voice",
        "prompt list over http",
        "prompt get over http",
    ),
    ("list", "append"): ("list append", "list folder begin", "list folder add", "conversation import id"),
    ("list", "rename"): ("list rename", "list folder change", "settings choose"),
    ("list", "delete"): ("list delete", "list folder delete", "list delete all"),
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
    "upload write down": "It removes the upload. `test_recording_becomes_text_and_is_removed` makes it.",
    "upload attach over http": "A message takes its files from the uploads, so only one can have this one.",
}
"""The requests that the owner makes in no test of its own, and why."""


def row_named(name: str) -> tuple[Any, ...]:
    return next(row for row in MATRIX if f"{row[0]} {row[1]}" == name)
