"""The JavaScript of the page, with its texts in one language."""

import json
from pathlib import Path
from typing import Any

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
    "steps",
    "composer",
    "address",
    "attach",
    "text_files",
    "seek",
    "toasts",
    "blocks",
    "pictures",
    "print",
)


def script(language: str, *, viewer: str = "", links: bool = True) -> str:
    """Return a function that runs the page's script.

    `viewer` is the file of the picture viewer. `links`: chats can have read-only links.
    """
    said: dict[str, Any] = translated(TEXTS, language) | {"labels": translated(LABELS, language)}
    given = ", ".join(json.dumps(one, ensure_ascii=False) for one in (said, language))
    begin = f"const shared = (\n{read('shared.js')}\n)({given});"
    begin += f"shared.links = {json.dumps(links)};shared.viewer = `${{shared.root}}/assets/{viewer}`;"
    helpers = "".join(f"shared.{name} = (\n{read(f'{name}.js')}\n)(shared);" for name in HELPERS)
    # A failing script must not prevent the others from running.
    calls = "".join(
        f"try {{ (\n{read(f'{name}.js')}\n)(shared); }} catch (error) {{ console.error(error); }}" for name in SCRIPTS
    )
    return f"() => {{ {begin}{helpers}{calls} }}"


def viewer_script() -> str:
    """Return the script of the picture viewer with its style. It is loaded when a picture is opened."""
    rules = json.dumps((HERE / "viewer.css").read_text(encoding="utf-8"))
    style = f'document.head.append(Object.assign(document.createElement("style"), {{ textContent: {rules} }}));'
    return f"window.makeViewer = (shared) => {{ {style} return (\n{read('viewer.js')}\n)(shared); }};"


def read(name: str) -> str:
    """Return one of the scripts beside this module, without the lines that are comments."""
    lines = (HERE / name).read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("//"))
