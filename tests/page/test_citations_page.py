"""Citations on the page: numbers in the answer, the source they show, and the list below, live and after a reload."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import CONFIG, App, Visitor, becomes
from tests.peers.axe import violations
from tests.support.dialect_server import Playing, playing
from tests.support.documents import pdf
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import openai_responses as responses

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]

WORDS = (
    "It rained in **Cologne** on Monday, and the Rhine rose by 20 cm.\n\n"
    "| Day | Rain |\n|---|---|\n| Monday | 12 mm |\n\nThe formula $h = v t$ says so."
)
RAIN, RIVER = "https://www.weather.example/cologne?day=1&unit=mm", "https://rhine.example/level"
EVIL = '</q></li><img src=x onerror="window.hit=1"><script>window.hit=1</script> [x](javascript:hit) "\' `$'
WATCH_ENDS = """() => {
  const log = document.querySelector("#chat .transcript");
  new MutationObserver(() => {
    const ended = log.querySelector(".turn > footer .caption");
    if (ended) window.listed ??= Boolean(log.querySelector("[data-kind=sources]"));
  }).observe(log, { childList: true, subtree: true });
}"""


def annotations() -> list[dict[str, Any]]:
    """Return the citations of `WORDS`: three numbers of two pages, and a page that is none."""
    return [
        responses.url_citation(WORDS, "Cologne", RAIN, "Rain in Cologne"),
        responses.url_citation(WORDS, "the Rhine rose", RIVER, EVIL),
        responses.url_citation(WORDS, "12 mm", RAIN, "Rain in Cologne"),
        responses.url_citation(WORDS, "Monday, and", "javascript:alert(1)", "No page"),
    ]


@pytest.fixture(scope="module")
def openai() -> Iterator[Playing]:
    with playing() as server:
        yield server


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], openai: Playing) -> App:
    """An app with keys for two providers, which one server answers for."""
    keys = {"OPENAI_API_KEY": "sk-of-the-owner", "ANTHROPIC_API_KEY": "sk-ant-of-the-owner"}
    return start_app(CONFIG, OPENAI_BASE_URL=f"{openai.url}/v1", ANTHROPIC_BASE_URL=openai.url, **keys)


@pytest.fixture
def ask(own: App, visit: Visit, openai: Playing) -> Callable[..., Visitor]:
    def ask(**look: Any) -> Visitor:
        visitor = visit(own.url, **look)
        visitor.choose("gpt-6-luna")
        openai.clear()
        openai.play(responses.cited(WORDS, *annotations()))
        visitor.ask("did it rain?")
        return visitor

    return ask


def chips(visitor: Visitor) -> Locator:
    return visitor.chat.locator(".mark")


def items(visitor: Visitor) -> Locator:
    return visitor.chat.locator("[data-kind=sources] li")


def choose(visitor: Visitor, item: str) -> None:
    """Choose an item in the menu of the only chat."""
    row = visitor.page.locator("#chats li")
    row.hover()
    row.get_by_role("button").click()
    visitor.page.get_by_role("menuitem", name=item).click()


def card(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("tooltip")


def test_numbers_come_with_the_end_of_the_stream(own: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(own.url, fresh=True)
    visitor.page.evaluate(WATCH_ENDS)
    visitor.choose("gpt-6-luna")
    openai.clear()
    openai.play(replace(responses.cited(WORDS, *annotations()), pause=0.2))  # so that the page reads the stream
    visitor.ask("did it rain?")
    expect(chips(visitor)).to_have_count(3)
    assert visitor.page.evaluate("window.listed"), "they are there as soon as the answer has ended"


def test_number_shows_its_source(ask: Callable[..., Visitor]) -> None:
    visitor = ask()
    expect(card(visitor)).to_be_hidden()
    chips(visitor).nth(1).hover()
    expect(card(visitor)).to_contain_text("rhine.example")
    expect(card(visitor)).to_contain_text(EVIL)
    assert visitor.page.evaluate("window.hit") is None
    visitor.box.hover()
    expect(card(visitor)).to_be_hidden()
    visitor.box.focus()
    for _ in range(40):
        visitor.page.keyboard.press("Shift+Tab")
        if visitor.page.evaluate("document.activeElement.matches('.mark')"):
            break
    expect(card(visitor)).to_contain_text("Rain in Cologne")
    expect(chips(visitor).nth(2)).to_be_focused()
    expect(chips(visitor).nth(2)).to_have_accessible_description(re.compile("Rain in Cologne *weather.example"))
    assert violations(visitor.page) == []
    visitor.shot("citations-card")
    visitor.page.keyboard.press("Escape")
    expect(card(visitor)).to_be_hidden()


def test_escape_closes_the_card_before_it_stops(ask: Callable[..., Visitor]) -> None:
    visitor = ask()
    visitor.choose("Qwen3-8B")
    visitor.say("!tokens 600 @30")
    becomes(True, lambda: visitor.log.evaluate("log => log.scrollTop") > 50)
    visitor.chat.hover()
    visitor.page.mouse.wheel(0, -100_000)  # so that the growing answer does not scroll the number away
    becomes(0, lambda: visitor.log.evaluate("log => log.scrollTop"))
    chips(visitor).nth(0).hover()
    expect(card(visitor)).to_be_visible()
    visitor.page.keyboard.press("Escape")
    expect(card(visitor)).to_be_hidden()
    shown = visitor.bubbles.last.inner_text()
    becomes(True, lambda: len(visitor.bubbles.last.inner_text()) > len(shown))
    expect(visitor.stop).to_be_visible()
    visitor.page.keyboard.press("Escape")
    visitor.idle()
    expect(visitor.caption).to_contain_text("Stopped")


def test_numbers_are_not_copied_or_spoken(ask: Callable[..., Visitor]) -> None:
    visitor = ask()
    visitor.chat.get_by_role("button", name="Copy message").last.click()
    becomes(WORDS, lambda: visitor.page.evaluate("navigator.clipboard.readText()"))
    spoken = visitor.chat.locator(".said")
    expect(spoken).to_contain_text("rained in Cologne on Monday, and the Rhine rose by 20 cm.")
    expect(spoken).not_to_contain_text("weather.example")
    visitor.chat.get_by_role("button", name="Markdown").click()
    becomes(
        "| Day | Rain |\n| --- | --- |\n| Monday | 12 mm |\n",
        lambda: visitor.page.evaluate("navigator.clipboard.readText()"),
    )


RENT = "The rent of the hall is 812 euros, and it is paid in May."
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 20)
REPORT = pdf(["Nothing", f"Chapter 2\n{FILLER}\n\n{RENT}\n\n{FILLER}"])


@pytest.fixture
def ask_document(own: App, visit: Visit, openai: Playing, tmp_path: Path) -> Callable[..., Visitor]:
    """Ask about a document that the answer cites."""

    def ask(citation: dict[str, Any], name: str = "report.pdf", data: bytes = REPORT, **look: Any) -> Visitor:
        (tmp_path / name).write_bytes(data)
        visitor = visit(own.url, fresh=True, **look)
        visitor.choose("claude-sonnet-5-5")
        visitor.page.locator("#composer input[type=file]").set_input_files(tmp_path / name)
        expect(visitor.page.locator("#attached li")).to_contain_text(name)
        openai.clear()
        rent = messages.cited(1, "the rent is 812 euros", citation)
        openai.play(messages.reply(messages.begin(), messages.text(0, "Here, "), rent, messages.ends("end_turn")))
        visitor.ask("what is the rent?")
        expect(visitor.log.locator("p").filter(has_text="Here, the rent is 812 euros")).to_have_count(1)
        expect(items(visitor)).to_have_count(1)
        return visitor

    return ask


def viewer(visitor: Visitor, name: str | re.Pattern[str]) -> Locator:
    return visitor.page.get_by_role("dialog", name=name, exact=True)


MARKED = """(image) => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const { data } = drawing.getImageData(0, 0, canvas.width, canvas.height);
  let marked = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] === 255 && data[at + 1] === 226 && data[at + 2] === 89) marked++;
  }
  return marked;
}"""


@pytest.mark.gate("A click on the number of a document opens its page with the passage marked.")
def test_number_of_a_document_opens_its_page(ask_document: Callable[..., Visitor]) -> None:
    visitor = ask_document(messages.page_citation(2, RENT))
    page = visitor.page
    for _ in range(2):
        expect(items(visitor)).to_have_text([f"report.pdf page 2{RENT}"])
        expect(items(visitor).locator("q")).to_be_hidden()
        for opener in (chips(visitor), items(visitor).get_by_role("button", name="report.pdf")):
            opener.focus()
            page.keyboard.press("Enter")
            dialog = viewer(visitor, "report.pdf, page 2 of 2")
            expect(dialog).to_be_visible()
            expect(dialog).to_contain_text("report.pdf, page 2 of 2")
            expect(dialog.get_by_role("img", name="report.pdf, page 2 of 2")).to_be_visible()
            becomes(True, lambda: page.locator("#viewer .stage img").evaluate(MARKED) > 5_000)
            expect(dialog.get_by_text("was not found")).to_have_count(0)
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)
            expect(opener).to_be_focused()
        chips(visitor).click()
        dialog.get_by_role("button", name="Zoom in").click()
        with page.expect_download() as download:
            dialog.get_by_role("button", name="Download the picture").click()
        assert download.value.suggested_filename == "report-2.png"
        dialog.get_by_role("button", name="Close").click()
        expect(chips(visitor)).to_be_focused()
        visitor.reload()


def test_passage_that_is_elsewhere_is_said_to_be_missing(ask_document: Callable[..., Visitor]) -> None:
    visitor = ask_document(messages.page_citation(1, RENT))
    chips(visitor).click()
    dialog = viewer(visitor, "report.pdf, page 1 of 2")
    expect(dialog.get_by_role("status").filter(has_text="The cited passage was not found here.")).to_be_visible()
    visitor.shot("passage-missing")
    assert violations(visitor.page) == []


def test_passage_of_a_text_is_marked_in_its_context(ask_document: Callable[..., Visitor]) -> None:
    lines = "committee,minutes\n" * 40_000
    table = f"{lines}hall rent,812 euros\n{lines}".encode()
    citation = messages.page_citation(1, "hall rent, 812 euros") | {"document_title": "costs.csv"}
    visitor = ask_document(citation, "costs.csv", table)
    chips(visitor).click()
    dialog = viewer(visitor, "costs.csv")
    expect(dialog.locator("mark")).to_have_text("hall rent,812 euros")
    expect(dialog.locator("mark")).to_be_in_viewport()
    expect(dialog.get_by_role("region")).to_contain_text("committee,minutes")
    expect(dialog.get_by_role("region")).to_be_focused()
    expect(dialog.get_by_role("button")).to_have_count(1)
    visitor.shot("passage-text")
    assert violations(visitor.page) == []
    visitor.page.keyboard.press("Escape")
    expect(chips(visitor)).to_be_focused()


def test_document_that_is_gone_is_shown_in_the_list(ask_document: Callable[..., Visitor], own: App) -> None:
    visitor = ask_document(messages.page_citation(2, RENT))
    for path in (own.folder / "data" / "media").rglob("*.pdf"):
        if path.is_file() and path.read_bytes() == REPORT:
            path.unlink()
    chips(visitor).click()
    expect(visitor.page.locator("#hint")).to_have_text("This document is no longer in the chat.")
    expect(items(visitor)).to_be_focused()
    expect(items(visitor).locator("q")).to_be_visible()


def test_number_in_a_column_shows_its_source(own: App, visit: Visit, openai: Playing) -> None:
    visitor = visit(own.url, fresh=True)
    visitor.choose("gpt-6-luna")
    search = visitor.open_models()
    expect(visitor.page.locator("#model-list").get_by_role("option").nth(2)).to_be_visible()
    search.press("ArrowUp")
    visitor.page.get_by_role("option", name="Compare with another model…").click()
    search = visitor.page.get_by_role("dialog", name="Compare with another model…").get_by_role("combobox")
    search.fill("gpt-6-sol")
    search.press("Enter")
    openai.clear()
    openai.play(*[responses.cited(WORDS, *annotations())] * 2)
    visitor.say("did it rain?")
    expect(chips(visitor)).to_have_count(6)
    visitor.idle()
    for number in (1, 4):
        chips(visitor).nth(number).hover()
        expect(card(visitor)).to_contain_text("rhine.example")
        expect(chips(visitor).nth(number)).to_have_attribute("aria-describedby", re.compile("source-"))


def test_printed_list_has_the_addresses(ask: Callable[..., Visitor]) -> None:
    visitor = ask()
    visitor.page.emulate_media(media="print")
    after = "link => getComputedStyle(link, '::after').content"
    assert chips(visitor).nth(0).evaluate(after) == "none"
    assert items(visitor).locator("a").nth(1).evaluate(after) == f'" ({RIVER})"'
    visitor.page.emulate_media(media="screen")
