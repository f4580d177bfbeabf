"""A Gradio page without a browser: its cookie, its session and its events. Serves our page and the naive one."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import httpx

API = "/gradio_api/"
SECONDS = 150.0
"""Seconds until a request fails."""
Event = dict[str, Any]


class PageConfig:
    """The components and events of a page, which all its visitors share."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.events: list[Event] = config["dependencies"]
        self.names: dict[int, str] = {one["id"]: one["props"].get("elem_id") or "" for one in config["components"]}
        self.values: dict[int, Any] = {one["id"]: one["props"].get("value") for one in config["components"]}

    @classmethod
    async def read(cls, url: str) -> "PageConfig":
        """Ask the page."""
        async with httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False) as http:
            await http.get("/")
            return cls((await http.get("/config")).raise_for_status().json())

    def event(self, name: str) -> Event:
        """Return the event with this name in the API. Raises `StopIteration`."""
        return next(event for event in self.events if event["api_name"] == name)


class PageClient:
    """One open page."""

    def __init__(self, url: str, config: PageConfig) -> None:
        self.http = httpx.AsyncClient(base_url=url, timeout=SECONDS, trust_env=False)
        self.session = uuid4().hex[:11]
        self.config = config

    async def messages(self, event: Event, values: dict[str, Any]) -> AsyncGenerator[str]:
        """Run an event, and yield what the queue says about it. `values` are those of elements, by id."""
        joined = await self.http.post(API + "queue/join", json=self._body(event, values))
        if joined.status_code != 200:
            raise RuntimeError(f"{event['api_name']} was refused: {joined.status_code} {joined.text[:200]}")
        async with aclosing(stream(self.http, API + "queue/data", {"session_hash": self.session})) as messages:
            async for message in messages:
                yield message

    def _body(self, event: Event, values: dict[str, Any]) -> dict[str, Any]:
        data = [values.get(self.config.names[one], self.config.values[one]) for one in event["inputs"]]
        return {"data": data, "fn_index": event["id"], "session_hash": self.session}

    async def run(self, event: Event, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run an event of our page. Return its outputs by the ids of their elements, "" for those without one."""
        answer = await self.http.post(API + "run/predict", json=self._body(event, values or {}))
        if answer.status_code != 200:
            raise RuntimeError(f"{event['api_name']} failed: {answer.text[:200]}")
        names = (self.config.names[one] for one in event["outputs"])
        return dict(zip(names, answer.json()["data"], strict=True))

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()


class OurPage(PageClient):
    """Our page. `run_id` is the id of the last answer."""

    run_id: str = ""
    _chat: str = ""
    _last_frame: str = ""

    async def open(self) -> None:
        """Load the page and its settings, and the conversation, as live.js does."""
        (await self.http.get("/")).raise_for_status()
        await self.run(self.config.event("page_loaded"))
        current = await self.http.get("/conversations/current", params={"format": "blocks"})
        self._chat = current.json()["id"] if current.status_code == 200 else ""

    async def ask(self, prompt: str) -> AsyncGenerator[str]:
        """Send a message and yield the frames of its answer."""
        path = f"/conversations/{self._chat}/messages" if self._chat else "/conversations"
        sent = (await self.http.post(path, json={"text": prompt, "remember": True})).raise_for_status().json()
        self.run_id, self._chat = sent["run"], sent["conversation"]
        query = {"format": "blocks"}
        async with aclosing(stream(self.http, f"/runs/{self.run_id}/events", query)) as frames:
            async for self._last_frame in frames:
                yield self._last_frame

    async def stop(self) -> None:
        """Stop the answer that is being written."""
        stopped = await self.http.post(f"/conversations/{self._chat}/stop", json={"run": self.run_id})
        stopped.raise_for_status()

    async def finish(self) -> None:
        """Do what the page does at the end of an answer: ask for the stored conversation if the end is not stored."""
        if not json.loads(self._last_frame).get("stored"):
            await self.stored()

    async def stored(self) -> dict[str, Any]:
        """Ask for the stored conversation and return it."""
        answer = await self.http.get(f"/conversations/{self._chat}", params={"format": "blocks"})
        return answer.raise_for_status().json()


class NaivePage(PageClient):
    """The page of `bench.naive`, by its API: the page itself runs four more events for each message."""

    async def open(self) -> None:
        """Load the page."""
        (await self.http.get("/")).raise_for_status()

    async def ask(self, prompt: str) -> AsyncGenerator[str]:
        """Send a message and yield what the queue says while the answer is written."""
        async with aclosing(self.messages(self.config.event("chat"), {"composer": prompt})) as messages:
            async for message in messages:
                if '"close_stream"' in message:
                    return
                if '"success":false' in message:
                    raise RuntimeError(f"chat failed: {message[:200]}")
                yield message

    async def finish(self) -> None:
        """Do nothing: the page has all it shows."""


async def stream(http: httpx.AsyncClient, path: str, params: dict[str, str] | None = None) -> AsyncGenerator[str]:
    """Yield the data of each event of a stream, until it ends."""
    async with http.stream("GET", path, params=params) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{path} was refused: {answer.status_code}")
        lines: AsyncIterator[str] = answer.aiter_lines()
        async for line in lines:
            if line.startswith("data: "):
                yield line.removeprefix("data: ")
