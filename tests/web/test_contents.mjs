// Tests of what is known of an artifact from its text. `node --test` runs them, and test_transcript.py runs that.
import assert from "node:assert/strict";
import test from "node:test";
import { difference, keysOf, plotOf, sorted, tableOf } from "../../agent/web/ui/transcript/contents.js";

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

test("text after a quoted cell belongs to it, and a row can be longer than the head", () => {
  const { head, rows } = tableOf('name,size\n"x, y" z,2\n"a ""b""",3\r"c" ,4,more');
  assert.deepEqual(rows, [["x, y z", "2", ""], ['a "b"', "3", ""], ["c", "4", "more"]]);
  assert.deepEqual(head, ["name", "size", ""]);
});

test("a table has no more than a hundred columns, and says where it was cut", () => {
  const { head, rows } = tableOf(`a,b\n${",".repeat(5000)}1\n${"1\n".repeat(3000)}`);
  assert.equal(head.length, 100);
  assert.deepEqual(rows.map(({ length, [99]: last }) => `${length}${last}`).slice(0, 2), ["100…", "100"]);
});

test("a plot ends, whatever the numbers are", () => {
  const plot = (...rows) => plotOf(tableOf(`name,value\n${rows.join("\n")}`), "#000");
  const many = [...Array(40).keys()];
  assert.equal(plot(...many.map((at) => `a${at},${at % 2 ? "1746213098123457045" : "1746213098123456789"}`)), undefined);
  for (const number of ["1e308", "-1e308", "1e999", "1e-320", "9007199254740993", "0.1"]) {
    for (const other of ["1e308", "-1e308", "1e999", "1e-320", "9007199254740995", "0.3"]) {
      const drawn = plot(...many.map((at) => `a${at},${at % 2 ? number : other}`));
      assert.ok(!/NaN|Infinity/.test(drawn ?? ""), `${number} and ${other}`);
      assert.ok((drawn?.match(/<path/g) ?? []).length < 12);
    }
  }
});

test("a plot can have a great many rows", () => {
  const rows = Array.from({ length: 60_000 }, (_, at) => [at, at, at, at, at, `r${at}`].join(","));
  assert.equal(plotOf(tableOf(`a,b,c,d,e,name\n${rows.join("\n")}`), "#000").match(/<polyline/g).length, 5);
});
