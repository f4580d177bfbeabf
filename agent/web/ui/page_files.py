"""The page's own script and style as files with a hash in their names, which browsers keep for good.

In the page itself they would be loaded again with each visit, and Gradio would write them into the page each time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from html import escape
from pathlib import Path

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_script import LAZY, lazy_script, script
from agent.web.ui.theme import style

MODULES = Path(__file__).parent / "transcript" / "modules"
"""The modules of the transcript. They import one another by their names, so their folder has the hash."""
START = "() => window.startPage?.()"
"""Starts the page's script. Gradio runs this once it shows the page. Without a part of it, the page loads again."""


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files by name. `scripts` has the name of the script by language."""

    contents: dict[str, bytes]
    scripts: dict[str, str]
    style: str
    stand_ins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps the name of a Gradio file to the name of our replacement."""

    def standing_in(self, contents: Mapping[str, bytes]) -> "PageFiles":
        """Return these files and others, which stand in for Gradio's files of the same names.

        They get names of their own: browsers keep Gradio's files for good, and ours change without a change of Gradio.
        """
        named = {name: _name(name.removesuffix(".js"), content, "js") for name, content in contents.items()}
        stand_ins = {name: new for name, new in named.items() if _digest(contents[name]) not in name}
        copies = {new: contents[name] for name, new in stand_ins.items()}
        return replace(self, contents=self.contents | copies | {**contents}, stand_ins=stand_ins)

    def tags(self, path: str, language: str) -> str:
        """Return the tags that load the files early. `path` is the path of the app, without a slash at its end."""
        folder = escape(f"{path}/assets")
        imports = {f"{path}/assets/{name}": f"{path}/assets/{new}" for name, new in self.stand_ins.items()}
        modules = [name for name in self.contents if "/" in name and name.endswith(".js")]
        names = json.dumps({"imports": imports}).replace("<", "\\u003c")
        # Scripts that import a file of Gradio get the one that stands in for it. The map must come before all modules.
        # The script runs before Gradio's, because both are modules.
        return (
            f'<script type="importmap">{names}</script>\n'
            f'<link rel="preload" as="style" href="{folder}/{self.style}" />\n'
            + "".join(f'<link rel="modulepreload" href="{folder}/{one}" />\n' for one in modules)
            + f'<script type="module" data-page src="{folder}/{self.scripts[language]}"></script>'
        )

    def gradio_head(self) -> str:
        """Return the tag that applies the style. Gradio adds it behind its own styles, which it overrides."""
        return f'<link rel="stylesheet" href="assets/{self.style}" />'


def page_files(*, links: bool = True) -> PageFiles:
    """Build the files. `links`: chats can have read-only links."""
    later = {one: lazy_script(one).encode() for one in LAZY}
    lazy = {one: _name(one, content, "js") for one, content in later.items()}
    modules = {path.name: path.read_bytes() for path in sorted(MODULES.glob("*.js"))}
    folder = f"transcript-{_digest(b''.join(modules.values()))}"
    scripts = {one: script(one, lazy=lazy, modules=folder, links=links).encode() for one in LANGUAGES}
    rules = style().encode()
    names = {one: _name(f"page-{one}", content, "js") for one, content in scripts.items()}
    css = _name("page", rules, "css")
    contents = {names[one]: content for one, content in scripts.items()} | {css: rules}
    contents |= {lazy[one]: content for one, content in later.items()}
    contents |= {f"{folder}/{one}": content for one, content in modules.items()}
    return PageFiles(contents, names, css)


def _name(name: str, content: bytes, kind: str) -> str:
    return f"{name}-{_digest(content)}.{kind}"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]
