"""Titles that the model writes after the first answer, in the running app."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import CONFIG, App, becomes
from tests.support.http_client import HttpVisitor
from tests.support.scripted_server import Running

ON = CONFIG + "titles = true\n"


def row(visitor: HttpVisitor) -> Any:
    """Return the newest conversation in the list."""
    return visitor.ask("GET", "/conversations").json["conversations"][0]


def test_model_writes_the_title_once(start_app: Callable[..., App], model_server: Running) -> None:
    app = start_app(ON)
    visitor, before = HttpVisitor(app.url), len(model_server.journal())
    visitor.say("!text Ships float.")
    becomes(False, lambda: row(visitor)["naming"])
    written = row(visitor)
    assert written["title"].startswith("Ships float. ---")
    visitor.say("!text More.")
    becomes("", lambda: row(visitor)["state"])
    assert row(visitor)["title"] == written["title"]
    [_, title, _] = [entry["body"] for entry in model_server.journal()[before:]]
    assert title["messages"][-1]["content"].startswith("!text Ships float.")
    assert "tools" not in title
    assert 32 in (title.get("max_tokens"), title.get("max_completion_tokens"))

    # The title that the visitor typed stays.
    visitor.say("!wait 2 !text Whales.", new=True)
    becomes(("", True), lambda: (row(visitor)["state"], row(visitor)["naming"]))
    visitor.ask("PATCH", f"/conversations/{row(visitor)['id']}", json={"title": "Mine"})
    becomes(False, lambda: row(visitor)["naming"])
    assert row(visitor)["title"] == "Mine"

    # A failed request leaves the first words, and is not repeated.
    visitor.say("!fail 1 500 !text Bread.", new=True)
    becomes(False, lambda: row(visitor)["naming"])
    assert row(visitor)["title"] == "!fail 1 500 !text Bread."


@pytest.mark.parametrize("config", [CONFIG, ON + "[public]\non = true\n"], ids=["off", "public"])
def test_no_title_is_asked_for(start_app: Callable[..., App], model_server: Running, config: str) -> None:
    visitor, before = HttpVisitor(start_app(config).url), len(model_server.journal())
    visitor.say("!text Ships float.")
    assert (row(visitor)["title"], row(visitor)["naming"]) == ("!text Ships float.", False)
    assert len(model_server.journal()) == before + 1
