"""The earlier turns that every contender gets: the same questions and answers, in plain dicts."""

from collections.abc import Iterator

# No text here can look like a token of the scripted server (`word12`), because the bench watches for those.
PARAGRAPH = (
    "The **lighthouse** on the point was built of grey stone, carried up by boat in two summers. "
    "Its keeper wrote down the weather three times a day, and the ships that passed.\n\n"
    "- northerly wind, *rough* sea\n- fog until noon, `bell` rung\n- clear, twelve sails\n\n"
)


def earlier(turns: int) -> Iterator[tuple[str, str]]:
    """Yield question and answer of each turn. An answer has about 800 characters of ordinary markdown."""
    for turn in range(1, turns + 1):
        code = f"```python\nkeeper.note(day={turn}, wind='north')\n```\n"
        yield f"What happened on day {turn} at the lighthouse?", f"### Day {turn}\n\n{PARAGRAPH * 2}{code}{PARAGRAPH}"


def as_messages(turns: int) -> list[dict[str, str]]:
    """Return the turns in OpenAI's format, which a Gradio chatbot accepts, too."""
    return [
        {"role": role, "content": content}
        for turn in earlier(turns)
        for role, content in zip(("user", "assistant"), turn, strict=True)
    ]
