"""Waiting is visible: in the queue, and for a model."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import expect

from tests.conftest import CONFIG, App, Visit, Visitor
from tests.support.launched_servers import llama_cpp_at
from tests.support.scripted_server import Config, running

PUBLIC = f"""{CONFIG}
[server]
grace_seconds = 30
[public]
on = true
[local]
answers = 1
"""
"""The grace period is long enough for a reload on a busy machine."""
LONG = "!tokens 9000 @20"


@pytest.fixture(scope="module")
def queued(start_app: Callable[..., App], tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """A public page with a scripted llama.cpp, which writes one answer at a time."""
    with running(Config(models=("toy",))) as llama:
        yield start_app(PUBLIC, **llama_cpp_at(tmp_path_factory.mktemp("llama"), llama.url))


def writing(visitor: Visitor) -> None:
    """Wait until the answer has begun. The queue position is shown in a bubble, too."""
    expect(visitor.bubbles.first).to_contain_text("word1")


@pytest.mark.gate("A queued visitor sees the position.")
def test_queued_visitor_sees_position_and_can_leave(queued: App, visit: Visit) -> None:
    first, second, third = visit(queued.url), visit(queued.url), visit(queued.url)
    first.say(LONG)
    writing(first)
    lines = {}
    for number, visitor in enumerate((second, third), start=1):
        visitor.say(LONG)
        lines[visitor] = visitor.chat.locator(".waiting:visible .why")
        says = f"{number} ahead of you"
        expect(lines[visitor]).to_have_text(says)
    third.shot("waiting-in-line")
    third.page.reload()
    expect(lines[third]).to_have_text("2 ahead of you")
    second.stop.click()
    expect(second.caption).to_contain_text("Stopped")
    expect(lines[third]).to_have_text("1 ahead of you")
    third.page.wait_for_timeout(1000)  # a shorter wait is not mentioned afterwards
    first.stop.click()
    writing(third)
    expect(lines[third]).to_have_count(0)
    third.stop.click()
    expect(third.caption).to_contain_text(re.compile(r"\d s in line · [\d.]+ s to first token"))
    third.shot("waited-in-line")
