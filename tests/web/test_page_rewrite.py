"""The page is the same for all visitors with one language, so that it is made and compressed once."""

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agent.web.heavy_work import RequestLimit, TooManyRequests
from agent.web.middleware.page_delivery import MOST_PAGES, PageRewriteMiddleware

Asked = tuple[str, dict[str, str]] | tuple[str, dict[str, str], str]
"""A path, headers, and a method if it is not GET."""
GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": ""}


class Gradio:
    """A stand-in for Gradio that numbers its pages."""

    def __init__(self, kind: str = "text/html", status: int = 200, *cookies: str) -> None:
        self.kind, self.status, self.cookies, self.made = kind, status, cookies, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["method"] == "GET"
        self.made += 1
        await asyncio.sleep(0)
        kind = "application/json" if scope["path"] == "/config" else self.kind
        headers = [(b"content-type", kind.encode()), *((b"set-cookie", one.encode()) for one in self.cookies)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"page ", "more_body": True})
        await send({"type": "http.response.body", "body": str(self.made).encode()})


def ask(
    gradio: Gradio, *asked: Asked, limit: RequestLimit | None = None, at_once: bool = False
) -> list[httpx.Response]:
    """Request paths with headers, one after the other or all at once. A query makes a page of its own."""

    def same(request: Request) -> str | None:
        return (
            None if request.url.query else request.headers.get("host", "") + request.headers.get("accept-language", "")
        )

    async def all_of_them() -> list[httpx.Response]:
        app = PageRewriteMiddleware(gradio, lambda request, html: html + "!" + request.headers["host"], same, limit)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat.example") as client:
            asking = [client.request("".join(one[2:]) or "GET", one[0], headers=one[1]) for one in asked]
            return await asyncio.gather(*asking) if at_once else [await one for one in asking]

    return asyncio.run(all_of_them())


def test_equal_pages_are_made_once() -> None:
    gradio = Gradio()
    german = {**GZIP, "accept-language": "de"}
    answers = ask(gradio, ("/", GZIP), ("/", GZIP), ("/", PLAIN), ("/", german), ("/", german))
    assert [answer.text for answer in answers] == ["page 1!chat.example"] * 3 + ["page 2!chat.example"] * 2
    assert ["content-encoding" in answer.headers for answer in answers] == [True, True, False, True, True]
    assert {answer.headers["vary"] for answer in answers} == {"accept-encoding, accept-language, cookie"}
    assert {answer.headers["content-type"] for answer in answers} == {"text/html"}


@pytest.mark.parametrize(
    ("gradio", "path", "headers"),
    [
        (Gradio(), "/?deep_link=x", {}),
        (Gradio("text/html", 500), "/", {}),
        (Gradio("text/html", 200, "session=mine", "other=too"), "/", {}),
        (Gradio("application/json"), "/", {}),
    ],
    ids=["query", "failure", "cookie", "other type"],
)
def test_page_of_its_own_is_not_kept(gradio: Gradio, path: str, headers: dict[str, str]) -> None:
    answers = ask(gradio, *[(path, headers)] * 2)
    assert gradio.made == 2
    assert [answer.text.partition("!")[0] for answer in answers] == ["page 1", "page 2"]
    assert {answer.status_code for answer in answers} == {gradio.status}
    assert [tuple(answer.headers.get_list("set-cookie")) for answer in answers] == [gradio.cookies] * 2


def test_page_that_many_ask_for_at_once_is_made_once() -> None:
    gradio = Gradio()
    answers = ask(gradio, *[("/", GZIP)] * 20, *[("/", PLAIN)] * 20, at_once=True)
    assert {answer.text for answer in answers} == {"page 1!chat.example"}


def test_configuration_and_head_of_the_page_are_made_once() -> None:
    gradio = Gradio()
    answers = ask(gradio, ("/", PLAIN, "HEAD"), ("/", PLAIN), ("/config", PLAIN), ("/config", GZIP), ("/config/", {}))
    assert [answer.text for answer in answers][1:4] == ["page 1!chat.example", "page 2", "page 2"]
    assert gradio.made == 3


def test_only_pages_that_are_made_anew_count() -> None:
    """A name that a stranger invents is a page of its own. A reload is none."""
    others = [("/", {"host": f"host{number}"}) for number in range(3)]
    ask(Gradio(), *[("/", GZIP)] * 20, *others[:2], limit=RequestLimit(3, 3))
    with pytest.raises(TooManyRequests):
        ask(Gradio(), ("/", GZIP), *others, limit=RequestLimit(3, 3))
    ask(Gradio(), *[("/?page_of_its_own", GZIP)] * 20, limit=RequestLimit(3, 3))


def test_strangers_cannot_fill_the_memory() -> None:
    gradio = Gradio()
    first = ("/", {"host": "first"})
    ask(gradio, first, *(("/", {"host": f"host{number}"}) for number in range(MOST_PAGES)), first)
    assert gradio.made == MOST_PAGES + 2
