"""The page's modules in Chromium without the app: the stream of an answer, the queue, the composer and the settings."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from agent.settings import ROOT
from agent.web.ui.page_files import texts_module
from agent.web.ui.page_text import FOLDERS, VOICE
from tests.support.app_process import becomes
from tests.support.media_files import video

UI = ROOT / "agent/web/ui"
SITE = "https://page.example"
FRAME = """<!doctype html><html lang="en"><title>t</title>
<script type="importmap">{"imports": {"texts": "/texts.js"}}</script>
<script>var gradio_config = { components: [], max_file_size: 1000 };</script>
<body><gradio-app></gradio-app>
<div id="page"><div><div id="chat"></div><div id="attached"></div><div id="sending"><div></div></div>
<div id="dock"><div id="composer"></div></div></div></div>"""


@pytest.fixture
def load(page: Page) -> Callable[..., None]:
    """Load modules of the page, whose exports become global names: `load("modules/network")`."""

    def file(route: Route) -> None:
        name = route.request.url.removeprefix(f"{SITE}/").partition("#")[0]
        if name == "texts.js":
            route.fulfill(body=texts_module("en"), content_type="text/javascript")
        elif name == "healthz":
            route.fulfill(json={"status": "ok"})
        elif (UI / name).is_file():
            route.fulfill(path=UI / name)
        elif name:
            route.fulfill(json={})
        else:
            route.fulfill(body=FRAME, content_type="text/html")

    def load(*names: str) -> None:
        page.goto(f"{SITE}/")
        page.evaluate(
            """async (names) => {
              for (const name of names) {
                for (const [key, one] of Object.entries(await import(`/${name}.js`))) globalThis[key] = one;
              }
              globalThis.told = [];
              for (const name of ["composer:send", "composer:stop", "queue-steers"]) {
                document.addEventListener(name, ({ detail }) => told.push([name, detail]));
              }
            }""",
            names,
        )

    page.route(f"{SITE}/**", file)
    return load


def frames(*numbers: int, end: str = "") -> str:
    """Return a part of a stream with frames of these numbers."""
    return "".join(f"id: {number}\ndata: {number}\n\n" for number in numbers) + end


@pytest.mark.gate
def test_stream_goes_on_after_a_break_and_repairs_a_failure(page: Page, load: Callable[..., None]) -> None:
    after = list[str]()
    parts = [frames(1, 2), frames(3), frames(1, 2, 3, end='event: end\ndata: {"stored": true}\n\n')]

    def answer(route: Route) -> None:
        after.append(route.request.url.rpartition("after=")[2])
        route.fulfill(body=parts[len(after) - 1], content_type="text/event-stream")

    load("modules/network")
    page.route(f"{SITE}/runs/**", answer)
    drawn, end = page.evaluate(
        """async () => {
          const drawn = [];
          stream.turnTo("runs/1/events?format=blocks");
          const end = await stream.read((frames) => {
            drawn.push(...frames);
            if (drawn.length === 3) throw new Error("it cannot be drawn");
          });
          return [drawn, end];
        }"""
    )
    assert after == ["", "2", ""]
    assert drawn == [1, 2, 3, 1, 2, 3]
    assert end == {"stored": True}


@pytest.mark.gate
def test_setting_that_the_network_loses_goes_with_the_next(page: Page, load: Callable[..., None]) -> None:
    bodies = list[Any]()

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.abort() if len(bodies) == 1 else route.fulfill(json={})

    load("modules/network")
    page.route(f"{SITE}/settings*", answer)
    page.evaluate("choose({ tools: true, effort: 'low' }).catch(() => choose({ effort: 'high' }))")
    assert bodies == [{"tools": True, "effort": "low"}, {"tools": True, "effort": "high"}]


@pytest.mark.gate
def test_stop_waits_for_a_silent_server(page: Page, load: Callable[..., None]) -> None:
    load("modules/network", "modules/shared")
    page.evaluate(
        """() => {
          document.dispatchEvent(new CustomEvent("chat-view", { detail: { live: "runs/1" } }));
          document.dispatchEvent(new CustomEvent("server-silent", { detail: 8 }));
          editor.running(true);
        }"""
    )
    stop = page.get_by_role("button", name="Stop")
    stop.click()
    expect(stop).to_have_attribute("aria-disabled", "true")
    assert page.evaluate("told") == []
    page.evaluate("document.dispatchEvent(new CustomEvent('server-silent', { detail: null }))")
    expect(stop).not_to_have_attribute("aria-disabled", "true")
    assert [name for name, _ in page.evaluate("told")] == ["composer:stop"]


@pytest.mark.gate
def test_message_keeps_its_id_until_it_is_stored(page: Page, load: Callable[..., None]) -> None:
    load("modules/composer")
    first, again, other, stored = page.evaluate(
        """() => {
          const ids = ["a", "a", "b"].map((text) => composer.idOf({ text, files: [] }));
          composer.stored();
          return [...ids, composer.idOf({ text: "b", files: [] })];
        }"""
    )
    assert [one["again"] for one in (first, again, other, stored)] == [False, True, False, False]
    assert first["id"] == again["id"]
    assert len({first["id"], other["id"], stored["id"]}) == 3


@pytest.mark.gate
def test_queued_message_is_taken_back_from_the_model(page: Page, load: Callable[..., None]) -> None:
    load("modules/composer", "modules/shared")
    page.evaluate(
        """() => {
          editor.running(true);
          editor.value = { text: "my thought", files: [] };
          shown.turns = [{ can_steer: true }];
          queue.add();
        }"""
    )
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("")
    box.fill("and more")
    page.get_by_role("button", name="Send now").click()
    assert page.evaluate("[told[0][1].text, told[0][1].signal.aborted]") == ["my thought", False]
    page.get_by_role("button", name="Undo").click()
    assert page.evaluate("told[0][1].signal.aborted")
    expect(box).to_have_value("my thought\n\nand more")


FILES = "editor.files.value().map(({ orig_name }) => orig_name)"
PASTE = """(area) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", "Cells of a table");
  clipboardData.items.add(new File([new Uint8Array(9)], "image.png", { type: "image/png" }));
  return area.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""
