"""Several models that answer one message, side by side in the page."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.conftest import CONFIG, App, Visitor, becomes
from tests.peers.axe import grave
from tests.support.scripted_server import Config, Running

Visit = Callable[..., Visitor]
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


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    """Start an app with three models."""
    return start_app(CONFIG, VLLM_BASE_URL=server.base_url)


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


def test_stop_of_one_column_leaves_the_other(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url, phone=True)
    compare_with(visitor, BETA)
    visitor.say(SLOW)
    expect(column(visitor, "Qwen3-8B")).to_contain_text("word9")
    visitor.chat.get_by_role("tab", name="Qwen3-8B").press("ArrowRight")
    expect(visitor.chat.get_by_role("tab", name="Qwen3-VL-8B-Instruct")).to_be_focused()
    beta = column(visitor, "Qwen3-VL-8B-Instruct")
    expect(beta).to_contain_text("word9")
    beta.get_by_role("button", name="Stop").click()
    expect(beta.locator(".caption")).to_contain_text("Stopped")
    visitor.shot("column-stopped")
    expect(visitor.stop).to_be_visible()
    server.release("slow")
    visitor.chat.get_by_role("tab", name="Qwen3-8B").click()
    expect(column(visitor, "Qwen3-8B")).to_contain_text("word39")
    visitor.idle()
    assert grave(visitor.page) == []


def test_two_columns_can_be_stopped_at_once(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    compare_with(visitor, BETA)
    visitor.say(ENDLESS)
    held = list[Route]()
    visitor.page.route("**/stop", lambda route: held.append(route))
    columns = [column(visitor, name) for name in ("Qwen3-8B", "Qwen3-VL-8B-Instruct")]
    for place, one in enumerate(columns):
        expect(one).to_contain_text("word9")
        one.get_by_role("button", name="Stop").click()
        becomes(place + 1, lambda: len(held))
    for route in held:
        route.continue_()
    for one in columns:
        expect(one.locator(".caption")).to_contain_text("Stopped")
    expect(columns[1]).to_be_focused()
    visitor.idle()


def test_columns_that_were_not_loaded_are_drawn_later(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    tries = list[str]()

    def lose(route: Route) -> None:
        tries.append(route.request.url)
        if len(tries) == 1:
            route.abort()
        else:
            route.continue_()

    visitor.page.route("**/columns.js*", lose)
    compare_with(visitor, BETA)
    visitor.say(NEXT)
    expect(column(visitor, "Qwen3-VL-8B-Instruct")).to_contain_text("says the second")
    assert len(tries) == 2
    visitor.idle()


def test_one_model_alone_is_compared_with_none(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.open_models()
    options = visitor.page.locator("#model-list").get_by_role("option")
    expect(options.nth(3)).to_be_visible()  # the others need a key
    expect(options.filter(has_text="Compare with another model")).to_have_count(0)
