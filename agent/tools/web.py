"""The tools with which a model searches the web and reads its pages.

A SearXNG server of the owner searches. Pages are fetched behind a guard, and read in the sandbox. What a page says is
marked as a page's text, because its author is a stranger. Results have numbers, which the answer cites.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast
from urllib.parse import quote_plus, urlsplit

from agent.citations import FOREIGN, READ, SEARCH, WebPage, one_line, search_result
from agent.errors import InputError, ToolError
from agent.fetch import Guard
from agent.files.encodings import decode_text
from agent.files.kinds import HTML, PDF, TEXT
from agent.files.reading import read_document
from agent.system.threads import TEXTS
from agent.tools.function_tools import Tool

MAX_RESULTS, MAX_TITLE, MAX_SNIPPET, MAX_ADDRESS = 6, 150, 400, 2_000
MAX_SEARCH_BYTES, MAX_PAGE_BYTES = 2_000_000, 5_000_000
WEB_SECONDS = 15.0
"""Seconds for a search, and for the fetch of a page."""
PAGES = ("text/html", "application/xhtml+xml", "text/plain", "text/markdown", "application/json", PDF)
"""The media types of pages that are read."""

Permit = Callable[[], AbstractContextManager[object]]
"""Counts one request to the web, or raises `Limited`."""

_HTML = ("text/html", "application/xhtml+xml")


def web_tools(
    server: str, guard: Guard, *, max_bytes: int, first: int = 1, permit: Permit = nullcontext
) -> tuple[Tool, Tool]:
    """Return `web_search`, which asks this SearXNG server, and `read_page`, which fetches what the `guard` allows.

    A result has at most `max_bytes` of a page. The first page that is found gets the number `first`.
    """
    numbers = dict[str, int]()

    def number_of(url: str) -> int:
        return numbers.setdefault(url, first + len(numbers))

    async def web_search(query: object = "") -> str:
        asked = " ".join(str(query).split())
        if not asked:
            raise ToolError("The query is empty: say what to search for.")
        with permit():
            found = await _search(server, asked, guard)
        pages = [WebPage(number_of(url), title, url, text) for title, url, text in found]
        return search_result(asked, pages)

    async def read_page(url: object = "", part: object = 1) -> str:
        address = str(url).strip()
        if named := re.fullmatch(r"\[?(\d{1,4})\]?", address):
            address = next((one for one, number in numbers.items() if number == int(named[1])), address)
        if not re.fullmatch(r"[0-9]{1,9}", named_part := "1" if part is None else str(part)):
            raise ToolError("part must be a whole number, such as 2.")
        wanted = int(named_part)
        with permit():
            final, title, text = await _read(address, guard)
        data = text.encode("utf-8", "replace")
        count = max(1, -(-len(data) // max_bytes))
        if not 1 <= wanted <= count:
            raise ToolError(f"This page has {count} parts, and no part {wanted}.")
        shown = data[(wanted - 1) * max_bytes : wanted * max_bytes].decode("utf-8", "ignore")
        rest = f"[Part {wanted} of {count}. Read on with part={wanted + 1}.]" if wanted < count else ""
        head = f"[{number_of(final)}] {one_line(title, MAX_TITLE) or _host(final)}\n{final}"
        return "\n\n".join(filter(None, [head, f"[{FOREIGN}]", shown or "[The page has no text.]", rest]))

    return (
        Tool(web_search, SEARCH, schema=_SEARCH_SCHEMA, description=_SEARCH_DESCRIPTION),
        Tool(read_page, READ, schema=_READ_SCHEMA, description=_READ_DESCRIPTION),
    )


_SEARCH_DESCRIPTION = (
    "Search the web for what is new, or what you do not know for sure. Returns titles, addresses and passages of "
    "pages, with numbers. In the answer, put the number of the page behind what comes from it, such as [1]."
)
_READ_DESCRIPTION = "Read the text of a web page, part by part."
_SEARCH_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "A few words, as for a search engine."}},
    "required": ["query"],
}
_READ_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "url": {"type": "string", "description": "The address of the page, or the number of a result."},
        "part": {"type": "integer", "description": "The number of the part, from 1. Leave it out for the first one."},
    },
    "required": ["url"],
}


async def _search(server: str, query: str, guard: Guard) -> list[tuple[str, str, str]]:
    """Return the title, address and passage of each page that the server finds."""
    path, _, given = server.partition("?")
    path = path.rstrip("/") + ("" if path.rstrip("/").endswith("/search") else "/search")
    url = f"{path}?{given + '&' if given else ''}q={quote_plus(query)}&format=json"
    try:
        answer = await guard.trusting(server).send(
            "GET",
            url,
            headers={"Accept": "application/json"},
            body=b"",
            max_bytes=MAX_SEARCH_BYTES,
            seconds=WEB_SECONDS,
        )
    except InputError as error:  # its text would name the owner's server
        raise ToolError("The search does not answer now.") from error
    if answer.status == 403:
        raise ToolError('The search gives no JSON: "json" must be one of search.formats in the settings of SearXNG.')
    if answer.status == 429:
        raise ToolError("The search gets too many questions. Try again later.")
    if answer.status != 200:
        raise ToolError(f"The search answered with status {answer.status}.")
    try:
        body: Any = await TEXTS.run(json.loads, answer.data)
        found = [cast(dict[str, Any], one) for one in cast(list[object], body["results"]) if isinstance(one, dict)]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ToolError("The search did not answer as SearXNG does.") from error
    pages = [(str(one.get("url")), one.get("title") or "", one.get("content") or "") for one in found]
    shown = [page for page in pages if len(page[0]) <= MAX_ADDRESS and re.fullmatch(r"https?://\S+", page[0])]
    return [
        (one_line(title, MAX_TITLE) or _host(url), url, one_line(text, MAX_SNIPPET))
        for url, title, text in shown[:MAX_RESULTS]
    ]


async def _read(url: str, guard: Guard) -> tuple[str, str, str]:
    """Return the address after all redirects, the title and the text of a page. Raises `InputError`."""
    got = await guard.fetch(url, kinds=PAGES, max_bytes=MAX_PAGE_BYTES, seconds=WEB_SECONDS)
    if got.media_type == PDF:
        data, kind = got.data, PDF
    else:
        text = await TEXTS.run(decode_text, got.data)
        data = text[0].encode("utf-8", "replace") if text else got.data
        kind = HTML if got.media_type in _HTML else TEXT
    try:
        document = await read_document(data, kind)
    except InputError as error:  # its text continues a sentence
        raise ToolError(f"The page of {_host(got.url)} {error}.") from error
    return got.url, document.title, "\n\n".join(filter(None, document.pages))


def _host(url: str) -> str:
    return urlsplit(url).hostname or url
