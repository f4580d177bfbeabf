"""Spans with content contain no key. Everything else in them is unchanged."""

import json

import pytest

from agent.providers.errors import HIDDEN
from agent.telemetry import Redactor

OWN = "correct-horse-battery"
CLEANER = Redactor((OWN,))
KEYS = {
    "one that is known": OWN,
    "OpenAI": "sk-proj-abcdefgh12345678",
    "Hugging Face": "hf_abcdefghijklmnop",
    "Google": "AIzaSyA1234567890abcdefghijk",
    "a web token": "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "AWS": "AKIAABCDEFGHIJKLMNOP",
}
ANNOUNCED = {
    "a header": ("Authorization: Bearer ", "hunter2x"),
    "basic": ("authorization = Basic ", "dXNlcjpwYXNz"),
    "JSON": ('{"api_key": "', "hunter2"),
    "alone": ("Bearer ", "hunter2x9"),
    "a query": ("https://example.org/a?b=c&access_token=", "hunter2"),
    "a login": ("postgres://me:", "hunter2"),
}
PROSE = [
    *(
        *("The basic idea", "***bold***", "sk-learn", "a bearer of news", "task-1234", "```py\nx = 1\n```"),
        *("日本語。", "\n"),
    ),
    *("https://example.org/path?page=2", "d41d8cd98f00b204e9800998ecf8427e", "authorization is needed", "a=b", " "),
    *("\U0001f469‍\U0001f4bb", "| a | b |", "api key", "\u2028", "x@y.z", "-----"),
]


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_key_is_hidden_anywhere(key: str) -> None:
    for text in (key, f"it is {key}, they say", f'{{"a": "{key}"}}', f"({key})", f"日本{key}語"):
        assert key not in CLEANER.text(text)
        assert HIDDEN in CLEANER.text(text)


@pytest.mark.parametrize(("before", "secret"), ANNOUNCED.values(), ids=ANNOUNCED)
def test_announced_secret_is_hidden(before: str, secret: str) -> None:
    after = "@host/db" if "postgres" in before else " and more"
    cleaned = CLEANER.text(f"see {before}{secret}{after}")
    assert secret not in cleaned
    assert cleaned.startswith("see ")
    assert cleaned.endswith(after)


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_unchanged(text: str) -> None:
    assert CLEANER.text(text) == text


def test_values_are_redacted_by_name() -> None:
    medium = {
        "kind": "binary",
        "data": "c2stcHJvai1hYmNkZWZnaDEyMzQ1Njc4",
        "media_type": "image/png",
        "identifier": "a",
    }
    value = {"password": "hunter2", "tokens": 5, "note": [f"see {OWN}"], "json": '{"token": "hunter2", "a": [1]}'}
    assert CLEANER.value({"medium": medium, **value}) == {
        "medium": medium,
        "password": HIDDEN,
        "tokens": 5,
        "note": [f"see {HIDDEN}"],
        "json": json.dumps({"token": HIDDEN, "a": [1]}, ensure_ascii=False),
    }
