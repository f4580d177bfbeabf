"""The JavaScript of the page, with its texts in every language."""

import json
from pathlib import Path
from typing import Any

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_text import LABELS, translated
from agent.web.ui.page_text import SCRIPTS as TEXTS

HERE = Path(__file__).parent
HELPERS = ("pieces", "division", "stream", "unchanged", "handover", "files")
"""The scripts whose result other scripts use, by this name."""
SCRIPTS = (
    "prompts",
    "offline",
    "temporary",
    "queue",
    "chats",
    "transfer",
    "own_data",
    "share",
    "live",
    "page",
    "composer",
    "address",
    "attach",
    "text_files",
    "seek",
    "toasts",
    "blocks",
    "print",
)


def script(*, links: bool = True) -> str:
    """Return the page's script with its texts. `links`: chats can have read-only links."""
    words: dict[str, dict[str, Any]] = {
        one: translated(TEXTS, one) | {"labels": translated(LABELS, one)} for one in LANGUAGES
    }
    begin = f"const shared = (\n{read('shared.js')}\n)({json.dumps(words, ensure_ascii=False)});"
    begin += f"shared.links = {json.dumps(links)};"
    helpers = "".join(f"shared.{name} = (\n{read(f'{name}.js')}\n)(shared);" for name in HELPERS)
    # A failing script must not prevent the others from running.
    calls = "".join(
        f"try {{ (\n{read(f'{name}.js')}\n)(shared); }} catch (error) {{ console.error(error); }}" for name in SCRIPTS
    )
    return f"() => {{ {begin}{helpers}{calls} }}"


def read(name: str) -> str:
    """Return one of the scripts beside this module."""
    return (HERE / name).read_text(encoding="utf-8").strip()
