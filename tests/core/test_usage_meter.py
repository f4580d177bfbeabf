"""The figures under an answer: visible output is timed, hidden output is only counted."""

from typing import Any

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart
from pydantic_ai.usage import RequestUsage

from agent.history import Entry, Note, Timings
from agent.history.codec import dump_entries, load_entries
from agent.models.catalog import Price
from agent.runtime import usage
from agent.runtime.usage import UsageMeter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(usage, "monotonic", lambda: now[0])
    return now


def test_visible_step_is_timed_by_its_deltas(clock: list[float]) -> None:
    one = UsageMeter()
    for at in (2.0, 3.0, 4.0):
        clock[0] = at
        one.count_delta("output_text")
    one.count_step(RequestUsage(input_tokens=5, output_tokens=6))
    timings = one.timings()
    assert (timings.first_token, timings.generating, timings.generated) == (2.0, 2.0, 6)
    assert (timings.output_tokens, timings.estimated) == (6, False)


def test_hidden_step_counts_tokens_not_pace(clock: list[float]) -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(output_tokens=45))  # a tool call
    clock[0] = 9.0
    one.count_delta("output_text")
    clock[0] = 9.2
    one.count_delta("output_text")
    one.count_step(RequestUsage(output_tokens=12))  # a word of text beside the JSON of a call
    timings = one.timings()
    assert (timings.output_tokens, timings.generated, timings.generating) == (57, 0, 0.0)


def test_deltas_are_counted_without_server_count(clock: list[float]) -> None:
    one = UsageMeter()
    one.count_delta("reasoning")
    clock[0] = 1.5
    one.count_delta("output_text")
    one.count_step(None)
    timings = one.timings()
    assert (timings.output_tokens, timings.generated, timings.estimated, timings.reasoning) == (2, 2, True, (1.5,))


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("price", "cost"),
    [
        (Price(input=3.0, output=15.0, cached=0.3), (800 * 3 + 200 * 0.3 + 100 * 15 + 50 * 3 + 10 * 15) / 1e6),
        (Price(input=3.0, output=15.0), (1050 * 3 + 110 * 15) / 1e6),
        (Price(input=0.0, output=0.0), 0.0),
    ],
    ids=["cached-for-less", "cached-like-the-rest", "free"],
)
def test_every_step_costs_and_cache_has_its_price(price: Price, cost: float) -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(input_tokens=1000, cache_read_tokens=200, output_tokens=100))
    one.count_step(RequestUsage(input_tokens=50, output_tokens=10))
    assert one.cost(price) == pytest.approx(cost)
    timings = one.timings()
    assert (timings.input_tokens, timings.cached_tokens, timings.output_tokens) == (1050, 200, 110)


def test_tokens_written_to_the_cache_cost_a_quarter_more() -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(input_tokens=1000, cache_read_tokens=300, cache_write_tokens=600, output_tokens=100))
    expected = (100 * 4 + 300 * 0.4 + 600 * 5 + 100 * 20) / 1e6
    assert one.cost(Price(input=4.0, output=20.0, cached=0.4)) == pytest.approx(expected)
    assert one.cost(Price(input=4.0, output=20.0)) == pytest.approx((1000 * 4 + 100 * 20) / 1e6)


def test_audio_has_its_own_price() -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(input_tokens=1000, input_audio_tokens=400, output_tokens=10))
    assert one.cost(Price(input=2.5, output=10.0, audio=32.0)) == pytest.approx((600 * 2.5 + 400 * 32 + 100) / 1e6)
    assert one.cost(Price(input=2.5, output=10.0)) == pytest.approx((1000 * 2.5 + 100) / 1e6)


@pytest.mark.parametrize(("most", "known"), [(0, True), (1000, True), (999, False)])
def test_cost_is_unknown_beyond_priced_length(most: int, known: bool) -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(input_tokens=1000, output_tokens=1))
    one.count_step(RequestUsage(input_tokens=10, output_tokens=1))
    assert (one.cost(Price(input=1.0, output=1.0, up_to=most)) is not None) is known


@pytest.mark.parametrize("usage", [None, RequestUsage()], ids=["broken-off", "no-usage"])
@pytest.mark.parametrize("first", [True, False])
def test_cost_needs_usage_of_every_step(usage: RequestUsage | None, first: bool) -> None:
    one = UsageMeter()
    whole = RequestUsage(input_tokens=10, output_tokens=10)
    for each in (usage, whole) if first else (whole, usage):
        one.count_delta("output_text")
        one.count_step(each)
    assert one.cost(Price(input=1.0, output=1.0)) is None


def test_blocked_prompt_costs_without_answer() -> None:
    one = UsageMeter()
    one.count_step(RequestUsage(input_tokens=1000))
    assert one.cost(Price(input=2.0, output=9.0)) == pytest.approx(0.002)


def test_run_without_successful_request_has_no_cost() -> None:
    assert UsageMeter().cost(Price(input=1.0, output=1.0)) is None


CACHED = {"cached_tokens": 60}
RESPONSES = {"input_tokens": 100, "input_tokens_details": CACHED, "output_tokens": 7}
CHAT = {"prompt_tokens": 100, "prompt_tokens_details": CACHED, "completion_tokens": 7}
MESSAGES = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 7}
GENERATE = {"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}


@pytest.mark.parametrize(
    ("provider", "model", "flavor", "usage"),
    [
        ("openai", "gpt-5", "responses", RESPONSES),
        ("openai", "gpt-5", "chat", CHAT),
        ("anthropic", "claude-sonnet-4-5", "default", MESSAGES),
        ("google", "gemini-2.5-flash", "default", GENERATE),
    ],
)
def test_cached_tokens_count_as_input_for_every_vendor(
    provider: str, model: str, flavor: str, usage: dict[str, Any]
) -> None:
    """`UsageMeter.cost` relies on this, because vendors report cached tokens in two ways."""
    said = {"model": model, "modelVersion": model, "usageMetadata" if provider == "google" else "usage": usage}
    where = {"provider_url": "", "provider_fallback": provider, "api_flavor": flavor}
    found = RequestUsage.extract(said, provider=provider, **where)
    assert (found.input_tokens, found.cache_read_tokens, found.output_tokens) == (100, 60, 7)


def test_older_entries_still_load() -> None:
    entry = Entry(
        parent_id=None,
        message=ModelRequest([UserPromptPart("Hello")]),
        note=Note(timings=Timings(input_tokens=3, cached_tokens=2), omitted="Not sent.", cost=0.5),
    )
    [text] = dump_entries([entry])
    assert load_entries([text]) == [entry]
    for added in ('"cached_tokens":2,', '"omitted":"Not sent.",'):
        assert added in text
        text = text.replace(added, "")
    [old] = load_entries([text])
    assert old.note.omitted == ""
    assert old.note.timings == Timings(input_tokens=3)
