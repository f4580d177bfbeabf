"""Requests with another visitor's ids, and a visitor whose ids they use."""

import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import uuid4

import httpx

from agent.history import folders_owner
from tests.conftest import App
from tests.support.documents import pdf
from tests.support.http_client import API, Answer, HttpVisitor, marker, owner_in
from tests.support.media_files import random_png
from tests.support.scripted_server import Running
from tests.support.temporary_chats import begin_temporary, kept_alive

LONG = "!tokens 9000 @20"
SHARED = "A chat that a link shows"
SALT = uuid4().bytes


def stored_conversations(app: App) -> dict[str, tuple[str, int]]:
    """Return every conversation with its owner and its number of entries."""
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        rows = db.execute(
            "SELECT c.id, c.owner, count(*) FROM conversations c JOIN entries e ON conversation_id = c.id GROUP BY c.id"
        ).fetchall()
    db.close()
    return {row[0]: (row[1], row[2]) for row in rows}


CONVERSATIONS = "SELECT * FROM conversations WHERE owner IN (?, ?) ORDER BY id"


def stored_of(app: App, owner: str) -> tuple[list[Any], list[Any], list[Any], list[str]]:
    """Return all that is stored of an owner: the rows of conversations, folders, messages, links, and files' names."""
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        conversations = db.execute(CONVERSATIONS, [owner, folders_owner(owner)]).fetchall()
        ids = json.dumps([row[0] for row in conversations])
        among = "conversation_id IN (SELECT value FROM json_each(?))"
        messages = db.execute(f"SELECT * FROM entries WHERE {among} ORDER BY conversation_id, id", [ids]).fetchall()
        links = db.execute(f"SELECT * FROM links WHERE {among} ORDER BY digest", [ids]).fetchall()
    db.close()
    return (
        conversations,
        messages,
        links,
        sorted(path.name for path in (app.folder / "data" / "media" / owner).glob("*")),
    )


@dataclass
class Scene:
    """The first visitor's state.

    There are a running answer, one that was cut, one that waits for the visitor, an upload, a picture, a temporary
    chat, and a link to a chat of its own. `late` has continued that chat by another link before it was revoked.
    """

    program: HttpVisitor
    late: HttpVisitor
    marker: str
    ids: dict[str, str]
    app: App
    server: Running
    long: str
    before: tuple[list[Any], list[Any], list[Any], list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.before = stored_of(self.app, self.ids["owner"])

    def untouched(self) -> None:
        """Assert that the run still goes on and that nothing stored has changed: titles, messages, files."""
        line = next(line for line in self.server.journal() if self.long in str(line["body"]))
        assert line["ended"] is None
        assert line["closed"] is None
        assert stored_of(self.app, self.ids["owner"]) == self.before


@contextmanager
def reading_events(program: HttpVisitor) -> Iterator[None]:
    """Read the events of the visitor's session all the time. The app cancels events that nobody reads for a minute."""

    def read() -> None:
        query = {"session_hash": program.session}
        with (
            suppress(httpx.HTTPError),
            program.http.stream("GET", f"{API}queue/data", params=query, timeout=600) as said,
        ):
            for _ in said.iter_raw():
                pass

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)


def runs_of(app: App, conversation: str) -> tuple[str, str]:
    """Return the ids of the runs of a conversation that has two, the first one first."""
    query = "SELECT id FROM runs WHERE conversation_id = ? ORDER BY rowid"
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        first, second = (row[0] for row in db.execute(query, [conversation]).fetchall())
    db.close()
    return first, second


def linked(program: HttpVisitor) -> tuple[dict[str, str], HttpVisitor]:
    """Make two links to the visitor's only conversation, let somebody continue one in a copy, and revoke it.

    Return their ids and tokens, and who has the revoked one.
    """
    [row] = program.ask("GET", "/conversations").json["conversations"]
    path = f"/conversations/{row['id']}/links"
    link, revoked = (program.ask("POST", path, json={"attachments": True}).json for _ in range(2))
    late = HttpVisitor(str(program.http.base_url), verify=program.verify)
    assert late.ask("POST", f"{revoked['path']}/continue").status == 303
    assert program.ask("DELETE", f"{path}/{revoked['id']}").status == 204
    tokens = {name: str(one["path"]).removeprefix("/s/") for name, one in (("token", link), ("revoked", revoked))}
    return {"shared": str(row["id"]), "link": str(link["id"]), **tokens}, late


