"""The page is the same for all visitors with one language, so that it is made and compressed once."""

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agent.web.middleware.page_delivery import LONGEST_NAME, MOST_PAGES, PageRewriteMiddleware

Asked = tuple[str, dict[str, str]]
GZIP = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": ""}


class Gradio:
    """A stand-in for Gradio that numbers its pages."""

    def __init__(self, kind: str = "text/html", status: int = 200, *cookies: str) -> None:
        self.kind, self.status, self.cookies, self.made = kind, status, cookies, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.made += 1
        headers = [(b"content-type", self.kind.encode()), *((b"set-cookie", one.encode()) for one in self.cookies)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"page ", "more_body": True})
        await send({"type": "http.response.body", "body": str(self.made).encode()})


def ask(gradio: Gradio, *asked: Asked) -> list[httpx.Response]:
    """Request paths with headers. A query makes a page of its own."""

    def same(request: Request) -> str | None:
        return (
            None if request.url.query else request.headers.get("host", "") + request.headers.get("accept-language", "")
        )

    async def all_of_them() -> list[httpx.Response]:
        app = PageRewriteMiddleware(gradio, lambda request, html: html + "!" + request.headers["host"], same)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://chat.example") as client:
            return [await client.get(path, headers=headers) for path, headers in asked]

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
        (Gradio(), "/", {"host": "h" * (LONGEST_NAME + 1)}),
    ],
    ids=["query", "failure", "cookie", "other type", "long name"],
)
def test_page_of_its_own_is_not_kept(gradio: Gradio, path: str, headers: dict[str, str]) -> None:
    answers = ask(gradio, *[(path, headers)] * 2)
    assert gradio.made == 2
    assert [answer.text.partition("!")[0] for answer in answers] == ["page 1", "page 2"]
    assert {answer.status_code for answer in answers} == {gradio.status}
    assert [tuple(answer.headers.get_list("set-cookie")) for answer in answers] == [gradio.cookies] * 2


def test_strangers_cannot_fill_the_memory() -> None:
    gradio = Gradio()
    first = ("/", {"host": "first"})
    ask(gradio, first, *(("/", {"host": f"host{number}"}) for number in range(MOST_PAGES)), first)
    assert gradio.made == MOST_PAGES + 2
