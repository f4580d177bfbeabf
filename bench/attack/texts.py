"""Attacks with texts that are costly to read: formulas, marks after letters, and names of models."""

from collections.abc import Callable

from bench.attack.chats import AT, looks, ours, said
from bench.attack.client import Client, Reply


def say(text: str) -> Callable[[str], Reply]:
    """Return an attack that sends this text, which the model answers with the same."""

    def attack(url: str) -> Reply:
        with Client(url) as client:
            return client.chat(f"!text {text}", seconds=30)

    return attack


def import_answer(text: str) -> Callable[[str], object]:
    """Return an attack that imports an answer with this text, and looks at it again and again."""

    def attack(url: str) -> object:
        answer = {"id": "1", "parent_id": "0", "note": {"at": AT}}
        answer["message"] = {"kind": "response", "parts": [{"part_kind": "text", "content": text}], "timestamp": AT}
        return looks(url, ours({}, [said(0, None, "Draw."), answer]))

    return attack


ARTIFACTS: dict[str, str] = {
    "2,000 pages to preview": "```html\n<p>Hi</p>\n```\n\n" * 2_000,
    "a table of 190,000 columns": "```csv\n" + "a," * 95_000 + "\n" + "1," * 95_000 + "\n```\n",
    "diagrams in diagrams": "```mermaid\n" + "subgraph a\n" * 60_000 + "```\n",
    "a plot of deep JSON": "```vega-lite\n" + '{"a":' * 150_000 + "\n```\n",
    "a picture of deep SVG": "```svg\n" + "<g>" * 300_000 + "\n```\n",
}
"""Answers with artifacts, which the page shows beside the chat."""

ATTACKS: dict[str, Callable[[str], object]] = {
    "a formula of 8,000 Greek letters": say("$" + "\u03b1" * 8_000 + "$"),
    "30,000 marks after a letter": say("a" + "\u0315" * 15_000 + "\u0327" * 15_000),
}
MORE = {f"artifacts: {name}": import_answer(text) for name, text in ARTIFACTS.items()}
