"""The frames of a running answer for pages: edits that make the new messages from the old ones."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.transfer.formulas import mark_formulas
from agent.web.ui.page_frames import _edits  # pyright: ignore[reportPrivateUsage]
from tests.tiers import examples

TEXT = st.text("ab$\n\u2063\U0001f600", max_size=12)


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": text}], **more}


def applied(messages: list[dict[str, Any]], edits: list[list[Any]]) -> list[dict[str, Any]]:
    """Do what live.js does. It counts a text in UTF-16 units."""
    out = list(messages)
    for kind, number, *more in edits:
        match kind, more:
            case "cut", []:
                out = out[:number]
            case "set", [new]:
                out[number : number + 1] = [new]
            case "append", [str(text), int(removed)]:
                units = out[number]["content"][0]["text"].encode("utf-16-le", "surrogatepass")
                kept = units[: len(units) - 2 * removed].decode("utf-16-le", "surrogatepass")
                out[number] = {**out[number], "content": [{**out[number]["content"][0], "text": kept + text}]}
            case _:
                raise AssertionError(kind)
    return out


@given(old=st.lists(TEXT.map(message), max_size=4), new=st.lists(TEXT.map(message), max_size=4))
@example(old=[message("a$\U0001f600")], new=[message("a$\u2063\U0001f600\u2063$")])
@settings(max_examples=examples(300))
def test_edits_make_the_new_messages(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    assert applied(old, _edits(old, new)) == new


def test_completed_formula_sends_only_the_end() -> None:
    """The text before it can be long."""
    before, after = "word " * 10_000 + "\n\nIt is $x^2", "word " * 10_000 + "\n\nIt is $x^2$ here"
    [edit] = _edits([message(mark_formulas(before))], [message(mark_formulas(after))])
    assert edit[0] == "append"
    assert len(edit[2]) < 30
    assert edit[3] == len("x^2")
