"""Records contain no key, however a stream cuts it. Everything else is unchanged."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.providers.redact import HIDDEN
from agent.tracing.redaction import RecordedPiece, RedactedStream, Redactor
from tests.tiers import examples

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
        "The basic idea",
        "***bold***",
        "sk-learn",
        "a bearer of news",
        "task-1234",
        "```py\nx = 1\n```",
        "日本語。",
        "\n",
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


def streamed(parts: Sequence[Sequence[str]]) -> list[RecordedPiece]:
    """Feed the parts' deltas in turn through a stream, and return all output."""
    stream, out = RedactedStream(CLEANER), list[RecordedPiece]()
    for at in range(max(map(len, parts), default=0)):
        for number, deltas in enumerate(parts):
            if at < len(deltas):
                out += stream.feed(RecordedPiece(float(at), number, "text", deltas[at]))
    return [*out, *stream.flush()]


@st.composite
def cut(draw: st.DrawFn, words: st.SearchStrategy[str]) -> list[str]:
    text = "".join(draw(st.lists(words, max_size=8)))
    bounds = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=12))})
    return [text[a:b] for a, b in pairwise(bounds)] or [""]


@settings(max_examples=examples(150))
@given(st.lists(cut(st.sampled_from([word + " " for word in PROSE])), min_size=1, max_size=3))
def test_stream_without_keys_is_unchanged(parts: list[list[str]]) -> None:
    out = streamed(parts)
    for number, deltas in enumerate(parts):
        assert [piece.text for piece in out if piece.part == number] == deltas
    assert out == sorted(out, key=lambda piece: piece.at)


SECRETS = [*KEYS.values(), *(before + secret for before, secret in ANNOUNCED.values() if "postgres" not in before)]


@settings(max_examples=examples(300))
@given(
    st.lists(
        cut(st.sampled_from([*(" " + one + " " for one in SECRETS), "word ", "日本", "\n"])), min_size=1, max_size=2
    )
)
def test_no_split_reveals_a_key(parts: list[list[str]]) -> None:
    out = streamed(parts)
    for number in range(len(parts)):
        text = "".join(piece.text for piece in out if piece.part == number)
        for secret in (*KEYS.values(), "hunter2", "dXNlcjpwYXNz"):
            assert secret not in text
