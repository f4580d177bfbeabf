"""The numbers that tell the branches of a chat apart."""

import pytest

from agent.web.chat.titles import NumberedTitles, without_number


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
