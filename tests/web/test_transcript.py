"""The turns of a transcript: from responses, and as edits that the browser applies. Node runs the browser's module."""

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.rendering.bubbles import Bubble, Turn, edits
from agent.rendering.html import without_mark_signs
from agent.rendering.markdown import to_blocks
from agent.rendering.response_turns import ResponseTurns
from agent.responses import BubbleMarker, Piece
from agent.settings import ROOT
from tests.peers.install import node
from tests.tiers import examples

MODULE = ROOT / "agent/web/ui/transcript/draw.js"
TEXTS = st.one_of(
    st.text("ab *`|-#\n$<>&[]", max_size=12),
    st.just("{\ufdd01.1 javascript:alert(1)\ufdd1"),  # as the renderer writes the number of a source
    st.sampled_from(["[a] ", "\n\n[a]: https://a.example\n\n", "```py\nif x:\n"]),  # a later text changes or ends them
)
CALL = {"id": "1", "name": "tool", "arguments": {"a": "<b>"}}
RESULT = {"id": "1", "name": "tool", "content": '{"a": "</pre><script>"}', "is_error": False}
PIECES = st.lists(
    st.one_of(
        TEXTS.map(lambda text: ("output_text", text)),
        TEXTS.map(lambda text: ("reasoning", text)),
        st.just(("tool_call", CALL)),
        st.just(("tool_call_result", RESULT)),
        st.just(("error", "<img src=x>")),
    ),
    max_size=12,
)


def states(pieces: list[Piece]) -> list[list[Turn]]:
    """Return what a transcript shows after each response of a run, and after its end."""
    turns, mark = ResponseTurns(), BubbleMarker()
    turns.ask("What?")
    seen = [turns.value]
    for piece in pieces:
        turns.add(mark(piece))
        seen.append(turns.value)
    turns.end("caption")
    return [*seen, turns.value]


@given(pieces=PIECES)
@settings(max_examples=examples(100))
def test_bubbles_begin_where_the_type_switches_and_have_the_whole_text(pieces: list[Piece]) -> None:
    mark, expected = BubbleMarker(), list[tuple[str, str]]()
    for response in map(mark, pieces):
        text = response.content if isinstance(response.content, str) else ""
        if response.is_type_switched:
            expected.append((response.type, text))
        else:
            expected[-1] = (response.type, expected[-1][1] + text)
    bubbles = states(pieces)[-1][-1]["bubbles"][1:]
    assert [bubble["kind"] for bubble in bubbles] == [kind for kind, _ in expected]
    for bubble, (kind, text) in zip(bubbles, expected, strict=True):
        assert bubble["state"] != "running"
        if kind in ("output_text", "reasoning"):
            assert bubble["blocks"] == to_blocks(without_mark_signs(text))
            assert 'href="javascript' not in "".join(bubble["blocks"])
        else:
            assert not re.search("<(script|img)", "".join(bubble["blocks"]))


@given(pieces=PIECES)
@settings(max_examples=examples(30))
def test_later_responses_change_no_earlier_value(pieces: list[Piece]) -> None:
    turns, mark = ResponseTurns(), BubbleMarker()
    seen = list[tuple[Any, str]]()
    for piece in pieces:
        turns.add(mark(piece))
        seen.append((turns.value, json.dumps(turns.value)))
    turns.end()
    turns.ask("More")
    assert all(json.dumps(value) == written for value, written in seen)


HTML = st.sampled_from(["a", "b", "<p>a</p>", "<p>ab</p>", "<p>\U0001f600", "<p>\U0001f601", "<p>\U0001f601</p>"])
BLOCKS = st.lists(HTML, max_size=3)
BUBBLES = st.builds(
    lambda kind, state, blocks, more: cast(Bubble, {"kind": kind, "state": state, "blocks": blocks, **more}),
    st.sampled_from(["user", "output_text", "tool_call"]),
    st.sampled_from(["running", "done"]),
    BLOCKS,
    st.sampled_from([{}, {"title": "t"}, {"seconds": 1.5}, {"inside": True}, {"steps": 2}]),
)
TURNS = st.builds(
    lambda bubbles, more: cast(Turn, {"id": "1", "bubbles": bubbles, "is_running": True, **more}),
    st.lists(BUBBLES, max_size=3),
    st.sampled_from(
        [
            {},
            {"caption": "c"},
            {"is_running": False},
            {"answer_versions": {"ids": ["a", "b"], "number": 1}, "text": "t"},
        ]
    ),
)
SCRIPT = """
const { changes, applied } = await import(process.argv[1]);
let text = "";
for await (const piece of process.stdin) text += piece;
const answers = JSON.parse(text).map(([old, next, edits]) => {
  const before = JSON.stringify(old), drawn = applied(old, edits);
  return [changes(old, next), drawn, before === JSON.stringify(old)];
});
console.log(JSON.stringify(answers));
"""


def in_node(cases: list[Any]) -> list[Any]:
    """Return what the browser's module says of each case."""
    command = [node(), "--no-warnings", "--input-type=module", "-e", SCRIPT, MODULE.as_uri()]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@given(pairs=st.lists(st.tuples(TURNS, TURNS), min_size=60, max_size=60), pieces=PIECES)
@settings(max_examples=3)
def test_browser_and_server_agree_on_edits(pairs: list[tuple[Turn, Turn]], pieces: list[Piece]) -> None:
    pairs = [*pairs, *pairwise(value[-1] for value in states(pieces))]
    cases = [(old, new, edits(old, new)) for old, new in pairs]
    for (_, new, expected), (changes, drawn, is_unchanged) in zip(cases, in_node(cases), strict=True):
        assert [changes, drawn] == [expected, new]
        assert is_unchanged


def test_growing_block_sends_only_what_is_new() -> None:
    for begins in ("", "```py\n", "- item\n- ", "| a |\n|---|\n| "):
        turns, mark = ResponseTurns(), BubbleMarker()
        turns.add(mark(("output_text", begins + "word " * 2_000)))
        old = turns.value[-1]
        turns.add(mark(("output_text", "more words")))
        assert len(json.dumps(edits(old, turns.value[-1]))) < 200


def test_module_tests_pass() -> None:
    tests = [
        str(Path(__file__).with_name(name)) for name in ("test_transcript.mjs", "test_contents.mjs", "test_spoken.mjs")
    ]
    done = subprocess.run([node(), "--no-warnings", "--test", *tests], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


IMPORT = re.compile(r'^import [^;]+ from "\./(\w+)\.js";$', re.MULTILINE)


def test_modules_have_one_entry_and_no_circle() -> None:
    imports = {path.stem: set(IMPORT.findall(path.read_text())) for path in MODULE.parent.glob("*.js")}
    left = dict(imports)
    while ready := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in ready:
            del left[name]
    assert not left, "these modules import one another"
    assert imports.keys() - set[str]().union(*imports.values()) == {
        "transcript",
        "artifacts",
        "columns",
        "editing",
        "python",
    }  # the others are loaded when they are used
