"""The traffic from the app to a page, for tests that look for secrets in it."""

from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, Response


class Traffic:
    """The responses to a loaded page from now on. Ask for a fresh page, because the listeners stay.

    A page closes the streams of answers itself, and the browser then has no body for them. So they are asked for again.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._responses: list[Response | None] = []
        self._runs: list[str] = []
        page.on("request", self._note_run)
        page.on("requestfinished", lambda request: self._responses.append(request.response()))

    def received(self) -> dict[str, str]:
        """Return the headers and bodies by path. All events of answers are under `/runs`."""
        texts: dict[str, str] = {}
        for response in filter(None, self._responses):
            path = urlsplit(response.url).path
            texts[path] = texts.get(path, "") + f"{response.headers}\n{response.body().decode(errors='replace')}\n"
        texts["/runs"] = "".join(self._page.request.get(url).text() for url in self._runs)
        return texts

    def _note_run(self, request: Request) -> None:
        if urlsplit(request.url).path.startswith("/runs/"):
            self._runs.append(request.url.partition("?")[0])
