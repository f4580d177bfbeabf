"""The JavaScript of the page, with its texts in one language."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_text import LABELS, translated
from agent.web.ui.page_text import SCRIPTS as TEXTS
from agent.web.ui.transcript.component import Transcript

HERE = Path(__file__).parent
HELPERS = ("stream", "files")
"""The scripts whose result other scripts use, by this name."""
SCRIPTS = (
    "prompts",
    "offline",
    "temporary",
    "queue",
    "chats",
    "transfer",
    "own_data",
    "appearance",
    "share",
    "live",
    "page",
    "composer",
    "options",
    "numbers",
    "empty",
    "hidden",
    "attach",
    "recording",
    "text_files",
    "seek",
    "toasts",
    "pictures",
    "sources",
)
IMPORTS = {
    "blocks": ("save",),
    "elements": ("make",),
    "keys": ("composes", "sends", "soft"),
    "transcript": ("mount",),
}
"""The names that the page's scripts import from the transcript's modules."""
LAZY = ("viewer", "models")
"""The scripts that are loaded when they are used, with a style of the same name: `shared.load(name)`."""


def script(language: str, *, lazy: Mapping[str, str], modules: str, links: bool = True) -> str:
    """Return a module whose function `startPage` runs the page's script.

    `lazy` has the files of `LAZY` by name, and `modules` is the folder of the transcript's modules. `links`: chats can
    have read-only links.
    """
    said: dict[str, Any] = translated(TEXTS, language) | {"labels": translated(LABELS, language)}
    said["transcript"] = translated(Transcript.LABELS, language)
    given = ", ".join(json.dumps(one, ensure_ascii=False) for one in (said, language))
    given += f", {{ {', '.join(name for names in IMPORTS.values() for name in names)} }}"
    imports = "".join(f'import {{ {", ".join(names)} }} from "./{modules}/{one}.js";' for one, names in IMPORTS.items())
    facts = {"links": links, "lazy": dict(lazy), "languages": LANGUAGES}
    begin = f"const shared = (\n{read('shared.js')}\n)({given});"
    begin += f"Object.assign(shared, {json.dumps(facts)});"
    helpers = "".join(f"shared.{name} = (\n{read(f'{name}.js')}\n)(shared);" for name in HELPERS)
    # A failing script must not prevent the others from running.
    calls = "".join(
        f"try {{ (\n{read(f'{name}.js')}\n)(shared); }} catch (error) {{ console.error(error); }}" for name in SCRIPTS
    )
    return f"{imports}window.startPage = () => {{ {begin}{helpers}{calls} }};"


def lazy_script(name: str) -> str:
    """Return one of the scripts of `LAZY` with its style."""
    rules = json.dumps((HERE / f"{name}.css").read_text(encoding="utf-8"))
    style = f'document.head.append(Object.assign(document.createElement("style"), {{ textContent: {rules} }}));'
    return f"(window.lazy ??= {{}}).{name} = (shared) => {{ {style} return (\n{read(f'{name}.js')}\n)(shared); }};"


def read(name: str) -> str:
    """Return one of the scripts beside this module, without the lines that are comments."""
    lines = (HERE / name).read_text(encoding="utf-8").strip().splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("//"))
