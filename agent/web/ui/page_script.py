"""The JavaScript of the page, with its texts in every language."""

import json
from pathlib import Path
from typing import Any

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_text import LABELS, translated
from agent.web.ui.page_text import SCRIPTS as TEXTS

HERE = Path(__file__).parent
SCRIPTS = ("live.js", "page.js", "address.js", "attach.js")


def script() -> str:
    """Return the page's script with its texts."""
    words: dict[str, dict[str, Any]] = {
        one: translated(TEXTS, one) | {"labels": translated(LABELS, one)} for one in LANGUAGES
    }
    shared, pieces, *parts = (read(name) for name in ("shared.js", "pieces.js", *SCRIPTS))
    # A failing script must not prevent the others from running.
    calls = "".join(f"try {{ (\n{part}\n)(shared); }} catch (error) {{ console.error(error); }}" for part in parts)
    begin = f"const shared = (\n{shared}\n)({json.dumps(words, ensure_ascii=False)});"
    return f"() => {{ {begin}shared.pieces = (\n{pieces}\n)();{calls} }}"


def read(name: str) -> str:
    """Return one of the scripts beside this module."""
    return (HERE / name).read_text(encoding="utf-8").strip()
