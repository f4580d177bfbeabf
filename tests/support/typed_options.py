"""Calls with right and wrong options of a run. pyright reads them; nothing runs them.

Each ignore comment marks an error that pyright must find, because it reports an ignore comment without an error.
"""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from pathlib import Path
from typing import assert_type

from agent import Agent, Chat, Context, Options, Run, RunOptions, RunResult, stream_to_display


async def right_options(agent: Agent, chat: Chat) -> None:
    assert_type(agent.run("Hello", context=Context(), reasoning="low", options=Options()), Run)
    assert_type(await agent.ask("Hello", temperature=1, record=Path("run.jsonl")), RunResult)
    assert_type(await chat.ask("Hello", ignore_reasoning=True), RunResult)
    chat.query("Hello", max_tokens=9, record="run.jsonl")
    chat.stream("Hello", journal=None)
    kept: RunOptions = {"reasoning": False, "temperature": None}
    await stream_to_display(agent, "Hello", **kept)


async def misspelt_options(agent: Agent, chat: Chat) -> None:
    agent.run("Hello", temprature=1)  # pyright: ignore[reportCallIssue]
    await agent.ask("Hello", resoning=True)  # pyright: ignore[reportCallIssue]
    await chat.ask("Hello", max_token=9)  # pyright: ignore[reportCallIssue]
    chat.query("Hello", temprature=1)  # pyright: ignore[reportCallIssue]
    chat.stream("Hello", temprature=1)  # pyright: ignore[reportCallIssue]
    await stream_to_display(agent, "Hello", temprature=1)  # pyright: ignore[reportCallIssue]


async def wrong_values(agent: Agent, chat: Chat) -> None:
    agent.run("Hello", reasoning="off")  # pyright: ignore[reportArgumentType]
    await agent.ask("Hello", max_tokens=1.5)  # pyright: ignore[reportArgumentType]
    chat.query("Hello", temperature="hot")  # pyright: ignore[reportArgumentType]
    chat.query("Hello", context=Context())  # pyright: ignore[reportCallIssue]