def last_message(program: HttpVisitor, conversation: str, word: str) -> str:
    """Return the id of the visitor's newest message with this word in a conversation, or of what it answers."""
    hits = program.ask("GET", f"/conversations?q={word}").json["hits"]
    [entry] = [hit["entry"] for hit in hits if hit["id"] == conversation]
    return program.ask("GET", f"/conversations/{conversation}/messages/{entry}").json["message"]


def ended_chats(program: HttpVisitor, word: str) -> dict[str, str]:
    """Begin a chat whose answer was cut, and one whose answer waits for the visitor. Return their ids."""
    found = dict[str, str]()
    question = json.dumps({"question": f"Which {word}?"})
    for text, chat, run in (
        (f"!text {word} !length 3", "quiet", "cut"),
        (f"!tool ask_user {question} !echo", "waiting", "asking"),
    ):
        said = program.say(text, tools=True, new=True)
        found[run] = re.findall(r'"run": ?"([0-9a-f]{32})"', said)[-1]
        events = program.ask("GET", f"/runs/{found[run]}/events").text
        found[chat] = re.findall(r'"conversation":"([0-9a-f]{32})"', events)[0]
    found["call"] = re.findall(r'"tool_call","content":{"id":"([^"]+)"', events)[0]
    return found | {"message": last_message(program, found["quiet"], word)}


@contextmanager
def at_work(app: App, server: Running, first: HttpVisitor) -> Iterator[Scene]:
    """Yield a visitor who has sent files and whose next answer is being written."""
    word = marker()
    first.say(f"!text {SHARED}")
    shared, late = linked(first)
    chats = ended_chats(first, word)
    sent, picture = first.upload(f"{word}.txt", word.encode()), first.upload("p.png", random_png())
    report = first.upload(f"{word}.pdf", pdf([word]))
    assert word in first.say(f"!text {word}", sent, picture, report, system_message=word, new=True)
    path = first.upload(f"{word}.txt", word.encode())
    temporary, answer = begin_temporary(first, f"!text {word}")
    long = f"{LONG} !text {word}"
    event = first.begin(long).json["event_id"]
    server.wait_for(lambda journal: any(long in str(line["body"]) and line["sent"] > 3 for line in journal))
    assert first.cookie is not None
    drawer = first.ask("POST", "/folders", json={"name": word, "instructions": word}).json["id"]
    owner = owner_in(first.cookie)
    kept = next((app.folder / "data" / "media" / owner).glob("*.png"))
    hits = first.ask("GET", f"/conversations?q={word}").json["hits"]
    [hit] = [one for one in hits if one["id"] not in chats.values()]
    conversation = str(hit["id"])
    ended, run = runs_of(app, conversation)
    ids = {
        "session": first.session,
        "event": event,
        "path": path,
        "media": kept.name,
        "owner": owner,
        "conversation": conversation,
        "entry": str(hit["entry"]),
        **shared,
        **chats,
        "marker": word,
        "ended": ended,
        "run": run,
        "chat": str(first.chat),
        "look": str(first.number_of("look")),
        "temporary": temporary,
        "drawer": drawer,
        "answer": answer,
    }
    made = Scene(first, late, word, ids, app, server, long)
    end = {"session_hash": first.session, "event_id": event, "fn_index": first.chat}
    with reading_events(first), kept_alive(HttpVisitor(app.url, first.cookie), temporary):
        try:
            yield made
        finally:
            first.ask("POST", f"{API}cancel", json=end)


