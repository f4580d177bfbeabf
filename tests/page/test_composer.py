"""The composer keeps what is typed or attached while a message is sent. Its files are chips, its buttons stay."""

from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import App, Visitor
from tests.peers.axe import grave
from tests.support.media_files import picture
from tests.support.scripted_server import Config, Running, running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]


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
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": "more.txt", "mimeType": "text/plain", "buffer": b"more"}]
    )
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


PLACE = """(clip) => {
  const own = clip.getBoundingClientRect(), dock = document.querySelector("#dock").getBoundingClientRect();
  return [own.left - dock.left, dock.bottom - own.bottom, own.width, own.height].map(Math.round);
}"""


@pytest.mark.parametrize(("phone", "locale"), [(False, "en-US"), (True, "de-DE")])
def test_paper_clip_stays_beside_files(app: App, visit: Visit, phone: bool, locale: str) -> None:
    visitor = visit(app.url, phone=phone, dark=phone, locale=locale)
    clip = visitor.page.locator("#composer .attach-button")
    files = visitor.page.locator("#composer .file")
    visitor.box.fill("A draft, so that the bookmark is there")
    bookmark = visitor.page.locator("#composer .prompts-button")
    before, beside = clip.evaluate(PLACE), bookmark.evaluate(PLACE)
    for number in (1, 2):
        visitor.page.locator("#composer input[type=file]").set_input_files(
            [{"name": f"{number}.txt", "mimeType": "text/plain", "buffer": b"more"}]
        )
        expect(files).to_have_count(number)
        assert clip.evaluate(PLACE) == before
        assert bookmark.evaluate(PLACE) == beside
    visitor.shot(f"clip-{locale}")
    with visitor.page.expect_file_chooser():
        clip.click()


def test_draft_keeps_its_files_over_a_reload(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    page = visitor.page
    files = page.locator("#composer").locator(".file")
    names = page.locator("#composer .file .open-text")

    def attach(name: str) -> None:
        page.locator("#composer input[type=file]").set_input_files(
            [{"name": name, "mimeType": "text/plain", "buffer": f"{name} is here".encode()}]
        )
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


def test_lost_files_of_a_draft_are_named(start_app: Callable[..., App], visit: Visit) -> None:
    """The files of a draft end with the server, or with their time."""
    own = start_app()
    visitor = visit(own.url)
    visitor.box.fill("A draft")
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": "one.txt", "mimeType": "text/plain", "buffer": b"one"}]
    )
    expect(visitor.page.locator("#composer .file .open-text")).to_have_text("one.txt")
    for path in own.files_with("one"):
        if path.name == "one.txt":
            path.unlink()
    visitor.reload()
    expect(visitor.page.locator("#hint")).to_have_text("These files of your draft are gone. Attach them again: one.txt")
    expect(visitor.box).to_have_value("A draft")
    expect(visitor.page.locator("#composer .file")).to_have_count(0)
    visitor.ask("!text Hello.")


def attach(visitor: Visitor, *names: str, content: bytes = b"words") -> None:
    visitor.page.locator("#composer input[type=file]").set_input_files(
        [{"name": name, "mimeType": "application/octet-stream", "buffer": content} for name in names]
    )


@pytest.mark.parametrize("phone", [False, True], ids=["computer", "phone"])
def test_twelve_files_leave_most_of_the_page(app: App, visit: Visit, phone: bool) -> None:
    visitor = visit(app.url, phone=phone)
    visitor.ask("!text First.")
    attach(visitor, *(f"the notes of a long meeting {number}.txt" for number in range(12)))
    expect(visitor.page.locator("#composer .open-text")).to_have_count(12)
    heights = visitor.page.locator("#composer .file").evaluate_all("(all) => all.map((one) => one.offsetHeight)")
    assert set(heights) == {44}
    dock = visitor.page.locator("#dock").bounding_box()
    assert dock
    assert dock["height"] < (844 if phone else 900) / 3
    assert visitor.page.locator("#composer .files").evaluate("(one) => one.scrollWidth <= one.clientWidth")
    visitor.page.locator("#composer .file").last.scroll_into_view_if_needed()
    expect(visitor.page.locator("#composer .file").last).to_be_in_viewport(ratio=1)
    visitor.shot(f"twelve-files-{'phone' if phone else 'computer'}")
    assert not grave(visitor.page)


def test_attached_picture_opens_in_the_viewer(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    attach(visitor, "one.png", "two.png", content=picture("PNG"))
    page.get_by_role("button", name="Open two.png").press("Enter")
    viewer = page.locator("#viewer")
    expect(viewer.locator("img")).to_have_js_property("complete", True)
    expect(viewer).to_contain_text("2 of 2")
    page.keyboard.press("ArrowRight")
    expect(viewer).to_contain_text("1 of 2")
    page.keyboard.press("Escape")
    expect(viewer).to_have_count(0)
    expect(page.get_by_role("button", name="Open two.png")).to_be_focused()


def test_removed_upload_is_given_up(app: App, visit: Visit) -> None:
    """The other file of the same upload stays."""
    visitor = visit(app.url)
    page, held = visitor.page, list[Route]()
    page.route("**/upload", lambda route: held.append(route))
    files, remove = page.locator("#composer .file"), "Remove file: {}.txt"
    attach(visitor, "one.txt", "two.txt")
    visitor.wait_for_requests(held)
    page.get_by_role("button", name=remove.format("one")).click()
    held.pop().continue_()
    expect(page.locator("#composer .open-text")).to_have_text(["two.txt"])
    attach(visitor, "three.txt")
    visitor.wait_for_requests(held)
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name=remove.format("three")).click()
    expect(files).to_have_count(1)
    expect(page.locator("#composer .problem")).to_be_empty()
    expect(page.get_by_role("button", name=remove.format("two"))).to_be_focused()


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
    visitor.open(f"{app.url}/?prompt={quote(wanted)}")
    expect(visitor.box).to_have_value(wanted)
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
