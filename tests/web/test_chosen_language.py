"""The cookie with the language that a visitor has chosen."""

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from agent.web.middleware.page_delivery import ChosenLanguage


async def said(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the languages that the request asks for."""
    asked = [value for name, value in scope["headers"] if name == b"accept-language"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"|".join(asked)})


@pytest.mark.parametrize(
    ("cookie", "wanted"),
    [
        ("switchboard_language=de", "de"),
        ('visitor=x; odd={"a": [1, 2]}; switchboard_language=de; other=y', "de"),
        ("switchboard_language=tlh", "fr, en;q=0.5"),
        ("switchboard_language=", "fr, en;q=0.5"),
        ("my-switchboard_language=de", "fr, en;q=0.5"),
        ("switchboard_language=de\u00ff\x01", "fr, en;q=0.5"),
        ("", "fr, en;q=0.5"),
    ],
)
def test_only_a_known_language_is_taken(cookie: str, wanted: str) -> None:
    client = TestClient(ChosenLanguage(said, languages=("en", "de")))
    headers = {b"accept-language": b"fr, en;q=0.5", b"cookie": cookie.encode("latin-1")}
    assert client.get("/", headers=list(headers.items())).text == wanted
