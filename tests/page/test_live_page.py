"""A running answer on the page: broken and blocked streams lose nothing, and nothing moves when the answer ends."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.conftest import CONFIG, App, Visit, Visitor, becomes
from tests.support.broken_proxies import cut_proxy
from tests.support.http_client import marker
from tests.support.scripted_server import Running

STREAMS = "**/runs/**"
CONTENT = """() => {
  const dump = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeType === Node.TEXT_NODE ? node.data : "";
    const said = [...node.attributes].map(({ name, value }) => `${name}=${JSON.stringify(value)}`).sort().join(" ");
    return `\\n<${node.nodeName} ${said}>` + [...node.childNodes].map(dump).join("");
  };
  return dump(document.querySelector("#chat .turns"));
}"""
"""The whole chat as text, without the order of attributes."""
COUNT_REDRAWS = """() => {
  window.redraws = 0;
  const watch = new MutationObserver((all) => (window.redraws += all.length));
  const how = { childList: true, subtree: true, characterData: true, attributes: true };
  document.addEventListener("chat-view", ({ detail }) => {
    watch.disconnect();
    if (!detail.live) watch.observe(document.querySelector("#chat .turns"), how);
  });
}"""
"""Counts what changes in the chat once the page shows the end of an answer."""
SCENES = [
    "!reasoning Let me think. !text **Bold**, `code` and a [link](https://example.org).",
    "!text ```python\\nprint(1)\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n- one\\n- two\\n\\n$$x^2$$",
    '!text First. !tools nap {"seconds": 0.1} nap {"seconds": 0.2} !reasoning And now? !text Done.',
    '!reasoning Hm. !tools nap {"seconds": "soon"} nap {"seconds": 0.1} !text It failed.',
    "!tokens 700 @2000",
    "!pace 20 !text From $5 to $9, and $x^2 + \U0001f600 y_1$ is a formula, \U0001f600 $z$ too.",
    "!text Half of it !status 500",
    "!cut 5",
    "!length 9",
    "!tool make !text Here they are.",
    "!tokens 3000 @5000",
    '!tool ask_user {"question": "Which table?", "choices": ["monthly", "yearly"]}',  # the last, because it waits
]
MESSAGES = re.compile(r"/conversations(/\w+/messages)?$")


@pytest.fixture(scope="module")
def making_app(start_app: Callable[..., App]) -> App:
    """An app with a tool that returns files, and with one that asks."""
    nap = '"tests.support.slow_tools:nap"'
    more = [nap, '"tests.support.making_tools:make"', '"agent.tools:ask_user"']
    return start_app(CONFIG.replace(nap, ", ".join(more)))


def shown_words(visitor: Visitor) -> list[str]:
    """Return the scripted server's tokens on the page, in their order."""
    return re.findall(r"word\d+", " ".join(visitor.bubbles.all_inner_texts()))


def words(count: int) -> list[str]:
    return [f"word{number}" for number in range(count)]


@pytest.mark.gate("An answer goes on after the network was gone.")
def test_lost_network_loses_and_repeats_nothing(app: App, visit: Visit, model_server: Running) -> None:
    with cut_proxy(app.port) as (url, cut):
        visitor, held, before = visit(url, fresh=True), marker(), len(model_server.journal())
        requests: list[str] = []
        visitor.page.on("request", lambda request: requests.append(request.url) if "/runs/" in request.url else None)
        visitor.say(f"!tokens 400 hold 60 {held}")
        expect(visitor.bubbles.first).to_contain_text("word40")
        visitor.page.context.set_offline(True)
        cut()
        model_server.release(held)
        model_server.wait_for(lambda journal: journal[before]["ended"])
        assert "word399" not in visitor.bubbles.last.inner_text()
        visitor.page.context.set_offline(False)
        expect(visitor.caption).to_contain_text("tokens")
        assert shown_words(visitor) == words(400)
        assert [bool(re.search("after=[^&]", url)) for url in requests[:2]] == [False, True]


@pytest.mark.gate("An answer arrives even if a proxy holds streams back.")
def test_blocked_stream_is_polled(app: App, visit: Visit, model_server: Running) -> None:
    visitor, silence = visit(app.url, fresh=True), marker()
    held: list[Route] = []

    def hold(route: Route) -> None:
        if "wait=0" in route.request.url:
            route.continue_()
        else:
            held.append(route)  # never answered

    visitor.page.route(STREAMS, hold)
    visitor.say(f"!tokens 1200 hold 300 {silence}")
    expect(visitor.chat).to_contain_text("word299")
    expect(visitor.stop).to_be_visible()
    model_server.release(silence)
    expect(visitor.caption).to_contain_text("1,200 tokens", timeout=60_000)
    assert shown_words(visitor) == words(1200)
    assert len(held) == 1


@pytest.mark.gate("The end of an answer moves nothing, and a reload shows the same.")
def test_end_and_reload_show_the_same(making_app: App, visit: Visit) -> None:
    visitor = visit(making_app.url, fresh=True)
    visitor.allow_tools()
    visitor.page.evaluate(COUNT_REDRAWS)
    for scene in SCENES:
        visitor.ask(f"!wait 0.5 {scene}")  # so that the page reads the answer while it is written
        visitor.page.wait_for_timeout(300)  # the stored conversation has been shown over it
        assert visitor.page.evaluate("window.redraws") == 0, scene
    before = visitor.page.evaluate(CONTENT)
    visitor.page.reload()
    expect(visitor.page.get_by_role("button", name="Show earlier messages")).to_be_visible()
    visitor.show_earlier()
    expect(visitor.chat.locator(".turn")).to_have_count(len(SCENES))
    becomes(before, lambda: visitor.page.evaluate(CONTENT))


def test_message_is_one_request_and_one_stream(app: App, visit: Visit) -> None:
    """Nothing about the chat goes through Gradio's queue."""
    visitor = visit(app.url, fresh=True)
    visitor.page.wait_for_load_state("networkidle")
    asked = list[tuple[str, str]]()
    visitor.page.on("request", lambda request: asked.append((request.method, urlsplit(request.url).path)))
    visitor.ask("!text One.")
    assert [path for method, path in asked if method != "GET"] == ["/conversations"]
    assert len([path for _method, path in asked if path.startswith("/runs/")]) == 1


def test_message_of_before_a_reload_is_sent_once(app: App, visit: Visit, model_server: Running) -> None:
    """The draft comes back after the reload, and is a repeat then."""
    visitor = visit(app.url, fresh=True)
    visitor.ask("!text One.")
    visitor.page.route(MESSAGES, lambda route: (route.fetch(), route.fulfill(status=502, body="")))
    with visitor.page.expect_response(MESSAGES):
        visitor.say("!text Two.")
    becomes(True, lambda: "!text Two." in str(model_server.journal()[-1]["body"]))  # so it is stored
    expect(visitor.box).to_have_value("!text Two.")
    visitor.page.unroute_all(behavior="ignoreErrors")
    visitor.page.reload()
    expect(visitor.mine).to_have_text(["!text One.", "!text Two."])
    expect(visitor.box).to_have_value("")
