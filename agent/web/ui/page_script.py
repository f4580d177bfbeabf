"""The JavaScript of the page, with its texts in every language."""

import json
from pathlib import Path
from typing import Any

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_text import LABELS, translated
from agent.web.ui.page_text import SCRIPTS as TEXTS

HERE = Path(__file__).parent
SCRIPTS = ("shared.js", "live.js", "page.js", "address.js", "attach.js")


def script() -> str:
    """Return the page's script with its texts."""
    words: dict[str, dict[str, Any]] = {
        one: translated(TEXTS, one) | {"labels": translated(LABELS, one)} for one in LANGUAGES
    }
    shared, *parts = ((HERE / name).read_text(encoding="utf-8").strip() for name in SCRIPTS)
    # A failing script must not prevent the others from running.
    calls = "".join(f"try {{ (\n{part}\n)(shared); }} catch (error) {{ console.error(error); }}" for part in parts)
    return f"() => {{ const shared = (\n{shared}\n)({json.dumps(words, ensure_ascii=False)});{calls} }}"
