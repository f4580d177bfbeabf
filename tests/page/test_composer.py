"""The composer keeps what is typed or attached while a message is sent. A draft keeps its files."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import App, Visit
from tests.support.scripted_server import Config, Running, running


@pytest.mark.gate("What is typed while a message is sent stays.")
def test_input_while_sending_stays(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    files = visitor.page.locator("#composer").locator(".file")
    held: list[Route] = []
    visitor.ask("!text First.")

    def hold(route: Route) -> None:
        if "!text Second." in (route.request.post_data or "") and not held:
            held.append(route)
        else:
            route.continue_()  # other events of the page, such as the list of chats after the first answer

    visitor.page.route("**/conversations/**", hold)
    visitor.say("!text Second.")
    visitor.wait_for_requests(held)
    visitor.box.press_sequentially(" And a third")
    visitor.attach(("more.txt", b"more"))
    expect(files).to_have_count(1)
    held[0].continue_()
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    expect(visitor.box).to_have_value("And a third")
    expect(files).to_have_count(1)
    expect(visitor.mine.last).to_have_text("!text Second.")
    visitor.idle()
    visitor.box.fill("!text Third.")
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Third.")).to_have_count(1)
    expect(visitor.box).to_have_value("")
    expect(files).to_have_count(0)


def test_draft_keeps_its_files_over_a_reload(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    page = visitor.page
    files = page.locator("#composer").locator(".file")
    names = page.locator("#composer .file .open-text")

    def attach(name: str) -> None:
        visitor.attach((name, f"{name} is here".encode()))
        expect(names.filter(has_text=name)).to_be_visible()

    visitor.ask("!text First.")
    visitor.box.fill("!text Second.")
    attach("one.txt")
    attach("two.txt")
    page.locator("#new").click()
    expect(files).to_have_count(0)
    attach("of the new chat.txt")
    for _ in range(2):  # the draft of the other chat is not seen in between
        visitor.reload()
        expect(names).to_have_text(["of the new chat.txt"])
    page.locator("#chats li").get_by_role("link").click()
    expect(visitor.box).to_have_value("!text Second.")
    expect(names).to_have_text(["one.txt", "two.txt"])
    page.get_by_role("button", name="Remove file: one.txt").click()
    expect(names).to_have_text(["two.txt"])
    visitor.reload()
    expect(names).to_have_text(["two.txt"])
    before = len(model_server.journal())
    visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    visitor.idle()
    expect(files).to_have_count(0)
    said = str(model_server.journal()[before]["body"]["messages"][-1])
    assert "two.txt is here" in said
    assert "one.txt" not in said
    visitor.reload()
    expect(visitor.bubbles.filter(has_text="Second.")).to_have_count(1)
    page.locator("#new").click()
    expect(names).to_have_text(["of the new chat.txt"])
    expect(page.locator("#hint")).to_have_text("")


PASTE = """(area, [text, name]) => {
  const clipboardData = new DataTransfer();
  if (text) clipboardData.setData("text/plain", text);
  clipboardData.items.add(new File([new Uint8Array(9)], name, { type: "image/png" }));
  return area.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""
"""Pastes a picture, and a text if there is one. Returns True if the browser is left to insert the text."""


@pytest.mark.parametrize(
    ("text", "name", "attached"),
    [("Cells of a table", "image.png", 0), ("", "image.png", 1), ("photo.png", "photo.png", 1)],
    ids=["text with its picture", "picture", "file by its name"],
)
def test_pasted_text_wins_over_its_picture(app: App, visit: Visit, text: str, name: str, attached: int) -> None:
    visitor = visit(app.url)
    assert visitor.box.evaluate(PASTE, [text, name]) is not bool(attached)
    expect(visitor.page.locator("#composer .file")).to_have_count(attached)


HOSTILE = "!text <img src=x onerror=alert(1)>\n\u202e${{7*7}} " + "x" * 30_000


def test_address_fills_the_composer_and_sends_nothing(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("!text Earlier.")
    page, before = visitor.page, len(model_server.journal())
    wanted = "Which is best?\n<b>Why?</b>"
    visitor.open(f"{app.url}/?prompt={quote(wanted)}&model=qwen")
    expect(visitor.box).to_have_value(wanted)
    expect(page.locator(":root[data-chat=empty]")).to_have_count(1)  # not in the chat of before
    expect(page).to_have_url(f"{app.url}/")
    visitor.reload()
    expect(visitor.box).to_have_value(wanted)  # once, as a draft
    visitor.open(f"{app.url}/?from=mail&prompt={quote(wanted)}#end")
    expect(visitor.box).to_have_value(wanted)
    expect(page).to_have_url(f"{app.url}/?from=mail#end")
    assert len(model_server.journal()) == before
    visitor.box.press("Enter")
    expect(visitor.mine).to_contain_text("<b>Why?</b>")
    visitor.idle()


def test_hostile_address_is_only_text(app: App, visit: Visit, model_server: Running) -> None:
    visitor, before = visit(app.url, fresh=True), len(model_server.journal())
    alerts = list[str]()
    visitor.page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    visitor.open(f"{app.url}/?prompt={quote(HOSTILE)}&model={quote('<img src=x onerror=alert(2)>' * 50)}")
    expect(visitor.box).to_have_value(HOSTILE[:20_000])
    expect(visitor.hint).not_to_be_empty()  # there is no such model
    expect(visitor.page.locator("img[src=x]")).to_have_count(0)
    assert alerts == []
    assert len(model_server.journal()) == before
    visitor.open(f"{app.url}/?prompt=&model=%20")
    expect(visitor.page.locator("#model-button")).not_to_have_text("")


def test_address_chooses_the_model(start_app: Callable[..., App], visit: Visit) -> None:
    with running(Config(rate=0, models=("one", "two"))) as server:
        own = start_app(VLLM_BASE_URL=server.base_url)
        visitor = visit(own.url)
        expect(visitor.page.locator("#model-button")).to_have_text("one")
        visitor.open(f"{own.url}/?model=vllm:two&prompt=Hi")
        expect(visitor.page.locator("#model-button")).to_have_text("two")
        visitor.box.press("Enter")
        expect(visitor.caption).to_be_visible()
        assert server.journal()[-1]["body"]["model"] == "two"
