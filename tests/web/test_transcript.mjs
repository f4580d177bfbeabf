// Tests of the transcript's pure module. `node --test` runs them, and test_transcript.py runs that.
import assert from "node:assert/strict";
import test from "node:test";
import { addedText, applied, changes, firstDifference, keys } from "../../agent/web/ui/transcript/draw.js";

const bubble = (blocks, more = {}) => ({ kind: "output_text", state: "running", blocks, ...more });
const turn = (...bubbles) => ({ id: "1", is_running: true, bubbles });

test("the first difference is the end of the shorter list if that begins the other", () => {
  assert.equal(firstDifference(["a"], ["a", "b"]), 1);
  assert.equal(firstDifference(["a", "b"], ["a"]), 1);
  assert.equal(firstDifference([], []), 0);
});

test("a growing text draws its last block only", () => {
  const old = turn(bubble(["a", "b"])), next = turn(bubble(["a", "bc", "d"]));
  const edits = changes(old, next);
  assert.deepEqual(edits, [["tail", 0, 1, 0, "c"], ["blocks", 0, 2, ["d"]]]);
});

test("a bubble keeps its key while rows and results come before it", () => {
  const [thought, call, result] = ["reasoning", "tool_call", "tool_call_result"].map((kind) => bubble([], { kind }));
  const row = bubble([], { kind: "steps" }), inside = { ...result, inside: true };
  const before = keys([thought, call, call, call]);
  const after = keys([row, thought, call, call, inside, call]);
  assert.deepEqual(before, [after[1], after[2], after[3], after[5]]);
  const all = keys([row, thought, call, inside, call, inside, inside, call, result]);
  assert.equal(new Set(all).size, all.length);
  assert.equal(all[5], after[4], "whatever results have come before it");
});

test("edits come one after the other", () => {
  const edits = [["bubble", 0, bubble(["a"])], ["blocks", 0, 1, ["b"]], ["bubble", 1, bubble([])], ["cut", 1], ["turn", { id: "1", is_running: false }]];
  assert.deepEqual(applied(turn(), edits), { id: "1", is_running: false, bubbles: [bubble(["a", "b"])] });
});

test("each column has edits of its own", () => {
  const wide = (more, ...texts) => ({ ...turn(bubble(["?"])), ...more, columns: texts.map((text) => turn(bubble([text]))) });
  const states = [wide({}, "a", "b"), wide({}, "a", "bc"), wide({ is_running: false }, "ad", "bc"), wide({}, "a"), turn(bubble(["?"]))];
  assert.deepEqual(changes(states[0], states[1]), [["column", 1, [["tail", 0, 0, 0, "c"]]]]);
  for (const old of states) {
    for (const next of states) assert.deepEqual({ columns: [], ...applied(old, changes(old, next)) }, { columns: [], ...next });
  }
});

test("text at the end of open elements is added there", () => {
  assert.deepEqual(addedText("</code></pre>\n", "a &lt;</code></pre>\n"), { text: "a &lt;", depth: 2 });
  for (const [dropped, html] of [["", "a"], ["</p>", "<b>a</b></p>"], ["a</p>", "b</p>"], ["\n</p>", "b\n</p>"], ["</p>", "b</i>"]]) {
    assert.equal(addedText(dropped, html), undefined);
  }
});
