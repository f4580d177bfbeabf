// Tests of what is known of an artifact from its text. `node --test` runs them, and test_transcript.py runs that.
import assert from "node:assert/strict";
import test from "node:test";
import { difference, keysOf, plotOf, sorted, tableOf } from "../../agent/web/ui/transcript/modules/contents.js";

test("blocks of one kind and title are versions, and so are the second ones of each answer", () => {
  const block = (turn, kind, title = "") => ({ turn, kind, title });
  const [a, b, c, d, e, f] = keysOf([block("1", "html"), block("1", "html"), block("1", "svg"), block("2", "html"), block("2", "html", "Clock"), block("2", "html")]);
  assert.equal(a, d);
  assert.equal(b, f);
  assert.equal(new Set([a, b, c, e]).size, 4);
});

test("a difference has both texts, without the lines far from any change", () => {
  const lines = (...all) => all.join("\n");
  assert.deepEqual(difference("a\nb\nc\n", "a\nx\nc"), [[" ", "a"], ["-", "b"], ["+", "x"], [" ", "c"]]);
  assert.deepEqual(difference("", ""), [["…", "1"]]);
  const many = [...Array(20).keys()].map(String);
  const rows = difference(lines(...many), lines(...many.slice(0, 10), "new", ...many.slice(10)));
  assert.deepEqual(rows, [["…", "7"], [" ", "7"], [" ", "8"], [" ", "9"], ["+", "new"], [" ", "10"], [" ", "11"], [" ", "12"], ["…", "7"]]);
});

test("the rows of a difference make both texts again", () => {
  let seed = 7;
  const draw = (most) => (seed = (seed * 48271) % 2147483647) % most;
  for (let round = 0; round < 300; round += 1) {
    const text = () => Array.from({ length: 1 + draw(4) }, () => "ab"[draw(2)]).join("\n");
    const [old, next] = [text(), text()];
    const rows = difference(old, next).filter(([sign]) => sign !== "…");
    if (rows.length === 0) assert.equal(old, next);
    else for (const [sign, whole] of [["+", old], ["-", next]]) assert.equal(rows.filter(([one]) => one !== sign).map(([, line]) => line).join("\n"), whole);
  }
});

test("a long difference is not compared line by line", () => {
  const one = [...Array(3000).keys()].map((at) => `a${at}`), other = one.map((line) => `${line}!`);
  assert.deepEqual(difference(one.join("\n"), other.join("\n")).map(([sign]) => sign).join(""), "-".repeat(3000) + "+".repeat(3000));
});

test("cells have quotes, separators and line breaks in them", () => {
  assert.deepEqual(tableOf('name,"said, ""so"""\r\nAnn,"two\nlines"\n\nBob\n').rows, [["Ann", "two\nlines"], ["Bob", ""]]);
  assert.deepEqual(tableOf('name,"said, ""so"""').head, ["name", 'said, "so"']);
  assert.deepEqual(tableOf("a;b\n1,5;x").rows, [["1,5", "x"]]);
  assert.deepEqual(tableOf("a\tb\n1\t").rows, [["1", ""]]);
  for (const text of ["", "\n", '"', "a,", '"a']) assert.ok(tableOf(text).rows.length === 0);
});

test("numbers are known with their signs, and a word makes a column of words", () => {
  const { numbers, isNumber } = tableOf("n,m,w,e\n\"1,234.5\",-$3,1,\n50%,\u22127,one,\n,2e3,2,");
  assert.deepEqual(numbers.map((row) => row[0]), [1234.5, 50, undefined]);
  assert.deepEqual(numbers.map((row) => row[1]), [-3, -7, 2000]);
  assert.deepEqual(isNumber, [true, true, false, false]);
  assert.equal(tableOf("a;b\n1.234,5;x").numbers[0][0], 1234.5);
});

test("rows are sorted as numbers or as words, and empty cells come last", () => {
  const table = tableOf("n,w\n10,b\n9,\n,a\n-1,C");
  assert.deepEqual(sorted(table, 0, true), [3, 1, 0, 2]);
  assert.deepEqual(sorted(table, 0, false), [0, 1, 3, 2]);
  assert.deepEqual(sorted(table, 1, true), [2, 0, 3, 1]);
});

test("a plot has bars for a few rows, lines for several columns, and nothing of the table that is no text", () => {
  const bars = plotOf(tableOf("month,sum\nJan,3\n<script>,-5\n\"\"\"&\",0"), "#000");
  assert.equal(bars.match(/<rect/g).length, 3);
  assert.ok(!bars.includes("<script"));
  assert.ok(bars.includes("&#60;script&#62;"));
  const lines = plotOf(tableOf("day,a,b\n1,1,2\n2,,4\n3,5,6"), "#000");
  assert.equal(lines.match(/<polyline/g).length, 2);
  assert.ok(!/NaN|undefined/.test(bars + lines));
  for (const text of ["a,b\nx,y\nz,w", "a\n1\n2", "a,b\nx,1", ""]) assert.equal(plotOf(tableOf(text), "#000"), undefined);
  assert.ok(!/NaN|Infinity/.test(plotOf(tableOf("a,b\nx,0\ny,0"), "#000")));
});