"""Pastes a text and a picture of it. Returns True if the browser is left to insert the text."""


@pytest.mark.gate
def test_files_are_attached_where_they_are_wanted_only(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()
    load("modules/shared")
    page.route(f"{SITE}/gradio_api/upload", lambda route: held.append(route))
    box, picker = page.get_by_role("textbox", name="Message"), page.locator("input[type=file]")
    remove = page.get_by_role("button", name="Remove file")

    def attach(*names: str, size: int = 9) -> None:
        picker.set_input_files([{"name": name, "mimeType": "text/plain", "buffer": bytes(size)} for name in names])

    def uploaded(*names: str) -> None:
        with page.expect_response("**/upload"):
            held.pop().fulfill(json=[f"files/{name}" for name in names])

    attach("large.txt", size=2000)
    expect(page.get_by_role("alert")).to_contain_text("large.txt")
    expect(remove).to_have_count(0)
    with page.expect_request("**/upload"):
        attach("a.txt", "b.txt")
    remove.first.click()
    expect(page.get_by_role("button", name="Remove file: b.txt")).to_be_focused()
    uploaded("a.txt", "b.txt")
    expect(page.get_by_role("button", name="Open b.txt")).to_be_visible()
    assert page.evaluate(FILES) == ["b.txt"]
    assert box.evaluate(PASTE)
    assert page.evaluate(FILES) == ["b.txt"]

    with page.expect_request("**/upload"):
        attach("c.txt")
    box.press_sequentially("to the first chat")
    box.press("Enter")
    page.evaluate("editor.leave((files) => (globalThis.left = files))")
    page.evaluate("editor.value = { text: 'of another chat', files: [] }")
    box.press("Enter")  # another chat does not wait for it
    page.wait_for_function("told.length")
    uploaded("c.txt")
    page.wait_for_function("left.length")
    assert page.evaluate("left[0].orig_name") == "c.txt"
    assert [one["text"] for _, one in page.evaluate("told")] == ["of another chat"]
    assert page.evaluate(FILES) == []
    expect(box).to_have_value("of another chat")


def test_composer_alone_offers_no_dictation(page: Page, load: Callable[..., None]) -> None:
    """Nobody listens there: a press would do nothing, and lose a recording."""
    load("composer/composer", "modules/shared")
    page.evaluate(
        """() => document.body.replaceChildren(...[false, true].map((takesSound) => {
          const composer = mount({ labels: said.composer, language, root: "" });
          composer.offerMicrophone(takesSound);
          return composer.element;
        }))"""
    )
    expect(page.get_by_role("button", name="Dictate")).to_have_count(0)
    page.get_by_role("button", name="Record audio").click()
    expect(page.get_by_role("button", name="Attach audio")).to_be_visible()
    expect(page.get_by_role("button", name="Write it down instead")).to_have_count(0)


@pytest.mark.gate
def test_typed_settings_stay_and_wrong_ones_do_not(page: Page, load: Callable[..., None]) -> None:
    about = {"max_tokens": {"most": 4096}}
    given = {"system_message": "", "reasoning": True, "tools": False, "temperature": 0.5, "max_tokens": 64}
    load("modules/shared")
    page.evaluate("async () => { document.body.append(panel.element); await panel.open(true); }")
    page.evaluate("(given) => panel.show(given)", {**given, "about": about})
    prompt, number = page.get_by_role("textbox", name="System prompt"), page.locator("#temperature-number")
    limit, said = page.locator("#max-tokens-number"), page.get_by_role("complementary").get_by_role("alert")

    def told() -> None:
        page.evaluate("(given) => panel.show(given)", given)

    prompt.fill("Be brief.")
    told()
    expect(prompt).to_have_value("Be brief.")
    number.fill("1.2")
    told()
    expect(number).to_have_value("1.2")
    for typed, shown, sentence in (("-1", "64", "."), ("9999", "4096", "4,096"), ("128", "128", "^$")):
        limit.fill(typed)
        limit.blur()
        expect(limit).to_have_value(shown)
        expect(said).to_have_text(re.compile(sentence))
    assert page.evaluate("panel.values().max_tokens") == 128


def test_late_server_prompt_replaces_nothing_else(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()

    def hold(route: Route) -> None:
        held.append(route) if route.request.method == "POST" else route.fulfill(json=[])

    page.route(f"{SITE}/prompts", hold)
    load("modules/shared", "modules/prompts")
    box = page.get_by_role("textbox", name="Message")

    def pick(*arguments: str) -> Route:
        box.fill("/rev")
        wanted = [{"name": name, "description": "", "required": False} for name in arguments]
        held.clear()
        page.evaluate(
            """(wanted) => {
              useOfServer({ server: "s", name: "review", arguments: wanted });
              document.querySelector("#server-prompt .fill")?.click();
            }""",
            wanted,
        )
        while not held:
            page.evaluate("0")  # the route is called meanwhile
        return held[-1]

    def answer(route: Route) -> None:
        with page.expect_response(lambda response: response.request.method == "POST") as got:
            route.fulfill(json={"text": "Review."})
        got.value.finished()
        page.evaluate("new Promise((done) => setTimeout(done))")  # its text is read after this answer

    answer(pick())
    expect(box).to_have_value("Review.")
    late = pick()
    box.fill("My own words")
    answer(late)
    expect(box).to_have_value("Review.\n\nMy own words")
    late = pick()
    page.evaluate("document.dispatchEvent(new Event('chat-opening'))")
    box.fill("Of another chat")
    answer(late)
    expect(box).to_have_value("Of another chat")
    late = pick("tone")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    box.fill("")
    page.evaluate("void useOfServer({ server: 's', name: 'other', arguments: [{ name: 'a' }] })")
    fill = page.get_by_role("button", name="Fill in")
    expect(fill).to_be_enabled()
    answer(late)
    expect(page.get_by_role("dialog", name="other")).to_be_visible()
    expect(page.locator("#composer textarea")).to_have_value("")


def test_server_prompts_are_asked_for_once_and_move_no_mark(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()
    page.route(f"{SITE}/prompts", lambda route: held.append(route))
    load("modules/shared")
    page.evaluate(
        "localStorage.setItem('prompts', JSON.stringify([{ name: 'a', text: '1' }, { name: 'b', text: '2' }]))"
    )
    box, options = page.get_by_role("textbox", name="Message"), page.get_by_role("option")
    with page.expect_request(f"{SITE}/prompts"):
        box.press_sequentially("/")
    expect(options).to_have_count(2)
    with page.expect_event("requestfailed"):
        held[0].abort()
    box.press_sequentially("b")
    expect(options).to_have_count(1)
    assert len(held) == 1
    box.fill("")
    with page.expect_request(f"{SITE}/prompts"):
        box.press_sequentially("/")
    box.press("ArrowDown")
    held[1].fulfill(json=[{"server": "s", "name": "c", "description": "", "arguments": []}])
    expect(options).to_have_count(3)
    expect(page.get_by_role("option", selected=True)).to_contain_text("b")


def test_rewritten_answer_is_kept_until_it_is_stored(page: Page, load: Callable[..., None]) -> None:
    load("modules/order")
    opens = "rewrite('Old.', async (text, fails) => void fails({ status: 409, message: 'Another answer is running.' }))"
    page.evaluate(opens)
    area, dialog = page.locator("#order textarea"), page.get_by_role("dialog", name="Change the answer")
    area.fill("New.")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("status")).to_have_text("Another answer is running.")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.evaluate(opens)
    expect(area).to_have_value("New.")
    dialog.get_by_role("button", name="Undo").click()
    expect(area).to_have_value("Old.")
    expect(area).to_be_focused()


def test_text_written_while_an_answer_is_stored_stays(page: Page, load: Callable[..., None]) -> None:
    load("modules/order")
    page.evaluate("rewrite('Old.', (text) => new Promise((then) => (globalThis.stores = then)))")
    area, dialog = page.locator("#order textarea"), page.get_by_role("dialog", name="Change the answer")
    save = dialog.get_by_role("button", name="Save")
    area.fill("New.")
    save.click()
    area.fill("Newer.")
    page.evaluate("stores(true)")
    expect(save).to_be_enabled()
    expect(area).to_have_value("Newer.")
    save.click()
    page.evaluate("stores(true)")
    expect(dialog).to_have_count(0)


def test_rating_that_fails_after_its_dialog_is_said(page: Page, load: Callable[..., None]) -> None:
    load("modules/order")
    page.evaluate("rate(true, () => new Promise((_, fail) => (globalThis.fails = fail)))")
    page.get_by_role("dialog").get_by_role("button", name="Send").click()
    page.keyboard.press("Escape")
    page.evaluate("fails({ status: 413, message: 'The file is full.' })")
    expect(page.locator("#hint")).to_have_text("The file is full.")


def test_edited_file_changes_no_other_one(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()
    load("modules/shared", "modules/attachments")
    page.route(f"{SITE}/files/*", lambda route: route.fulfill(body=f"Text of {route.request.url[-5:]}"))
    page.route(f"{SITE}/gradio_api/upload", lambda route: held.append(route))
    page.evaluate(
        """() => {
          globalThis.files = ["a.txt", "b.txt"].map((path) => ({ path, orig_name: path, url: `/files/${path}` }));
          editor.value = { text: "", files };
        }"""
    )
    dialog = page.get_by_role("dialog")
    area, save = dialog.get_by_role("textbox"), dialog.get_by_role("button", name="Save")
    page.evaluate("openText(files[0])")
    area.fill("Changed")
    save.click()
    waited(page, held)
    area.press("Escape")
    page.evaluate("openText(files[1])")
    area.fill("Text of")
    held[0].fulfill(json=["changed.txt"])
    save.click()
    becomes(2, lambda: page.evaluate("true") and len(held))
    area.fill("Text of it")
    held[1].fulfill(json=["other.txt"])
    expect(save).to_be_enabled()
    expect(area).to_have_value("Text of it")
    assert page.evaluate("editor.value.files.map(({ path }) => path)") == ["a.txt", "other.txt"]


def test_edited_file_stays_when_another_chat_is_opened(page: Page, load: Callable[..., None]) -> None:
    load("modules/shared", "modules/attachments")
    page.route(f"{SITE}/files/a.txt", lambda route: route.fulfill(body="Text"))
    page.route(f"{SITE}/gradio_api/upload", lambda route: route.fulfill(json=["changed.txt"]))
    page.evaluate("openText({ path: 'a.txt', orig_name: 'a.txt', url: '/files/a.txt' })")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox").fill("Changed")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert page.evaluate("editor.value.files.map(({ path }) => path)") == ["changed.txt"]


def test_tree_of_a_chat_that_was_left_is_not_shown(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()
    load("modules/shared", "modules/order")
    page.route(f"{SITE}/conversations/c1/branches", lambda route: held.append(route))
    page.evaluate("shown.conversation = 'c1', void (globalThis.asked = tree())")
    waited(page, held)
    page.evaluate("shown.conversation = 'c2'")
    held[0].fulfill(json={"branches": [], "is_cut": False})
    page.evaluate("asked")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_late_link_is_shown_for_no_other_chat(page: Page, load: Callable[..., None]) -> None:
    held = list[Route]()

    def answer(route: Route) -> None:
        held.append(route) if route.request.method == "POST" else route.fulfill(json={"links": [], "default_days": 7})

    load("modules/shared", "modules/share")
    page.route(re.compile(f"{SITE}/conversations/c./links"), answer)
    page.evaluate("share('c1', 'One')")
    dialog = page.get_by_role("dialog")
    create = dialog.get_by_role("button", name="Create link")
    create.click()
    waited(page, held)
    page.keyboard.press("Escape")
    page.evaluate("share('c2', 'Two')")
    expect(create).to_be_enabled()
    link = {"id": "d", "path": "/s/token", "ends_before_answer": False}
    with page.expect_response(re.compile("c1/links")):
        held[0].fulfill(json=link)
    create.click()
    becomes(2, lambda: page.evaluate("true") and len(held))
    assert held[1].request.url == f"{SITE}/conversations/c2/links"
    expect(dialog.get_by_role("textbox")).to_have_count(0)


def test_blind_keeps_the_focus_and_a_removed_model_does_not(page: Page, load: Callable[..., None]) -> None:
    page.add_init_script("sessionStorage.setItem('compare', JSON.stringify([{ id: 'a', label: 'A' }]))")
    load("modules/compare")
    blind = page.get_by_role("button", name="Blind")
    blind.press("Enter")
    expect(blind).to_have_attribute("aria-pressed", "true")
    expect(blind).to_be_focused()
    page.locator("#compare li button").press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


ROW = {"id": "c1", "title": "Chat", "pinned": False, "updated_at": "2026-11-30", "state": "", "naming": False}
VOICE_FACTS = {"said": {**VOICE}, "speaks": True, "speaker": "", "writer": "Whisper", "why": ""}


@pytest.fixture
def voice(page: Page, load: Callable[..., None]) -> dict[str, list[Route]]:
    """The module of the voice, in a new chat. What it asks of these routes is held."""
    held: dict[str, list[Route]] = {"voice": [], "dictation": [], "speech": []}
    page.context.grant_permissions(["microphone"])
    load("modules/shared", "modules/chats", "modules/voice")
    page.route(
        re.compile(f"{SITE}/({'|'.join(held)})$"), lambda route: held[route.request.url[len(SITE) + 1 :]].append(route)
    )
    page.route(f"{SITE}/gradio_api/upload", lambda route: route.fulfill(json=["files/recording.webm"]))
    return held


def waited(page: Page, routes: list[Route]) -> Route:
    """Wait for a request, and return it."""
    becomes(True, lambda: page.evaluate("true") and bool(routes))
    return routes[-1]


BEGINS = """(conversation) => {
  shown.conversation = conversation;
  document.dispatchEvent(new CustomEvent("chat-view", { detail: { conversation } }));
}"""
"""The new chat gets its id, as after its first message."""
SHOWS = "(id) => { go(id); shown.conversation = id; }"
WORDS = json.dumps({"type": "done", "text": "Dictated."}) + "\n"


def begin_dictation(page: Page, voice: dict[str, list[Route]]) -> None:
    page.evaluate("void dictate()")
    waited(page, voice["voice"]).fulfill(json=VOICE_FACTS)
    expect(page.get_by_role("button", name="Write it down")).to_be_enabled()
    expect(page.get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))


def test_words_come_to_the_chat_that_was_new(page: Page, voice: dict[str, list[Route]]) -> None:
    begin_dictation(page, voice)
    page.get_by_role("button", name="Write it down").click()
    held = waited(page, voice["dictation"])
    page.evaluate(BEGINS, "c1")
    held.fulfill(body=WORDS, content_type="application/x-ndjson")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Dictated.")


def test_left_dictation_is_written_into_its_chat(page: Page, voice: dict[str, list[Route]]) -> None:
    page.evaluate(SHOWS, "c1")
    begin_dictation(page, voice)
    page.evaluate(SHOWS, "c2")
    waited(page, voice["dictation"]).fulfill(body=WORDS, content_type="application/x-ndjson")
    box = page.get_by_role("textbox", name="Message")
    expect(box).to_have_value("")
    page.evaluate(SHOWS, "c1")
    expect(box).to_have_value("Dictated.")


def test_words_come_to_a_chat_that_was_not_shown_yet(page: Page, voice: dict[str, list[Route]]) -> None:
    page.evaluate("go('c1')")  # its messages have not come
    begin_dictation(page, voice)
    page.evaluate(SHOWS, "c2")
    waited(page, voice["dictation"]).fulfill(body=WORDS, content_type="application/x-ndjson")
    page.evaluate(SHOWS, "c1")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Dictated.")


def test_two_presses_of_dictate_begin_it_once(page: Page, voice: dict[str, list[Route]]) -> None:
    page.evaluate("void (globalThis.pressed = Promise.all([dictate(), dictate()]))")
    waited(page, voice["voice"]).fulfill(json=VOICE_FACTS)
    page.evaluate("pressed")
    expect(page.get_by_role("button", name="Write it down")).to_be_enabled()


def test_sound_that_cannot_be_decoded_is_read_by_the_browser(page: Page, voice: dict[str, list[Route]]) -> None:
    page.evaluate(
        """() => {
          shown.conversation = "c1";
          globalThis.heard = [];
          speechSynthesis.getVoices = () => [{ name: "Near", lang: "en-US", localService: true }];
          globalThis.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
          speechSynthesis.speak = (one) => { heard.push(one.text); setTimeout(() => one.onend()); };
        }"""
    )
    text = {"answer": "The cat is in the house. And it is well."}
    page.route(f"{SITE}/conversations/c1/messages/t1/text", lambda route: route.fulfill(json=text))
    page.evaluate("void read('t1')")
    waited(page, voice["voice"]).fulfill(json=VOICE_FACTS)
    waited(page, voice["speech"]).fulfill(body=b"no sound", content_type="audio/wav")
    becomes(["The cat is in the house.", "And it is well."], lambda: page.evaluate("heard"))


def test_fault_of_a_drawing_is_said_in_the_language_of_the_page(page: Page, load: Callable[..., None]) -> None:
    load("modules/shared", "transcript/preview")
    said = page.evaluate(
        """() => new Promise((says) => {
          const { prototype } = HTMLIFrameElement, { set } = Object.getOwnPropertyDescriptor(prototype, "srcdoc");
          const without = (text) => text.replace(/import\\("[^"]*"\\)/, "Promise.resolve({ default: {} })");
          Object.defineProperty(prototype, "srcdoc", { set(text) { set.call(this, without(text)); } });
          const labels = { drawingLoads: "keine Daten" }, options = { diagrams: { "vega-lite": "/vega.js" } };
          const source = () => ({ kind: "vega-lite", text: '{"url": ""}', isGrowing: false });
          const on = { source, says: (errors) => errors.length && says(errors) };
          new Preview(document.body, { labels, options }, on).draw();
        })"""
    )
    assert said == ["keine Daten"]


def test_page_asks_again_for_the_sound_of_a_model(page: Page, voice: dict[str, list[Route]]) -> None:
    again = [{"retry-after": "1"}, {"retry-after": "1"}, {}]
    page.route(f"{SITE}/runs/1/sound", lambda route: route.fulfill(status=204, headers=again.pop(0)))
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<p id=about><i data-speaks></i></p>')")
    page.evaluate("read('t1', 'runs/1/events?format=blocks')")
    assert again == []


@pytest.fixture
def folder(page: Page, load: Callable[..., None]) -> list[Route]:
    """The folder "Work" in the list of chats. The requests that change folders are held."""
    held = list[Route]()
    stored = {"id": "f1", "name": "Work", "instructions": "", "model": "", "model_name": ""}
    rows = {"pinned": [], "conversations": [{**ROW, "folder": "f1"}], "next": None}

    def answer(route: Route) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"folders": [stored], "said": {**FOLDERS}})
        else:
            held.append(route)

    load("modules/shared")
    page.route(re.compile(f"{SITE}/folders"), answer)
    page.route(re.compile(f"{SITE}/conversations"), lambda route: route.fulfill(json=rows))
    page.evaluate(
        """async () => {
          localStorage.setItem("folders", "[]"); // so that the list loads them
          for (const name of ["chats.js", "folders.js#0"]) Object.assign(globalThis, await import(`/modules/${name}`));
          await refresh();
        }"""
    )
    return held


def test_enter_twice_makes_one_folder(page: Page, folder: list[Route]) -> None:
    page.evaluate("(row) => move(row)", ROW)
    name = page.get_by_role("textbox", name=FOLDERS["new"])
    name.fill("Home")
    name.press("Enter")
    name.press("Enter")
    waited(page, folder).fulfill(status=409, json={"detail": "Not now."})
    expect(page.locator("#folder").get_by_role("status")).to_have_text("Not now.")
    assert len(folder) == 1
    with page.expect_request(f"{SITE}/folders"):
        name.press("Enter")


def test_double_click_does_not_delete_a_folder(page: Page, folder: list[Route]) -> None:
    page.get_by_role("button", name="Work").last.click()
    delete, state = page.get_by_role("button", name=FOLDERS["delete"]), page.locator("#folder").get_by_role("status")
    presses = (
        "(one) => [1, 2].forEach((detail) => one.dispatchEvent(new MouseEvent('click', { detail, bubbles: true })))"
    )
    delete.evaluate(presses)  # the sentence may move the button away from a second click
    expect(state).to_have_text(FOLDERS["delete_how"])
    page.evaluate("void fetch('/folders/after', { method: 'PUT' })")
    becomes(["PUT"], lambda: page.evaluate("true") and [route.request.method for route in folder])
    delete.click()
    becomes(["PUT", "DELETE"], lambda: page.evaluate("true") and [route.request.method for route in folder])


def test_typed_instructions_of_a_folder_stay(page: Page, folder: list[Route]) -> None:
    options = page.get_by_role("button", name="Work").last
    options.click()
    area, undo = page.get_by_role("textbox", name=FOLDERS["instructions"]), page.get_by_role("button", name="Undo")
    expect(undo).to_be_hidden()
    area.fill("Answer like a pirate.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    options.click()
    expect(area).to_have_value("Answer like a pirate.")
    undo.click()
    expect(area).to_have_value("")
    expect(undo).to_be_hidden()


def test_text_written_while_a_folder_is_stored_stays(page: Page, folder: list[Route]) -> None:
    page.get_by_role("button", name="Work").last.click()
    area, save = page.get_by_role("textbox", name=FOLDERS["instructions"]), page.get_by_role("button", name="Save")
    area.fill("Answer like a pirate.")
    save.click()
    held = waited(page, folder)
    area.fill("Answer like a pirate, in verse.")
    with page.expect_request(f"{SITE}/folders"):
        held.fulfill(json={"id": "f1"})
    save.click()
    becomes(2, lambda: page.evaluate("true") and len(folder))
    assert folder[1].request.post_data_json["instructions"] == "Answer like a pirate, in verse."
    folder[1].fulfill(json={"id": "f1"})
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_count_beside_a_folder_is_whole_or_missing(page: Page, folder: list[Route]) -> None:
    count = page.locator(".fold small")
    expect(count).to_have_text("1")
    page.evaluate("more(true)")
    expect(count).to_have_text("")


def test_picture_is_drawn_once_and_of_the_shown_chat(page: Page, load: Callable[..., None]) -> None:
    load("modules/shared", "modules/picture")
    page.evaluate("document.querySelector('#chat').innerHTML = '<div data-turn=\"t1\"><p>Hello</p></div>'")
    page.evaluate("Promise.all([share('t1'), share('t1'), share('of another chat')])")
    expect(page.locator("dialog#picture")).to_have_count(1)


def test_video_is_read_by_a_browser_that_loads_it_late(page: Page, load: Callable[..., None]) -> None:
    """iOS loads the pictures of a video when it plays. Here no byte of it is loaded before."""
    load("modules/shared", "modules/film")
    taken = page.evaluate(
        """async (bytes) => {
          const { prototype } = HTMLMediaElement, { play } = prototype;
          const src = Object.getOwnPropertyDescriptor(prototype, "src");
          Object.defineProperty(prototype, "src", { set(url) { this.later = url; } });
          prototype.play = function () {
            src.set.call(this, this.later);
            return play.call(this);
          };
          const file = new File([new Uint8Array(bytes)], "a.webm", { type: "video/webm" });
          return (await partsOf(file, { takes: "image" })).length;
        }""",
        [*video([(200, 0, 0), (0, 200, 0)])],
    )
    assert taken == 1


# --- the chat that is shown, on scripted routes -----------------------------------------------------------------------

AT_ONCE = """(() => {
  const wait = setTimeout;
  globalThis.setTimeout = (then, ms, ...rest) => wait(then, ms === 1000 ? 20 : ms, ...rest);
})()"""
"""The pauses of a second before another try end at once."""
CALLS = """() => {
  document.documentElement.dataset.calls = "";
  for (const name of ["chat-view", "chat-lost", "gradio-call"]) {
    document.addEventListener(name, ({ detail }) => told.push([name, detail?.live ?? detail]));
  }
}"""
OPEN = "(id) => document.dispatchEvent(new CustomEvent('chat-wanted', { detail: id }))"
STREAM, SENT = "GET runs/1/events", "POST conversations/c1/messages"


def turn(name: str, *blocks: str, running: bool = False) -> dict[str, Any]:
    """Return a turn of this id with a question of its name, and an answer of these blocks."""
    given = [("user", [f"<p>{name}?</p>"]), *([("output_text", [*blocks])] if blocks else [])]
    bubbles = [{"kind": kind, "state": "done", "blocks": blocks} for kind, blocks in given]
    return {"id": name, "is_running": running, "bubbles": bubbles}


def view(chat: str, *turns: dict[str, Any], run: str | None = None) -> dict[str, Any]:
    return {"id": chat, "run": run, "turns": turns, "has_earlier": False, "is_complete": run is None, "hidden": ""}


def event(number: int, **frame: Any) -> str:
    return f"id: {number}\ndata: {json.dumps(frame)}\n\n"


def ends(**how: Any) -> str:
    return f"event: end\ndata: {json.dumps(how)}\n\n"


def stored(chat: str, run: str) -> list[dict[str, str]]:
    """Return the lines with which the server says that a message is stored."""
    return [{"type": "done", "conversation": chat, "run": run}]


OLD, HEL = turn("Old", "<p>Yes.</p>"), turn("New", "<p>Hel</p>", running=True)
LO = [["tail", 1, 0, 4, "lo</p>"]]
"""The edits that make "Hello" of it."""
HELD = object()
"""A request that is not answered before the test says so."""
TWO_CHATS: dict[str, list[Any]] = {
    "conversations/current": [view("c1", OLD)],
    "conversations/c1": [view("c1", OLD)],
    "conversations/c2": [view("c2", turn("Other", "<p>2</p>"))],
    "GET conversations": [{"pinned": [], "conversations": [{**ROW, "id": "c2"}], "next": None}],
}
"""The first one is shown, and the list has the other one."""


class Script:
    """Answers the page's requests from lists by method and path. The last answer of a list comes again and again.

    A dictionary is JSON, a text a part of a stream, a list JSON by lines, a number a refusal, and None a lost network.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.answers = dict[str, list[Any]]()
        self.asked = list[tuple[str, str]]()
        """Of each request its method and path, and its query or body."""
        self.held = list[Route]()
        page.add_init_script(AT_ONCE)
        page.route(re.compile(f"{SITE}/(conversations|runs)"), self._answer)

    def _answer(self, route: Route) -> None:
        path, _, query = route.request.url.removeprefix(f"{SITE}/").partition("?")
        name = path if "format=blocks" in query and "runs" not in path else f"{route.request.method} {path}"
        self.asked.append((name, route.request.post_data or query))
        given = self.answers.get(name, [{}])
        self.fulfill(route, given.pop(0) if len(given) > 1 else given[0])

    def fulfill(self, route: Route, answer: Any) -> None:
        match answer:
            case None:
                route.abort()
            case int():
                route.fulfill(status=answer, json={"detail": f"Refused with {answer}."})
            case str():
                route.fulfill(body=answer, content_type="text/event-stream")
            case list():
                lines = "".join(json.dumps(line) + "\n" for line in answer)  # pyright: ignore[reportUnknownVariableType]
                route.fulfill(body=lines, content_type="application/x-ndjson")
            case dict():
                route.fulfill(json=answer)
            case _:
                self.held.append(route)

    def of(self, name: str) -> list[str]:
        """Return the queries or bodies of the requests of this name."""
        return [what for each, what in self.asked if each == name]

    def wait(self, holds: Callable[[], Any]) -> None:
        """Let the page go on until this is true."""
        becomes(True, lambda: self.page.evaluate("true") and bool(holds()))

    def told(self, kind: str) -> list[Any]:
        """Return the details of the events of a kind: of a view, the answer that it names."""
        return [detail for name, detail in self.page.evaluate("told") if name == kind]


@pytest.fixture
def chat(page: Page, load: Callable[..., None]) -> Callable[..., Script]:
    """Show chats from a script: `chat({"conversations/current": [view("c1")]})`. `before` runs before the module."""
    script = Script(page)

    def begin(answers: dict[str, list[Any]], before: str = "") -> Script:
        script.answers = answers
        load("modules/shared")
        page.evaluate(CALLS)
        page.evaluate(before)
        page.evaluate("async () => { globalThis.live = (await import('/modules/live.js')).live; }")
        return script

    return begin


@pytest.mark.gate
def test_broken_stream_draws_nothing_twice_and_its_end_is_enough(page: Page, chat: Callable[..., Script]) -> None:
    parts = [event(1, turn=HEL), None, event(1, turn=HEL) + event(2, edits=LO) + "id: 3\nda", ends(stored=True)]
    script = chat({"conversations/current": [view("c1", OLD, run="1")], STREAM: parts})
    expect(page.locator("#chat article.answer")).to_have_text(["Yes.", "Hello"])
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert [query.rpartition("after=")[2] for query in script.of(STREAM)] == ["", "1", "1", "2"]
    assert len(script.of("conversations/current")) == 1
    assert script.of("conversations/c1") == []
    assert script.told("chat-view") == ["runs/1/events?format=blocks", ""]


@pytest.mark.gate
@pytest.mark.parametrize("end", [{"stored": False}, {"stored": True, "goes_on": "2"}], ids=["not stored", "goes on"])
def test_end_that_is_not_stored_is_read_from_the_server(
    page: Page, chat: Callable[..., Script], end: dict[str, Any]
) -> None:
    goes_on, again = "POST conversations/c1/messages/New/continue", view("c1", turn("New", "<p>Whole</p>"))
    script = chat(
        {
            "conversations/current": [view("c1", run="1")],
            "conversations/c1": [again],
            STREAM: [event(1, turn=HEL) + ends(**end)],
            goes_on: [503, 409],
        }
    )
    expect(page.locator("#chat article.answer")).to_have_text("Whole")
    assert script.of(goes_on) == ['{"run":"2"}'] * 2 * ("goes_on" in end)
    assert len(script.of("conversations/c1")) == 1


@pytest.mark.gate
def test_view_from_before_an_answer_does_not_end_it(page: Page, chat: Callable[..., Script]) -> None:
    during, after = view("c1", OLD, run="1"), view("c1", OLD, turn("New", "<p>Hello</p>"))
    script = chat(
        {
            "conversations/current": [during],
            "conversations/c1": [view("c1", OLD), during, during, after],
            STREAM: [event(1, turn=HEL), HELD],
        }
    )
    answers, stop = page.locator("#chat article.answer"), page.get_by_role("button", name="Stop")
    script.wait(lambda: script.held)
    page.evaluate(OPEN, "c1")  # its view was made before the answer began
    script.wait(lambda: len(script.of("conversations/c1")) == 2)
    expect(answers).to_have_text(["Yes.", "Hel"])
    expect(stop).to_be_visible()
    script.fulfill(script.held[0], event(2, edits=LO) + ends(stored=True))
    expect(stop).to_have_count(0)
    page.evaluate(OPEN, "c1")  # its view was made before the answer ended
    script.wait(lambda: len(script.of("conversations/c1")) == 4)
    expect(answers).to_have_text(["Yes.", "Hello"])
    assert len(script.of(STREAM)) == 2
    assert [live for live in script.told("chat-view") if live] == ["runs/1/events?format=blocks"] * 2


@pytest.mark.gate
def test_answer_that_the_server_denies_twice_is_over(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [view("c1", OLD, run="1")],
            "conversations/c1": [view("c1", OLD)],
            STREAM: [event(1, turn=HEL), HELD],
        }
    )
    script.wait(lambda: script.held)
    page.evaluate(OPEN, "c1")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.locator("#chat article.answer")).to_have_text(["Yes."])
    assert len(script.of("conversations/c1")) == 2


@pytest.mark.gate
def test_chat_that_was_left_shows_nothing_more(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [view("c1", run="1")],
            "conversations/c2": [HELD],
            "conversations/c3": [view("c3", OLD, run="3")],
            "conversations/c4": [HELD],
            STREAM: [event(1, turn=HEL), HELD],
            "GET runs/3/events": [HELD],
        }
    )
    script.wait(lambda: script.held)
    for number, name in enumerate(("c2", "c4", "c3"), 2):
        page.evaluate(OPEN, name)
        script.wait(lambda number=number: len(script.held) == number)
    script.fulfill(script.held[1], view("c2", turn("Second", "<p>2</p>")))
    script.fulfill(script.held[2], 404)
    expect(page.locator("#chat article")).to_have_text(["Old?", "Yes."])
    script.fulfill(script.held[3], event(1, turn=turn("Third", "<p>3</p>", running=True)) + ends(stored=True))
    expect(page.locator("#chat article")).to_have_text(["Old?", "Yes.", "Third?", "3"])
    assert [query.rpartition("after=")[2] for query in script.of("GET runs/3/events")] == [""]


@pytest.mark.gate
def test_chat_that_was_left_too_early_is_not_read(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [view("c1", run="1")],
            "conversations/c2": [view("c2", OLD, run="2")],
            "GET runs/2/events": [event(1, turn=HEL) + ends(stored=True)],
        },
        "globalThis.place = document.querySelector('#chat'), place.remove()",
    )
    script.wait(lambda: script.told("chat-view"))
    page.evaluate(OPEN, "c2")
    script.wait(lambda: len(script.told("chat-view")) == 2)
    page.evaluate("document.querySelector('#page > div').prepend(place)")
    expect(page.locator("#chat article.answer")).to_have_text(["Yes.", "Hel"])
    assert (script.of(STREAM), len(script.of("GET runs/2/events"))) == ([], 1)


@pytest.mark.gate
def test_older_turns_stay_when_a_chat_is_read_again(page: Page, chat: Callable[..., Script]) -> None:
    newest = view("c1", turn("New", "<p>2</p>")) | {"has_earlier": True}
    older = {"turns": [OLD], "has_earlier": True}
    script = chat({"conversations/current": [newest], "conversations/c1": [older, newest]})
    answers = page.locator("#chat article.answer")
    expect(answers).to_have_text(["2"])
    page.evaluate("live.earlier()")
    expect(answers).to_have_text(["Yes.", "2"])
    page.evaluate(OPEN, "c1")
    script.wait(lambda: len(script.told("chat-view")) == 2)
    expect(answers).to_have_text(["Yes.", "2"])


@pytest.mark.gate
def test_refused_view_is_explained(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [429],
            "conversations/c1": [503],
            "conversations/c2": [404],
            "conversations/c3": [view("c3", OLD), 404],
        }
    )
    expect(page.locator("#hint")).to_have_text("Refused with 429.")
    page.evaluate(OPEN, "c1")
    script.wait(lambda: "look" in script.told("gradio-call"))
    page.evaluate(OPEN, "c2")
    expect(page.locator("#missing")).to_contain_text("does not exist")
    page.evaluate(OPEN, "c3")
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")
    page.evaluate(OPEN, "c3")
    script.wait(lambda: script.told("chat-lost"))
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")  # until the list has followed


@pytest.mark.gate
def test_silent_request_is_said_and_sent_again(page: Page, chat: Callable[..., Script]) -> None:
    """A connection of before a break can look open for minutes. A second after Enter the page says that it sends."""
    script = chat(
        {
            "conversations/current": [view("c1", OLD)],
            "conversations/c1": [view("c1", OLD)],
            SENT: [HELD, stored("c1", "1")],
            STREAM: [event(1, turn=HEL) + ends(stored=True)],
        }
    )
    box = page.get_by_role("textbox", name="Message")
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")
    box.fill("New?")
    box.press("Enter")
    expect(page.locator("#sending .doing")).to_have_text("Sending…")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator("#chat article.answer")).to_have_text(["Yes.", "Hel"])
    expect(box).to_have_value("")
    first, second = (json.loads(body) for body in script.of(SENT))
    assert (first["again"], second["again"]) == (False, True)
    assert first["id"] == second["id"]


@pytest.mark.gate
def test_edit_that_is_accepted_late_is_no_draft(page: Page, chat: Callable[..., Script]) -> None:
    edited = "PATCH conversations/c1/messages/Old"
    script = chat(
        {
            "conversations/current": [view("c1", OLD)],
            "conversations/c1": [view("c1", OLD)],
            "conversations/c2": [view("c2", turn("Other", "<p>2</p>"))],
            "GET conversations/c1/messages/Old/text": [{"message": "Old?"}],
            edited: [HELD],
        }
    )
    page.get_by_role("button", name="Edit").click()
    page.locator(".edit textarea").fill("Older?")
    page.locator(".edit textarea").press("Enter")
    script.wait(lambda: script.held)
    page.evaluate(OPEN, "c2")
    expect(page.locator("#chat article.answer")).to_have_text("2")
    script.fulfill(script.held[0], {"run": "1"})
    kept = "JSON.parse((dispatchEvent(new Event('pagehide')), sessionStorage.getItem('drafts')) ?? '{}')"
    becomes({}, lambda: page.evaluate(kept))


def test_passage_of_a_chat_that_was_left_is_not_shown(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [view("c1", OLD)],
            "conversations/c2": [view("c2", turn("Other", "<p>2</p>"))],
            "POST conversations/c1/passage": [HELD],
            "POST conversations/c2/passage": [HELD],
        }
    )
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")
    source = {"turn": "Old", "source": {"title": "a.txt", "page": 1, "number": 1}, "passage": "a"}
    press = "(detail) => document.dispatchEvent(new CustomEvent('transcript:source', { detail }))"
    page.evaluate(press, source)
    script.wait(lambda: script.held)
    page.evaluate(OPEN, "c2")
    expect(page.locator("#chat article.answer")).to_have_text("2")
    found = {"document": "a.txt", "page": 1, "count": 1, "is_found": True, "text": ["", "a", ""]}
    script.fulfill(script.held[0], found)
    becomes(True, lambda: page.evaluate(press, source) and bool(script.of("POST conversations/c2/passage")))
    expect(page.locator("dialog[open]")).to_have_count(0)


@pytest.mark.gate
def test_late_undo_and_copy_stay_with_their_chat(page: Page, chat: Callable[..., Script]) -> None:
    undone, copied = "DELETE conversations/c1/messages/Old", "POST conversations/c1/messages/Old/copy"
    script = chat(
        {
            **TWO_CHATS,
            undone: [HELD],
            copied: [HELD],
        }
    )
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")
    page.evaluate("void live.actions.undo('Old'), void live.actions.branch('Old')")
    script.wait(lambda: len(script.held) == 2)
    page.locator("#chats li[data-id=c2] a").click()
    expect(page.locator("#chat article.answer")).to_have_text("2")
    page.get_by_role("textbox", name="Message").fill("Typed")
    by_method = {route.request.method: route for route in script.held}
    script.fulfill(by_method["POST"], {"conversation": "c3"})
    script.fulfill(by_method["DELETE"], {"text": "Old?", "files": []})
    kept = "JSON.parse((dispatchEvent(new Event('pagehide')), sessionStorage.getItem('drafts')) ?? '{}')"
    becomes({"c1": "Old?", "c2": "Typed"}, lambda: page.evaluate(kept))
    assert page.evaluate("location.pathname") == "/c/c2"


@pytest.mark.gate
def test_late_edit_leaves_the_other_text_of_its_chat(page: Page, chat: Callable[..., Script]) -> None:
    edited = "PATCH conversations/c1/messages/Old"
    script = chat(
        {
            **TWO_CHATS,
            "GET conversations/c1/messages/Old/text": [{"message": "Old?"}],
            edited: [HELD],
        }
    )
    page.get_by_role("textbox", name="Message").fill("Later")
    page.get_by_role("button", name="Edit").click()
    page.locator(".edit textarea").fill("Older?")
    page.locator(".edit textarea").press("Enter")
    script.wait(lambda: script.held)
    page.locator("#chats li[data-id=c2] a").click()
    expect(page.locator("#chat article.answer")).to_have_text("2")
    script.fulfill(script.held[0], {"run": "1"})
    kept = "JSON.parse((dispatchEvent(new Event('pagehide')), sessionStorage.getItem('drafts')) ?? '{}')"
    becomes({"c1": "Later"}, lambda: page.evaluate(kept))


@pytest.mark.gate
def test_message_is_stored_once_or_stays(page: Page, chat: Callable[..., Script]) -> None:
    script = chat(
        {
            "conversations/current": [view("c1", OLD)],
            "conversations/c1": [view("c1", OLD)],
            "GET conversations": [{"pinned": [], "conversations": [ROW], "next": None}],
            "GET conversations/c1": [404],
            SENT: [None, [{"type": "progress", "text": "Reading", "can_stop": False}], HELD, 409, 429, 404],
            STREAM: [event(1, turn=HEL) + ends(stored=True)],
            "POST conversations": [stored("c2", "")],
            "conversations/c2": [view("c2", turn("Other"))],
        }
    )
    box = page.get_by_role("textbox", name="Message")
    expect(page.locator("#chat article.answer")).to_have_text("Yes.")
    box.fill("New?")
    box.press("Enter")  # the network is lost, and then the process ends before it says that it has stored the message
    script.wait(lambda: script.held)
    box.press("Enter")
    script.fulfill(script.held[0], stored("c1", "1"))
    expect(page.locator("#chat article.answer")).to_have_text(["Yes.", "Hel"])
    expect(box).to_have_value("")
    box.fill("Other?")
    for status in (409, 429):
        box.press("Enter")
        expect(page.locator("#hint")).to_have_text(f"Refused with {status}.")
        expect(box).to_have_value("Other?")
    box.press("Enter")  # the chat was deleted meanwhile
    expect(page.locator("#chat article")).to_have_text(["Other?"])
    expect(box).to_have_value("")
    sent = [json.loads(body) for body in [*script.of(SENT), *script.of("POST conversations")]]
    assert [one["again"] for one in sent] == [False, True, True, False, True, True, True]
    assert len({one["id"] for one in sent[:3]}) == len({one["id"] for one in sent[3:]}) == 1
    assert sent[0]["id"] != sent[3]["id"]
