"""Titles that the model writes after the first answer, and the numbers that tell the branches of a chat apart."""

from collections.abc import Callable
from typing import Any

import pytest

from agent.web.chat.titles import NumberedTitles, without_number
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


@pytest.mark.parametrize(
    ("title", "others", "following"),
    [
        ("Rome", [], "Rome (2)"),
        ("Rome", ["Rome", "Rome (2)", "Rome (11)", "Rome and Milan (30)"], "Rome (12)"),
        ("Rome (2)", ["Rome"], "Rome (3)"),
        ("Sales (2024)", ["Sales (2)"], "Sales (2024) (2)"),
        ("(3)", [], "(3) (2)"),
        ("Two\nlines (1)", [], "Two\nlines (1) (2)"),
    ],
)
def test_next_title_has_the_next_number(title: str, others: list[str], following: str) -> None:
    assert NumberedTitles([title, *others]).title_for(title) == following
    assert without_number(following) == without_number(title)


def test_imported_title_has_a_number_if_it_was_there() -> None:
    titles = NumberedTitles(["Rome", "Rome (4)", "Milan (2)"])
    imported = ["Rome", "Hi", "Hi", "Milan", "Rome", "Milan (2)"]
    assert [titles.title_for(title) for title in imported] == ["Rome (5)", "Hi", "Hi", "Milan", "Rome (6)", "Milan (3)"]
