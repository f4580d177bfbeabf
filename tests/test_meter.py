"""The figures under an answer: what was seen to come is timed, what was not is only counted."""

import pytest
from pydantic_ai.usage import RequestUsage

from agent import meter
from agent.meter import Meter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(meter, "monotonic", lambda: now[0])
    return now


def test_a_step_that_was_seen_is_timed_from_its_first_to_its_last_delta(clock: list[float]) -> None:
    one = Meter()
    for at in (2.0, 3.0, 4.0):
        clock[0] = at
        one.delta("output_text")
    one.step(RequestUsage(input_tokens=5, output_tokens=6))
    timings = one.timings()
    assert (timings.first_token, timings.generating, timings.generated) == (2.0, 2.0, 6)
    assert (timings.output_tokens, timings.estimated) == (6, False)


def test_a_step_that_was_not_seen_adds_to_the_tokens_and_not_to_the_pace(clock: list[float]) -> None:
    one = Meter()
    one.step(RequestUsage(output_tokens=45))  # a tool call
    clock[0] = 9.0
    one.delta("output_text")
    clock[0] = 9.2
    one.delta("output_text")
    one.step(RequestUsage(output_tokens=12))  # a word of text in the router's JSON
    timings = one.timings()
    assert (timings.output_tokens, timings.generated, timings.generating) == (57, 0, 0.0)


def test_without_the_servers_count_deltas_are_counted_and_marked(clock: list[float]) -> None:
    one = Meter()
    one.delta("reasoning")
    clock[0] = 1.5
    one.delta("output_text")
    one.step(None)
    timings = one.timings()
    assert (timings.output_tokens, timings.generated, timings.estimated, timings.reasoning) == (2, 2, True, (1.5,))
