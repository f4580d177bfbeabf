"""The transcript in Chromium: the example in Gradio, and its module alone, as our page uses it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from agent.rendering.bubbles import Turn, edits
from agent.rendering.markdown import Blocks, to_blocks
from agent.settings import ROOT
from agent.web.ui.page_text import translated
from tests.conftest import becomes
from tests.peers.axe import grave
from tests.support.http_client import marker
from tests.support.ports import free_port
from tests.support.scripted_server import Config, Running

SERVER = Config(rate=100)
MODULES = ROOT / "agent/web/ui/transcript"
HOSTILE = (
    '<img src=x onerror="hacked=1"> <script>hacked=1</script> <svg/onload=hacked=1> <style>*{display:none}</style> '
    "![p](https://evil.example/p.png) [j](javascript:hacked=1) <iframe src=https://evil.example> "
    "<math href=//evil.example>"
)


@pytest.fixture(scope="module")
def example(server: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the example, which runs as a program of its own."""
    port, log = free_port(), tmp_path_factory.mktemp("example") / "log"
    env = {**os.environ, "VLLM_BASE_URL": server.base_url, "GRADIO_SERVER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "examples/transcript.py"], cwd=ROOT, env=env, stdout=out, stderr=out
        )
    try:
        becomes(True, lambda: f":{port}" in log.read_text() or process.poll() is not None, seconds=120)
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def kinds(page: Page) -> list[str]:
    """Return the kinds of the last turn's bubbles, in their order on the page."""
    return page.locator(".turn").last.locator(".bubble").evaluate_all("all => all.map(one => one.dataset.kind)")


@pytest.mark.gate("A program of one's own shows an agent in a transcript.")
def test_example_streams_an_agent_into_its_page(example: str, page: Page, server: Running) -> None:
    requests, errors = list[str](), list[str]()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(example)
    box, answer = page.get_by_role("textbox", name="Message"), page.get_by_role("article", name="Answer")

    def ask(text: str) -> None:
        count = answer.count()
        box.fill(text)
        box.press("Enter")
        expect(answer).to_have_count(count + 1)

    def ended() -> Locator:
        expect(page.get_by_role("button", name="Copy message")).to_have_count(page.locator(".turn").count())
        return answer.last

    ask(f'!reasoning Hm *x*. !tool word_count {{"text": "a b"}} !text **Two** words. {HOSTILE}')
    said = ended()
    assert kinds(page) == ["user", "reasoning", "tool_call", "tool_call_result", "output_text"]
    said.get_by_text("word_count", exact=True).click()
    expect(said.locator('[data-kind="tool_call"] pre')).to_have_text(['{\n  "text": "a b"\n}', "2"])
    expect(said.locator("strong")).to_have_text("Two")
    assert said.locator("img, svg, script, style, iframe").count() == 0
    page.get_by_role("button", name="Copy message").click()
    becomes(f"**Two** words. {HOSTILE}", lambda: page.evaluate("navigator.clipboard.readText()"))

    ask(f"!markdown 80 hold 40 {(held := marker())}")
    expect(answer.last.locator(".part").nth(1)).to_be_visible()
    answer.last.locator(".part").first.evaluate("part => part.kept = 1")
    server.release(held)
    assert ended().locator(".part").first.evaluate("part => part.kept") == 1

    ask("!text A !error-event 1")
    expect(page.locator('[data-kind="error"]')).to_be_visible()
    assert kinds(page) == ["user", "output_text", "error"]

    note = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"The word is teapot."}
    page.locator(".composer input[type=file]").set_input_files([cast(Any, note)])
    expect(page.get_by_role("button", name="Remove file: notes.txt")).to_be_visible()
    ask("!text Read.")
    ended()
    expect(page.locator(".composer .file")).to_have_count(0)
    assert "teapot" in json.dumps(server.journal()[-1]["body"])

    ask("!stall-after 3")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(ended().locator("xpath=..").locator(".caption")).to_have_text("Stopped.")
    expect(page.locator(".waiting:visible")).to_have_count(0)
    assert not errors
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(example).netloc}
    assert not any(str(ROOT) in url for url in requests)
    assert page.evaluate("globalThis.hacked") is None