PAGE_SESSION = '{"owner": "$owner", "guest": true, "conversation": "$conversation", "window": 40}'
MATRIX: list[tuple[str, str, str, str, str | None, int | None]] = [
    # object, verb, method, path, body, the owner's status (None: not requested, because it would change the scene)
    ("session", "listen", "GET", "queue/data?session_hash=$session", None, None),
    ("session", "keep", "GET", "heartbeat/$session", None, None),
    ("session", "act", "POST", "run/predict",
     '{"session_hash": "$session", "fn_index": $look, "data": [$page_session]}', None),
    ("session", "queue", "POST", "queue/join", '{"session_hash": "$session", "fn_index": $look, "data": []}', 404),
    ("session", "cancel", "POST", "cancel", '{"session_hash": "$session", "fn_index": $chat, "event_id": "x"}', 404),
    ("session", "link", "GET", "deep_link?session_hash=$session", None, 404),
    ("session", "serve", "POST", "component_server",
     '{"session_hash": "$session", "component_id": 1, "fn_name": "x", "data": 1}', 404),
    ("session", "call", "POST", "call/chat", '{"session_hash": "$session", "data": [{"text": "x"}]}', 400),
    ("session", "run", "POST", "run/chat",
     '{"session_hash": "$session", "fn_index": $chat, "data": [{"text": "x"}, "", {}, null]}', 404),
    ("session", "api", "POST", "api/predict", '{"session_hash": "$session", "fn_index": 1, "data": [null]}', 404),
    ("session", "play", "GET", "stream/$session/0/1/playlist.m3u8", None, 404),
    ("event", "cancel", "POST", "cancel", '{"session_hash": "mine", "fn_index": $chat, "event_id": "$event"}', 404),
    ("event", "cancel both", "POST", "cancel",
     '{"session_hash": "$session", "fn_index": $chat, "event_id": "$event"}', None),
    ("event", "reset", "POST", "reset", '{"event_id": "$event"}', 200),
    ("event", "read", "GET", "call/chat/$event", None, None),
    ("event", "read 2", "GET", "call/v2/chat/$event", None, 404),
    ("event", "feed", "POST", "stream/$event", '{"data": []}', 404),
    ("event", "close", "POST", "stream/$event/close", None, 404),
    ("upload", "read", "GET", "file=$path", None, 200),
    ("upload", "head", "HEAD", "file=$path", None, 200),
    ("upload", "read old", "GET", "file/$path", None, 404),
    ("upload", "proxy", "GET", "proxy=http://127.0.0.1/gradio_api/file=$path", None, 404),
    ("upload", "attach", "POST", "queue/join",
     '{"session_hash": "$fresh", "fn_index": $chat, "data": [{"text": "!text x", "files": [{"path": "$path", '
     '"meta": {"_type": "gradio.FileData"}}]}, "", {}, null]}', None),
    ("conversation", "export", "GET", "/export/$conversation", None, 200),
    ("conversation", "export page", "GET", "/export/$conversation?format=html", None, 200),
    ("conversation", "export text", "GET", "/export/$conversation?format=markdown&guest=$owner", None, 200),
    ("conversation", "export all", "GET", "/export?format=markdown&conversation=$conversation", None, 200),
    ("conversation", "import id", "POST", "/import", '{"switchboard": "$conversation"}', 200),
    ("picture", "read", "GET", "/media/$media", None, 200),
    ("picture", "head", "HEAD", "/media/$media", None, 404),
    ("picture", "by owner", "GET", "/media/$owner/$media", None, 404),
    ("picture", "climb", "GET", "/media/..%2f$owner%2f$media", None, 404),
    ("picture", "as file", "GET", "file=$folder/data/media/$owner/$media", None, 404),
    ("picture", "attach", "POST", "queue/join",
     '{"session_hash": "$fresh", "fn_index": $chat, "data": [{"text": "!text x", "files": [{"path": '
     '"$folder/data/media/$owner/$media", "meta": {"_type": "gradio.FileData"}}]}, "", {}, null]}', 404),
    ("conversation", "link", "GET", "/?deep_link=$conversation", None, 200),
    ("conversation", "config", "GET", "/config?deep_link=$conversation", None, 200),
    ("conversation", "open", "GET", "/c/$conversation", None, 200),
    ("conversation", "read", "GET", "/conversations/$conversation", None, 200),
    ("conversation", "read turns", "GET", "/conversations/$conversation?format=blocks", None, 200),
    ("conversation", "read current", "GET", "/conversations/current?format=blocks&viewed=$conversation", None, 200),
    ("conversation", "rename", "PATCH", "/conversations/$conversation", '{"title": "Mine"}', None),
    ("conversation", "pin", "PATCH", "/conversations/$conversation", '{"pinned": true}', None),
    ("conversation", "delete", "DELETE", "/conversations/$conversation", None, None),
    ("conversation", "restore", "POST", "/conversations/$conversation/restore", None, 404),
    ("conversation", "find", "GET", "/conversations?q=$conversation", None, 200),
    ("link", "list", "GET", "/conversations/$shared/links", None, 200),
    ("link", "create", "POST", "/conversations/$shared/links", '{"attachments": true}', None),
    ("link", "revoke", "DELETE", "/conversations/$shared/links/$link", None, None),
    ("link", "revoke of another chat", "DELETE", "/conversations/$conversation/links/$link", None, 404),
    ("link", "read by id", "GET", "/s/$link", None, 404),
    ("link", "read by chat", "GET", "/s/$shared", None, 404),
    ("link", "continue by id", "POST", "/s/$link/continue", None, 404),
    ("revoked link", "read", "GET", "/s/$revoked", None, 404),
    ("revoked link", "continue", "POST", "/s/$revoked/continue", None, 404),
    ("revoked link", "file", "GET", "/s/$revoked/files/$media", None, 404),
    ("linked chat", "file of another chat", "GET", "/s/$token/files/$media", None, 404),
    ("passage", "read", "POST", "/conversations/$conversation/passage",
     '{"document": "$marker.pdf", "page": 1, "passage": "$marker"}', 200),
    ("passage", "read as guest", "POST", "/conversations/$conversation/passage?guest=$owner",
     '{"document": "$marker.pdf", "page": 1, "passage": ""}', 200),
    ("passage", "of another chat", "POST", "/conversations/$shared/passage",
     '{"document": "$marker.pdf", "page": 1, "passage": "$marker"}', 404),
    ("message", "read", "GET", "/conversations/$conversation/messages/$entry", None, 200),
    ("conversation", "say over http", "POST", "/conversations/$quiet/messages", '{"text": "!text pear"}', None),
    ("conversation", "window", "GET", "/conversations/$conversation/window", None, 200),
    ("conversation", "window as guest", "GET", "/conversations/$quiet/window?guest=$owner", None, 200),
    ("conversation", "summarize", "POST", "/conversations/$quiet/summary", "{}", None),
    ("conversation", "drop summary", "DELETE", "/conversations/$quiet/summary", None, None),
    ("message", "retry over http", "POST", "/conversations/$quiet/messages/$message/retry", "{}", None),
    ("message", "continue over http", "POST", "/conversations/$quiet/messages/$message/continue", "{}", None),
    ("message", "show over http", "POST", "/conversations/$quiet/messages/$message/show", "{}", None),
    ("message", "rate over http", "POST", "/conversations/$quiet/messages/$message/rating", '{"good": true}', 404),
    ("message", "vote over http", "POST", "/conversations/$quiet/messages/$message/vote", '{"choice": "0"}', 409),
    ("conversation", "move", "PATCH", "/conversations/$quiet", '{"folder": ""}', None),
    ("list", "folders", "GET", "/folders?guest=$owner&owner=$owner", None, 200),
    ("list", "folder", "GET", "/conversations?folder=$drawer", None, 200),
    ("list", "folder begin", "POST", "/conversations", '{"text": "!text pear", "folder": "$drawer"}', None),
    ("list", "folder add", "POST", "/folders?guest=$owner&owner=$owner", '{"name": "Mine"}', None),
    ("list", "folder change", "PATCH", "/folders/$drawer", '{"name": "Mine"}', None),
    ("list", "folder delete", "DELETE", "/folders/$drawer", None, None),
    ("list", "votes", "GET", "/votes?guest=$owner&owner=$owner", None, 200),
    ("message", "answer over http", "POST", "/conversations/$quiet/messages/$message/answer", '{"text": "Mine"}', None),
    ("message", "copy over http", "POST", "/conversations/$quiet/messages/$message/copy", "{}", None),
    ("message", "edit over http", "PATCH", "/conversations/$quiet/messages/$message",
     '{"text": "!text $marker"}', None),
    ("message", "erase over http", "DELETE", "/conversations/$quiet/branches/$message", None, None),
    ("message", "undo over http", "DELETE", "/conversations/$quiet/messages/$message", None, None),
    ("suspended run", "answer over http", "POST", "/conversations/$waiting/messages", '{"text": "pear"}', None),
    ("suspended run", "answer elsewhere", "POST", "/conversations/$shared/messages",
     '{"text": "pear", "question": {"run": "$asking", "call": "$call"}}', 409),
    ("running answer", "say over http", "POST", "/conversations/$conversation/messages", '{"text": "!text pear"}', 409),
    ("running answer", "steer over http", "POST", "/conversations/$conversation/steer",
     '{"text": "!text pear", "id": "$entry"}', 200),
    ("running answer", "stop over http", "POST", "/conversations/$conversation/stop", "{}", None),
    ("running answer", "stop one over http", "POST", "/conversations/$conversation/stop", '{"run": "$run"}', None),
    ("suspended run", "stop over http", "POST", "/conversations/$waiting/stop", "{}", 204),
    ("upload", "attach over http", "POST", "/conversations", '{"text": "!text x", "files": ["$path"]}', None),
    ("picture", "attach over http", "POST", "/conversations",
     '{"text": "!text x", "files": ["$folder/data/media/$owner/$media"]}', 400),
    ("message", "read branches", "GET", "/conversations/$quiet/branches", None, 200),
    ("message", "find", "GET", "/conversations/$quiet/search?q=$marker", None, 200),
    ("message", "read text", "GET", "/conversations/$quiet/messages/$message/text", None, 200),
    ("message", "read before", "GET", "/conversations/$quiet?format=blocks&before=$message", None, 200),
    ("running answer", "subscribe", "GET", "/runs/$run/events?wait=0", None, 200),
    ("running answer", "subscribe as page", "GET", "/runs/$run/events?wait=0&format=blocks", None, 200),
    ("running answer", "subscribe as guest", "GET", "/runs/$run/events?wait=0&guest=$owner", None, 200),
    ("running answer", "listen", "GET", "/runs/$run/sound?wait=0", None, 204),
    ("ended answer", "subscribe", "GET", "/runs/$ended/events", None, 200),
    ("ended answer", "subscribe as page", "GET", "/runs/$ended/events?format=blocks", None, 200),
    ("temporary chat", "keep", "POST", "/temporary/$temporary", None, 204),
    ("temporary chat", "read", "GET", "/conversations/$temporary", None, 200),
    ("temporary chat", "rename", "PATCH", "/conversations/$temporary", '{"title": "Mine"}', None),
    ("temporary chat", "delete", "DELETE", "/conversations/$temporary", None, None),
    ("temporary chat", "links", "GET", "/conversations/$temporary/links", None, 400),
    ("temporary chat", "share", "POST", "/conversations/$temporary/links", "{}", 400),
    ("temporary chat", "export", "GET", "/export/$temporary?format=markdown", None, 200),
    ("temporary chat", "page", "GET", "/c/$temporary", None, 200),
    ("temporary chat", "say over http", "POST", "/conversations/$temporary/messages", '{"text": "!text pear"}', None),
    ("temporary chat", "leave", "DELETE", "/temporary/$temporary", None, None),
    ("temporary answer", "subscribe", "GET", "/runs/$answer/events", None, 200),
    ("picture", "name", "GET", "/media/$media?name=mine.png&owner=$owner", None, 200),
    ("picture", "change", "PATCH", "/media/$media", '{"name": "mine.png"}', 405),
    ("picture", "delete", "DELETE", "/media/$media", None, 405),
    ("export", "as owner", "GET", "/export?guest=$owner&owner=$owner", None, 200),
    ("export", "append", "POST", "/export/$conversation", "[]", 405),
    ("export", "change", "PATCH", "/export/$conversation", '{"title": "Mine"}', 405),
    ("export", "delete", "DELETE", "/export/$conversation", None, 405),
    ("link", "change", "PATCH", "/conversations/$shared/links/$link", '{"days": 1}', 405),
    ("link", "subscribe", "GET", "/s/$link/events", None, 404),
    ("link", "export", "GET", "/export/$link", None, 404),
    ("suspended run", "read", "GET", "/conversations/$waiting", None, 200),
    ("suspended run", "rename", "PATCH", "/conversations/$waiting", '{"title": "Mine"}', None),
    ("suspended run", "delete", "DELETE", "/conversations/$waiting", None, None),
    ("suspended run", "subscribe", "GET", "/runs/$asking/events", None, 200),
    ("suspended run", "subscribe as page", "GET", "/runs/$asking/events?format=blocks", None, 200),
    ("suspended run", "export", "GET", "/export/$waiting", None, 200),
    ("running answer", "go on", "GET", "/runs/$run/events?wait=0&after=1", None, 200),
    ("running answer", "append", "POST", "/runs/$run/events", '{"type": "ended"}', 405),
    ("running answer", "delete", "DELETE", "/runs/$run", None, 405),
    ("list", "read", "GET", "/conversations?guest=$owner&owner=$owner&limit=200", None, 200),
    ("list", "summary", "GET", "/own-data?guest=$owner&owner=$owner", None, 200),
    ("prompt", "list over http", "GET", "/prompts?guest=$owner&owner=$owner", None, 200),
    ("prompt", "get over http", "POST", "/prompts?guest=$owner", '{"server": "$owner", "name": "x"}', 404),
    ("settings", "choose", "PATCH", "/settings?guest=$owner&owner=$owner", '{"effort": "low"}', 204),
    ("picture", "fetch over http", "POST", "/pictures?guest=$owner", '{"url": "file://$path"}', 400),
    ("message", "render over http", "POST", "/markdown?guest=$owner&owner=$owner", '{"text": "# pear"}', 200),
    ("message", "speak over http", "POST", "/speech?guest=$owner&owner=$owner", '{"text": "pear"}', 404),
    ("upload", "write down", "POST", "/dictation?guest=$owner", '{"path": "$path"}', None),
    ("settings", "voice", "GET", "/voice?guest=$owner&owner=$owner", None, 200),
    ("list", "append", "POST", "/conversations", '{"id": "$conversation"}', 400),
    ("list", "rename", "PATCH", "/conversations", '{"title": "Mine"}', 405),
    ("list", "delete", "DELETE", "/conversations?guest=$owner", None, 405),
    ("search", "words", "GET", "/conversations?q=$marker&guest=$owner&owner=$owner", None, 200),
    ("search", "export", "GET", "/export?q=$marker&guest=$owner", None, 200),
    ("list", "delete all", "DELETE", "/own-data?guest=$owner&owner=$owner", None, None),
]  # fmt: skip


