"""The traffic from the app to a page, for tests that look for secrets in it."""

from contextlib import suppress
from urllib.parse import urlsplit

from playwright.sync_api import Error, Page, Request, Response, Route

EVENT = "/gradio_api/run/"


class Traffic:
    """The responses to a loaded page from now on. Ask for a fresh page, because the listeners stay.

    A page closes the streams of answers itself, and the browser then has no body for them. So they are asked for again.
    Chromium does not always say that the answer to an event is finished. So events are answered by way of this class.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._responses: list[Response | None] = []
        self._runs: list[str] = []
        self._events: list[str] = []
        page.on("request", self._note_run)
        page.on("requestfinished", self._note_response)
        page.route(f"**{EVENT}*", self._pass_on)

    def received(self) -> dict[str, str]:
        """Return the headers and bodies by path. Those of events are under `EVENT`, and those of runs under `/runs`."""
        texts: dict[str, str] = {}
        for response in filter(None, self._responses):
            path = urlsplit(response.url).path
            body = b"" if response.status == 204 else response.body()  # Chromium has no body for these
            texts[path] = texts.get(path, "") + f"{response.headers}\n{body.decode(errors='replace')}\n"
        texts[EVENT] = "".join(self._events)
        texts["/runs"] = "".join(self._page.request.get(url).text() for url in self._runs)
        return texts

    def _pass_on(self, route: Route) -> None:
        with suppress(Error):  # the page was closed meanwhile
            answer = route.fetch()
            self._events.append(f"{answer.headers}\n{answer.text()}\n")
            route.fulfill(response=answer)

    def _note_response(self, request: Request) -> None:
        if EVENT not in urlsplit(request.url).path:
            self._responses.append(request.response())

    def _note_run(self, request: Request) -> None:
        if urlsplit(request.url).path.startswith("/runs/"):
            self._runs.append(request.url.partition("?")[0])


def leaks_of(page: Page) -> list[str]:
    """Return the list to which each leak is added: a request that no policy of the frame has stopped."""
    sent = list[str]()

    def add(request: Request) -> None:
        if "leak" in request.url and request.failure != "csp":
            sent.append(request.url)

    for event in ("requestfinished", "requestfailed"):
        page.context.on(event, add)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return sent