@pytest.fixture
def transcript(page: Page) -> Callable[..., Any]:
    """Call the module alone: `transcript("apply", edits, id)`. The transcript is 300 px high."""
    from agent.web.ui.transcript.component import Transcript

    def file(route: Route) -> None:
        name = urlsplit(route.request.url).path.removeprefix("/")
        link = (
            '<!doctype html><html lang="en"><title>t</title><link rel="stylesheet" href="/transcript.css"><main></main>'
        )
        if name:
            route.fulfill(path=MODULES / name)
        else:
            route.fulfill(body=link, content_type="text/html")

    page.route("https://transcript.example/**", file)
    page.goto("https://transcript.example/")
    page.evaluate(
        """async (options) => {
          const { mount } = await import("/transcript.js"), main = document.querySelector("main");
          globalThis.events = [];
          for (const name of ["choose", "retry", "version", "edit", "unsent", "failed"]) {
            main.addEventListener(`transcript:${name}`, ({ detail }) => events.push([name, detail]));
          }
          globalThis.shown = mount(main, options);
        }""",
        {"labels": translated(Transcript.LABELS, "en"), "language": "en", "actions": ["retry"], "height": "300px"},
    )
    return lambda name, *given: page.evaluate("([name, given]) => shown[name](...given)", [name, given])


def bubble(kind: str, blocks: list[str], **fields: Any) -> dict[str, Any]:
    """Return a bubble that has ended, or with other fields."""
    return {"kind": kind, "state": "done", "blocks": blocks, **fields}


