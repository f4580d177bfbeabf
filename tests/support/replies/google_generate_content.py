"""Replies of the generateContent API of Google."""

from collections.abc import Mapping
from typing import Any

from tests.support.dialect_server import Reply

Event = Mapping[str, Any] | bytes
Part = Mapping[str, Any]
MODEL = "gemini-3.8-flash"


def chunk(*parts: Part, finish: str = "", **usage: int) -> Event:
    candidate: dict[str, Any] = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    counts = {"promptTokenCount": 29, **usage}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": MODEL, "responseId": "r1"}


def text(words: str, **more: Any) -> Part:
    return {"text": words, **more}


def thought(words: str, **more: Any) -> Part:
    return {"text": words, "thought": True, **more}


def call(*, signed: str = "", id_: str = "", **arguments: Any) -> Part:
    asked: dict[str, Any] = {"name": "weather", "args": arguments} | ({"id": id_} if id_ else {})
    return {"functionCall": asked} | ({"thoughtSignature": signed} if signed else {})


def end(finish: str = "STOP", *parts: Part, **usage: int) -> Event:
    counts = {"candidatesTokenCount": 10, "totalTokenCount": 39, **usage}
    return chunk(*(parts or (text(""),)), finish=finish, **counts)


def reply(*events: Event, **more: Any) -> Reply:
    return Reply(sse=events, **{"crlf": True, **more})


def wrong(code: int, status: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": "Something is wrong.", "status": status, "details": list(details)}}


HI = reply(chunk(text("Hi.")), end())
