"""The page's look and motion: one frame for the composer, nothing that jumps, readable colours."""

import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape

import pytest
from playwright.sync_api import Locator, expect

from agent.i18n.translator import LANGUAGES, Translator
from agent.models.catalog import ModelSpec, load_catalog
from agent.models.weights import SMOLLM2
from agent.web.ui.components import examples
from agent.web.ui.theme import COLOURS
from tests.conftest import App, Visit, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Config, running


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


@pytest.mark.gate("The composer fits every screen.")
def test_composer_is_one_frame_at_bottom(app: App, visit: Visit) -> None:
    visitor, width, height = visit(app.url, phone=True), 390, 844
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


@pytest.mark.browser
def test_examples_use_a_document_and_a_tool(start_app: Callable[..., App], visit: Visit) -> None:
    with running(Config(models=("Qwen/Qwen3-8B",), rate=200.0)) as server:
        own = start_app('[agent]\ntools = ["agent.tools.builtin:calculate"]\n', VLLM_BASE_URL=server.base_url)
        visitor = visit(own.url)
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
def test_hidden_buttons_leave_no_hole_in_the_foot(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text Short.")
    visitor.page.mouse.move(0, 0)
    foot = visitor.chat.locator(".turn > footer").last
    assert (
        foot.evaluate(
            "foot => foot.getBoundingClientRect().right - foot.querySelector('.caption').getBoundingClientRect().right"
        )
        < 1
    )
    sizes = foot.locator(".icon").evaluate_all("icons => icons.map((icon) => icon.getBoundingClientRect().right)")
    assert max(sizes) <= foot.locator(".caption").evaluate("caption => caption.getBoundingClientRect().left")


@pytest.mark.browser
def test_send_button_is_grey_while_there_is_nothing_to_send(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    colour = visitor.submit.evaluate("button => getComputedStyle(button).backgroundColor")
    visitor.box.fill("Hello")
    expect(visitor.submit).not_to_have_css("background-color", colour)
    visitor.box.fill("")
    expect(visitor.submit).to_have_css("background-color", colour)
    visitor.attach(("notes.txt", b"sea and sand"))
    expect(visitor.submit).not_to_have_css("background-color", colour)


@pytest.mark.browser
def test_edited_message_keeps_its_distance_from_the_answer(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!text Short.")
    visitor.chat.locator(".mine").hover()
    visitor.chat.locator("[data-action=edit]").click()
    box = visitor.chat.locator("form.edit").bounding_box()
    answer = visitor.bubbles.first.bounding_box()
    assert box
    assert answer
    assert answer["y"] - box["y"] - box["height"] >= 12


@pytest.mark.browser
def test_composer_of_a_phone_keeps_its_height_while_one_types(app: App, visit: Visit) -> None:
    visitor = visit(app.url, phone=True)
    name = visitor.page.locator("#model-button span")
    assert name.evaluate("name => name.scrollWidth <= name.clientWidth")
    height = "dock => dock.getBoundingClientRect().height"
    before = visitor.page.locator("#dock").evaluate(height)
    visitor.box.fill("Hello")
    expect(visitor.page.locator("#composer .prompts-button")).to_be_visible()
    assert visitor.page.locator("#dock").evaluate(height) == before


@pytest.mark.browser
def test_note_on_an_empty_answer_stands_where_answers_begin(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.say("!stall-before")
    visitor.stop.click()
    visitor.idle()
    visitor.ask("!text Second.")
    left = "element => element.getBoundingClientRect().left"
    note = visitor.chat.locator(".turn").first.locator("footer .caption")
    expect(note).to_contain_text("Stopped")
    assert abs(note.evaluate(left) - visitor.bubbles.last.evaluate(left)) < 8


@pytest.mark.browser
def test_wait_is_written_at_the_height_of_its_dots(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.say("!stall-before")
    wait = visitor.chat.locator(".waiting")
    expect(wait).to_be_visible()
    before = wait.bounding_box()
    expect(wait).to_contain_text("Waiting for the model")
    middle = "element => { const { top, height } = element.getBoundingClientRect(); return top + height / 2; }"
    dots = wait.evaluate(
        "element => element.getBoundingClientRect().top + parseFloat(getComputedStyle(element).paddingTop) + 3.5"
    )
    assert abs(wait.locator(".time").evaluate(middle) - dots) < 1
    assert wait.bounding_box() == before
    visitor.stop.click()
    visitor.idle()