def turn(id_: str, *bubbles: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a turn that has ended, or with other fields."""
    return {"id": id_, "is_running": False, "bubbles": [*bubbles], **fields}


def scrolled(page: Page) -> list[int]:
    """Return how far the transcript is scrolled, and how far from its end it is."""
    return page.locator(".transcript").evaluate(
        "one => [one.scrollTop, one.scrollHeight - one.clientHeight - one.scrollTop].map(Math.round)"
    )


@pytest.mark.gate
def test_growing_text_keeps_selection_and_folds(page: Page, transcript: Callable[..., Any]) -> None:
    blocks, text = Blocks(), "<details>\n<summary>More</summary>\n\ninside\n\n</details>\n\nThe first words"
    blocks.update(text)
    running = turn(
        "1", bubble("reasoning", ["<p>Hm</p>"], seconds=1.25), bubble("output_text", blocks.html, state="running")
    )
    transcript("show", [{**running, "is_running": True}])
    page.get_by_text("More").click()
    page.get_by_text("1.3 s", exact=True).click()
    page.evaluate(
        """() => { const text = document.querySelector("[data-kind=output_text] .part:last-child p").firstChild;
          getSelection().setBaseAndExtent(text, 4, text, 9); }"""
    )
    for more in (" grow", ",\n**bold**", "\n\n| a |\n|---|\n| 1 |\n"):
        text += more
        first = blocks.update(text)
        transcript("apply", [["blocks", 1, first, blocks.html[first:]]], "1")
    transcript(
        "apply", [["bubble", 1, bubble("output_text", to_blocks(text))], ["turn", {"id": "1", "is_running": False}]]
    )
    assert page.evaluate("String(getSelection())") == "first"
    expect(page.get_by_text("inside")).to_be_visible()
    expect(page.get_by_text("Hm", exact=True)).to_be_visible()
    drawn = page.locator('[data-kind="output_text"] .part')
    assert [one.strip() for one in drawn.all_inner_texts()] == [
        "More\n\ninside",
        "The first words grow,\nbold",
        "Markdown\nCSV\na\n1",
    ]
    expect(page.get_by_role("status").get_by_role("paragraph").last).to_have_text("Answer ready")


REACHED = """() => [...document.querySelectorAll("[data-kind] [tabindex]")].map((one) =>
  [one.localName, one.getAttribute("role"), one.getAttribute("aria-label")])"""


@pytest.mark.gate
def test_block_can_be_scrolled_by_keyboard_only_if_it_is_wide(page: Page, transcript: Callable[..., Any]) -> None:
    wide = " ".join(f"word{number}" for number in range(99))
    text = f"```\n{wide}\n```\n\n|{'a|' * 99}\n|{'-|' * 99}\n\n$$\n{'a+' * 99}b\n$$\n\n> |{'a|' * 99}\n> |{'-|' * 99}\n"
    wanted = [
        ["code", "group", "Code"],
        ["div", "group", "Table"],
        ["math", "group", "Formula"],
        ["table", None, "Table"],
    ]
    blocks, short = Blocks(), "```\nword\n```\n\n| a |\n|---|\n| b |\n\n$$\na\n$$\n"
    transcript("show", [turn("1", bubble("output_text", to_blocks(short)), bubble("output_text", [], state="running"))])
    for size in range(0, len(text) + 40, 40):  # whatever is added at a time
        first = blocks.update(text[:size])
        transcript("apply", [["blocks", 1, first, blocks.html[first:]]], "1")
    transcript("apply", [["bubble", 1, bubble("output_text", to_blocks(text))]], "1")
    becomes(wanted, lambda: page.evaluate(REACHED))
    assert grave(page) == []
    transcript("apply", [["bubble", 1, bubble("output_text", to_blocks(short))]], "1")
    becomes([], lambda: page.evaluate(REACHED))


@pytest.mark.gate
def test_long_block_is_copied_and_saved_whole(page: Page, transcript: Callable[..., Any]) -> None:
    """The server cuts it, and each later part is `more` of it."""
    code = ['<pre{}><code class="language-python">one\n</code></pre>', '<pre class="more"><code>  two\n</code></pre>']
    head = "<thead><tr><th>a</th></tr></thead>"
    table = [
        f'<table{more}>{head}<tbody><tr><td class="at-right">{cell}</td></tr></tbody></table>'
        for cell, more in (("0", ""), ("1", ' class="more"'), ("=1+1", ' class="more"'))
    ]
    blocks = [code[0].format(""), code[1], "<p>text</p>", *table, table[0]]
    transcript("show", [turn("1", bubble("output_text", blocks))])
    for name, text in (("code", "one\n  two\n"), ("csv", "a\r\n0\r\n1\r\n'=1+1\r\n")):
        buttons = page.locator(f"[data-action={name}]")
        expect(buttons).to_have_count(1 + (name == "csv"))
        buttons.first.click()
        becomes(text, lambda: page.evaluate("navigator.clipboard.readText()"))
        expect(page.locator(".said p").last).to_have_text("Copied")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as code.py").click()
    assert download.value.path().read_text() == "one\n  two\n"


@pytest.mark.gate
def test_panel_keeps_a_chosen_version_and_follows_the_newest(page: Page, transcript: Callable[..., Any]) -> None:
    def show(count: int) -> None:
        codes = [f'<pre><code class="language-csv">a\n{number}\n</code></pre>' for number in range(1, count + 1)]
        transcript("show", [turn(str(number), bubble("output_text", [code])) for number, code in enumerate(codes)])

    panel = page.locator("section.artifact")
    show(1)
    page.get_by_role("button", name="Preview").click()
    expect(panel.get_by_role("cell")).to_have_text("1")
    show(2)
    expect(panel.locator(".count")).to_have_text("2/2")
    expect(panel.get_by_role("cell")).to_have_text("2")
    panel.get_by_role("button", name="Previous version").click()
    show(3)
    expect(panel.locator(".count")).to_have_text("1/3")
    expect(panel.get_by_role("cell")).to_have_text("1")
    for _ in range(2):
        panel.get_by_role("button", name="Next version").click()
    show(4)
    expect(panel.locator(".count")).to_have_text("4/4")
    expect(panel.get_by_role("cell")).to_have_text("4")


@pytest.mark.gate
def test_tasks_have_names_and_long_numbers_have_room(page: Page, transcript: Callable[..., Any]) -> None:
    blocks, text = Blocks(), "- [ ] Buy **milk**\n  - and more\n- [x]\n\n998. a\n999. b\n1000. c\n1001. d\n"
    transcript("show", [turn("1", bubble("output_text", [], state="running"))])
    for size in range(len(text) + 1):
        first = blocks.update(text[:size])
        transcript("apply", [["blocks", 0, first, blocks.html[first:]]], "1")
    expect(page.get_by_role("checkbox")).to_have_count(1)
    expect(page.get_by_role("checkbox", name="Buy milk", exact=True)).to_have_count(1)
    page.set_viewport_size({"width": 390, "height": 700})
    room = page.locator("ol").evaluate("list => parseFloat(getComputedStyle(list).paddingInlineStart)")
    assert room > page.locator("ol").evaluate("""list => {
      const number = document.createElement("span");
      number.textContent = "1001. ";
      list.append(number);
      return number.getBoundingClientRect().width;
    }""")


@pytest.mark.gate
def test_view_follows_the_end_only_while_the_reader_is_there(page: Page, transcript: Callable[..., Any]) -> None:
    lines = [f"<p>line {number}</p>" for number in range(40)]
    transcript(
        "show", [turn("2", bubble("user", lines)), turn("3", bubble("output_text", lines[:20]), is_running=True)]
    )
    becomes(0, lambda: scrolled(page)[1])
    transcript("apply", [["blocks", 0, 20, lines[20:25]]])
    becomes(0, lambda: scrolled(page)[1])
    to_end = page.get_by_role("button", name="Jump to the end")
    page.locator(".transcript").dispatch_event("wheel", {"deltaY": -1})  # a busy page scrolls later
    transcript("apply", [["blocks", 0, 25, lines[25:30]]])
    to_end.click()
    becomes(0, lambda: scrolled(page)[1])
    page.locator(".transcript").hover()
    page.mouse.wheel(0, -400)
    expect(to_end).to_be_visible()
    place, _ = scrolled(page)
    transcript("apply", [["blocks", 0, 30, lines[30:]]])
    becomes(True, lambda: scrolled(page)[1] > 400)
    assert scrolled(page)[0] == place
    seen = "() => document.elementFromPoint(300, 150).textContent"
    before = page.evaluate(seen)
    both = [turn("2", bubble("user", lines)), turn("3", bubble("output_text", lines))]
    transcript("show", [turn("1", bubble("user", lines)), *both])
    assert page.evaluate(seen) == before
    to_end.click()
    becomes(0, lambda: scrolled(page)[1])
    expect(to_end).to_be_hidden()


@pytest.mark.gate
def test_steps_fold_and_buttons_are_events(page: Page, transcript: Callable[..., Any]) -> None:
    steps = [
        bubble("steps", [], title="Thought 2.0 s · 2 tools", steps=5),
        bubble("reasoning", ["<p>Hm</p>"], seconds=2.0),
        bubble("tool_call", ["<pre>1</pre>"], title="Calculate"),
        bubble("tool_call_result", ["<pre>2</pre>"], title="Result", inside=True),
        bubble("tool_call", ["<pre>3</pre>"], title="Weather · failed", state="failed"),
        bubble("tool_call", ["<pre>4</pre>"], title="Send · waiting", state="waiting"),
        bubble("question", ["<p>Which?</p>"], state="waiting"),
    ]
    below = {
        "answer_versions": {"ids": ["a", "b", "c"], "number": 2},
        "caption": "<b>model</b>",
        "buttons": [{"label": label, "value": {"text": label}} for label in ("One", "Both")],
    }
    earlier = turn("0", bubble("user", ["<p>P</p>"]), buttons=[{"label": "Continue", "value": {}}])
    transcript("show", [earlier, turn("1", bubble("user", ["<p>Q</p>"]), *steps, **below)])
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()
    row = page.get_by_role("button", name="Thought 2.0 s")
    expect(page.get_by_text("Calculate")).to_be_hidden()
    for shown in ("Weather", "Send"):
        expect(page.get_by_text(shown)).to_be_visible()
    row.press("Enter")
    page.get_by_text("Calculate").click()
    expect(page.locator("pre").filter(has_text="2")).to_be_visible()
    assert grave(page) == []
    for name in ("Both", "Next version of the answer", "Retry"):
        page.get_by_role("button", name=name).last.click()
    assert page.evaluate("events") == [
        ["choose", {"turn": "1", "value": {"text": "Both"}}],
        ["version", {"turn": "1", "message": "c", "part": "answer"}],
        ["retry", {"turn": "1"}],
    ]
    reply = [
        bubble("question", ["<p>Which?</p>"]),
        bubble("user", ["<p>Both</p>"]),
        bubble("output_text", ["<p>Ok</p>"]),
    ]
    ended = ["turn", {"id": "1", "is_running": False}]
    transcript("apply", [*(["bubble", 7 + number, one] for number, one in enumerate(reply)), ended], "1")
    expect(page.get_by_role("article")).to_have_count(5)
    expect(page.get_by_role("button", name="Both")).to_have_count(0)
    expect(page.locator("pre").filter(has_text="2")).to_be_visible()
    transcript("apply", [["cut", 1]], "1")
    expect(page.get_by_role("article")).to_have_count(2)
    wait = {"why": "2 answers are before this one.", "seconds": 3.0, "number": 1}
    transcript("apply", [["turn", {"id": "1", "is_running": True, "waiting": wait}]], "1")
    expect(page.get_by_text(wait["why"])).to_be_visible()


def heard(page: Page) -> list[str]:
    """Return what a screen reader was told."""
    return page.locator(".said p").all_inner_texts()


@pytest.mark.gate
def test_screen_reader_hears_what_is_new(page: Page, transcript: Callable[..., Any]) -> None:
    """That is finished sentences, steps, failures, questions and the end, and nothing of what was there before."""
    before = turn("1", bubble("output_text", ["<p>An old answer.</p>"]))
    transcript("show", [before])
    asked = bubble("user", ["<p>What?</p>"])
    growing = bubble("output_text", ["<p>One is 3.5 m. Two is **th</p>\n"], state="running")
    call = bubble("tool_call", ["<p>{}</p>"], title="Weather", state="running", seconds=0.0)
    new = turn("2", asked, bubble("reasoning", ["<p>Hm.</p>"], seconds=2.0), call, growing, is_running=True)
    transcript("show", [before, new], {"isNew": True})
    becomes(["Reasoning Weather One is 3.5 m."], lambda: heard(page))
    failed = {**call, "title": "Weather · failed", "state": "failed"}
    blocks = ["<p>One is 3.5 m. Two is <b>three</b><br>and</p>", '<p><math alttext="x^2"><mi>x</mi></math>是的。不</p>']
    transcript("apply", [["bubble", 2, failed], ["blocks", 3, 0, blocks]], "2")
    becomes("Weather · failed Two is three and x^2是的。", lambda: heard(page)[-1])
    ended = [
        ["bubble", 3, bubble("output_text", blocks)],
        ["bubble", 4, bubble("question", ["<p>Which?</p>"], state="waiting")],
    ]
    transcript("apply", [*ended, ["turn", {"id": "2", "is_running": False}]], "2")
    becomes(["不 Which?", "Waiting for you"], lambda: heard(page)[2:])
    transcript("show", [turn("7", bubble("output_text", ["<p>Of another chat.</p>"]))])
    assert heard(page) == []


@pytest.mark.gate
def test_wait_says_why_and_is_counted(page: Page, transcript: Callable[..., Any]) -> None:
    wait = {"why": "", "seconds": 2.5, "number": 1}
    waiting = {"is_running": True, "waiting": wait}
    transcript("show", [turn("1", bubble("user", ["<p>What?</p>"]), **waiting)])
    expect(page.get_by_role("img", name="waiting for the model")).to_be_attached()
    assert page.locator(".waiting .time").inner_text() == ""
    expect(page.locator(".waiting .time")).to_have_text("Waiting for the model · 3 s")
    for why in ("2 ahead of you", ""):
        transcript("apply", [["turn", {"id": "1", **waiting, "waiting": {**wait, "why": why, "seconds": 90.0}}]], "1")
        expect(page.locator(".waiting .why")).to_have_text(why)
    expect(page.locator(".waiting .time")).to_have_text(re.compile(r"· \d s$"))  # it is the same wait
    transcript("apply", [["turn", {"id": "1", "is_running": False}]], "1")
    expect(page.locator(".waiting")).to_be_hidden()


@pytest.mark.gate
def test_place_holds_and_what_is_unfolded_comes_into_view(page: Page, transcript: Callable[..., Any]) -> None:
    lines = [f"<p>line {number}</p>" for number in range(40)]
    thought = bubble("reasoning", [f"<p>thought {number}</p>" for number in range(5)], title="Thought")
    turns = [turn("2", bubble("output_text", lines)), turn("3", bubble("output_text", lines[:4]), thought)]
    page.evaluate("""addEventListener("transcript:earlier", () => (globalThis.asked = (globalThis.asked ?? 0) + 1))""")
    transcript("show", turns, {"hasEarlier": True})
    becomes(0, lambda: scrolled(page)[1])
    page.get_by_text("Thought", exact=True).click()
    expect(page.get_by_text("thought 4")).to_be_in_viewport(ratio=1)
    becomes(0, lambda: scrolled(page)[1])  # the end is in view, so that it is followed
    assert page.evaluate("globalThis.asked") is None
    page.locator(".transcript").hover()
    page.mouse.wheel(0, -10_000)
    becomes(0, lambda: scrolled(page)[0])
    becomes(True, lambda: bool(page.evaluate("globalThis.asked")))
    seen = page.get_by_text("line 3", exact=True).first
    before = seen.bounding_box()
    older = turn("1", bubble("output_text", lines))
    transcript("show", [older, *turns])
    transcript("apply", [["bubble", 2, bubble("output_text", lines)]], "3")
    becomes(True, lambda: scrolled(page)[0] > 0)
    after = page.locator('[data-turn="2"]').get_by_text("line 3", exact=True).bounding_box()
    assert before
    assert after
    assert abs(after["y"] - before["y"]) <= 1


EDITING = """async ([labels, turns]) => {
  const { mount } = await import("/transcript.js"), main = document.querySelector("main");
  main.replaceChildren();
  const textOf = (id, part) => new Promise((done, fail) => (globalThis.route = { id, part, done, fail }));
  globalThis.shown = mount(main, { labels, actions: ["copy", "edit", "retry", "undo"], textOf });
  shown.show(turns);
}"""
"""Shows the turns with a route for their texts that answers when the test says so."""


@pytest.mark.gate
def test_message_is_edited_in_its_place(page: Page, transcript: Callable[..., Any]) -> None:
    """A slow or failing route, a redraw, a refusal and a message that is gone lose nothing of what was typed."""
    from agent.web.ui.transcript.component import Transcript

    asked = [
        "<p>One</p>",
        '<p class="file"><img alt="red" src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="></p>',
    ]
    turns = [
        turn("1", bubble("user", asked), bubble("output_text", ["<p>A</p>"]), kept="1 file stays with this message"),
        turn("2", bubble("user", ["<p>Two</p>"]), bubble("error", ["<p>B</p>"], state="failed")),
    ]
    page.evaluate(EDITING, [translated(Transcript.LABELS, "en"), turns])
    edit, box = page.get_by_role("button", name="Edit"), page.get_by_role("textbox", name="Edit your message")
    expect(page.get_by_role("button", name="Copy message")).to_have_count(3)  # an error is no text
    for name in ("Retry", "Undo"):
        expect(page.get_by_role("button", name=name)).to_have_count(1)
    page.get_by_role("button", name="Copy message").first.click()
    assert page.evaluate("[route.id, route.part]") == ["1", "message"]
    page.evaluate("route.done('**One**')")
    edit.first.click()
    expect(page.get_by_text("The text is being loaded")).to_be_visible()
    expect(box).to_be_hidden()
    page.evaluate("route.fail(new Error('No way.'))")
    expect(edit.first).to_be_focused()
    assert page.evaluate("events.at(-1)") == ["failed", {"text": "No way."}]
    edit.first.click()
    page.evaluate("route.done('**One**')")
    expect(box).to_be_focused()
    expect(box).to_have_value("**One**")
    expect(page.get_by_text("One", exact=True)).to_be_hidden()
    expect(page.get_by_role("img", name="red")).to_be_visible()
    expect(page.get_by_text("1 file stays")).to_be_visible()
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("x")
    page.keyboard.press("Escape")
    expect(edit.first).to_be_focused()
    expect(page.get_by_text("One", exact=True)).to_be_visible()
    assert [name for name, _ in page.evaluate("events")] == ["failed"]  # who cancels wants nothing kept

    edit.first.click()
    page.evaluate("route.done('**One**')")
    page.keyboard.type(" more")
    page.evaluate("(turns) => shown.show(turns)", [{**turns[0], "caption": "c"}, {**turns[1], "is_running": True}])
    expect(edit).to_have_count(0)  # none while an answer is written
    expect(box).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("events").count(["edit", {"turn": "1", "text": "**One** more"}]) == 1
    page.evaluate("shown.edited(false)")
    page.keyboard.type("!")
    expect(box).to_have_value("**One** more!")
    page.evaluate("(turns) => shown.show(turns)", turns[1:])
    expect(box).to_have_count(0)
    assert page.evaluate("events.at(-1)") == ["unsent", {"text": "**One** more!"}]


COUNT_WRITES = """() => {
  globalThis.writes = 0;
  const watch = { subtree: true, childList: true, attributes: true, characterData: true };
  new MutationObserver((all) => (writes += all.length)).observe(document.querySelector(".turns"), watch);
}"""


def steps(count: int, *, results: Sequence[int] = (), state: str = "running") -> list[dict[str, Any]]:
    """Return a row with a thought and calls, of which some have results."""
    out = [bubble("reasoning", ["<p>Hm</p>"], title="Reasoning")]
    for number in range(count):
        out.append(bubble("tool_call", [f"<pre>{number}</pre>"], title=f"Call {number}"))
        if number in results:
            out.append(bubble("tool_call_result", ["<pre>r</pre>"], title="Result", inside=True))
        else:
            out[-1]["state"] = "running"
    return [bubble("steps", [], state=state, title=f"{count} tools", steps=len(out)), *out]


@pytest.mark.gate
def test_steps_that_come_between_keep_folds_and_focus(page: Page, transcript: Callable[..., Any]) -> None:
    asked, text = bubble("user", ["<p>Q</p>"]), bubble("output_text", ["<p>Done</p>"], state="running")
    old = turn("1", asked, bubble("reasoning", ["<p>Hm</p>"], title="Reasoning", state="running"), is_running=True)
    transcript("show", [old])

    def become(*bubbles: dict[str, Any], is_running: bool = True) -> None:
        nonlocal old
        new = turn("1", asked, *bubbles, is_running=is_running)
        transcript("apply", edits(cast(Turn, old), cast(Turn, new)), "1")
        old = new

    def title(name: str) -> Locator:
        return page.locator("summary, button").filter(has_text=re.compile(rf"^{name}"))

    thought, row, second = page.get_by_text("Hm", exact=True), title("2 tools"), title("Call 1")
    expect(thought).to_be_visible()
    become(*steps(2))
    expect(thought).to_be_hidden()
    title("Reasoning").click()
    second.click()
    expect(second).to_be_focused()
    for results in ((0,), (0, 1)):
        become(*steps(2, results=results))
        expect(second).to_be_focused()
        expect(page.get_by_text("1", exact=True)).to_be_visible()
    expect(thought).to_be_visible()
    become(*steps(2, results=(0, 1), state="done"), text)
    expect(row).to_be_focused()
    expect(row).to_have_attribute("aria-expanded", "false")
    expect(second).to_be_hidden()
    for key in ("Enter", " ", " "):
        row.press(key)
    expect(thought).to_be_visible()
    become(*steps(2, results=(0, 1), state="done"), {**text, "state": "done"}, is_running=False)
    transcript("show", [old])
    expect(row).to_have_attribute("aria-expanded", "true")
    expect(row).to_be_focused()
    page.keyboard.press("Tab")
    expect(title("Reasoning")).to_be_focused()
    expect(page.get_by_text("1", exact=True)).to_be_visible()


@pytest.mark.gate
def test_result_of_one_of_many_calls_costs_bounded_work(page: Page, transcript: Callable[..., Any]) -> None:
    old = turn("1", *steps(64), is_running=True)
    transcript("show", [old])
    page.evaluate(COUNT_WRITES)
    most = 0
    for number in range(64):
        new = turn("1", *steps(64, results=range(number + 1)), is_running=True)
        transcript("apply", edits(cast(Turn, old), cast(Turn, new)), "1")
        old = new
        most = max(most, page.evaluate("writes"))
        page.evaluate("writes = 0")
    expect(page.locator("details details")).to_have_count(64)
    assert most <= 12
