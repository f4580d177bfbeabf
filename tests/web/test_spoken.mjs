// Tests of what is spoken and heard. `node --test` runs them, and test_transcript.py runs that.
import assert from "node:assert/strict";
import test from "node:test";
import { Ear, languageOf, sentencesOf, spokenOf, wavOf } from "../../agent/web/ui/composer/spoken.js";

const said = (markdown) => spokenOf(markdown).trim();

test("code, long formulas, addresses and numbers of sources are not spoken", () => {
  assert.equal(said("Run it:\n\n```py\nprint(1)\n```\n\nThen go on."), "Run it:\nThen go on.");
  assert.equal(said("Use `len(x)` here, not `" + "x".repeat(60) + "`."), "Use len(x) here, not.");
  assert.equal(said("See [the docs](https://a.example/b_(c)?d) and https://www.b.example/long/path?q=1."), "See the docs and b.example.");
  assert.equal(said("It grows [1][2, 3]. So it does【4†x】."), "It grows. So it does.");
  assert.equal(said("The area is $\\pi r^2$, and\n\n$$\\int_0^1 x\\,dx$$\n\nit costs $5 or $6."), "The area is π r², and\nit costs $5 or $6.");
  assert.equal(said("Half is \\(\\frac{1}{2}\\)."), "Half is 1 / 2.");
  assert.equal(said("<b>Bold</b> ![a cat](cat.png) &amp; more<br>lines"), "Bold a cat & more\nlines");
});

test("marks of Markdown are not spoken", () => {
  assert.equal(said("## A title ##\n\n- **one** and *two*\n- [x] ~~three~~\n\n> quoted\n\n---\nend_of_name __all__"), "A title\none and two\nthree\nquoted\nend_of_name all");
  assert.equal(said("| Name | Age |\n|---|---:|\n| Ann | 7 |"), "Name, Age\nAnn, 7");
});

test("a text that grows says no sentence twice and none in halves", () => {
  const whole = "Hello there. See [the docs](https://a.example/x.y) now! It is `a. b` and $x. y$.\n\n```py\nx = 1. \n```\nThe end";
  const told = [];
  for (let length = 0; length <= whole.length; length++) {
    const all = sentencesOf(spokenOf(whole.slice(0, length), length === whole.length), length === whole.length);
    assert.deepEqual(all.slice(0, told.length), told, whole.slice(0, length));
    told.push(...all.slice(told.length));
  }
  assert.deepEqual(told, ["Hello there.", "See the docs now!", "It is a. b and x. y.", "The end"]);
});

test("the first sentence is there before the text has ended", () => {
  assert.deepEqual(sentencesOf("One. Two is not", false), ["One."]);
  assert.deepEqual(sentencesOf("It costs 3.", false), [], "it can go on with 3.50");
  assert.deepEqual(sentencesOf("一个句子。第二", false), ["一个句子。"]);
  assert.deepEqual(sentencesOf("A line\nand", false), ["A line"]);
});

test("abbreviations and numbers end no sentence", () => {
  assert.deepEqual(sentencesOf("Dr. No met J. Bond on the 3. of May, e.g. here. He left."), ["Dr. No met J. Bond on the 3. of May, e.g. here.", "He left."]);
  assert.deepEqual(sentencesOf("Das ist z. B. so. Gut."), ["Das ist z. B. so.", "Gut."]);
});

test("what is spoken at once is short, and nothing is lost", () => {
  for (const text of ["word ".repeat(500).trim(), "字".repeat(1000), "a, ".repeat(400) + "b", "😀a".repeat(300)]) {
    const parts = sentencesOf(text);
    assert.ok(parts.every((part) => part.length <= 400 && part === part.trim()));
    assert.equal(parts.join("").replace(/\s/g, ""), text.replace(/\s/g, ""));
  }
  assert.deepEqual(sentencesOf("…\n\n!!\n"), [], "signs alone are not spoken");
});

test("a long hostile text is quick to read", () => {
  for (const text of ["*", "[", "`", "$", "<a", "| ", "\\(", "> ", "![", "**a", "1. ", "~~~\n", "- ", "([", "https://", "_a_"].map((sign) => sign.repeat(20_000))) {
    const began = process.cpuUsage().user;
    sentencesOf(spokenOf(text, false), false);
    assert.ok(process.cpuUsage(undefined).user - began < 5e6, text.slice(0, 5));
  }
});

test("the language is that of the letters, or of the small words", () => {
  assert.equal(languageOf("Das ist nicht die Antwort, und es ist so.", "en"), "de");
  assert.equal(languageOf("Le chat est dans la maison et il dort.", "en"), "fr");
  assert.equal(languageOf("The cat is in the house.", "de"), "en");
  assert.equal(languageOf("今天天气很好", "en"), "zh");
  assert.equal(languageOf("今日は天気がいい", "en"), "ja");
  assert.equal(languageOf("오늘 날씨가 좋다", "en"), "ko");
  assert.equal(languageOf("Xyz 42", "fr"), "fr");
});

const RATE = 16_000, BLOCK = 800;
const blocks = (seconds, loud) => Array.from({ length: Math.round((seconds * RATE) / BLOCK) }, () => Float32Array.from({ length: BLOCK }, (_, n) => loud * Math.sin(n / 3)));
let taken; // the seconds of what was said last
const events = (ear, ...parts) => parts.flat().map((block) => {
  const found = ear.hear(block);
  if (found === "ends") taken = (ear.take().byteLength - 44) / 2 / RATE;
  return found;
}).filter(Boolean);

test("speech begins with a loud sound and ends with silence", () => {
  const ear = new Ear(RATE);
  assert.deepEqual(events(ear, blocks(1, 0.001)), []);
  assert.deepEqual(events(ear, blocks(0.6, 0.3)), ["begins"]);
  assert.deepEqual(events(ear, blocks(0.4, 0), blocks(0.5, 0.3)), [], "a short pause ends nothing");
  assert.deepEqual(events(ear, blocks(1, 0)), ["ends"]);
  assert.ok(taken > 2.2 && taken < 3.2, `${taken} s: what was said, and a little before and after it`);
});

test("noise, a knock and a quiet room are no speech", () => {
  const ear = new Ear(RATE);
  assert.deepEqual(events(ear, blocks(0.05, 0.9), blocks(2, 0)), []);
  assert.deepEqual(events(ear, blocks(0.15, 0.9), blocks(2, 0)), ["begins"], "what was too short ends in nothing");
  assert.deepEqual(events(ear, ...[0.005, 0.01, 0.015, 0.02, 0.03].map((loud) => blocks(4, loud))), [], "a fan that speeds up");
});

test("while the page speaks, only what is louder interrupts", () => {
  const ear = new Ear(RATE);
  ear.isStrict = true;
  assert.deepEqual(events(ear, blocks(2, 0.03)), []);
  assert.deepEqual(events(ear, blocks(1, 0.3)), ["begins"]);
});

test("a sound file has 16,000 samples a second at most twice", () => {
  for (const rate of [16_000, 44_100, 48_000]) {
    const file = new DataView(wavOf([Float32Array.from({ length: rate }, () => 0.5), new Float32Array(0)], rate));
    const hertz = file.getUint32(24, true);
    assert.ok(hertz >= 16_000 && hertz < 32_000);
    assert.equal(file.getUint32(40, true) + 44, file.byteLength);
    assert.ok(Math.abs(file.byteLength - 44 - 2 * hertz) <= 2);
    assert.equal(file.getInt16(44 + 2 * 1000, true), Math.trunc(0.5 * 32_767));
  }
});
