"""Examples for an empty chat: what the chosen model can do here, with a picture, a sound, a document or a tool."""

import base64
from collections.abc import Collection
from html import escape
from pathlib import Path
from urllib.parse import quote

from agent.i18n.text import _
from agent.i18n.translator import Translator
from agent.models.catalog import ModelSpec
from agent.web.sending import EXAMPLE_FILES

MAX_EXAMPLES = 4
ICON_PATHS = {  # each in a 24 x 24 box
    "question": "M4 5h16v11H9l-5 4zM9 10h6",
    "riddle": "M9 18h6M10 21h4M8 14a6 6 0 1 1 8 0c-1 1-1 2-1 2H9s0-1-1-2z",
    "code": "M9 7l-5 5 5 5M15 7l5 5-5 5",
    "table": "M4 5h16v14H4zM4 10h16M10 5v14",
    "letter": "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
    "tiny_capital": "M4 5h16v11H9l-5 4zM9 10h6",
    "tiny_list": "M4 6h2M4 12h2M4 18h2M9 6h11M9 12h11M9 18h11",
    "tiny_code": "M9 7l-5 5 5 5M15 7l5 5-5 5",
    "tiny_term": "M9 18h6M10 21h4M8 14a6 6 0 1 1 8 0c-1 1-1 2-1 2H9s0-1-1-2z",
    "document": "M6 3h8l4 4v14H6zM14 3v4h4M9 12h6M9 16h6",
    "tool": "M6 3h12v18H6zM9 7h6M9 12h1M14 12h1M9 16h1M14 16h1",
    "preview": "M4 5h16v14H4zM4 9h16M7 7h.01M10 7h.01",
    "sound": "M4 10v4h4l5 4V6L8 10zM16 9c2 2 2 4 0 6M18 6c4 4 4 8 0 12",
}
TITLES = {
    "question": _("Ask a quick question"),
    "riddle": _("Think through a riddle"),
    "code": _("Write a little code"),
    "table": _("Draw up a table"),
    "letter": _("Polish a sentence"),
    "tiny_capital": _("Ask for a capital"),
    "tiny_list": _("Get a short list"),
    "tiny_code": _("Write a little code"),
    "tiny_term": _("Explain a term"),
    "picture": _("Read a chart"),
    "sound": _("Listen to a sound"),
    "document": _("Ask about a document"),
    "tool": _("Calculate with a tool"),
    "preview": _("Build a small web page"),
}
TEXTS = {
    "question": _("What is the capital of France? Answer in one word."),
    "riddle": _("A bat and a ball cost 1.10 together. The bat costs 1.00 more than the ball. What does the ball cost?"),
    "code": _("Write a Python function that reverses a string."),
    "table": _("Make a table of three planets and how many moons each has."),
    "letter": _("Say this more politely: Your package is late, wait."),
    # Not translated: the tiny model answered 13 of 16 translations wrongly.
    "tiny_capital": "What is the capital of Japan?",
    "tiny_list": "Name three fruits.",
    "tiny_code": "Write a Python function that adds two numbers.",
    "tiny_term": "What is photosynthesis?",
    "picture": _("Which month had the most rain, and how much?"),
    "sound": _("What do you hear? Do the notes rise or fall?"),
    "document": _("When must it be quiet in this house, and what does a lost key cost?"),
    "tool": _("How much is 1234.56 * 78.9? Use the calculator."),
    "preview": _("Write a web page in one HTML file, with a button that counts its clicks."),
}
NEEDED_TOOL = "calculate"
"""The tool of the example with a tool."""


def examples(spec: ModelSpec | None, translator: Translator, tools: Collection[str] = ()) -> str:
    """Return buttons for the examples, as HTML. The value of a button is its message, and it names its file.

    `tools` are the names of the tools here. The example with a tool has `data-tools`: it lets the model use them.
    """
    buttons = "".join(
        f'<button type="button" class="example" value="{escape(translator(TEXTS[name]))}"'
        f"{f' data-file={name}' if name in EXAMPLE_FILES else ''}{' data-tools' if name == 'tool' else ''}>"
        f'<img alt="" src="{escape(_icon(name))}" />{escape(translator(TITLES[name]))}</button>'
        for name in _names(spec, tools)
    )
    name = escape(translator(_("Examples")))
    return f'<div role="group" aria-label="{name}">{buttons}</div>'


def _names(spec: ModelSpec | None, tools: Collection[str]) -> list[str]:
    is_able = spec is not None and spec.tools != "none"
    possible = {
        "picture": spec is not None and spec.image,
        "sound": spec is not None and spec.audio,
        "document": is_able,
        "tool": is_able and NEEDED_TOOL in tools,
        "preview": is_able,
    }
    names = [name for name, is_possible in possible.items() if is_possible]
    if spec is not None and spec.examples:  # a tiny model: only examples that it has been seen to answer correctly
        names += ["tiny_capital", "tiny_list", "tiny_code", "tiny_term"]
    elif spec is not None and spec.tools == "none":
        names += ["question", "letter"]
    else:
        names += ["question", "riddle" if spec is not None and spec.reasoning else "letter", "code", "table"]
    return names[:MAX_EXAMPLES]


def _icon(name: str) -> str:
    """Return a data URL, because files in Gradio's cache belong to the visitor who uploaded them."""
    if name == "picture":
        return "data:image/png;base64," + base64.b64encode(Path(EXAMPLE_FILES[name]).read_bytes()).decode()
    svg = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='#6d73f0' stroke-width='1.7' "
        f"stroke-linecap='round' stroke-linejoin='round'><path d='{ICON_PATHS[name]}'/></svg>"
    )
    return "data:image/svg+xml," + quote(svg)
