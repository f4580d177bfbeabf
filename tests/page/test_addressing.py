"""An edit, a retry, an undo or a pressed answer changes the message that the page showed, whatever came since."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from agent.web.chat.views import WINDOW
from tests.conftest import App, Visitor
from tests.support import media_files
from tests.support.asking_tools import ASKING_CONFIG as ASKING
from tests.support.scripted_server import Config, Running, running
from tests.support.seeded_turns import seed

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
SEES = "Qwen/Qwen3-VL-8B-Instruct"


# Counts the frames in which an edit box is drawn after it was once gone.
COUNT_EDIT_BOXES = """() => {
  let wasGone = false;
  window.shownAgain = 0;
  const look = () => {
    const box = document.querySelector("#chat .edit textarea");
    const isSeen = Boolean(box?.checkVisibility());
    if (isSeen && wasGone) window.shownAgain += 1;
    wasGone ||= !isSeen;
    requestAnimationFrame(look);
  };
  look();
}"""


def texts(content: Any) -> list[str]:
    """Return the texts of a message in a request."""
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def prompts(server: Running) -> list[str]:
    """Return the visitor's messages in the newest request to the model server."""
    messages = server.journal()[-1]["body"]["messages"]
    return [text for message in messages if message["role"] == "user" for text in texts(message["content"])]


def shown(visitor: Visitor) -> list[str]:
    """Return the visitor's messages on the page, the first part of each."""
    rows = visitor.chat.locator(".turn > .mine:first-child").all()
    return [(row.locator(".part").first.text_content() or "").strip() for row in rows]


def row(visitor: Visitor, number: int) -> Locator:
    """Return the visible message with that number, counted from 0."""
    return visitor.chat.locator(".turn > .mine:first-child").nth(number)


def open_edit(visitor: Visitor, number: int) -> None:
    """Open the edit box of the visible message with that number, counted from 0."""
    one = row(visitor, number)
    one.get_by_role("button", name="Edit").click()
    # Older messages can come before it.
    expect(visitor.chat.locator(".edit textarea").filter(visible=True)).to_be_in_viewport(ratio=1)


def submit_edit(visitor: Visitor, server: Running, text: str) -> None:
    """Write into the open edit box, submit, and wait for the answer."""
    before = len(server.journal())
    visitor.chat.locator(".edit textarea").first.fill(text)
    visitor.chat.get_by_role("button", name="Send").click()
    expect(visitor.chat.locator(".edit textarea")).to_have_count(0)
    expect(visitor.mine.filter(has_text=text)).to_be_visible()
    server.wait_for(lambda journal: len(journal) > before and journal[-1]["ended"])
    expect(visitor.caption).to_be_visible()
    visitor.idle()


def assert_edited(visitor: Visitor, server: Running, before: list[str], number: int, text: str) -> None:
    """Assert that only this text has changed: for the model, on the page and, after a reload, in the store."""
    kept = before[:number]
    assert shown(visitor)[-1 - len(kept) :] == [*kept, text]  # older messages can be visible now
    sent = prompts(server)
    assert sent[-1] == text
    assert sent[len(sent) - 1 - len(kept) : -1] == kept
    assert before[number] not in sent
    visitor.page.reload()
    expect(visitor.mine.last).to_have_text(text)
    assert shown(visitor)[-1 - len(kept) :] == [*kept, text]


