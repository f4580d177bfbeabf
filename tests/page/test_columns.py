"""Several models that answer one message, side by side in the page."""

import pytest
from playwright.sync_api import Locator, expect

from tests.conftest import App, Visit, Visitor
from tests.peers.axe import grave
from tests.support.scripted_server import Config, Running

ALPHA, BETA, GAMMA = "Qwen/Qwen3-8B", "Qwen/Qwen3-VL-8B-Instruct", "lab/Brief-1B"
QUESTION, NEXT, SLOW, ENDLESS = "Why is the sky blue?", "And at dusk?", "Tell me all.", "Tell me more."
LONG = (
    "!reasoning Sunlight, air, scattering. !text Sunlight is a mix of all colours. In air, **short waves are scattered "
    "most** (Rayleigh scattering), so blue light reaches you from everywhere.\\n\\n- Violet is scattered more, but "
    "there is less of it.\\n- At dusk the way through the air is longer, and red is left."
    "\\n\\n| colour | nm |\\n|---|---|"
    "\\n| blue | 450 |\\n| red | 650 |"
)
SERVER = Config(
    models=(ALPHA, BETA, GAMMA),
    rate=300.0,
    scripts={
        f"{ALPHA}: {QUESTION}": LONG,
        f"{BETA}: {QUESTION}": "!tokens 60 hold 20 beta",
        f"{GAMMA}: {QUESTION}": "!status 400",
        f"{ALPHA}: {SLOW}": "!tokens 40 hold 10 slow",
        f"{BETA}: {SLOW}": "!tokens 40 hold 10 never",
        f"{ALPHA}: {ENDLESS}": "!tokens 40 hold 10 never",
        f"{BETA}: {ENDLESS}": "!tokens 40 hold 10 never",
        f"{ALPHA}: {NEXT}": "!text Red, says the first.",
        f"{BETA}: {NEXT}": "!text Red, says the second.",
    },
)


def column(visitor: Visitor, name: str) -> Locator:
    return visitor.chat.get_by_role("region", name=f"Answer of {name}", exact=True).last


def compare_with(visitor: Visitor, *names: str) -> None:
    """Choose models that answer, too, by the keyboard."""
    search = visitor.open_models()
    expect(visitor.page.locator("#model-list").get_by_role("option").nth(2)).to_be_visible()
    search.press("ArrowUp")
    visitor.shot("compare-menu")
    visitor.page.get_by_role("option", name="Compare with another model…").click()
    for place, name in enumerate(names):
        search = visitor.page.get_by_role("dialog", name="Compare with another model…").get_by_role("combobox")
        search.fill(name)
        search.press("Enter")
        expect(search).to_be_hidden()
        if place < len(names) - 1:
            visitor.page.get_by_role("button", name="Add a model").press("Enter")


def test_list_that_is_opened_at_once_again_stays(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    page = visitor.page
    visitor.open_models()
    expect(page.locator("#model-list").get_by_role("option").nth(2)).to_be_visible()
    page.evaluate(
        "new Promise((done) => { document.querySelector('#models').close();"
        " document.querySelector('#model-button').click(); requestAnimationFrame(() => requestAnimationFrame(done)); })"
    )
    expect(page.locator("#models")).to_be_visible()
    expect(page.locator("#model-button")).to_have_attribute("aria-expanded", "true")


@pytest.mark.gate("Two models answer one message side by side.")
def test_models_answer_side_by_side(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page = visitor.page
    compare_with(visitor, BETA, GAMMA)
    expect(visitor.box).to_be_focused()
    visitor.shot("compare-chosen")
    visitor.say(QUESTION)
    expect(column(visitor, "Qwen3-8B")).to_contain_text("red is left")
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("word19")
    expect(column(visitor, "Brief-1B").locator("[data-kind=error]")).to_be_visible()
    visitor.shot("compare-running")
    page.reload()  # in the middle of an answer
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("word19")
    expect(column(visitor, "Qwen3-8B")).to_contain_text("red is left")
    server.release("beta")
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("word59")
    visitor.idle()
    expect(visitor.mine).to_have_count(1)
    expect(page.locator("#chats .title")).to_have_text([QUESTION])
    visitor.shot("compare-ended")
    before = column(visitor, "Qwen3-8B").inner_text()
    page.reload()
    expect(column(visitor, "Qwen3-8B")).to_have_text(before, use_inner_text=True)
    assert grave(page) == []

    visitor.say(NEXT)
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("says the second")
    visitor.idle()
    column(visitor, "Qwen3-VL-8B-Instruct").get_by_role("button", name="Go on with this answer").press("Enter")
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("The chat goes on with this answer")
    expect(page.get_by_role("region", name="Side by side")).to_be_hidden()
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_be_focused()
    expect(page.locator("#model-button")).to_have_text("Qwen3-VL-8B-Instruct")
    visitor.shot("compare-chosen-answer")
    visitor.ask("!echo")
    sent = str(server.journal()[-1]["body"]["messages"])
    assert "says the second" in sent
    assert "says the first" not in sent


@pytest.mark.gate("A comparison can hide the names of the models until the visitor has voted.")
def test_names_are_hidden_until_the_vote(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    page = visitor.page
    compare_with(visitor, BETA)
    blind = page.get_by_role("button", name="Blind")
    blind.click()
    expect(blind).to_have_attribute("aria-pressed", "true")
    visitor.say(NEXT)
    expect(column(visitor, "A")).to_contain_text("Red, says the")
    expect(column(visitor, "B")).to_contain_text("Red, says the")
    visitor.idle()
    expect(visitor.chat).not_to_contain_text("Qwen")
    visitor.shot("blind-ended")
    assert grave(page) == []
    page.reload()
    expect(column(visitor, "A")).to_contain_text("Red, says the")
    expect(visitor.chat).not_to_contain_text("Qwen")
    is_first = "first" in column(visitor, "A").inner_text()
    visitor.chat.get_by_role("button", name="A is better").click()
    best, other = ("Qwen3-8B", "Qwen3-VL-8B-Instruct")[:: 1 if is_first else -1]
    expect(column(visitor, best)).to_contain_text("tokens")
    expect(column(visitor, other).get_by_role("button", name="Go on with this answer")).to_be_visible()
    expect(visitor.chat.get_by_role("button", name="A is better")).to_have_count(0)
    page.get_by_role("button", name="Your votes").click()
    rows = page.get_by_role("dialog", name="Your votes").locator("tbody tr")
    expect(rows.first).to_have_text(f"{best}1000")
    expect(rows.last).to_have_text(f"{other}0100")
    visitor.shot("blind-votes")
    assert grave(page) == []
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save as CSV").click()
    assert saved.value.suggested_filename == "votes.csv"
    assert saved.value.path().read_text().count("\n") == 2
