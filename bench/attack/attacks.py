"""Attacks on a public page. Each is a function that tests call, too. `python -m bench.attack` runs them."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

from PIL import Image

from bench.attack import branches, chats, documents, heavy, requests, texts
from bench.attack.client import Client, Reply

ADDRESS = "192.0.2.7"
"""The network address of many attackers behind one proxy."""
SLOW = "!tokens 100 @20"
"""An answer that takes five seconds."""


def rush(url: str, count: int, *, cookies: str, file: bool = True, address: str = "") -> list[Reply]:
    """Send `count` messages with a small file at the same moment, from one address.

    `cookies`: "one" is one cookie for all, "each" is one cookie each, "none" is guests with one session each.
    """
    first = Client(url, x_forwarded_for=address)
    like = first if cookies == "one" else None
    clients = [Client(url, guest=cookies == "none", like=like, x_forwarded_for=address) for _ in range(count)]
    paths = [[client.upload(f"{number}.png", picture(8))] if file else [] for number, client in enumerate(clients)]

    def send(number: int) -> Reply:
        return clients[number].chat(f"{SLOW} !text rush", *paths[number], new=True)

    with ThreadPoolExecutor(count) as pool:
        replies = list(pool.map(send, range(count)))
    for client in (first, *clients):
        client.http.close()
    return replies


def one_file_many_times(url: str, times: int = 120, megabytes: int = 20) -> Reply:
    """Name one large image many times in one message."""
    with Client(url) as client:
        path = client.upload("large.png", picture(int((megabytes * 1e6 / 3) ** 0.5)))
        return client.chat("!text Seen.", *[path] * times, seconds=600)


def long_prompts(url: str, visitors: int = 200, characters: int = 900_000) -> int:
    """Send a long system prompt as many visitors. Return the number of accepted messages."""
    taken = 0
    for _ in range(visitors):
        with Client(url) as client:
            taken += client.send("!text Hi.", settings={"system_message": "x" * characters}).status_code == 200
    return taken


def long_edit(url: str, characters: int) -> tuple[str, float]:
    """Edit a message to a very long text. Return the refusal and the seconds it took."""
    with Client(url) as client:
        sent = client.send("!text Short.")
        client.read(sent)
        path, began = f"/conversations/{sent.json()['conversation']}/messages/{'0' * 32}", time.monotonic()
        refused = client.http.patch(path, json={"text": "x" * characters})
        return str(refused.json()["detail"]), time.monotonic() - began


def long_message(url: str, files: int, characters: int) -> Reply:
    """Send a message with short text and text files that exceed the limits."""
    with Client(url) as client:
        paths = [client.upload(f"{number}.txt", b"word " * (characters // 5)) for number in range(files)]
        return client.chat("!text Read.", *paths)


def picture(side: int) -> bytes:
    """Return an image of noise, which no encoder can shrink: three bytes per pixel."""
    out = BytesIO()
    Image.frombytes("RGB", (side, side), random.randbytes(side * side * 3)).save(out, "PNG", compress_level=0)
    return out.getvalue()


def refusals(replies: Sequence[Reply]) -> dict[str, int]:
    """Count each refusal by its sentence. The key "" counts the answers."""
    found: dict[str, int] = {}
    for reply in replies:
        found[reply.error] = found.get(reply.error, 0) + 1
    return found


ATTACKS: dict[str, Callable[[str], object]] = {
    "nothing, to compare": lambda url: time.sleep(20),
    "36 messages at once, one cookie": lambda url: refusals(rush(url, 36, cookies="one")),
    "36 messages at once, 36 cookies": lambda url: refusals(rush(url, 36, cookies="each", address=ADDRESS)),
    "30 messages at once, guests": lambda url: refusals(rush(url, 30, cookies="none")),
    "an edit of 0.9 MB": lambda url: long_edit(url, 900_000),
    "a request of 3 MB of text": lambda url: long_message(url, 16, 190_000),
    "one 20 MB file named 120 times": one_file_many_times,
    "200 guests with a system prompt of 0.9 MB": long_prompts,
    **chats.ATTACKS,
    **branches.ATTACKS,
    **heavy.ATTACKS,
    "texts of 5 MB on all routes": heavy.long_texts,
    **documents.ATTACKS,
    **texts.ATTACKS,
    **texts.MORE,
    **requests.ATTACKS,
    **requests.MORE,
}
SHORT = (
    *(*heavy.ATTACKS, *texts.ATTACKS, *requests.ATTACKS, *list(documents.ATTACKS)[:2]),
    *("document: archives in archives", "sound: tracks"),
)
"""The names of the attacks that the gate runs."""
