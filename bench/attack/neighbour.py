"""The bystander of `client.bystander`: `python -m bench.attack.neighbour URL PAUSE`.

It says that the page is open and has answered once, and at the end of its input prints what it has seen as JSON.
"""

import json
import os
import select
import sys
import time
from dataclasses import asdict

from bench.attack.client import Bystander, Client

ADDRESS = f"198.51.{os.getpid() % 254 + 1}.{os.getpid() // 254 % 254 + 1}"
"""The network address of the bystander, which no attacker and no other bystander shares."""

OPEN_S = 2.4
"""Seconds between two looks at its own chat and searches, of which a minute has a limit."""


def main(url: str, pause: float) -> None:
    """Load the page, the list and a chat, and send a message, again and again."""
    seen = Bystander()
    with Client(url, x_forwarded_for=ADDRESS) as client:
        client.chat("!text Hello.", new=True)  # the first answer of an app also waits for imports
        print("open", flush=True)
        chat = client.http.get("/conversations").json()["conversations"][0]["id"]
        is_over, opened = False, 0.0
        while not is_over:
            paths = {"the page": "/", "the list": "/conversations"}
            if (now := time.monotonic()) - opened >= OPEN_S:
                opened, paths["its chat"] = now, f"/conversations/{chat}?format=blocks"
                paths["a search"] = "/conversations?q=hello"
            for name, path in paths.items():
                began = time.monotonic()
                status = client.http.get(path).status_code
                seen.looks.append(took := time.monotonic() - began)
                seen.longest[name] = max(took, seen.longest.get(name, 0.0))
                if status != 200:
                    seen.failures.append(f"status {status} of {path}")
            began = time.monotonic()
            reply = client.chat("!text Hello.", new=True)
            if reply.success and reply.value["text"] == "Hello.":
                seen.seconds.append(time.monotonic() - began)
            else:
                seen.failures.append(reply.error or str(reply.value))
            is_over = bool(select.select([sys.stdin], [], [], pause)[0])
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
