"""The app's changes to Gradio's page, and what the changed page depends on."""

from collections.abc import Hashable
from dataclasses import dataclass

from fastapi import Request

from agent.i18n.translator import Translator, negotiate
from agent.web.gradio_compat.application import PAGE_QUERY, root_url
from agent.web.ui.page_files import PageFiles
from agent.web.ui.page_head import with_our_head


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
        return with_our_head(html, self.title, root_url(request, self.root_path), _translator(request), self.files)

    def same_page(self, request: Request) -> Hashable | None:
        """Return equal values for requests that get the same page, or None if this one may get a page of its own."""
        if self.has_login or any(name in request.query_params for name in PAGE_QUERY):
            return None
        return root_url(request, self.root_path), _translator(request).language, _is_guide(request)


def _is_guide(request: Request) -> bool:
    return request.query_params.get("view") == "api"


def _translator(request: Request) -> Translator:
    return negotiate(request.headers.get("accept-language", ""))
