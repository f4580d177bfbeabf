"""Pictures of the page's states, for people to look at: `make pictures`. They are compared with nothing."""

import pytest
from playwright.sync_api import expect

from tests.conftest import App, Visit
from tests.support import media_files
from tests.support.scripted_server import Config

SERVER = Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)
CONFIG = """
[agent]
tools = ["agent.tools.builtin:calculate", "tests.support.asking_tools:send"]
"""
ANSWER = (
    "!reasoning Let me think about it. !text # Head\\n\\n**Bold**, *slanted* and `code`, and $e^{i\\pi}=-1$.\\n\\n"
    "- one\\n- two\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n"
    '```python\\n# a comment\\ndef f(x: int) -> str:\\n    return "x" * 3\\n``` '
    '!tool calculate {"expression": "6*7"} !text It is 42.'
)

STILL = """Promise.all(document.getAnimations().filter((one) => one.effect.getTiming().iterations !== Infinity)
  .map((one) => one.finished.catch(() => {})))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_states(own: App, visit: Visit, phone: bool, dark: bool) -> None:
    visitor = visit(own.url, phone=phone, dark=dark)
    page = visitor.page

    def shot(number: int, state: str) -> None:
        page.mouse.move(0, 0)
        page.evaluate(STILL)
        visitor.shot(f"{'phone' if phone else 'desktop'}-{'dark' if dark else 'light'}-{number:02}-{state}")

    expect(visitor.examples).to_have_count(4)
    expect(page.locator(":root[data-chat=empty]")).to_have_count(1)
    shot(1, "empty")
    visitor.open_settings()
    page.get_by_role("checkbox", name="Tools").check()
    shot(2, "settings")
    visitor.close_settings()
    visitor.ask(ANSWER)
    shot(3, "answer")
    for title in visitor.chat.locator("[data-action=steps], .answer > .bubble > details > summary").all():
        title.click()
    shot(4, "answer-unfolded")
    visitor.say("!stall-before")
    expect(visitor.chat.locator(".waiting")).to_be_visible()
    shot(5, "waiting")
    visitor.stop.click()
    visitor.idle()
    visitor.say("!tokens 4000 @60")
    expect(visitor.chat).to_contain_text("word60")
    shot(6, "streaming")
    visitor.stop.click()
    visitor.idle()
    shot(7, "stopped")
    visitor.ask("!status 401")
    shot(8, "error")
    visitor.say('!tool send {"to": "Ann", "text": "Hi!"} !text Done.')
    expect(visitor.chat.locator("[data-kind=question]")).to_be_visible()
    shot(9, "approval")
    visitor.chat.get_by_role("button", name="Refuse", exact=True).click()
    expect(visitor.bubbles.filter(has_text="Done.")).to_be_visible()
    visitor.idle()
    visitor.box.press("ArrowUp")
    expect(visitor.chat.get_by_role("textbox")).to_be_visible()
    shot(10, "edit")
    page.keyboard.press("Escape")
    visitor.attach(
        ("small.png", media_files.picture("PNG")), ("broken.png", media_files.picture("PNG", (300, 300))[:200])
    )
    expect(page.locator("#attached li")).to_have_count(2)
    shot(11, "files")
    visitor.box.fill("What is this?")
    visitor.box.press("Enter")
    expect(visitor.hint).to_be_visible()
    shot(12, "refused")
    search = visitor.open_models()
    expect(page.locator("#model-list").get_by_role("option").nth(3)).to_be_visible()
    shot(13, "models")
    search.fill("no such model")
    shot(16, "models-none")
    search.fill("gpt-6-luna")
    search.press("Enter")
    expect(page.locator("#key-box input")).to_be_visible()
    shot(14, "key")
    page.keyboard.press("Control+/")
    expect(page.get_by_role("dialog")).to_be_visible()
    shot(15, "shortcuts")
