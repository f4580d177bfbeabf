"""The options in the composer: the model with its list, and the switches for reasoning and tools."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from agent.i18n.translator import LANGUAGES
from tests.conftest import App, Visitor, becomes
from tests.support import media_files
from tests.support.scripted_server import Config, Running, running

pytestmark = pytest.mark.browser

Visit = Callable[..., Visitor]
SEEING = "Qwen/Qwen3-VL-8B-Instruct"
"""A model that sees and does not reason."""
SERVER = Config(models=("Qwen/Qwen3-8B", SEEING, *(f"lab/Model-{number:03}" for number in range(300))), rate=500.0)
CONFIG = """
[agent]
tools = ["agent.tools.builtin:calculate"]
"""
EMPTY = ":root[data-chat=empty]"
ROOM_BESIDE_HINT = """(field) => {
  const style = getComputedStyle(field), pen = document.createElement("canvas").getContext("2d");
  pen.font = style.font;
  const room = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return room - pen.measureText(field.placeholder).width;
}"""
"""The pixels that are left in a field beside the hint in it."""


@pytest.fixture(scope="module")
def own(start_app: Callable[..., App], server: Running) -> App:
    return start_app(CONFIG, VLLM_BASE_URL=server.base_url)


def rows(visitor: Visitor) -> Locator:
    """The models that the open list shows."""
    return visitor.page.locator("#model-list").get_by_role("option")


def marked(visitor: Visitor) -> str:
    """Return the text of the option that the search field names as the active one."""
    return visitor.page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))?.innerText ?? ''"
    )


def switch(visitor: Visitor, name: str) -> Locator:
    return visitor.page.get_by_role("switch", name=name)


def body(server: Running) -> dict[str, Any]:
    """Return the newest request to the model."""
    return server.journal()[-1]["body"]


@pytest.mark.gate("The models are searched in the composer.")
def test_list_of_models_is_searched_by_keyboard(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    button, press = visitor.page.locator("#model-button"), visitor.page.keyboard.press
    expect(button).to_have_text("Qwen3-8B")
    search = visitor.open_models()
    expect(search).to_be_focused()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(rows(visitor).filter(visible=True).nth(301)).to_be_attached()
    expect(rows(visitor).and_(visitor.page.locator("[aria-selected=true]"))).to_contain_text("Qwen3-8B")
    visitor.page.keyboard.type("model-12")
    expect(rows(visitor)).to_have_count(10)
    becomes(True, lambda: "Model-120" in marked(visitor))
    for key, name in (
        ("ArrowDown", "Model-121"),
        ("PageDown", "Model-129"),
        ("ArrowDown", "Model-120"),
        ("ArrowUp", "Model-129"),
    ):
        press(key)
        assert name in marked(visitor)
    expect(rows(visitor).filter(has_text="Model-129")).to_be_in_viewport(ratio=0.9)
    press("Escape")
    expect(search).to_be_hidden()
    expect(button).to_be_focused()
    expect(button).to_have_text("Qwen3-8B")
    press("ArrowDown")  # opens it, too
    expect(search).to_be_focused()
    visitor.page.keyboard.type("model-123")
    expect(rows(visitor)).to_have_count(1)
    press("Enter")
    expect(search).to_be_hidden()
    expect(button).to_have_accessible_name("Model: Model-123")
    expect(visitor.page.locator("#about")).to_contain_text("Model-123")
    visitor.ask("!text Yes.")
    assert body(server)["model"] == "lab/Model-123"


def test_search_without_hit_says_so(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    search = visitor.open_models()
    expect(rows(visitor).nth(3)).to_be_visible()
    search.fill("no model is called that")
    expect(visitor.page.locator("#models [role=status]")).to_have_text("No model in the list has these words.")
    expect(rows(visitor)).to_have_text("Use “no model is called that”")
    visitor.shot("models-none")
    search.fill("openai:some-free-name")
    search.press("Enter")
    expect(visitor.page.locator("#about")).to_contain_text("some-free-name")
    visitor.choose("no model is called that")
    expect(visitor.hint).to_contain_text("No model named")
    expect(visitor.page.locator("#model-button")).to_contain_text("some-free-name")


def test_badges_say_what_models_can_do(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    search = visitor.open_models()
    expect(visitor.page.locator("#model-list [role=group] > p")).to_have_text(["Ready to use", "needs a key"])
    search.fill("qwen3")
    names = {
        "Qwen3-8B": "Qwen3-8B a vLLM server Local Tools Reasoning",
        "Qwen3-VL-8B-Instruct": "Qwen3-VL-8B-Instruct a vLLM server Local Images Tools",
        "Qwen3-VL 8B (Hugging Face)": "Qwen3-VL 8B (Hugging Face) Hugging Face needs a key Hosted Images Tools",
    }
    for name, said in names.items():
        expect(visitor.page.get_by_role("option", name=said, exact=True).locator("b")).to_have_text(name)
    badges = visitor.page.get_by_role("option", name=names["Qwen3-VL-8B-Instruct"]).locator("i")
    expect(badges).to_have_text(["Local", "Images", "Tools"])
    search.fill("audio hosted")
    expect(rows(visitor).filter(has_text="GPT Audio")).to_be_visible()
    expect(rows(visitor).filter(has_text="Claude")).to_have_count(0)


def test_list_is_loaded_when_it_is_used(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    expect(visitor.page.locator("#model-button")).to_have_text("Qwen3-8B")
    loaded = "performance.getEntriesByType('resource').filter(({ name }) => /models\\.js/.test(name)).length"
    assert visitor.page.evaluate(loaded) == 0
    visitor.open_models()
    assert visitor.page.evaluate(loaded) == 1
    visitor.page.keyboard.press("Escape")
    visitor.page.route(re.compile(r"/gradio_api/run/"), lambda route: route.abort())
    visitor.open_models()
    expect(rows(visitor).nth(3)).to_be_visible()  # the list from before, while the server cannot be reached


def test_model_without_reasoning_leaves_the_switch_alone(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.choose("Qwen3-VL-8B-Instruct")
    expect(switch(visitor, "Reasoning")).to_be_hidden()
    visitor.ask("!text One.")
    visitor.choose("Qwen3-8B")
    expect(switch(visitor, "Reasoning")).to_have_attribute("aria-checked", "true")


@pytest.mark.gate("The switches in the composer and the settings show the same.")
def test_switches_and_settings_show_the_same(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page = visitor.page
    boxes = {name: page.locator(f"#{name.lower()} input") for name in ("Reasoning", "Tools")}

    def both(name: str, on: bool) -> None:
        expect(switch(visitor, name)).to_have_attribute("aria-checked", str(on).lower())
        expect(boxes[name]).to_be_checked(checked=on)

    both("Reasoning", True)
    both("Tools", False)
    with visitor.setting_is_told():
        switch(visitor, "Tools").click()
    with visitor.setting_is_told():
        switch(visitor, "Reasoning").press("Space")
    both("Reasoning", False)
    both("Tools", True)
    visitor.reload()
    both("Reasoning", False)
    both("Tools", True)
    visitor.ask("!text One.")
    assert body(server)["chat_template_kwargs"]["enable_thinking"] is False
    assert [tool["function"]["name"] for tool in body(server)["tools"]] == ["calculate"]
    visitor.open_settings()
    boxes["Tools"].uncheck()
    boxes["Reasoning"].check()
    both("Reasoning", True)
    both("Tools", False)
    visitor.close_settings()
    visitor.ask("!text Two.")
    assert "tools" not in body(server)
    assert body(server)["chat_template_kwargs"]["enable_thinking"] is True


def test_switch_is_only_there_for_models_that_can(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    expect(switch(visitor, "Reasoning")).to_be_visible()
    visitor.choose(SEEING)
    expect(visitor.page.locator("#about")).to_contain_text("Qwen3-VL-8B-Instruct")
    expect(switch(visitor, "Reasoning")).to_be_hidden()
    expect(switch(visitor, "Tools")).to_be_visible()
    visitor.choose("openai:gpt-6-luna")
    expect(switch(visitor, "Reasoning")).to_be_visible()


def test_change_during_answer_holds_for_the_next(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    visitor.say("!tokens 4000 @50")
    expect(visitor.chat).to_contain_text("word5")
    switch(visitor, "Tools").click()
    switch(visitor, "Reasoning").click()
    visitor.choose("Model-007")
    expect(visitor.page.locator("#about")).to_contain_text("Model-007")
    expect(visitor.page.locator("#tools input")).to_be_checked()
    expect(visitor.stop).to_be_visible()  # the answer goes on
    visitor.stop.click()
    visitor.idle()
    assert body(server)["model"] == "Qwen/Qwen3-8B"
    assert "tools" not in body(server)
    visitor.ask("!text Next.")
    assert body(server)["model"] == "lab/Model-007"
    visitor.choose("Qwen3-8B")
    expect(switch(visitor, "Reasoning")).to_have_attribute("aria-checked", "false")
    visitor.ask("!text Last.")
    assert body(server)["chat_template_kwargs"]["enable_thinking"] is False
    assert "tools" in body(server)


def test_message_sent_at_once_goes_to_chosen_model(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    search = visitor.open_models()
    search.fill("Model-042")
    expect(rows(visitor)).to_have_count(1)
    search.press("Enter")
    visitor.ask("!text Quick.")
    assert body(server)["model"] == "lab/Model-042"


AT_ONCE = """() => {
  document.querySelector("#model-list .marked").click();
  document.querySelector("#composer .submit-button").click();
  location.reload();
}"""
"""Chooses a model, sends the message, and leaves the page, before anything can be answered."""


def test_choice_is_not_lost_with_a_message_and_a_reload(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    visitor.box.fill("!text Chosen.")
    visitor.open_models().fill("Model-042")
    expect(rows(visitor)).to_have_count(1)
    with visitor.page.expect_navigation():
        visitor.page.evaluate(AT_ONCE)
    expect(visitor.page.locator("#model-button")).to_have_text("Model-042")
    if visitor.box.input_value():  # the reload was faster than the message, whose text is still there
        visitor.box.press("Enter")
    expect(visitor.bubbles.filter(has_text="Chosen.")).to_be_visible()
    assert body(server)["model"] == "lab/Model-042"


def test_last_of_two_quick_choices_counts(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page, button = visitor.page, visitor.page.locator("#model-button")
    visitor.choose(SEEING)
    expect(button).to_have_text("Qwen3-VL-8B-Instruct")
    expect(button).to_have_attribute("aria-busy", "false")
    held: list[Route] = []
    search = visitor.open_models()
    search.fill("Model-042")
    expect(rows(visitor)).to_have_count(1)
    page.route("**/gradio_api/run/*", lambda route: route.continue_() if held else held.append(route))
    search.press("Enter")
    expect(button).to_have_text("Model-042")
    visitor.wait_for_requests(held)
    visitor.choose(SEEING)  # the server does not know of the other choice yet
    held[0].continue_()
    visitor.ask("!text Quick.")
    assert body(server)["model"] == SEEING
    expect(button).to_have_text("Qwen3-VL-8B-Instruct")


def test_text_and_files_stay_when_model_changes(own: App, visit: Visit, tmp_path: Path) -> None:
    visitor = visit(own.url)
    (tmp_path / "small.png").write_bytes(media_files.picture("PNG"))
    visitor.choose(SEEING)
    expect(visitor.page.locator("#about")).to_contain_text("Qwen3-VL-8B-Instruct")
    visitor.box.fill("What is this?")
    visitor.page.locator("#composer input[type=file]").set_input_files([tmp_path / "small.png"])
    attached, thumbnails = visitor.page.locator("#attached"), visitor.page.locator("#composer .file")
    expect(attached.locator("li")).to_have_text("small.png")
    visitor.choose("Qwen3-8B")
    expect(attached.locator("li.refused")).to_contain_text("small.png")
    expect(thumbnails).to_have_count(1)
    expect(visitor.box).to_have_value("What is this?")
    # The known one comes first, and then unknown ones, which can see for all we know, but none that needs a key.
    expect(attached.get_by_role("button")).to_have_text(["Qwen3-VL-8B-Instruct", "Model-000", "Model-001"])
    visitor.shot("options-refused-file")
    attached.get_by_role("button", name="Qwen3-VL-8B-Instruct").click()
    expect(visitor.page.locator("#model-button")).to_have_text("Qwen3-VL-8B-Instruct")
    expect(attached.locator("li.refused")).to_have_count(0)
    expect(thumbnails).to_have_count(1)
    expect(visitor.box).to_have_value("What is this?")


@pytest.mark.parametrize(("locale", "needs"), [("en-US", "needs a key"), ("de-DE", "braucht einen Schlüssel")])
def test_model_for_a_picture_says_it_needs_a_key(
    app: App, visit: Visit, tmp_path: Path, locale: str, needs: str
) -> None:
    """The shared app has no model that sees, but hosted ones."""
    visitor = visit(app.url, locale=locale, phone=locale == "de-DE")
    (tmp_path / "small.png").write_bytes(media_files.picture("PNG"))
    visitor.page.locator("#composer input[type=file]").set_input_files([tmp_path / "small.png"])
    offered = visitor.page.locator("#attached button")
    expect(offered).to_have_text([re.compile(f" · {needs}$")] * 3)
    visitor.shot(f"options-needs-a-key-{locale}")
    label = offered.first.inner_text()
    offered.first.click()
    expect(visitor.page.locator("#model-button")).to_have_text(label)
    expect(visitor.page.locator("#key-box input")).to_be_visible()


FRAMES = """() => {
  const frames = window.frames_of_choice = [];
  const look = () => {
    const name = document.querySelector("#model-button").innerText, key = document.querySelector("#key");
    const panel = key.checkVisibility() ? key.innerText : "";
    const switches = [...document.querySelectorAll(".options .switch")].map((one) => one.checkVisibility()).join();
    const frame = [name, panel, switches].join(" | ");
    if (frame !== frames.at(-1)) frames.push(frame);
    requestAnimationFrame(look);
  };
  look();
}"""
CLAUDE, GPT = "anthropic:claude-sonnet-5-5", "openai:gpt-6-luna"


def test_choice_changes_name_switches_and_panel_in_one_step(app: App, visit: Visit) -> None:
    visitor = visit(app.url, fresh=True)
    page = visitor.page
    visitor.choose(GPT)
    expect(page.locator("#key")).to_contain_text("OpenAI")
    page.evaluate(FRAMES)
    visitor.choose(CLAUDE)
    expect(page.locator("#key")).to_contain_text("Anthropic")
    frames: list[str] = page.evaluate("window.frames_of_choice")
    for frame in frames:
        name, panel, switches = frame.split(" | ")
        assert panel.partition(" needs")[0] in name, frame
        assert bool(panel) == ("true" in switches), frame  # a server that is slow shows neither for a moment


def test_choice_that_takes_long_shows_nothing_of_the_model_before(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    page = visitor.page
    visitor.choose(GPT)
    expect(page.locator("#key")).to_contain_text("OpenAI")
    held: list[Route] = []
    search = visitor.open_models()
    search.fill(CLAUDE)
    expect(rows(visitor)).to_have_count(1)
    page.route("**/gradio_api/run/*", lambda route: held.append(route))
    search.press("Enter")
    expect(page.locator("#model-button")).to_contain_text("Claude")
    expect(page.locator("#key")).to_be_hidden()
    expect(page.get_by_role("switch")).to_have_count(0)
    visitor.wait_for_requests(held)
    held[0].continue_()
    page.unroute("**/gradio_api/run/*")
    expect(page.locator("#key")).to_contain_text("Anthropic")
    expect(page.locator("#model-button")).to_have_attribute("aria-busy", "false")


def test_caption_does_not_repeat_the_model_of_the_composer(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.ask("!text One.")
    visitor.choose(SEEING)
    visitor.ask("!text Two.")
    name = visitor.caption.locator(".model")
    expect(name).to_have_text("Qwen3-VL-8B-Instruct · ")
    expect(name).to_be_hidden()
    visitor.shot("caption-without-model")
    visitor.choose("Qwen/Qwen3-8B")
    expect(name).to_be_visible()
    visitor.shot("caption-with-model")
    visitor.choose(SEEING)
    expect(name).to_be_hidden()
    visitor.page.emulate_media(media="print")
    expect(name).to_be_visible()


@pytest.mark.parametrize("language", LANGUAGES)
def test_hint_of_the_search_fits_narrow_window(own: App, visit: Visit, language: str) -> None:
    visitor = visit(own.url, phone=True, locale=language)
    visitor.page.set_viewport_size({"width": 320, "height": 640})
    search = visitor.open_models()
    visitor.shot(f"options-320-{language}")
    assert search.get_attribute("placeholder")
    assert search.evaluate(ROOM_BESIDE_HINT) >= 0


def test_options_fit_small_phone(own: App, visit: Visit) -> None:
    visitor = visit(own.url, phone=True)
    page = visitor.page
    page.set_viewport_size({"width": 360, "height": 740})
    visitor.choose(SEEING)
    expect(page.get_by_role("button", name="Take a picture")).to_be_visible()
    visitor.box.fill("Text, so that the button of the saved prompts is there.")
    for model in ("openai:a-model-with-a-name-that-is-longer-than-a-telephone-is-wide-really", SEEING):
        visitor.choose(model)
        expect(page.locator("#model-button")).to_have_attribute(
            "title", re.compile(model.split("/")[-1].split(":")[-1])
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        small = page.evaluate(
            "[...document.querySelectorAll('#composer .buttons button')].filter((one) => one.checkVisibility())"
            ".map((one) => [one.id || one.className, one.getBoundingClientRect()])"
            ".filter(([, { left, right, width, height }]) => width < 40 || height < 40 || left < 16 || right > 344)"
            ".map(([name, box]) => [name, box.left, box.width, box.height])"
        )
        assert not small
    visitor.shot("options-360")
    search = visitor.open_models()
    expect(rows(visitor).nth(3)).to_be_visible()
    visitor.shot("models-360")
    expect(page.locator("#models")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    becomes(True, lambda: rows(visitor).first.evaluate("one => one.offsetHeight") >= 40)
    assert page.evaluate("(list => list.scrollWidth <= list.clientWidth)(document.querySelector('#model-list'))")
    page.get_by_role("button", name="Close", exact=True).click()
    expect(search).to_be_hidden()


def test_switches_have_words_where_there_is_room(own: App, visit: Visit) -> None:
    visitor = visit(own.url, phone=True)
    words, name = switch(visitor, "Tools").locator("span"), visitor.page.locator("#model-button span")
    is_whole = "one => one.scrollWidth <= one.clientWidth"
    visitor.page.set_viewport_size({"width": 520, "height": 740})
    visitor.choose(SEEING)
    expect(words).to_be_visible()
    assert name.evaluate(is_whole)
    visitor.shot("options-words")
    visitor.page.set_viewport_size({"width": 320, "height": 740})
    expect(words).to_be_hidden()
    visitor.page.set_viewport_size({"width": 520, "height": 740})
    expect(words).to_be_visible()
    visitor.choose("openai:a-model-with-a-long-name-of-many-words")
    expect(words).to_be_hidden()
    expect(switch(visitor, "Tools")).to_have_accessible_name("Tools")


def test_default_prompt_is_sent_as_the_page_shows_it(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url, locale="de-DE")
    shown = visitor.page.locator("#system textarea").input_value()
    assert shown.startswith("Du bist Qwen3-8B, ein Modell von Alibaba Cloud. Du antwortest auf der Seite")
    visitor.ask("!text Gut.")
    assert body(server)["messages"][0] == {"role": "system", "content": shown}


def test_default_prompt_is_put_back(own: App, visit: Visit, server: Running) -> None:
    visitor = visit(own.url)
    page = visitor.page
    visitor.open_settings()
    prompt = page.get_by_label("System prompt")
    reset = page.locator("#system").get_by_role("button", name="Reset to default value")
    usual = prompt.input_value()
    assert "Qwen3-8B" in usual
    expect(reset).to_be_hidden()
    prompt.fill("Answer like a pirate.")
    expect(reset).to_be_visible()
    visitor.shot("settings-own-prompt")
    reset.click()
    expect(prompt).to_have_value(usual)
    expect(prompt).to_be_focused()
    expect(reset).to_be_hidden()
    page.keyboard.press("Control+z")
    expect(prompt).to_have_value("Answer like a pirate.")
    reset.click()
    visitor.close_settings()
    visitor.choose("Model-007")  # the default prompt names each model
    expect(prompt).to_have_value(usual.replace("Qwen3-8B, a model made by Alibaba Cloud", "Model-007"))
    expect(reset).to_be_hidden()
    visitor.ask("!text Aye.")
    assert body(server)["messages"][0]["content"] == prompt.input_value()
    visitor.open_settings()
    prompt.fill("")
    expect(reset).to_be_visible()
    with visitor.setting_is_told():
        page.keyboard.press("Tab")
    visitor.reload()
    expect(prompt).to_have_value("")
    visitor.open_settings()
    expect(reset).to_be_visible()


ICONS = """() => [
  "#bar button", "#composer button", ".settings .toggle", "#chats .head button",
].flatMap((all) => [...document.querySelectorAll(all)])
  .filter((one) => one.checkVisibility() && !/\\p{L}/u.test(one.innerText))
  .map((one) => [one.getAttribute("aria-label") || one.innerText, one.title])"""
"""The names and the tooltips of the buttons without words in the header and in the composer."""


@pytest.mark.parametrize(
    ("locale", "attach", "send"), [("en-US", "Upload a file", "Send"), ("de-DE", "Datei hochladen", "Senden")]
)
def test_buttons_without_words_have_tooltips(own: App, visit: Visit, locale: str, attach: str, send: str) -> None:
    visitor = visit(own.url, locale=locale)
    visitor.choose(SEEING)  # which has the camera, too
    expect(visitor.page.locator(".camera-button")).to_be_visible()
    visitor.box.fill("Text, so that all buttons are there.")
    expect(visitor.page.locator(".prompts-button")).to_be_visible()
    becomes([], lambda: [one for one in visitor.page.evaluate(ICONS) if not one[0] or not one[1].startswith(one[0])])
    named = {name for name, _ in visitor.page.evaluate(ICONS)}
    assert {attach, send} <= named
    assert len(named) >= 6
    visitor.say("!tokens 4000 ")
    stop = visitor.page.locator("#composer .stop-button")
    expect(stop).to_be_visible()
    becomes(True, lambda: stop.get_attribute("title") == stop.get_attribute("aria-label") != "")
    stop.click()


# The empty page


def middle(part: Locator) -> float:
    box = part.bounding_box()
    assert box
    return box["y"] + box["height"] / 2


@pytest.mark.gate("The composer stands in the middle of an empty page.")
def test_composer_is_in_the_middle_of_empty_page(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    page, dock = visitor.page, visitor.page.locator("#dock")
    expect(page.locator(EMPTY)).to_have_count(1)
    height = page.viewport_size["height"] if page.viewport_size else 0
    assert abs(middle(dock) - height / 2) < height / 12
    example = visitor.examples.first
    assert middle(page.locator("#greeting")) < middle(dock) < middle(example)
    visitor.ask("!text A first answer.")
    expect(page.locator(EMPTY)).to_have_count(0)
    assert middle(dock) > height * 0.8
    page.reload()
    expect(visitor.chat).to_contain_text("A first answer.")
    assert middle(dock) > height * 0.8
    page.get_by_role("button", name="New chat").first.click()
    expect(page.locator(EMPTY)).to_have_count(1)
    expect(example).to_be_visible()
    assert abs(middle(dock) - height / 2) < height / 12
    page.go_back()
    expect(visitor.chat).to_contain_text("A first answer.")
    assert middle(dock) > height * 0.8


def test_composer_is_never_shown_where_it_moves_away(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.page.route(re.compile(r"/gradio_api/run/"), lambda route: None)
    visitor.page.goto(own.url)
    opacity = "() => getComputedStyle(document.querySelector('#dock')).opacity"
    visitor.page.wait_for_selector("#dock")
    assert visitor.page.evaluate(opacity) == "0"
    visitor.page.wait_for_function(f"({opacity})() === '1'")  # also without an answer of the server


def test_low_page_scrolls_to_examples(own: App, visit: Visit) -> None:
    visitor = visit(own.url)
    visitor.page.set_viewport_size({"width": 740, "height": 360})
    expect(visitor.page.locator(EMPTY)).to_have_count(1)
    expect(visitor.submit).to_be_in_viewport(ratio=1)
    last = visitor.examples.last
    last.scroll_into_view_if_needed()
    expect(last).to_be_in_viewport(ratio=1)
    last.click()
    expect(visitor.mine).to_have_count(1)


def test_page_of_a_chat_shows_no_greeting_before_its_messages(own: App, visit: Visit) -> None:
    visitor = visit(own.url, fresh=True)
    greeting = visitor.page.get_by_text("What can I help with?")
    expect(greeting).to_be_visible()
    visitor.page.evaluate("document.documentElement.dataset.chat = 'begun'")  # as the address of a chat sets it
    expect(greeting).to_be_hidden()


@pytest.fixture(scope="module")
def hearing(start_app: Callable[..., App]) -> Iterator[App]:
    """A model that sees, hears, reasons and uses tools, so that the composer has all its buttons."""
    with running(Config(models=("Qwen/Qwen3-Omni-30B-A3B-Instruct",))) as server:
        yield start_app(CONFIG, VLLM_BASE_URL=server.base_url)


ROWS = """() => {
  const all = [...document.querySelectorAll("#composer .buttons button")].filter((one) => one.checkVisibility());
  return [all.length, new Set(all.map((one) => Math.round(one.getBoundingClientRect().bottom))).size];
}"""
"""Returns the number of buttons in the composer, and of the rows in which they are."""


@pytest.mark.parametrize("is_hearing", [False, True], ids=["text", "omni"])
def test_buttons_of_the_composer_have_one_row(own: App, hearing: App, visit: Visit, is_hearing: bool) -> None:
    visitor = visit((hearing if is_hearing else own).url, phone=True, locale="de-DE")
    visitor.box.fill("A draft")
    expect(visitor.page.locator("#composer .prompts-button")).to_be_visible()
    dock, looks = visitor.page.locator("#dock"), "light-omni" if is_hearing else "light"
    for width, height, rows_of_buttons in ((390, 844, 1), (640, 450, 1), (320, 640, 2 if is_hearing else 1)):
        visitor.page.set_viewport_size({"width": width, "height": height})
        becomes([7 if is_hearing else 6, rows_of_buttons], lambda: visitor.page.evaluate(ROWS))
        box = dock.bounding_box()
        assert box
        assert box["height"] <= height / 3
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        visitor.shot(f"composer-{width}-{looks}")
