"""Reasoning in tags: the same for any chunks, found only where an answer begins, and no character is lost."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent import Agent, Endpoint, ModelSpec, Run, connect
from agent.providers.think_tags import CLOSE, OPEN, PAIRS, ThinkTags
from agent.responses import pieces_of
from tests.support import dialects
from tests.support.models import QWEN3
from tests.support.scripted_server import Config, Running
from tests.tiers import examples

NEW_MODELS = ("first", "second", "third", "fourth", "fifth", "sixth")
"""Models about which nothing is remembered yet."""
SERVER = Config(models=(QWEN3.name, *NEW_MODELS), rate=0)
TEXTS = st.lists(
    st.sampled_from(
        [OPEN, CLOSE, "<", "<th", "ink>", "</", "think>", "a", " b", "\n", "\r\n", "<b>", "é", "\U0001f600"]
    ),
    max_size=8,
).map("".join)
Found = list[tuple[str, str]]


def whole(text: str) -> Found:
    """Return the texts and reasoning of an answer that is read at once. A closing tag alone ends reasoning."""
    found: Found = []
    while True:
        rest = text.lstrip()
        space = text[: len(text) - len(rest)]
        if rest.startswith(OPEN):
            inside, _, text = rest.removeprefix(OPEN).partition(CLOSE)
            found += [("output_text", space), ("reasoning", inside)]
            continue
        at = text.find(CLOSE)
        while at >= 0 and text[:at].count(OPEN) > text[:at].count(CLOSE):
            at = text.find(CLOSE, at + 1)
        if at < 0:
            return [(kind, part) for kind, part in [*found, ("output_text", text)] if part or kind == "end"]
        found += [("output_text", text[:at]), ("end", "")]
        text = text[at + len(CLOSE) :].lstrip("\r\n")


def fold(deltas: Sequence[str | None]) -> Found:
    """Return what pydantic-ai makes of the deltas: a tag is a delta of its own."""
    found: Found = []
    kind, begins = "output_text", True
    for delta in deltas:
        if delta is None:
            found, begins = [*found, ("end", "")], True
        elif delta == (OPEN if kind == "output_text" else CLOSE):
            kind, begins = "reasoning" if kind == "output_text" else "output_text", True
        elif begins:
            found, begins = [*found, (kind, delta)], False
        else:
            found[-1] = kind, found[-1][1] + delta
    return found


@st.composite
def cut_texts(draw: st.DrawFn) -> list[str]:
    text = draw(TEXTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(cut_texts())
@example(["<th", "ink>a</thi", "nk>b"])
@example(["Say <", "think>."])
@example(["a", OPEN])
@settings(max_examples=examples(400))
def test_any_chunks_give_the_same_reasoning(chunks: list[str]) -> None:
    tags = ThinkTags()
    deltas = [delta for chunk in chunks for delta in tags.feed(chunk)]
    held = tags.end()
    deltas += [held] if held else []
    assert "" not in deltas
    assert fold(deltas) == whole("".join(chunks))


ENDS = st.lists(
    st.sampled_from(["</s>", "<|im_end|>", "<|im_", "end|>", "a", " ", "`", "<s>", "\n", CLOSE]), max_size=8
)


@given(ENDS)
@settings(max_examples=examples(400))
def test_any_chunks_have_the_same_end(chunks: list[str]) -> None:
    read: list[Sequence[str | None]] = []
    for cut in (chunks, list("".join(chunks)), ["".join(chunks)]):
        tags = ThinkTags()
        read.append([delta for chunk in cut for delta in tags.feed(chunk)] + [*filter(None, [tags.end()])])
    assert fold(read[0]) == fold(read[1]) == fold(read[2])


SAID_BOTH: Found = [("reasoning", "a"), ("output_text", "b")]
SAID: dict[str, tuple[list[str], Found]] = {
    "whole tags": ([OPEN, "a", CLOSE, "b"], [("reasoning", "a"), ("output_text", "b")]),
    "half tags": (["<th", "ink>a</thi", "nk>\r", "\n\nb"], [("reasoning", "a"), ("output_text", "b")]),
    "one chunk": ([" <think>a</think>b"], [("reasoning", "a"), ("output_text", "b")]),
    "no reasoning": (["<think>\n", "\n</think>", "\n\n", "b"], [("output_text", "b")]),
    "a tag named in the answer": (["The tag ", OPEN, " is"], [("output_text", "The tag <think> is")]),
    "no tag after all": (["<thin", "g>", "</thin", "g>"], [("output_text", "<thing></thing>")]),
    "a closing tag alone": (["</th", "ink>\n\n", "b"], [("output_text", "b")]),
    "a closing tag named in the answer": (["Write `", CLOSE, "`."], [("output_text", "Write `</think>`.")]),
    "a closing tag in code": (["```\na", CLOSE, "\n```"], [("output_text", "```\na</think>\n```")]),
    "both tags named": (["Say <think> and ", CLOSE, "."], [("output_text", "Say <think> and </think>.")]),
    "a tag that never ends": ([OPEN, "a", "</thi"], [("reasoning", "a</thi")]),
    "the beginning of a tag at the end": (["<th"], [("output_text", "<th")]),
    **{
        f"tags of others, {begin}": ([begin[:3], f"{begin[3:]}a{end[:4]}", f"{end[4:]}b"], SAID_BOTH)
        for begin, end in PAIRS.items()
        if "|" not in begin  # a message cannot hold these
    },
    "two thoughts": (["<think>a</think>\n<thi", "nk>b</think>c"], [("reasoning", "a\n\nb"), ("output_text", "c")]),
}


@pytest.mark.parametrize("name", SAID)
async def test_answer_with_tags_has_its_bubbles(server: Running, name: str) -> None:
    chunks, said = SAID[name]
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        run = agent.run("!json " + json.dumps([{"content": chunk} for chunk in chunks]))
        result = await run
    assert dialects.bubbles(run.responses) == said
    assert result.text == "".join(text for kind, text in said if kind == "output_text")


async def test_held_text_comes_before_a_call(server: Running) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "nap", "arguments": "{}"}}
    async with Agent(connect(QWEN3, Endpoint(server.base_url))) as agent:
        run = agent.run("!json " + json.dumps([{"content": "<"}, {"tool_calls": [call]}, {"finish": "tool_calls"}]))
        await run
    assert [response.type for response in run.responses][:2] == ["output_text", "tool_call"]


# --- an answer that begins within reasoning ---------------------------------------------------------------------------

LONE = [{"content": "I count"}, {"wait": 0.2}, {"content": " to two.</th"}, {"content": "ink>\n\nTwo."}]
THOUGHT: Found = [("reasoning", "I count to two."), ("output_text", "Two.")]
PLAIN = [{"content": "Two"}, {"wait": 0.2}, {"content": ", plainly."}]


async def streamed(agent: Agent, deltas: Sequence[Mapping[str, object]]) -> tuple[Found, Run]:
    """Return the bubbles that an iteration yields, and the run after its end."""
    run = agent.run("!json " + json.dumps(deltas))
    return dialects.bubbles([response async for response in run]), run


def spec(name: str, *, always_reasons: bool = False) -> ModelSpec:
    return replace(QWEN3, name=name, id=f"vllm:{name}", always_reasons=always_reasons)


async def test_lone_closing_tag_makes_text_reasoning_at_once(server: Running) -> None:
    async with Agent(connect(spec("first"), Endpoint(server.base_url))) as agent:
        seen, run = await streamed(agent, LONE)
        assert seen == [("output_text", "I count to two."), ("output_text", "Two.")]
        assert dialects.bubbles(run.responses) == THOUGHT
        assert run.result is not None
        assert [(kind, text) for message in run.result.context.messages for kind, text in pieces_of(message)] == THOUGHT
        assert run.reasoning[0] > 0.1


async def test_next_answers_of_such_a_server_begin_as_reasoning(server: Running) -> None:
    async with Agent(connect(spec("second"), Endpoint(server.base_url))) as agent:
        await streamed(agent, LONE)
        for deltas in (LONE, [{"content": OPEN}, *LONE]):
            assert (await streamed(agent, deltas))[0] == THOUGHT
        parsed = [{"reasoning": "I count to two."}, {"content": "Two."}]
        assert (await streamed(agent, parsed))[0] == THOUGHT, "the server finds reasoning itself"


async def test_wrong_guess_is_made_once(server: Running) -> None:
    text: Found = [("output_text", "Two, plainly.")]
    async with Agent(connect(spec("third", always_reasons=True), Endpoint(server.base_url))) as agent:
        seen, run = await streamed(agent, PLAIN)
        assert seen == [("reasoning", "Two, plainly.")]
        assert dialects.bubbles(run.responses) == text
        assert run.result is not None
        assert (run.result.text, run.reasoning) == ("Two, plainly.", ())
        assert (await streamed(agent, PLAIN))[0] == text
        await streamed(agent, LONE)
        assert (await streamed(agent, PLAIN))[0] == text


async def test_reasoning_that_was_cut_off_stays_reasoning(server: Running) -> None:
    async with Agent(connect(spec("fourth", always_reasons=True), Endpoint(server.base_url))) as agent:
        seen, run = await streamed(agent, [{"content": "I count"}, {"finish": "length"}])
        assert seen[0] == ("reasoning", "I count")
        assert run.result is not None
        assert run.result.text == ""


async def test_plain_answer_is_not_hidden_because_another_named_a_tag(server: Running) -> None:
    async with Agent(connect(spec("fifth"), Endpoint(server.base_url))) as agent:
        await streamed(agent, PLAIN)
        await streamed(agent, LONE)
        assert (await streamed(agent, PLAIN))[0] == [("output_text", "Two, plainly.")]
