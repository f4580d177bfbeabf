"""The traffic from the app to a page, for tests that look for secrets in it."""

from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, Response

EVENTS = "/gradio_api/queue/data"

COPY_EVENTS = """
(path) => {
  const original = window.fetch;
  window.receivedEvents = "";
  const read = async (answer) => {
    const decoder = new TextDecoder();
    try {
      for await (const piece of answer.body) window.receivedEvents += decoder.decode(piece, { stream: true });
    } catch {} // the page has closed the stream; what came before that is kept
  };
  window.fetch = async (...asked) => {
    const answer = await original(...asked);
    // The page's own answers have no URL.
    if (new URL(asked[0]?.url ?? asked[0], location).pathname === path) read(answer.clone());
    return answer;
  };
}
"""


class Traffic:
    """The responses to a loaded page from now on. Ask for a fresh page, because the listeners stay.

    A page closes its event streams itself, and the browser then has no body for them. So those of Gradio are copied
    in the page, and those of answers are asked for again.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._responses: list[Response | None] = []
        self._runs: list[str] = []
        page.evaluate(COPY_EVENTS, EVENTS)
        page.on("request", self._note_run)
        page.on("requestfinished", lambda request: self._responses.append(request.response()))

    def received(self) -> dict[str, str]:
        """Return the headers and bodies by path. All events of answers are under `/runs`."""
        texts: dict[str, str] = {}
        for response in filter(None, self._responses):
            path = urlsplit(response.url).path
            texts[path] = texts.get(path, "") + f"{response.headers}\n{response.body().decode(errors='replace')}\n"
        texts[EVENTS] = texts.get(EVENTS, "") + self._page.evaluate("window.receivedEvents")
        texts["/runs"] = "".join(self._page.request.get(url).text() for url in self._runs)
        return texts

    def _note_run(self, request: Request) -> None:
        if urlsplit(request.url).path.startswith("/runs/"):
            self._runs.append(request.url.partition("?")[0])
