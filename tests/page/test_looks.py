"""The page's look and motion: one frame for the composer, nothing that jumps, readable colours."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import unescape

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Route, expect

from agent.i18n.translator import LANGUAGES, Translator
from agent.models.catalog import ModelSpec, load_catalog
from agent.models.weights import SMOLLM2
from agent.web.ui.examples import examples
from agent.web.ui.theme import COLOURS
from tests.conftest import App, Visitor, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Config, Running, running

Visit = Callable[..., Visitor]
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1100, 900)}


@pytest.fixture
def sized(browser: Browser, app: App) -> Iterator[Callable[..., Visitor]]:
    """Open the page in a window of that size."""
    contexts: list[BrowserContext] = []

    def open_page(size: tuple[int, int], url: str = app.url, motion: str = "reduce") -> Visitor:
        width, height = size
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": height},
                reduced_motion=motion,  # pyright: ignore[reportArgumentType]
                has_touch=width < 1000,
                permissions=["microphone"],
            )
        )
        visitor = Visitor(contexts[-1].new_page())
        visitor.open(url)
        return visitor

    yield open_page
    for context in contexts:
        context.close()


def test_fields_have_16_pixels_on_a_phone(sized: Callable[..., Visitor]) -> None:
    visitor = sized((390, 844))
    visitor.ask("!text Hello.")
    visitor.chat.get_by_role("button", name="Edit").click()
    visitor.chat.get_by_role("textbox").wait_for()
    visitor.open_models()
    visitor.page.keyboard.press("Escape")
    visitor.page.locator("#share-chat button").click()
    fields = "input:not([type=checkbox], [type=range], [type=file]), textarea, select"
    read = "(all) => all.map((one) => [one.id || one.className, parseFloat(getComputedStyle(one).fontSize)])"
    sizes: list[tuple[str, float]] = visitor.page.locator(fields).evaluate_all(read)
    assert len(sizes) > 8
    assert [one for one in sizes if one[1] < 16] == []


# Without a browser


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_and_buttons_have_contrast_in_both_modes(mode: int) -> None:
    colour = {name: modes[mode] for name, modes in COLOURS.items()}
    code = [name for name in colour if name.startswith("code-")]
    pairs = {(text, on, 4.5) for text in ("ink", "quiet") for on in ("ground", "surface", "sunken", "hover")}
    pairs |= {(text, "sunken", 4.5) for text in code} | {(text, "surface", 4.5) for text in code}
    pairs |= {
        ("ink", "mine", 4.5),
        ("bad", "bad-ground", 4.5),
        ("on-accent", "accent", 4.5),
        ("accent", "surface", 4.5),
    }
    pairs |= {("edge", on, 3.0) for on in ("ground", "surface", "sunken")}
    assert not [(one, other) for one, other, least in pairs if contrast(colour[one], colour[other]) < least]


@pytest.mark.parametrize("language", LANGUAGES)
def test_examples_suit_model_and_bring_files(language: str) -> None:
    words, catalog = Translator(language), load_catalog()
    for spec in (None, *catalog.menu()):
        shown = examples(spec, words)
        offered = [unescape(one) for one in re.findall('value="([^"]+)"', shown)]
        files = re.findall(r"data-file=(\w+)", shown)
        assert 2 <= len(offered) <= 4
        assert len(set(offered)) == len(offered)
        assert ("picture" in files) == (spec is not None and spec.image)
        assert ("sound" in files) == (spec is not None and spec.audio)
        assert spec is None or spec.tools != "none" or "document" not in files
        assert "data-tools" not in shown


def test_examples_with_tools_suit_model_and_place() -> None:
    """A model with tools gets a document, a page to preview, and a tool if that is there. The others get none."""
    able = ModelSpec(id="vllm:able", name="able", label="Able", provider="vllm", tools="native")
    for spec in (able, replace(able, image=True), replace(able, tools="none"), SMOLLM2.spec):
        for tools in ((), ("nap",), ("calculate", "nap")):
            shown = examples(spec, Translator("en"), tools)
            can = spec.tools != "none"
            assert ("data-tools" in shown) == (can and "calculate" in tools)
            assert ("data-file=document" in shown) == ("web page" in shown) == can
            assert shown.count("<button") <= 4


# In a browser


@pytest.mark.gate("The composer fits every screen.")
@pytest.mark.browser
def test_composer_is_one_frame_at_bottom(sized: Callable[..., Visitor]) -> None:
    width, height = SIZES["phone"]
    visitor = sized((width, height))
    page = visitor.page

    def place(part: Locator) -> tuple[float, float, float, float]:
        box = part.bounding_box()
        assert box
        return box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"]

    def inside(part: Locator, frame: tuple[float, float, float, float]) -> bool:
        left, top, right, bottom = place(part)
        return frame[0] <= left and frame[1] <= top and right <= frame[2] and bottom <= frame[3]

    def overlap(one: Locator, other: Locator) -> bool:
        (left, top, right, bottom), (x, y, end, under) = place(one), place(other)
        return left < end and x < right and top < under and y < bottom

    model, upload = page.locator("#model-button"), page.locator("#composer .attach-button")
    expect(page.locator(":root[data-chat=empty]")).to_have_count(1)
    visitor.choose("openai:a-model-with-a-name-that-is-longer-than-a-telephone-is-wide-" + "and-more-" * 5)
    expect(page.locator("#about")).to_contain_text("and-more")
    parts = [visitor.box, visitor.submit, upload, model, *page.get_by_role("switch").all()]

    def check() -> None:
        dock = place(page.locator("#dock"))
        assert all(inside(part, dock) for part in parts)
        covered = [(one, other) for one in parts for other in parts if one is not other and overlap(one, other)]
        assert not covered, "a long name is cut, not laid under a button"

    check()
    visitor.open_models()
    assert inside(page.get_by_role("listbox"), (0, 0, width, height))
    page.keyboard.press("Escape")
    visitor.choose("Qwen3-8B")
    expect(page.locator("#about")).to_contain_text("Qwen3-8B")
    visitor.ask("!text " + "word " * 60 + "a_very_long_name_without_any_space_in_it_" * 8)
    check()
    dock = place(page.locator("#dock"))
    assert height * 0.75 < dock[1] < dock[3] <= height
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("footer:not(.turn footer)")).to_be_hidden()


WATCH_THE_LAYOUT = """() => {
  window.shifted = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.shifted += entry.value;
  }).observe({ type: "layout-shift" });
  const log = document.querySelector("#chat .transcript");
  window.places = new Set();
  const look = () => {
    const tops = [...log.querySelectorAll(".bubble")].slice(0, 4)
      .map((bubble) => Math.round(bubble.getBoundingClientRect().top + log.scrollTop));
    window.places.add(JSON.stringify([tops, Math.round(document.querySelector("#dock").getBoundingClientRect().top)]));
    window.looking = requestAnimationFrame(look);
  };
  look();
}"""


@pytest.mark.gate("Nothing jumps while an answer streams.")
@pytest.mark.browser
def test_nothing_jumps_while_answer_streams(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!reasoning Short. !text A first answer.")
    visitor.say("!reasoning hm !tokens 80 @40")
    expect(visitor.chat).to_contain_text("word2")
    visitor.page.evaluate(WATCH_THE_LAYOUT)
    expect(visitor.chat).to_contain_text("word79")
    visitor.idle()
    places = visitor.page.evaluate("cancelAnimationFrame(window.looking), [...window.places]")
    assert len(places) == 1, places
    assert visitor.page.evaluate("window.shifted") < 0.02


@pytest.mark.gate("The newest line stays in view.")
@pytest.mark.browser
def test_newest_line_stays_in_view_unless_reading_above(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True)
    log = visitor.log
    below = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    visitor.say("!tokens 9000 @150")
    expect(visitor.chat).to_contain_text("word300")
    assert log.evaluate("log => log.scrollTop") > 0
    becomes(True, lambda: log.evaluate(below) < 40)
    visitor.page.mouse.move(200, 300)
    visitor.page.mouse.wheel(0, -60)
    visitor.page.wait_for_function(
        "() => { const l = document.querySelector('#chat .transcript');"
        " return l.scrollHeight - l.clientHeight - l.scrollTop > 200 }"
    )
    to_end = visitor.page.get_by_role("button", name="Jump to the end")
    expect(to_end).to_be_visible()  # a busy page can be that far behind without the reader
    top, height = log.evaluate("log => [log.scrollTop, log.scrollHeight]")
    becomes(True, lambda: log.evaluate("log => log.scrollHeight") > height + 300)
    assert abs(log.evaluate("log => log.scrollTop") - top) < 2
    visitor.shot("jump-to-end")
    to_end.click()
    expect(to_end).to_be_hidden()
    becomes(True, lambda: log.evaluate(below) < 40)
    expect(visitor.box).to_be_focused()
    visitor.page.mouse.move(200, 300)
    visitor.page.mouse.wheel(0, -60)
    expect(to_end).to_be_visible()
    visitor.stop.click()
    visitor.idle()
    visitor.say("!text Short.")
    expect(visitor.chat).to_contain_text("Short.")
    visitor.idle()
    becomes(True, lambda: log.evaluate(below) < 40)


BELOW = "log => log.scrollHeight - log.clientHeight - log.scrollTop"


@pytest.mark.browser
def test_every_send_scrolls_down(sized: Callable[..., Visitor]) -> None:
    visitor = sized((390, 800))
    log, page, last = visitor.log, visitor.page, visitor.chat.locator(".turn").last
    for _ in range(2):
        visitor.ask("!tokens 300 @2000")
    assert visitor.chat.locator(".caption").count() == 2, "it did not wait for a message with an earlier text"

    def read_above() -> None:
        page.mouse.move(200, 300)
        page.mouse.wheel(0, -2000)
        becomes(True, lambda: log.evaluate(BELOW) > 600)

    def follows() -> None:
        expect(visitor.stop).to_be_visible()
        expect(last.locator(".caption")).to_have_count(0)
        expect(last).to_contain_text("word150")
        becomes(True, lambda: log.evaluate(BELOW) < 40)
        read_above()
        top = log.evaluate("log => log.scrollTop")
        visitor.idle()
        assert abs(log.evaluate("log => log.scrollTop") - top) < 2, "the log scrolled away from the reader"

    becomes(True, lambda: log.evaluate(BELOW) < 40)
    read_above()
    visitor.box.fill("!tokens 250 @80")
    visitor.submit.tap()
    follows()
    first = visitor.mine.first
    first.scroll_into_view_if_needed()
    visitor.chat.get_by_role("button", name="Edit").first.tap()
    area = visitor.chat.get_by_role("textbox")
    area.fill("!tokens 260 @80")
    becomes(True, lambda: log.evaluate(BELOW) > 600)
    visitor.chat.get_by_role("button", name="Send").tap()
    expect(visitor.mine).to_have_count(1)
    follows()
    page.evaluate("[...document.querySelectorAll('#chat [data-action=retry]')].at(-1).click()")
    follows()


@pytest.mark.browser
def test_upload_in_progress_is_shown(sized: Callable[..., Visitor]) -> None:
    visitor = sized(SIZES["desktop"])
    held: list[Route] = []
    visitor.page.route("**/gradio_api/upload*", lambda route: held.append(route))
    file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}
    visitor.page.locator("#composer input[type=file]").set_input_files(file)  # pyright: ignore[reportArgumentType]
    expect(visitor.page.locator("#composer").get_by_role("progressbar", name="Uploading")).to_be_visible()
    visitor.shot("uploading")
    visitor.wait_for_requests(held)  # the page shows the upload before the request is sent
    held[0].continue_()
    expect(visitor.page.locator("#composer").locator(".file")).to_be_visible()
    expect(visitor.page.locator("#composer").get_by_role("progressbar", name="Uploading")).to_have_count(0)
    remove = visitor.page.locator("#composer").get_by_role("button", name="Remove file")
    expect(remove).to_have_css("opacity", "1")  # touch screens cannot hover


@pytest.fixture(scope="module")
def sees(start_app: Callable[..., App]) -> Iterator[tuple[App, Running]]:
    """Start an app with a model that sees pictures."""
    with running(Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)) as server:
        yield start_app(VLLM_BASE_URL=server.base_url), server


@pytest.mark.browser
def test_example_picture_reaches_model(sized: Callable[..., Visitor], sees: tuple[App, Running]) -> None:
    own, server = sees
    visitor = sized(SIZES["desktop"], own.url)
    expect(visitor.examples.locator("img").first).to_be_visible()
    visitor.shot("empty-pictures")
    visitor.examples.filter(has_text="Read a chart").click()
    expect(visitor.caption).to_be_visible()
    assert "data:image/" in str(server.journal()[-1]["body"]["messages"][-1]["content"])
    expect(visitor.mine.locator("img")).to_be_visible()


@pytest.mark.browser
def test_examples_use_a_document_and_a_tool(start_app: Callable[..., App], sized: Callable[..., Visitor]) -> None:
    with running(Config(models=("Qwen/Qwen3-8B",), rate=200.0)) as server:
        own = start_app('[agent]\ntools = ["agent.tools.builtin:calculate"]\n', VLLM_BASE_URL=server.base_url)
        visitor = sized(SIZES["desktop"], own.url)
        expect(visitor.examples).to_have_count(4)
        assert not grave(visitor.page)
        visitor.shot("empty-tools")
        visitor.examples.filter(has_text="Ask about a document").click()
        expect(visitor.caption).to_be_visible()
        assert "A lost key costs 45 euros." in str(server.journal()[-1]["body"]["messages"][-1]["content"])
        assert "tools" not in server.journal()[-1]["body"]
        expect(visitor.mine).to_contain_text("house-rules.pdf")
        visitor.page.locator("#new").click()
        visitor.examples.filter(has_text="Calculate with a tool").click()
        expect(visitor.caption).to_be_visible()
        assert [one["function"]["name"] for one in server.journal()[-1]["body"]["tools"]] == ["calculate"]
        expect(visitor.page.get_by_role("switch", name="Tools")).to_be_checked()


@pytest.mark.browser
@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_reduced_motion_stops_animations(sized: Callable[..., Visitor], motion: str, moves: bool) -> None:
    visitor = sized(SIZES["desktop"], motion=motion)
    visitor.say("!stall-before")
    expect(visitor.chat.locator(".waiting")).to_be_visible()
    running_on = "document.getAnimations().filter(one => one.effect.getTiming().iterations === Infinity).length"
    becomes(moves, lambda: bool(visitor.page.evaluate(running_on)))
    visitor.stop.click()
    visitor.idle()


@pytest.mark.parametrize("locale", ["en-US", "de-DE", "fr-FR"])
def test_foot_of_the_list_fits_in_each_language(app: App, visit: Visit, locale: str) -> None:
    page = visit(app.url, locale=locale).page
    expect(page.locator("#chats-foot button")).to_have_count(2)
    fits = """(foot) => [...foot.querySelectorAll("button")].every((one) => one.scrollWidth <= one.clientWidth
      && one.getBoundingClientRect().right <= foot.getBoundingClientRect().right - 8)"""
    assert page.locator("#chats-foot").evaluate(fits)


HINT_WIDTH = """(input) => {
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = getComputedStyle(input).font;
  return canvas.measureText(input.placeholder).width;
}"""


@pytest.mark.parametrize("locale", ["en-US", "de-DE", "fr-FR"])
def test_hint_of_the_search_for_chats_is_whole(app: App, visit: Visit, locale: str) -> None:
    visitor = visit(app.url, locale=locale)
    search = visitor.page.locator("#chats .search input")
    box, wide = search.bounding_box(), search.evaluate(HINT_WIDTH)
    assert box
    hint = {**box, "x": box["x"] + 34, "width": wide}
    shown = visitor.page.screenshot(clip=hint)  # pyright: ignore[reportArgumentType]
    search.evaluate("(input) => (input.style.width = '400px')")
    assert visitor.page.screenshot(clip=hint) == shown  # pyright: ignore[reportArgumentType]


LEFT = "(element) => Math.round(element.getBoundingClientRect().left)"
LINES = """(element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return [...range.getClientRects()].map(({ top }) => Math.round(top));
}"""
"""The places of the lines of the text of an element."""
SMALL = {"narrow": (320, 640), "low": (740, 360), "low with keyboard": (740, 170), "narrow with keyboard": (320, 330)}
CUT = """() => [...document.querySelectorAll("#page *, dialog[open], dialog[open] *, #chats *")]
  .filter((one) => one.matches("button, input, select, textarea, p, h1, h2, dialog"))
  .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.closest(".sr-only, [inert], pre, table"))
  .map((one) => [one.id || one.className || one.textContent, one.getBoundingClientRect()])
  .filter(([, { left, right, width }]) => width > 1 && (left < -0.5 || right > innerWidth + 0.5))
  .map(([name, { left, right }]) => `${name}: ${left} to ${right}`)"""
"""The elements that a window cuts at its sides, with their places."""


@pytest.mark.parametrize("size", SMALL.values(), ids=SMALL)
def test_composer_stays_in_view_in_small_windows(sized: Callable[..., Visitor], size: tuple[int, int]) -> None:
    visitor = sized(size)
    page, name = visitor.page, "-".join(map(str, size))
    dock = page.locator("#dock")
    for state in ("empty", "chat"):
        visitor.box.fill(
            "A question that is being typed, and that is longer than a line of a small window has room for."
        )
        for part in (dock, visitor.box, visitor.submit):
            expect(part).to_be_in_viewport(ratio=1)
        visitor.shot(f"small-{name}-{state}")
        assert page.evaluate(CUT) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        visitor.ask("!text A **short** answer.")
    assert page.locator("#chat").evaluate("(chat) => chat.clientHeight") >= 40


def test_nothing_is_cut_in_narrow_window(sized: Callable[..., Visitor]) -> None:
    visitor = sized(SMALL["narrow"])
    page = visitor.page
    assert page.locator("#dock").evaluate("(dock) => dock.getBoundingClientRect().x") >= 8
    visitor.say("!tokens 4000 @100")
    words = visitor.chat.locator(":is(h1, h2)").filter(has_text="word0")
    expect(visitor.chat).to_contain_text("word9")
    place = words.evaluate(LEFT)
    visitor.stop.click()
    visitor.idle()
    assert words.evaluate(LEFT) == place, "the text moves to the side at its end"
    tops = sorted({*visitor.caption.evaluate(LINES)})
    assert len(tops) == 2
    assert tops[1] - tops[0] < 28, "the buttons move the lines of the caption apart"
    visitor.shot("small-320-stopped")
    visitor.open_models()
    assert page.evaluate(CUT) == []
    visitor.shot("small-320-models")
    page.keyboard.press("Escape")
    visitor.box.fill("A prompt to be saved")
    page.locator(".prompts-button").click()
    assert page.evaluate(CUT) == []
    visitor.shot("small-320-prompts")
    page.keyboard.press("Escape")
    visitor.box.fill("")
    visitor.open_settings()
    becomes([], lambda: page.evaluate(CUT))
    visitor.shot("small-320-settings")
    visitor.close_settings()
    page.locator("#chats-toggle button").click()
    assert page.locator("#chats .brand").evaluate(
        "(brand) => [brand, ...brand.children].every((part) => part.scrollWidth <= part.clientWidth)"
    )
    page.locator("#chats li button").first.click()
    page.get_by_role("menuitem", name="Share", exact=True).click()
    expect(page.locator("#share .create")).to_be_focused()
    assert page.evaluate(CUT) == []
    page.locator("#share .create").click()
    expect(page.locator("#share .made input")).to_be_focused()
    assert page.evaluate(CUT) == []
    visitor.shot("small-320-share")


LONG_NUMBERS = """(list) => {
  const style = getComputedStyle(list), pen = document.createElement("canvas").getContext("2d");
  pen.font = style.font;
  const last = `${list.start + list.children.length - 1}. `;
  return pen.measureText(last).width <= parseFloat(style.paddingInlineStart) + 1;
}"""
"""Returns whether the numbers of a list are inside it."""
MIDDLE = "(element) => element.getBoundingClientRect().top + element.getBoundingClientRect().height / 2"


def test_phone_shows_numbers_and_buttons_whole(sized: Callable[..., Visitor]) -> None:
    visitor = sized((390, 844))
    page = visitor.page
    visitor.open_settings()
    expect(page.locator("#settings .min_value")).to_be_visible()
    expect(page.locator("#settings .max_value")).to_have_text("2")
    middles = [page.locator(f"#settings .head {part}").evaluate(MIDDLE) for part in ("label span", "input")]
    assert abs(middles[0] - middles[1]) <= 1, "the label is level with its field"
    page.locator("#system textarea").fill("Other.")
    page.keyboard.press("Tab")
    for reset in ".usual", ".reset-button":
        becomes((44, 44), lambda reset=reset: size_of(page.locator(f"#settings {reset}")))
    visitor.shot("phone-settings")
    visitor.close_settings()
    visitor.ask("!pace 60 !text Years:\\n\\n1986. One\\n\\n- 123456. Two\\n\\n7. Three")
    lists = visitor.bubbles.locator("ol")
    expect(lists).to_have_count(3)
    for number in range(3):
        becomes(True, lambda number=number: lists.nth(number).evaluate(LONG_NUMBERS))
    buttons = visitor.chat.locator(".turn > footer button:visible").all()
    assert len(buttons) >= 4
    assert {size_of(one) for one in buttons} == {(44, 44)}
    visitor.shot("phone-numbers")


LONG_CODE = "/home/user/projects/switchboard/configs/app.toml.example" * 3
CODE_ENDS = """(chat) => [...chat.querySelectorAll("p code")].filter((one) => one.offsetWidth).map((code) =>
  code.getBoundingClientRect().right - code.closest(".bubble").getBoundingClientRect().right)"""


def test_long_code_in_a_line_stays_in_its_bubble(sized: Callable[..., Visitor]) -> None:
    visitor = sized((390, 844))
    visitor.ask(f"Where is `{LONG_CODE}`? !text See `{LONG_CODE}`.")
    becomes(True, lambda: len(visitor.chat.evaluate(CODE_ENDS)) >= 3)
    assert max(visitor.chat.evaluate(CODE_ENDS)) <= 0
    visitor.shot("phone-long-code")


def size_of(one: Locator) -> tuple[int, int]:
    box = one.bounding_box()
    return (round(box["width"]), round(box["height"])) if box else (0, 0)
