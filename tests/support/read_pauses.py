"""Counts the pauses between two reads of a model's stream."""

import asyncio

import pytest

from agent.providers import http


def read_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the seconds of each pause from now on, if only one stream is open."""
    pauses, sleep = list[float](), asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds == http.READ_INTERVAL_SECONDS:
            pauses.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(http.asyncio, "sleep", noted)
    return pauses
