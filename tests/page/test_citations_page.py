"""Citations on the page: numbers in the answer, the source they show, and the list below, live and after a reload."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import CONFIG, App, Visit, Visitor, becomes
from tests.peers.axe import violations
from tests.support.dialect_server import Playing, playing
from tests.support.documents import pdf
from tests.support.replies import anthropic_messages as messages
from tests.support.replies import openai_responses as responses

WORDS = (
    "It rained in **Cologne** on Monday, and the Rhine rose by 20 cm.\n\n"
    "| Day | Rain |\n|---|---|\n| Monday | 12 mm |\n\nThe formula $h = v t$ says so."
)
RAIN, RIVER = "https://www.weather.example/cologne?day=1&unit=mm", "https://rhine.example/level"
EVIL = '</q></li><img src=x onerror="window.hit=1"><script>window.hit=1</script> [x](javascript:hit) "\' `$'


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


def card(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("tooltip")


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


RENT = "The rent of the hall is 812 euros, and it is paid in May."
FILLER = "\n".join(["The committee met and approved the minutes of its last meeting."] * 20)
REPORT = pdf(["Nothing", f"Chapter 2\n{FILLER}\n\n{RENT}\n\n{FILLER}"])


@pytest.fixture
def ask_document(own: App, visit: Visit, openai: Playing) -> Callable[..., Visitor]:
    """Ask about a document that the answer cites."""

    def ask(citation: dict[str, Any], name: str = "report.pdf", data: bytes = REPORT, **look: Any) -> Visitor:
        visitor = visit(own.url, fresh=True, **look)
        visitor.choose("claude-sonnet-5-5")
        visitor.attach((name, data))
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