def filled(template: str, ids: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: ids[found[1]], template)


def send_row(program: HttpVisitor, row: tuple[Any, ...], ids: dict[str, str]) -> Answer:
    """Make the request of a row with these ids. If it starts an event, also read the session."""
    _, _, method, path, body, _ = row
    ids = ids | {"page_session": filled(PAGE_SESSION, ids)}
    path, content = filled(path if path.startswith("/") else API + path, ids), filled(body, ids) if body else None
    endless = "heartbeat" in path
    json_ = {"content-type": "application/json"} if content else {}
    said = program.ask(method, path, content=content, headers=json_, seconds=1.0 if endless else 30.0)
    if path.endswith("queue/join") and said.status == 200:
        said.text += program.listen(json.loads(content or "")["session_hash"], seconds=20.0)
    return said


def comparable(said: Answer, ids: dict[str, str]) -> tuple[int, str]:
    """Return the answer without the request's own ids and the values that change from time to time."""
    text = said.text
    for id_ in ids.values():
        if len(id_) > 5:
            text = text.replace(id_, "ID")
    text = re.sub(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+[+]00:00", "TIME", text)
    text = re.sub(r'"guest": ?"[^"]+"|(?<=[?&]guest=)[^"&]+', "TOKEN", re.sub(r"[0-9a-f]{32}", "ID", text))
    text = re.sub(r'"[a-z_]*(duration|time|eta|left|since)[a-z_]*": ?[^,}]*|[0-9.]+ (s|tokens?)[^"<]*', "", text)
    return said.status, re.sub(r"data: .*process_generating.*\n+", "", text)


def made_up_like(id_: str) -> str:
    """Return an id of the same form that nobody has. It is always the same for one id, as rows can share ids."""
    return re.sub(r"[0-9a-f]{11,}", lambda found: sha256(SALT + found[0].encode()).hexdigest()[: len(found[0])], id_)


CLOSED = """GET /openapi.json|GET /openapi.json/|GET /docs|GET /redoc|GET /runs
POST /own-data|PUT /own-data|PATCH /own-data|GET /own-data/x|DELETE /own-data/x
PUT /conversations/x|PATCH /conversations|DELETE /conversations|POST /conversations/x|GET /c|GET /c/
GET /s|GET /s/|POST /s/x|DELETE /s/x|POST /s/x/files/y|GET /s/x/continue|PUT /s/x/continue|POST /s/x/continue/
PUT /c/x|POST /c/x|DELETE /c/x|GET /c/x/y|GET /conversations/x/restore|POST /conversations/x/y/restore
GET /monitoring|GET /monitoring/summary|GET /monitoring/x|POST /login|GET /logout|POST /|POST /config
PUT /gradio_api/queue/join|OPTIONS /gradio_api/queue/join|GET /gradio_api/queue/status|GET /gradio_api/openapi.json
POST /gradio_api/process_recording|GET /gradio_api/dev/reload|POST /gradio_api/vibe-edit|GET /gradio_api/user
GET /gradio_api/token|GET /gradio_api/runs|POST /gradio_api/run-history/connect|GET /gradio_api/mcp/sse
GET /gradio_api/custom_component/x/client/component/index.js|GET /gradio_api/login_check|POST /gradio_api/call/v2/chat
POST /gradio_api/run/predict/|POST /gradio_api/component_server/|GET /gradio_api/|GET /gradio_api/queue/join/x"""


def closed_requests() -> list[tuple[str, str]]:
    """Return method and path of the requests that the page does not need."""
    return [(method, path) for method, path in (line.split(" ") for line in CLOSED.replace("\n", "|").split("|"))]
