"""The page of a read-only link: a conversation without Gradio and without any script."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from agent.i18n import LocalizedText, _
from agent.i18n.translator import Translator
from agent.rendering.html import html_mark
from agent.transfer.document import DOCUMENT_THREADS, beginning, blocks_of, named_as_stored, title_of
from agent.transfer.html import (
    PAGE_END,
    STYLE,
    FileUrl,
    Frame,
    page_head,
    style_source,
    to_html,
)
from agent.transfer.shared import NOT_INCLUDED
from agent.web.chat.links import SharedChat

LINK_STYLE = STYLE + Path(__file__).with_name("link_page.css").read_text(encoding="utf-8")
POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {style_source(LINK_STYLE)}",
        "img-src 'self' data:",
        "media-src 'self' data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",  # so that nothing of a revoked link stays in a browser
    "x-robots-tag": "noindex, nofollow",
}
DESCRIPTION_CHARACTERS = 200
PREVIEW = "/preview.png"
GONE_TITLE = _("This link does not work")
GONE = _("It does not exist, it has expired, or it was revoked. Ask for a new one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The names of the site that a page shows. `root` is its absolute URL without a trailing slash."""

    title: str
    root: str

    @property
    def path(self) -> str:
        """The path of `root`."""
        return urlsplit(self.root).path


async def to_link_page(
    chat: SharedChat,
    address: str,
    site: Site,
    file_url: FileUrl,
    translator: Translator,
    name_model: Callable[[str], str] = named_as_stored,
) -> AsyncGenerator[str]:
    """Yield the page of a link, piece by piece.

    `address` is its absolute URL. `name_model` returns the name of the model with an id.
    """
    title, description = await DOCUMENT_THREADS.run(_preview, chat, translator)
    subtitle = translator(_("Read-only link · {date}", date=translator.date(chat.began_at.date())))
    frame = Frame(
        head=_head(site, translator, {"title": title, "description": description, "url": address}),
        before=_bar(site, translator, f"{address}/continue"),
        after=_system_prompt(chat.link.system_prompt, translator),
    )
    asked = translator(_("Author of this chat"))  # who is not its reader
    blocks = (
        replace(block, title=asked) if block.type == "user" else block
        for block in blocks_of(chat.entries(translator), translator, html_mark, name_model)
    )
    async with aclosing(to_html(title, subtitle, blocks, file_url, translator, frame)) as pieces:
        async for piece in pieces:
            yield piece


def message_page(title: LocalizedText | str, text: LocalizedText | str, site: Site, translator: Translator) -> str:
    """Return a page with one sentence instead of a conversation."""
    frame = Frame(head=_head(site, translator, {}), before=_bar(site, translator))
    return f"{page_head(translator(title), '', translator, frame)}<p>{escape(translator(text))}</p>\n{PAGE_END}"


def _head(site: Site, translator: Translator, preview: dict[str, str]) -> str:
    """Return the head: no index, and the tags of which messengers make a preview."""
    named = {
        "og:type": "article",
        "og:site_name": site.title,
        "og:image": site.root + PREVIEW,
        "og:image:type": "image/png",
        "og:image:width": "1200",
        "og:image:height": "630",
        **{f"og:{name}": value for name, value in preview.items()},
    }
    metas = [f'<meta property="{name}" content="{escape(value)}">' for name, value in named.items()] if preview else []
    if preview:
        metas.append(f'<meta name="description" content="{escape(preview["description"])}">')
        metas.append('<meta name="twitter:card" content="summary_large_image">')
    return "\n".join(
        (
            '<meta name="robots" content="noindex, nofollow">',
            '<meta name="referrer" content="same-origin">',  # without any, the origin of its form would be unknown
            *metas,
            f'<link rel="icon" href="{escape(site.path)}/mark.svg" type="image/svg+xml">',
            f"<style>{LINK_STYLE}</style>\n",
        )
    )


def _bar(site: Site, translator: Translator, action: str = "") -> str:
    home, name, label = f"{escape(site.path)}/", escape(site.title), escape(translator(_("Continue this chat")))
    target = escape(urlsplit(action).path)
    form = f'<form method="post" action="{target}"><button>{label}</button></form>' if action else ""
    mark = f'<img src="{escape(site.path)}/mark.svg" alt="" width="22" height="22">'
    return f'<nav><a href="{home}">{mark}{name}</a>{form}</nav>\n'


def _system_prompt(text: str | None, translator: Translator) -> str:
    if text is None:
        return ""
    label = escape(translator(_("System prompt")))
    return f"<details><summary>{label}</summary><pre>{escape(text)}</pre></details>\n"


def _preview(chat: SharedChat, translator: Translator) -> tuple[str, str]:
    """Return the title, and the beginning of what was said, or what the site is if nothing was written."""
    title, left_out = title_of(chat.title, chat.entries(translator), translator), translator(NOT_INCLUDED)
    words = ""
    for block in blocks_of(chat.entries(translator), translator):
        if block.type == "text" and block.text != left_out:
            words += f" {block.text[: 20 * DESCRIPTION_CHARACTERS].strip()}"
        if len(words) > 20 * DESCRIPTION_CHARACTERS:
            break
    shown = beginning(words, DESCRIPTION_CHARACTERS)
    return title, shown or translator(_("Chat with the model of your choice, with pictures, sound and tools."))
