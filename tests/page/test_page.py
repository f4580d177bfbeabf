"""The page in real Chromium: bubbles, stop, reload, retry, edit, undo, settings. Each test is one visitor."""

import re
import select
import socket
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.conftest import App, Visit, Visitor, becomes
from tests.support.http_client import marker
from tests.support.scripted_server import Running

# Bubbles


@pytest.mark.gate("Reasoning, text and each tool call have a bubble.")
def test_each_type_starts_a_bubble(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.allow_tools()
    visitor.ask('!reasoning I should add them. !text Adding. !tool calculate {"expression": "17+25"} !text It is 42.')
    kinds = ["reasoning", "output_text", "tool_call", "tool_call_result", "output_text"]
    assert visitor.bubbles.evaluate_all("all => all.map(one => one.dataset.kind)") == kinds
    expect(visitor.bubbles.nth(0).locator(".title")).to_have_text(re.compile(r"Reasoning( · [\d.]+ s)?"))
    expect(visitor.bubbles.nth(1)).to_have_text("Adding.")
    expect(visitor.bubbles.nth(2).locator(".title").first).to_contain_text("Calculate")
    expect(visitor.bubbles.nth(4)).to_have_text("It is 42.")
    visitor.bubbles.nth(2).locator(".title").first.click()
    nested = visitor.bubbles.nth(2).locator(".bubble")
    expect(nested.locator(".title")).to_have_text("Result")
    expect(nested.locator(".part")).to_have_text("42")
    expect(visitor.caption).to_contain_text("s to first token")
    visitor.shot("bubbles")


@pytest.mark.gate("A failure is explained in the chat, which continues.")
def test_error_is_a_bubble_and_chat_continues(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!status 401")
    expect(visitor.chat.locator("[data-kind=error]")).to_have_text("The server's key was rejected. Tell its owner.")
    visitor.shot("error")
    visitor.ask("!cut 5")
    expect(visitor.chat.locator("[data-kind=error]").last).to_contain_text("broke off")
    visitor.ask("!text Back again.")
    expect(visitor.chat).to_contain_text("Back again.")


@pytest.mark.gate("What a model writes cannot become part of the page.")
def test_model_output_cannot_inject_html(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
        visitor.ask(
            f"!text <img src={url}/leak.png onerror=window.broken=1> ![x]({url}/leak2.png) "
            "<script>window.broken=1</script> <b onclick=window.broken=1>bold</b>"
        )
        expect(visitor.bubbles.first).to_contain_text("bold")
        assert visitor.page.evaluate("window.broken") is None
        assert not select.select([elsewhere], [], [], 0.5)[0], "the browser connected to another site"


def test_html_of_a_message_stays_in_the_chat(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    over = "position:fixed;top:0;left:0;width:900px;height:400px;z-index:9999;background:red"
    html = (
        f"<div style='{over}'>Over.</div> <p><input type=password placeholder=Password><textarea></textarea></p> End."
    )
    visitor.ask("!text Hello.")
    # The server escapes HTML. This is what a text could do that gets around it.
    add = "html => document.querySelector('#chat .answer .part').insertAdjacentHTML('beforeend', html)"
    visitor.page.evaluate(add, html)
    expect(visitor.bubbles.first).to_contain_text("Over.")
    log, top = visitor.chat.bounding_box(), visitor.page.locator("#bar").bounding_box()
    assert log
    assert top
    for x, y in ((log["x"] - 60, 200), (log["x"] + 200, top["y"] + 10)):
        assert visitor.page.evaluate("at => !document.elementFromPoint(...at).closest('#chat')", [x, y])
    expect(visitor.chat.locator("input:visible, textarea:visible")).to_have_count(0)


# Stop

STALLS = {"streaming": "!tokens 4000 @200", "async-tool": '!tool nap {"seconds": 30}'}


@pytest.mark.gate("Stop ends an answer within a second.")
@pytest.mark.parametrize("script", STALLS.values(), ids=STALLS)
def test_stop_ends_run_within_a_second(app: App, visit: Visit, model_server: Running, script: str) -> None:
    visitor = visit(app.url)
    tools = "!tool" in script
    if tools:
        visitor.allow_tools()
    before = len(model_server.journal())
    visitor.say(script)
    expect(visitor.stop).to_be_visible()
    model_server.wait_for(lambda journal: len(journal) > before)
    if not tools:
        expect(visitor.chat).to_contain_text("word4")
    if tools:
        expect(visitor.chat.locator("[data-kind=tool_call]").first).to_be_visible()
    visitor.stop.click()
    # Measure on the server, because the page's timing depends on the load of this machine.
    expect(visitor.caption).to_contain_text(re.compile(r"· Stopped( ·|\.|$)"))
    visitor.idle()
    if not tools:
        line = model_server.wait_for(lambda journal: journal[before]["closed"])[before]
        assert line["ended"] == "client_closed"
    if tools:
        expect(visitor.chat.locator(".bubble[data-state=failed] .title").first).to_contain_text("failed: Cancelled")
    if not tools:
        expect(visitor.chat).to_contain_text("word4")
    visitor.shot(f"stopped-{script.split()[1] if tools else script.split()[0][1:]}")
    visitor.ask("!text And on we go.")
    expect(visitor.chat).to_contain_text("And on we go.")


@pytest.mark.gate("What a visitor types during an answer stays.")
def test_enter_during_answer_loses_nothing(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.say("!tokens 4000 @200")
    expect(visitor.chat).to_contain_text("word9")
    visitor.say("my second thought")
    expect(visitor.page.get_by_role("region", name="Queued")).to_contain_text("my second thought")
    expect(visitor.toast).to_have_count(0)
    expect(visitor.box).to_have_value("")
    visitor.stop.click()
    visitor.idle()
    expect(visitor.box).to_have_value("my second thought")
    expect(visitor.mine).to_have_count(1)


@pytest.mark.gate("Two pages of one visitor show the same answer.")
def test_second_page_sees_and_stops_answer(app: App, visit: Visit) -> None:
    first = visit(app.url)
    first.ask("!text One.")
    second = visit(app.url, elsewhere=first)  # the first page is not told of what this one does
    second.say("!tokens 2000 @20")
    expect(second.stop).to_be_visible()
    first.say("!text Mine.")
    expect(first.hint).to_contain_text("still being written")
    expect(first.page.locator(".toast-body.error")).to_have_count(0)  # this is no error
    expect(first.box).to_have_value("!text Mine.")
    expect(first.bubbles.last).to_contain_text("word5")
    first.stop.click()
    for visitor in (first, second):
        expect(visitor.caption).to_contain_text("Stopped")
        visitor.idle()
    first.box.press("Enter")
    expect(first.chat.locator(".answer").last).to_contain_text("Mine.")


@pytest.mark.gate("Two tabs on one chat show the same.")
def test_tabs_on_one_chat_show_the_same(app: App, visit: Visit, model_server: Running) -> None:
    first, held = visit(app.url), marker()
    first.ask("!text One.")
    second = visit(app.url, like=first)
    second.box.fill("not sent yet")
    first.say(f"!tokens 160 hold 20 {held}")
    expect(second.mine).to_have_count(2)
    expect(second.bubbles.last).to_contain_text("word5")
    expect(second.stop).to_be_visible()
    model_server.release(held)
    first.idle()
    second.idle()
    expect(second.chat).to_contain_text("word159")
    expect(second.box).to_have_value("not sent yet")
    first.chat.get_by_role("button", name="Edit").last.click()
    first.chat.get_by_role("textbox").fill("!text Edited.")
    first.chat.get_by_role("button", name="Send").click()
    expect(second.mine.last).to_have_text("!text Edited.")
    second.box.fill("")
    second.ask("!text Two.")
    expect(first.mine).to_have_count(3)
    expect(first.chat.locator(".answer").last).to_contain_text("Two.")
    expect(first.mine.last).to_have_text("!text Two.")


# Runs belong to the server


@pytest.mark.gate("A reload loses nothing of a running answer.")
def test_reload_rejoins_running_answer(app: App, visit: Visit, model_server: Running) -> None:
    visitor, held = visit(app.url), marker()
    visitor.say(f"!tokens 300 hold 30 {held}")
    expect(visitor.chat).to_contain_text("word20")
    visitor.page.reload()
    expect(visitor.chat).to_contain_text("word20")
    expect(visitor.stop).to_be_visible()
    visitor.shot("reattached")
    model_server.release(held)
    expect(visitor.chat).to_contain_text("word299")
    visitor.idle()
    expect(visitor.mine).to_have_count(1)


@pytest.mark.gate("A restart shows the same conversation.")
def test_reload_and_restart_show_same_bubbles(start_app: Callable[..., App], visit: Visit) -> None:
    own = start_app()
    visitor = visit(own.url)
    visitor.allow_tools()
    visitor.ask('!reasoning hm !text One. !tool calculate {"expression": "6*7"} !text Two.')
    visitor.ask("!status 500")
    seen = visitor.labels()
    visitor.page.reload()
    expect(visitor.mine).to_have_count(2)
    assert visitor.labels() == seen
    visitor.page.goto("about:blank")  # Gradio's page reloads itself when the server comes back
    own.stop()
    own.start()
    visitor.open(own.url)
    expect(visitor.mine).to_have_count(2)
    assert visitor.labels() == seen
    visitor.shot("after-restart")


# Actions on turns


@pytest.mark.gate("Retry answers the last message again.")
def test_retry_answers_on_a_branch(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("first")
    visitor.ask("second")
    before, asked_again = len(model_server.journal()), list[str]()
    visitor.page.route("**/retry*", lambda route: (asked_again.append(route.request.url), route.continue_()))
    visitor.chat.locator("[data-action=retry]").last.dblclick()
    line = model_server.wait_for(lambda journal: len(journal) > before and journal[before]["ended"])[before]
    visitor.idle()
    asked = [message["content"] for message in line["body"]["messages"] if message["role"] == "user"]
    assert asked == ["first", "second"]
    assert len(asked_again) == 1
    expect(visitor.mine).to_have_count(2)
    visitor.page.reload()
    expect(visitor.mine).to_have_count(2)


@pytest.mark.gate("Edit replaces a message.")
def test_edit_replaces_the_message(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.ask("first")
    visitor.ask("secnod")
    before = len(model_server.journal())
    visitor.chat.get_by_role("button", name="Edit").last.click()
    visitor.chat.get_by_role("textbox").fill("second, better")
    visitor.shot("editing")
    visitor.chat.get_by_role("button", name="Send").click()
    line = model_server.wait_for(lambda journal: len(journal) > before and journal[before]["ended"])[before]
    asked = [message["content"] for message in line["body"]["messages"] if message["role"] == "user"]
    assert asked == ["first", "second, better"]
    expect(visitor.mine).to_have_count(2)
    expect(visitor.mine.last).to_have_text("second, better")


@pytest.mark.gate("Undo returns the text.")
def test_undo_returns_the_text(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("first")
    visitor.ask("second")
    visitor.box.fill("a draft")
    visitor.chat.get_by_role("button", name="Undo").click()
    expect(visitor.mine).to_have_count(1)
    expect(visitor.box).to_have_value("second\n\na draft")
    expect(visitor.page.locator("#hint")).to_contain_text("Your message is in the box again.")
    visitor.box.fill("")
    visitor.chat.get_by_role("button", name="Undo").click()
    expect(visitor.mine).to_have_count(0)
    expect(visitor.box).to_have_value("first")
    visitor.ask("again")
    visitor.page.reload()
    expect(visitor.mine).to_have_count(1)


@pytest.mark.gate("Copy takes only the answer.")
def test_copy_takes_only_the_answer(app: App, visit: Visit) -> None:
    visitor = visit(app.url)
    visitor.ask("!reasoning secret thought !text **The** answer.\\n\\n    code")
    visitor.chat.get_by_role("button", name="Copy message").last.click()
    becomes("**The** answer.\n\n    code", lambda: visitor.page.evaluate("navigator.clipboard.readText()"))


@pytest.mark.gate("The settings reach the model.")
def test_settings_reach_model(app: App, visit: Visit, model_server: Running) -> None:
    visitor = visit(app.url)
    visitor.open_settings()
    visitor.page.get_by_label("System prompt").fill("Be brief.")
    visitor.page.get_by_role("checkbox", name="Reasoning").uncheck()
    temperature = visitor.page.locator("#settings input[type=number]").nth(0)
    with visitor.setting_is_told():  # before the field is left
        temperature.fill("5")
    temperature.blur()
    expect(temperature).to_have_value("2")
    temperature.fill("0.25")
    visitor.page.locator("#settings input[type=number]").nth(1).fill("64")
    visitor.page.get_by_role("checkbox", name="Tools").check()
    visitor.shot("settings")
    visitor.close_settings()
    before = len(model_server.journal())
    visitor.ask("hello")
    assert visitor.toast.count() == 0
    body = model_server.journal()[before]["body"]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.25
    assert (body.get("max_tokens") or body.get("max_completion_tokens")) == 64
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert {tool["function"]["name"] for tool in body["tools"]} == {"calculate", "nap", "block"}


@pytest.mark.parametrize(
    ("part", "lost", "loads"),
    [
        pytest.param("gradio-*.css", 1, 2, id="gradio-once"),
        pytest.param("gradio-*.css", 20, 4, id="gradio-always"),
        pytest.param("**/draw.js", 1, 2, id="module-once"),
        pytest.param("**/draw.js", 20, 4, id="module-always"),
    ],
)
def test_page_loads_again_if_a_part_was_lost(app: App, browser: Browser, part: str, lost: int, loads: int) -> None:
    context = browser.new_context()
    page, documents, parts = context.new_page(), list[str](), list[str]()

    def lose(route: Route) -> None:
        parts.append(route.request.url)
        if len(parts) <= lost:
            route.abort()
        else:
            route.continue_()

    page.route(f"**/assets/{part}", lose)
    page.on("request", lambda request: documents.append(request.url) if request.is_navigation_request() else None)
    page.goto(app.url)
    if lost == 1:
        expect(Visitor(page).box).to_be_enabled()
        expect(Visitor(page).log).to_be_attached()
    else:
        page.wait_for_function("JSON.parse(sessionStorage.getItem('lost-parts') ?? '[]').length === 3")
        page.wait_for_timeout(1000)
    assert len(documents) == loads
    context.close()
