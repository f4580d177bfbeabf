"""The page's own script and style as files with a hash in their names, which browsers keep for good.

In the page itself they would be loaded again with each visit, and Gradio would write them into the page each time.
"""

from dataclasses import dataclass
from hashlib import sha256
from html import escape

from agent.i18n.translator import LANGUAGES
from agent.web.ui.page_script import LAZY, lazy_script, script
from agent.web.ui.theme import style

START = "() => window.startPage()"
"""Starts the page's script. Gradio runs this once it shows the page."""


@dataclass(frozen=True, slots=True)
class PageFiles:
    """The files by name. `scripts` has the name of the script by language."""

    contents: dict[str, bytes]
    scripts: dict[str, str]
    style: str

    def tags(self, path: str, language: str) -> str:
        """Return the tags that load the files early. `path` is the path of the app, without a slash at its end."""
        folder = escape(f"{path}/assets")
        # The script runs before Gradio's, because both are deferred.
        return (
            f'<link rel="preload" as="style" href="{folder}/{self.style}" />\n'
            f'<script defer src="{folder}/{self.scripts[language]}"></script>'
        )

    def gradio_head(self) -> str:
        """Return the tag that applies the style. Gradio adds it behind its own styles, which it overrides."""
        return f'<link rel="stylesheet" href="assets/{self.style}" />'


def page_files(*, links: bool = True) -> PageFiles:
    """Build the files. `links`: chats can have read-only links."""
    later = {one: lazy_script(one).encode() for one in LAZY}
    lazy = {one: _name(one, content, "js") for one, content in later.items()}
    scripts = {one: f"window.startPage = {script(one, lazy=lazy, links=links)};".encode() for one in LANGUAGES}
    rules = style().encode()
    names = {one: _name(f"page-{one}", content, "js") for one, content in scripts.items()}
    css = _name("page", rules, "css")
    contents = {names[one]: content for one, content in scripts.items()} | {css: rules}
    contents |= {lazy[one]: content for one, content in later.items()}
    return PageFiles(contents, names, css)


def _name(name: str, content: bytes, kind: str) -> str:
    return f"{name}-{sha256(content).hexdigest()[:16]}.{kind}"