def test_edit_in_live_chat(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("the live one")
    for count in (8, 9, 10):
        seed(app.folder, "the live one", count - 2)
        visitor.page.reload()
        expect(visitor.mine.last).to_have_text(f"question {count - 2}")
        for number in (1, 2):
            visitor.ask(f"live {number} of {count}")
        assert visitor.bubbles.count() + visitor.mine.count() <= WINDOW
        before = shown(visitor)
        open_edit(visitor, 2)
        expect(visitor.chat.locator(".edit textarea")).to_have_value(before[2])
        submit_edit(visitor, model_server, f"changed in {count}")
        assert_edited(visitor, model_server, before, 2, f"changed in {count}")


def test_edit_in_stored_chat(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("first of many")
    seed(app.folder, "first of many", 20)
    visitor.page.reload()
    expect(visitor.mine.last).to_have_text("question 20")
    before = shown(visitor)
    assert 2 < len(before) < 20
    open_edit(visitor, 2)
    submit_edit(visitor, model_server, "changed after a reload")
    assert_edited(visitor, model_server, before, 2, "changed after a reload")

    seed(app.folder, "first of many", 20)
    visitor.page.reload()
    expect(visitor.mine.last).to_have_text("question 20")
    before = shown(visitor)
    visitor.shot("edit-before-earlier")
    open_edit(visitor, 1)
    box = visitor.chat.locator(".edit textarea")
    box.fill("changed before and after the list moved")
    visitor.show_earlier()
    expect(visitor.mine.first).to_have_text("first of many")
    # The edit box moves with its message and keeps its text.
    expect(row(visitor, 20 - len(before) + 1).locator(".edit textarea")).to_be_visible()
    expect(box).to_have_value("changed before and after the list moved")
    visitor.shot("edit-moved")
    visitor.chat.get_by_role("button", name="Cancel").click()
    before = shown(visitor)
    assert len(before) == 20
    open_edit(visitor, 2)
    submit_edit(visitor, model_server, "changed with all in view")
    assert_edited(visitor, model_server, before, 2, "changed with all in view")


def test_edit_keeps_files(start_app: Callable[..., App], visit: Visit, tmp_path: Path) -> None:
    picture, note = tmp_path / "red.png", tmp_path / "note.txt"
    picture.write_bytes(media_files.picture("PNG"))
    note.write_text("what the note says")
    with running(Config(models=(SEES,), rate=500.0)) as server:
        visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
        for number in range(1, 12):
            if number in (2, 4):
                files = [picture, note] if number == 4 else [picture]
                visitor.page.locator("#composer input[type=file]").set_input_files(files)
                expect(visitor.page.locator("#attached li")).to_have_count(len(files))
            visitor.ask(f"say {number}")
        before = shown(visitor)
        at = before.index("say 4")
        open_edit(visitor, at)
        area = visitor.chat.locator(".edit textarea").filter(visible=True)
        expect(area).to_have_attribute("aria-description", "2 files stay with this message")
        expect(row(visitor, at).get_by_text("2 files stay with this message")).to_be_visible()
        expect(row(visitor, at).locator("img")).to_be_visible()
        expect(row(visitor, at).get_by_role("group", name="note.txt")).to_be_visible()
        expect(row(visitor, at).get_by_text("say 4")).to_be_hidden()
        visitor.shot("edit-with-files")
        submit_edit(visitor, server, "changed beside a picture")
        assert shown(visitor)[-1 - at :] == [*before[:at], "changed beside a picture"]
        content = server.journal()[-1]["body"]["messages"][-1]["content"]
        assert texts(content) == ["changed beside a picture", "note.txt:\n```\nwhat the note says\n```"]
        assert [part["type"] for part in content].count("image_url") == 1
        visitor.page.reload()
        expect(visitor.chat.locator(".turn > .mine:first-child").last.locator("img")).to_have_count(1)

        visitor.page.locator("#composer input[type=file]").set_input_files(picture)
        expect(visitor.page.locator("#attached li")).to_have_count(1)
        rows = visitor.chat.locator(".turn > .mine:first-child").count()
        visitor.box.press("Enter")
        expect(visitor.chat.locator(".turn > .mine:first-child")).to_have_count(rows + 1)
        expect(visitor.caption).to_be_visible()
        visitor.idle()
        open_edit(visitor, rows)
        expect(visitor.chat.locator(".edit textarea")).to_have_value("")  # no Markdown of the picture
        submit_edit(visitor, server, "what is it")
        content = server.journal()[-1]["body"]["messages"][-1]["content"]
        assert texts(content) == ["what is it"]
        assert [part["type"] for part in content] == ["text", "image_url"]


def test_end_stays_in_view_after_an_edit_beside_it(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text " + "Line.\\n\\n" * 30)
    visitor.ask("!text The end.")
    held: list[Route] = []
    visitor.page.route("**/text", lambda route: held.append(route))
    row(visitor, 1).get_by_role("button", name="Edit").click()
    expect(
        visitor.chat.get_by_text("The text is being loaded")
    ).to_be_visible()  # the box is small until it has its text
    held[0].continue_()
    expect(visitor.chat.locator(".edit textarea")).to_be_in_viewport(ratio=1)
    visitor.page.keyboard.press("Escape")
    expect(visitor.chat.locator(".edit textarea")).to_have_count(0)
    visitor.page.set_viewport_size({"width": 1100, "height": 600})
    expect(visitor.caption).to_be_in_viewport(ratio=1)
    expect(visitor.chat.get_by_role("button", name="Jump to the end")).to_be_hidden()


def test_model_without_images_refuses_edit_and_retry(
    start_app: Callable[..., App], visit: Visit, tmp_path: Path
) -> None:
    picture = tmp_path / "red.png"
    picture.write_bytes(media_files.picture("PNG"))
    with running(Config(models=(SEES, "Qwen/Qwen3-8B"), rate=500.0)) as server:
        visitor = visit(start_app(VLLM_BASE_URL=server.base_url).url)
        visitor.page.locator("#composer input[type=file]").set_input_files(picture)
        expect(visitor.page.locator("#attached li")).to_have_count(1)
        visitor.ask("look at this")
        visitor.choose("Qwen/Qwen3-8B")
        expect(visitor.page.locator("#about")).to_contain_text("Qwen3-8B")
        visitor.chat.get_by_role("button", name="Retry", exact=True).last.click()
        hint = visitor.page.locator("#hint")
        expect(hint).to_contain_text("cannot take images")
        expect(hint).to_be_empty()
        open_edit(visitor, 0)
        visitor.chat.locator(".edit textarea").first.fill("look again")
        visitor.chat.get_by_role("button", name="Send").click()
        expect(hint).to_contain_text("cannot take images")
        visitor.shot("refused-images")
        expect(visitor.chat.locator(".edit textarea").first).to_have_value("look again")
        assert len(server.journal()) == 1
        visitor.page.reload()
        expect(visitor.mine.first).to_have_text("look at this")
        expect(visitor.mine.locator("img")).to_have_count(1)


@pytest.mark.gate("A page that is out of date changes no other message.")
def test_stale_page_changes_nothing(app: App, visit: Visit, model_server: Running) -> None:
    one = visit(app.url)
    one.ask("one")
    one.ask("two")
    other = visit(app.url, elsewhere=one)
    expect(other.mine.last).to_have_text("two")
    open_edit(other, 1)
    other.chat.locator(".edit textarea").fill("typed over two")
    one.ask("three")
    before = len(model_server.journal())
    other.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(other.page.locator("#hint")).to_contain_text("has gone on since then")
    expect(other.mine.last).to_have_text("three")  # the page shows the current chat
    expect(other.chat.locator(".edit textarea")).to_have_value("typed over two")

    one.chat.get_by_role("button", name="Undo").click()
    expect(one.mine).to_have_count(2)
    one.idle()
    one.chat.get_by_role("button", name="Undo").click()
    expect(one.mine).to_have_count(1)
    one.idle()
    other.chat.get_by_role("button", name="Undo").click()
    expect(other.mine).to_have_count(1)
    # The message with the open edit box is gone, but its typed text stays.
    expect(other.box).to_have_value("typed over two")
    expect(one.mine).to_have_text("one")
    assert len(model_server.journal()) == before
    other.page.reload()
    expect(other.mine).to_have_count(1)


@pytest.mark.parametrize("draft", ["", "A draft."])
def test_retry_moves_an_open_edit_into_the_composer(app: App, visit: Visit, draft: str) -> None:
    """The question that is answered again is shown as it was sent, and nothing that was typed is lost."""
    visitor = visit(app.url, fresh=True)
    for text in ("!text One.", "!tokens 40 @60"):
        visitor.ask(text)
    visitor.box.fill(draft)
    open_edit(visitor, 1)
    edit = visitor.chat.locator(".edit textarea")
    edit.fill("Other words")
    visitor.page.evaluate(COUNT_EDIT_BOXES)
    visitor.chat.get_by_role("button", name="Retry", exact=True).click()
    expect(visitor.page.get_by_role("button", name="Stop")).to_be_visible()
    visitor.idle()
    expect(visitor.mine).to_have_text(["!text One.", "!tokens 40 @60"])
    expect(visitor.box).to_have_value(f"{draft}\n\nOther words" if draft else "Other words")
    assert visitor.page.evaluate("window.shownAgain") == 0
    open_edit(visitor, 1)
    expect(edit).to_have_value("!tokens 40 @60")


def test_stale_button_answers_no_other_question(start_app: Callable[..., App], visit: Visit) -> None:
    app = start_app(ASKING)
    one = visit(app.url)
    one.allow_tools()
    one.say(
        '!tool ask_user {"question": "First?", "choices": ["yes", "no"]} '
        '!tool ask_user {"question": "Second?", "choices": ["yes", "no"]} !text Both are answered.'
    )
    asked = one.chat.locator("[data-kind=question][data-state=waiting]")
    expect(asked).to_contain_text("First?")
    other = visit(app.url, elsewhere=one)
    expect(other.chat.locator("[data-kind=question][data-state=waiting]")).to_contain_text("First?")
    one.chat.get_by_role("button", name="no", exact=True).click()
    expect(asked).to_contain_text("Second?")
    one.idle()
    other.chat.get_by_role("button", name="yes", exact=True).click()
    expect(other.page.locator("#hint")).to_contain_text("was already answered")
    expect(other.chat.locator("[data-kind=question][data-state=waiting]")).to_contain_text("Second?")
    one.page.reload()
    expect(asked).to_contain_text("Second?")
    expect(one.mine).to_have_count(2)


def test_earlier_messages_show_repeatedly_during_an_answer(app: App, visit: Visit) -> None:
    """Each press needs its own view, although the view of the previous press is still being updated."""
    visitor = visit(app.url)
    visitor.ask("first of very many")
    seed(app.folder, "first of very many", 70)
    visitor.page.reload()
    expect(visitor.mine.last).to_have_text("question 70")
    visitor.say("!tokens 4000 @20")
    expect(visitor.mine.last).to_contain_text("!tokens")
    for _ in range(2):
        visible = visitor.mine.count()
        visitor.show_earlier()
        expect(visitor.mine.nth(visible)).to_be_attached()
    visitor.page.get_by_role("button", name="Stop").click()
    visitor.idle()
