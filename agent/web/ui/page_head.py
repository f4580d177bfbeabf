"""The head of the page: its title, icons, link preview and loading screen, and scripts that run before Gradio's."""

import html
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi import Request

from agent.i18n.text import _
from agent.i18n.translator import Translator, translator_for
from agent.web.gradio_compat.application import PAGE_QUERY, root_url
from agent.web.ui.page_files import PageFiles, without_comments
from agent.web.ui.theme import COLOURS

STATIC = Path(__file__).parent / "static"
ICONS = {
    "/favicon.ico": ("favicon.ico", "image/x-icon"),
    "/mark.svg": ("mark.svg", "image/svg+xml"),
    "/icon-180.png": ("icon-180.png", "image/png"),
    "/icon-512.png": ("icon-512.png", "image/png"),
    "/preview.png": ("preview.png", "image/png"),
}
"""The images by path: the file in `static` and its type. All are drawn from `mark.svg`."""
MARK = "data:image/svg+xml," + quote((STATIC / "mark.svg").read_text(encoding="utf-8"), safe="")
MANIFEST = "/manifest.json"
LOST_PARTS = without_comments((Path(__file__).parent / "lost_parts.js").read_text(encoding="utf-8"))
CHOSEN_COLOURS = (
    "try { const chosen = localStorage.getItem('colours');"
    " if (chosen) document.documentElement.dataset.colours = chosen; } catch {}"
)
"""Shows the visitor's colours from the first paint on, unless a browser gives no storage to a page in a frame."""

_METAS = re.compile(r'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')
_TITLE = re.compile(r"<title>[^<]*</title>\s*")
_LINK = re.compile(r'<link\s+rel="manifest"[^>]*>\s*')
_BASE = re.compile(r'<base\s+href="[^"]*"\s*/?>')
_VIEWPORT = re.compile(r'<meta\s+name="viewport"[^>]*>')
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1, interactive-widget=resizes-content" />'
"""A keyboard on the screen makes the page lower, so that the composer stays above it."""
_CHARSET = re.compile(r"<meta\s+charset[^>]*>")
RESIZER = "document.head.appendChild(script);"
"""Gradio loads a script that tells the page around its frame how high it is. A page of its own has no use for it."""


@dataclass(frozen=True, slots=True)
class PageChanges:
    """The page's own head. With `has_login`, the page names its visitor."""

    title: str
    root_path: str
    files: PageFiles
    has_login: bool

    def change(self, request: Request, html: str) -> str:
        """Return the page with the app's own head."""
        if _is_guide(request):  # which Gradio shows only where it shows a link to it
            html = html.replace('"footer_links":[]', '"footer_links":["api"]', 1)
        return with_our_head(
            html, self.title, root_url(request, self.root_path), translator_for(request.headers), self.files
        )

    def same_page(self, request: Request) -> Hashable | None:
        """Return equal values for requests that get the same page, or None if this one may get a page of its own."""
        if self.has_login or any(name in request.query_params for name in PAGE_QUERY):
            return None
        return root_url(request, self.root_path), translator_for(request.headers).language, _is_guide(request)


def _is_guide(request: Request) -> bool:
    return request.query_params.get("view") == "api"


def with_our_head(page: str, title: str, root: str, translator: Translator, files: PageFiles) -> str:
    """Return Gradio's page with the app's own head in place of Gradio's.

    `root` is the page's absolute URL without a trailing slash.
    """
    # Only the part before the first script is searched for them, because scripts contain texts that visitors see.
    before, script, after = page.partition("<script")
    before = _TITLE.sub("", _METAS.sub("", before))
    before = _VIEWPORT.sub(VIEWPORT, before, count=1)
    # The page is also at /c/<id>, from where Gradio's relative addresses would lead elsewhere.
    before = _BASE.sub(f'<base href="{html.escape(urlsplit(root).path)}/" />', before, count=1)
    ours = _head(title, root, translator) + "\n" + files.tags(urlsplit(root).path, translator.language)
    before = _CHARSET.sub(lambda charset: charset[0] + ours, before, count=1)
    after = after.replace(RESIZER, f"if (window.parent !== window) {RESIZER}", 1)
    return before + script + _LINK.sub("", after, count=1)


def manifest(title: str, root: str) -> dict[str, Any]:
    """Return the web app manifest."""
    path = urlsplit(root).path
    icons = [{"src": f"{path}/mark.svg", "sizes": "any", "type": "image/svg+xml"}]
    icons += [{"src": f"{path}/icon-{size}.png", "sizes": f"{size}x{size}", "type": "image/png"} for size in (180, 512)]
    light, _ = COLOURS["ground"]
    colours = {"background_color": light, "theme_color": light}
    here = {"id": f"{path}/", "start_url": f"{path}/", "scope": f"{path}/"}
    return {"name": title, "short_name": title, "icons": icons, "display": "standalone", **here, **colours}


def _head(title: str, root: str, translator: Translator) -> str:
    description = translator(_("Chat with the model of your choice, with pictures, sound and tools."))
    named = {
        "og:type": "website",
        "og:site_name": title,
        "og:title": title,
        "og:description": description,
        "og:url": f"{root}/",
        "og:image": f"{root}/preview.png",
        "og:image:type": "image/png",
        "og:image:width": "1200",
        "og:image:height": "630",
    }
    metas = [f'<meta property="{name}" content="{html.escape(value)}" />' for name, value in named.items()]
    twitter = {"card": "summary_large_image"} | {key: named[f"og:{key}"] for key in ("title", "description", "image")}
    metas += [f'<meta name="twitter:{name}" content="{html.escape(value)}" />' for name, value in twitter.items()]
    light, dark = COLOURS["ground"]
    path = html.escape(urlsplit(root).path)
    return "\n".join(
        (
            "",
            f"<title>{html.escape(title)}</title>",
            f'<meta name="description" content="{html.escape(description)}" />',
            f'<meta name="theme-color" media="(prefers-color-scheme: light)" content="{light}" />',
            f'<meta name="theme-color" media="(prefers-color-scheme: dark)" content="{dark}" />',
            *metas,
            f'<link rel="icon" href="{path}/favicon.ico" sizes="48x48" />',
            f'<link rel="icon" href="{MARK}" type="image/svg+xml" sizes="any" />',
            f'<link rel="apple-touch-icon" href="{path}/icon-180.png" />',
            f'<link rel="manifest" href="{path}{MANIFEST}" />',
            _loading(),
            f"<script>{CHOSEN_COLOURS}{LOST_PARTS}</script>",
        )
    )


def _loading() -> str:
    """Return the style of the loading screen: the app's mark instead of Gradio's, in the colours of the page."""
    loader = 'gradio-app svg[viewBox="-1200 -1200 3000 3000"]'
    light, dark = (" ".join(f"--{name}: {COLOURS[name][one]};" for name in ("ground", "ink")) for one in (0, 1))
    return (
        f"<style>:root {{ {light} --mark: url('{MARK}'); }}"
        f" @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
        f' :root[data-colours="light"] {{ {light} }} :root[data-colours="dark"] {{ {dark} }}'
        " :root[data-colours] > body { background: var(--ground); color: var(--ink); }"
        f" {loader} {{ background: var(--mark) center / 56px no-repeat; }}"
        f" {loader} > * {{ display: none; }}</style>"
    )
