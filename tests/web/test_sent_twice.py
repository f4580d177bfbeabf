"""A message that a page sends again, because the answer to it was lost, is stored and answered once."""

import sqlite3
from uuid import uuid4

from agent.web.chat.sent_message import MessageId
from tests.conftest import App, becomes
from tests.support.http_client import Answer, HttpVisitor, marker
from tests.support.scripted_server import Running


def send(visitor: HttpVisitor, text: str, id_: str, chat: str = "", *, files: tuple[str, ...] = ()) -> Answer:
    """Send a message as the page does. An id with " again" is sent once more."""
    id_, _, again = id_.partition(" ")
    body = {"text": text, "files": files, "id": id_, "again": bool(again)}
    return visitor.ask("POST", f"/conversations{f'/{chat}/messages' if chat else ''}", json=body)


def count_stored(app: App, word: str) -> int:
    """Return the number of stored messages of visitors that contain this word."""
    with sqlite3.connect(f"file:{app.folder}/data/history.sqlite?mode=ro", uri=True) as db:
        prompts = "SELECT count(*) FROM entries WHERE entry LIKE '%\"user-prompt\"%' AND entry LIKE ?"
        found = db.execute(prompts, [f"%{word}%"]).fetchone()
    db.close()
    return found[0]


def chats(visitor: HttpVisitor) -> list[str]:
    return [row["id"] for row in visitor.ask("GET", "/conversations").json["conversations"]]


def test_message_begins_a_chat_of_its_owner() -> None:
    """Another visitor's message with the same id neither finds nor blocks it."""
    first, again = MessageId("a" * 32), MessageId("a" * 32, again=True)
    assert first.conversation("ann") == again.conversation("ann") != first.conversation("bob")


def test_repeated_message_is_stored_once(app: App) -> None:
    visitor, first, second = HttpVisitor(app.url), uuid4().hex, uuid4().hex
    words = [marker(), marker()]
    send(visitor, f"!text {words[0]}", first)
    answer = send(visitor, f"!text {words[0]}", f"{first} again")
    [chat] = chats(visitor)
    assert answer.json["conversation"] == chat, "the page is told which chat it is"
    becomes("", lambda: visitor.ask("GET", f"/conversations/{chat}").json["state"])
    for id_ in (second, f"{second} again", f"{second} again"):
        assert send(visitor, f"!text {words[1]}", id_, chat).status == 200
    assert chats(visitor) == [chat]
    assert [count_stored(app, word) for word in words] == [1, 1]


def test_repeat_is_accepted_while_the_answer_is_written(app: App, model_server: Running) -> None:
    visitor, id_, word = HttpVisitor(app.url), uuid4().hex, marker()
    send(visitor, f"!tokens 9 hold 5 {word}", id_)
    [chat] = chats(visitor)
    assert send(visitor, f"!tokens 9 hold 5 {word}", f"{id_} again", chat).json["run"] is None
    assert visitor.ask("GET", f"/conversations/{chat}").json["state"] == "answering"
    model_server.release(word)
    assert count_stored(app, word) == 1


def test_repeat_needs_its_files_no_more(app: App) -> None:
    """The files of a stored message are no longer among the uploads."""
    visitor, id_, word = HttpVisitor(app.url), uuid4().hex, marker()
    files = (visitor.upload("notes.txt", word.encode()),)
    for sent in (id_, f"{id_} again"):
        assert send(visitor, "", sent, files=files).status == 200
    assert count_stored(app, word) == 1


def test_repeat_of_a_lost_message_is_stored(app: App) -> None:
    visitor, id_, word = HttpVisitor(app.url), uuid4().hex, marker()
    assert send(visitor, f"!text {word}", f"{id_} again").status == 200
    assert count_stored(app, word) == 1


def test_id_of_another_visitor_is_one_of_its_own(app: App) -> None:
    """A visitor who knows the id of another one's message can neither read nor block it."""
    owner, other, id_, words = HttpVisitor(app.url), HttpVisitor(app.url), uuid4().hex, [marker(), marker()]
    send(owner, f"!text {words[0]}", id_)
    answer = send(other, f"!text {words[1]}", f"{id_} again")
    assert answer.status == 200
    assert words[0] not in answer.text
    assert chats(owner) != chats(other)
    assert [count_stored(app, word) for word in words] == [1, 1]
