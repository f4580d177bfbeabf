"""Chats of many or of long messages, whose owner looks at them, searches, exports, copies and deletes them."""

import json
import time
from collections.abc import Callable
from contextlib import suppress

import httpx

from bench.attack.client import Client

MESSAGES = 30_000


def long_chat(url: str, messages: int = MESSAGES, characters: int = 0) -> dict[str, str]:
    """Import a chat and do with it what its owner can do. Return the status and the seconds of each step.

    Each message has about this many characters more than a short sentence.
    """
    more = " A *word*." * (characters // 10)
    said = [
        {"uuid": f"{n}", "sender": ("human", "assistant")[n % 2], "text": f"Message {n} of pears.{more}"}
        for n in range(messages)
    ]
    told = dict[str, str]()
    with Client(url) as client:

        def step(name: str, work: Callable[[], httpx.Response]) -> httpx.Response | None:
            began, status = time.monotonic(), "no answer"
            answer = None
            with suppress(httpx.HTTPError):
                answer = work()
                status = str(answer.status_code)
            told[name] = f"{status} in {time.monotonic() - began:.1f} s"
            return answer

        body = json.dumps([{"name": "long", "chat_messages": said}])
        imported = step("import", lambda: client.http.post("/import", content=body, timeout=300))
        if imported is None or not imported.is_success:
            return told
        chat = json.loads(imported.text.splitlines()[-1])["conversations"][0]
        one, export = f"/conversations/{chat}", f"/export/{chat}"
        step("list", lambda: client.http.get("/conversations"))
        step("open", lambda: client.http.get(f"/c/{chat}"))
        step("search", lambda: client.http.get("/conversations?q=pears"))
        step("own data", lambda: client.http.get("/own-data"))
        sent = step("go on", lambda: client.send("!text Hi.", chat))
        if sent is not None and sent.is_success:
            client.read(sent)
        for form in ("json", "markdown", "html"):
            step(f"export {form}", lambda form=form: client.http.get(f"{export}?format={form}", timeout=300))
        link = step("link", lambda: client.http.post(f"{one}/links", json={"days": 1}))
        if link is not None and link.is_success:
            path = link.json()["path"]
            step("shared page", lambda: client.http.get(path, timeout=300))
            step("copy", lambda: client.http.post(f"{path}/continue", timeout=300))
        step("delete", lambda: client.http.delete(one, timeout=120))
        step("delete all", lambda: client.http.delete("/own-data", timeout=120))
    return told


ATTACKS: dict[str, Callable[[str], object]] = {
    f"a chat of {MESSAGES:,} messages": long_chat,
    "a chat of 28 messages of 1 MB": lambda url: long_chat(url, 28, 1_000_000),
}
