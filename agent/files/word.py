"""Reads Word documents in the order of their text, as Word shows them with all changes accepted.

Runs inside the sandbox. It walks the XML itself: tables in tables, text boxes, content controls, fields, equations,
notes, comments and the numbers of lists are where a reader sees them.
"""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agent.files.archive import Package, all_of, attribute, child, local, outermost, text_of, value_at
from agent.files.drawings import DELETED, drawn_text, equation, paragraphs, picture_text, shown_content
from agent.files.kinds import checked_pages, raised, with_address
from agent.files.number_formats import counted

SECTION_CHARACTERS = 8_000
"""A section of a Word document without headings ends after about this many characters."""

MAX_LEVELS = 9
"""Levels of a list in Word."""
MAX_ADDRESS = 2_000
"""Characters that are kept of the instruction and of the result of a field, for the address of a link."""
MAX_BASES = 64
"""Styles that a style is based on, one on the other. Word allows few."""

_HEADINGS = ("title", "heading 1", "heading 2")
_SKIPPED = ("pPr", "rPr", "tblPr", "trPr", "tcPr", "sectPr", "rt", "sdtPr", "sdtEndPr", "proofErr", "Fallback")
_SYMBOLS = {
    **dict.fromkeys((0xFE, 0x52, 0x78), "\u2612"),
    **dict.fromkeys((0xA8, 0x6F, 0xA3, 0x71), "\u2610"),
    **{0xFC: "\u2713", 0xFB: "\u2717", 0xB7: "\u2022", 0xA7: "\u25aa", 0xE0: "\u2192", 0xD8: "\u27a2"},
}
"""Characters of the symbol fonts that stand for ticks, bullets and arrows."""
_SYMBOL_FONT = dict(
    zip((*range(0x41, 0x5B), *range(0x61, 0x7B)), "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖαβχδεφγηιϕκλμνοπθρστυϖωξψζ", strict=True)
) | dict(
    zip(
        b"\"$'^\xa2\xa3\xa5\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb6\xb7\xb8\xb9\xba\xbb\xc5\xc6\xc7\xc8\xcc\xcd\xce\xcf\xd0\xd1\xd2\xd4\xd5\xd6"
        b"\xd7\xd9\xda\xdb\xde\xe5\xf2",
        "∀∃∋⊥′≤∞↔←↑→↓°±″≥×∂•÷≠≡≈⊕∅∩∪⊂⊆∈∉∠∇®™∏√⋅∧∨⇔⇒∑∫",  # noqa: RUF001
        strict=True,
    )
)
"""The Greek letters and signs of the font Symbol."""
_ADDRESS = re.compile(r'\s*HYPERLINK\s+"([^"]{1,2000})"', re.IGNORECASE)
_CHARACTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def read_docx(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the text of each section, and what is left out.

    A section begins with a heading of the first two levels. The last one has the headers and footers.
    """
    package = Package(data, "DOCX")
    reader = _WordReader(package)
    return package.title(), checked_pages(reader.sections()), package.left_out


class _WordReader:
    """Walks a document and keeps what its parts share: styles, the counters of lists, notes and comments."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._main = package.main("document")
        self._root = package.xml(self._main)
        self._part = self._main
        self._lists = _Lists(package, self._main)
        self._notes = {kind: self._by_id(f"{kind}s", kind) for kind in ("footnote", "endnote", "comment")}
        self._is_hidden = False
        self._numbers: dict[tuple[str, str], int] = {}
        self._note_counts = Counter[str]()
        self._waiting: list[str] = []
        self._fields: list[_Field] = []
        self._open = 0

    def sections(self) -> Iterator[str]:
        """Yield the text of each section with its notes, and at last the headers and footers."""
        body = child(self._root, "body")
        lines: list[str] = []
        size = 0
        for begins, text in self._joined(() if body is None else body):
            if lines and (begins or size > SECTION_CHARACTERS):
                yield "\n\n".join(lines)
                lines, size = [], 0
            lines += [text, *self._waiting]
            size += len(text) + sum(map(len, self._waiting))
            self._waiting = []
        if lines:
            yield "\n\n".join(lines)
        if edges := [*self._edges(lines)]:
            yield "\n".join(edges)

    def _by_id(self, kind: str, tag: str) -> dict[str, Any]:
        parts = self._package.related(self._main, kind)
        return {attribute(one, "id"): one for part in parts for one in self._package.xml(part) if local(one) == tag}

    def _edges(self, shown: Collection[str]) -> Iterator[str]:
        """Yield the texts of the headers and footers that are shown on some page, each once."""
        seen = set(shown)
        settings = [self._package.xml(part) for part in self._package.related(self._main, "settings")]
        switches = {
            "first": all_of(self._root, "titlePg"),
            "even": (one for root in settings for one in all_of(root, "evenAndOddHeaders")),
        }
        hidden = [kind for kind, found in switches.items() if not any(map(_is_on, found))]
        for kind in ("header", "footer"):
            named = (one for one in all_of(self._root, f"{kind}Reference") if attribute(one, "type") not in hidden)
            for part in dict.fromkeys(self._package.target(self._main, one) for one in named):
                self._part = part
                text = "\n".join(text for _begins, text in self._joined(self._package.xml(part)))
                if text not in seen:
                    seen.add(text)
                    yield f"{kind.capitalize()}: {text}"

    def _joined(self, blocks: Iterable[Any]) -> Iterator[tuple[bool, str]]:
        """Yield whether a section begins at a block, and its text. A deleted end of a paragraph joins two of them."""
        texts: list[str] = []
        begins = False
        for block, begins_here, text in self._blocks(blocks):
            texts.append(text)
            begins = begins or begins_here
            mark = child(block, "pPr", "rPr")
            if mark is None or not any(local(one) in DELETED for one in mark):
                if (joined := "".join(texts)).strip():
                    yield begins, joined
                texts, begins = [], False
        if (joined := "".join(texts)).strip():
            yield begins, joined

    def _blocks(self, blocks: Iterable[Any]) -> Iterator[tuple[Any, bool, str]]:
        """Yield each paragraph and table, whether a section begins there, and its text."""
        for block in blocks:
            tag = local(block)
            if tag == "p":
                self._fields, self._open = [], 0  # a result can have paragraphs, but an instruction has none
                begins, number = (False, "") if _is_deleted(block) else self._lists.read(block)
                text = self._paragraph(block)
                yield block, begins, number + text if text.strip() else text
            elif tag == "tbl":
                yield block, False, "\n".join(self._rows(block))
            elif tag == "altChunk":
                self._package.left_out.add("objects")
            elif tag == "AlternateContent":
                yield from self._blocks(shown_content(block))
            elif tag in DELETED:
                self._package.left_out.add("deleted")
            elif tag in ("oMathPara", "oMath"):
                yield block, False, equation(block)
            elif tag not in _SKIPPED:  # content controls, insertions and other frames around blocks
                yield from self._blocks(block)

    def _rows(self, table: Any) -> Iterator[str]:
        """Yield the rows of a table with tabs between the cells. One that spans columns is followed by empty ones."""
        for row in self._inside(table, "tr"):
            if child(row, "trPr", "del") is not None:
                self._package.left_out.add("deleted")
                continue
            cells = [""] * min(_whole(value_at(row, "trPr", "gridBefore"), 0), 64)
            for cell in self._inside(row, "tc"):
                if child(cell, "tcPr", "cellDel") is not None:
                    continue
                text = " ".join(" ".join(text for _begins, text in self._joined(cell)).split())
                span = value_at(cell, "tcPr", "gridSpan")
                cells += [text] + [""] * (min(_whole(span, 1) or 1, 64) - 1)
            yield "\t".join(cells).rstrip("\t")

    def _inside(self, element: Any, wanted: str) -> Iterator[Any]:
        """Yield the rows or cells of a table, also those in content controls and insertions."""
        for one in element:
            if local(one) == wanted:
                yield one
            elif local(one) in ("sdt", "sdtContent", "customXml", "ins", "moveTo"):
                yield from self._inside(one, wanted)

    def _paragraph(self, paragraph: Any) -> str:
        outer = self._is_hidden
        self._is_hidden = self._lists.is_hidden(value_at(paragraph, "pPr", "pStyle"))
        text = self._inline(paragraph)
        self._is_hidden = outer
        return text.replace("~~~~", "")  # between two runs that are both struck out

    def _inline(self, element: Any) -> str:
        """Return the text below an element."""
        return "".join(self._element_text(one) for one in element)

    def _element_text(self, element: Any) -> str:
        tag = local(element)
        if tag in DELETED:
            if text_of(element, "t", "delText"):
                self._package.left_out.add("deleted")
            return ""
        if tag in _SKIPPED:
            return ""
        match tag:
            case "r":
                return self._run(element)
            case "t" | "instrText":
                return self._text(element.text or "", is_code=tag == "instrText")
            case "hyperlink":
                return with_address(self._inline(element), self._package.address(self._part, element))
            case "fldSimple":
                return _linked(self._inline(element), attribute(element, "instr"))
            case "sym":
                return _symbol(attribute(element, "char"), attribute(element, "font"))
            case "fldChar":
                return self._field(element)
            case "footnoteReference" | "endnoteReference" | "commentReference":
                return self._note(element)
            case "drawing" | "pict" | "object":
                return self._drawing(element)
            case "AlternateContent":
                return self._inline(shown_content(element))
            case "ruby":
                return self._ruby(element)
            case "oMath":
                return equation(element)
            case _:
                return _CHARACTERS.get(tag) or self._inline(element)

    def _run(self, run: Any) -> str:
        """Return the text of a run: nothing if it is hidden, and marks if it is struck out or raised."""
        properties = child(run, "rPr")
        if properties is None and not self._is_hidden:
            return self._inline(run)
        own = {} if properties is None else {local(one): one for one in properties}
        style = attribute(own["rStyle"], "val") if "rStyle" in own else ""
        is_hidden = self._is_hidden or self._lists.is_hidden(style)
        if _is_on(own["vanish"]) if "vanish" in own else is_hidden:
            if text_of(run, "t"):
                self._package.left_out.add("hidden")
            return ""
        text = self._inline(run)
        if "vertAlign" in own and attribute(own["vertAlign"], "val") == "superscript":
            text = raised(text)
        struck = any(_is_on(own[tag]) for tag in ("strike", "dstrike") if tag in own)
        return f"~~{text}~~" if struck and text.strip() else text

    def _text(self, text: str, *, is_code: bool) -> str:
        """Return a text. That of an instruction of a field is kept for its end, and not shown."""
        field = self._fields[-1] if self._fields else None
        if field is None:
            return "" if is_code else text
        if is_code or self._open:
            field.code += text if is_code and len(field.code) < MAX_ADDRESS else ""
            return ""
        field.text += text if len(field.text) < MAX_ADDRESS else ""
        return text

    def _note(self, element: Any) -> str:
        """Return the mark of a note, whose text follows the paragraph."""
        kind = local(element).removesuffix("Reference")
        key = kind, attribute(element, "id")
        note = self._notes[kind].get(key[1])
        if note is None:
            return ""
        if key not in self._numbers:
            self._note_counts[kind] += 1
            self._numbers[key] = self._note_counts[kind]
            outer, self._part = self._part, next(self._package.related(self._main, f"{kind}s"), "")
            text = " ".join(text for _begins, text in self._joined(note))
            self._part = outer
            name = f"^{'e' * (kind == 'endnote')}{self._numbers[key]}"
            if kind == "comment":
                self._waiting.append(f"[Comment by {attribute(note, 'author') or 'somebody'}: {text}]")
            else:
                self._waiting.append(f"[{name}]: {text}")
        return "" if kind == "comment" else f"[^{'e' * (kind == 'endnote')}{self._numbers[key]}]"

    def _field(self, element: Any) -> str:
        """Return the tick or the chosen entry of a form field, or the address of a link. Other results are texts.

        Texts between the beginning of a field and its result belong to the instruction.
        """
        match attribute(element, "fldCharType"):
            case "begin":
                self._fields.append(_Field())
                self._open += 1
            case "separate" if self._fields:
                self._open -= self._fields[-1].is_open
                self._fields[-1].is_open = False
            case "end" if self._fields:
                field = self._fields.pop()
                self._open -= field.is_open
                if self._fields and len(self._fields[-1].text) < MAX_ADDRESS:
                    self._fields[-1].text += field.text
                return _linked(field.text, field.code).removeprefix(field.text)
            case _:
                pass
        if (box := child(element, "ffData", "checkBox")) is not None:
            state = child(box, "checked") if child(box, "checked") is not None else child(box, "default")
            return "\u2612" if state is not None and _is_on(state) else "\u2610"
        if (choice := child(element, "ffData", "ddList")) is not None:
            entries = [attribute(one, "val") for one in choice if local(one) == "listEntry"]
            chosen = value_at(choice, "result") or value_at(choice, "default") or "0"
            return entries[_whole(chosen, 0)] if _whole(chosen, 0) < len(entries) else ""
        return ""

    def _frame(self, element: Any) -> str:
        """Return the texts of a text box, of which each paragraph is a line of its own."""
        return "".join(f"\n{text}\n" for _begins, text in self._joined(element))

    def _drawing(self, element: Any) -> str:
        """Return the texts in a drawing, and note what has none."""
        for one in all_of(element, "chart", "relIds"):
            if text := drawn_text(self._package, self._package.target(self._part, one), local(one)):
                return f"\n{text}\n"
        if next(all_of(element, "OLEObject", "control"), None) is not None:
            self._package.left_out.add("objects")
        elif next(all_of(element, "blip", "imagedata"), None) is not None:
            self._package.left_out.add("pictures")
            if text := picture_text(element):
                return text
        boxes = [one for one in outermost(element, "txbxContent", "Fallback") if local(one) != "Fallback"]
        texts = [self._frame(one) for one in boxes]
        paths = [one for one in outermost(element, "txbxContent", "textpath") if local(one) == "textpath"]
        texts += [f"\n{text}\n" for one in paths if (text := attribute(one, "string"))]
        return "".join(texts) or "".join(f"\n{paragraphs(one)}\n" for one in outermost(element, "txBody"))

    def _ruby(self, element: Any) -> str:
        base, reading = child(element, "rubyBase"), child(element, "rt")
        text = "" if base is None else self._inline(base)
        return text + (f"({self._inline(reading)})" if reading is not None else "")


def _is_deleted(paragraph: Any) -> bool:
    """Return True if a paragraph and its end are deleted, so that it is none of a list."""
    mark = child(paragraph, "pPr", "rPr")
    has_end = mark is None or not any(local(one) in DELETED for one in mark)
    return not has_end and not any(text_of(one, "t") for one in paragraph if local(one) not in DELETED)


@dataclass
class _Field:
    """A field whose end was not read: its instruction, which is open until its result begins, and its text."""

    is_open: bool = True
    code: str = ""
    text: str = ""


class _Style:
    """The heading level and the list that a style sets, and whether it hides text."""

    def __init__(self, style: Any) -> None:
        self.id = attribute(style, "styleId")
        self.base = value_at(style, "basedOn")
        self.name = value_at(style, "name").lower()
        self.outline = value_at(style, "pPr", "outlineLvl")
        self.list, self.level = value_at(style, "pPr", "numPr", "numId"), value_at(style, "pPr", "numPr", "ilvl")
        vanish = child(style, "rPr", "vanish")
        self.is_hidden = None if vanish is None else _is_on(vanish)


class _Level:
    """A level of a list: the kind of its numbers, the text around them, and the number of the first paragraph."""

    def __init__(self, level: Any) -> None:
        self.style, self.form, self.text = (value_at(level, name) for name in ("pStyle", "numFmt", "lvlText"))
        self.start = _whole(value_at(level, "start"), 1)
        self.is_legal = child(level, "isLgl") is not None
        self.restart = value_at(level, "lvlRestart")
        """The level whose next paragraph lets this one begin again: "" for any higher one, "0" for none."""


class _List:
    """The levels of a list, and the numbers at which it starts again."""

    def __init__(self, abstract: str, levels: Iterable[Any], own: Iterable[Any]) -> None:
        self.abstract = abstract
        self.levels: dict[int, _Level] = {}
        self.restarts: dict[int, int] = {}
        for one in levels:
            at = _whole(attribute(one, "ilvl"), MAX_LEVELS)
            if at < MAX_LEVELS and at not in self.levels:
                self.levels[at] = _Level(one)
        for one in own:
            at = _whole(attribute(one, "ilvl"), MAX_LEVELS)
            if local(one) == "lvlOverride" and at < MAX_LEVELS and (start := value_at(one, "startOverride")):
                self.restarts[at] = _whole(start, 1)


class _Lists:
    """Counts the numbered paragraphs, and knows the styles of headings."""

    def __init__(self, package: Package, main: str) -> None:
        styles = [one for part in package.related(main, "styles") for one in package.xml(part) if local(one) == "style"]
        self._styles = {one.id: one for one in map(_Style, styles)}
        self._default = next((attribute(one, "styleId") for one in styles if _is_default(one)), "")
        roots = [package.xml(part) for part in package.related(main, "numbering")]
        self._abstract = {attribute(one, "abstractNumId"): one for root in roots for one in all_of(root, "abstractNum")}
        self._links = {key: value_at(one, "numStyleLink") for key, one in self._abstract.items()}
        self._own = {attribute(one, "numId"): one for root in roots for one in root if local(one) == "num"}
        self._lists: dict[str, _List] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._started = set[tuple[str, int]]()
        self._hidden: dict[str, bool] = {}

    def read(self, paragraph: Any) -> tuple[bool, str]:
        """Return whether a paragraph is a heading of the first two levels, and its number or bullet."""
        properties = child(paragraph, "pPr")
        style = value_at(properties, "pStyle") if properties is not None else ""
        chain = self._chain(style or self._default)
        own = value_at(properties, "outlineLvl") if properties is not None else ""
        outline = next((one for one in (own, *(style.outline for style in chain)) if one), "")
        begins = any(style.name in _HEADINGS for style in chain[:1]) or outline in ("0", "1")
        list_, level = self._place(properties, chain)
        number = self._number(list_, level) if list_ else ""
        return begins, "  " * (0 if outline else level) + number if number else ""

    def is_hidden(self, style: str) -> bool:
        """Return True if a style of a paragraph or of characters hides its text."""
        if not style:
            return False
        if style not in self._hidden:
            chain = self._chain(style)
            self._hidden[style] = next((one.is_hidden for one in chain if one.is_hidden is not None), False)
        return self._hidden[style]

    def _chain(self, style: str) -> list[_Style]:
        """Return a style and those that it is based on."""
        chain: dict[str, _Style] = {}
        while style in self._styles and style not in chain and len(chain) < MAX_BASES:
            chain[style] = self._styles[style]
            style = chain[style].base
        return [*chain.values()]

    def _place(self, properties: Any, chain: Iterable[_Style]) -> tuple[str, int]:
        """Return the list of a paragraph, "" if it has none, and the level in it."""
        list_ = level = ""
        if properties is not None:
            list_, level = value_at(properties, "numPr", "numId"), value_at(properties, "numPr", "ilvl")
        for style in chain:
            if not style.list and not style.level:
                continue
            level = level or style.level
            list_ = list_ or style.list
            if list_ and not level:
                levels = self._list(list_).levels.items()
                level = next((str(at) for at, one in levels if one.style == style.id), "")
        return ("" if list_ == "0" else list_), min(_whole(level, 0), MAX_LEVELS - 1)

    def _abstract_of(self, list_: str) -> str:
        """Return the definition of a list. It can be named by a style."""
        found = value_at(self._own[list_], "abstractNumId") if list_ in self._own else ""
        link = self._links.get(found, "")
        if link in self._styles:
            other = self._styles[link].list
            found = value_at(self._own[other], "abstractNumId") if other in self._own else found
        return found

    def _list(self, list_: str) -> _List:
        """Return a list with the definitions of its levels, those of the list itself first."""
        if list_ not in self._lists:
            own, name = self._own.get(list_), self._abstract_of(list_)
            overrides = [] if own is None else [*all_of(own, "lvl")]
            shared = [one for one in self._abstract.get(name, ()) if local(one) == "lvl"]
            self._lists[list_] = _List(name, (*overrides, *shared), () if own is None else own)
        return self._lists[list_]

    def _number(self, list_: str, level: int) -> str:
        """Count a paragraph and return its number or bullet with a space, or "" if none is shown."""
        found = self._list(list_)
        counts = self._counts.setdefault(found.abstract or list_, {})
        starts = {at: one.start for at, one in found.levels.items()} | found.restarts
        for at in found.restarts:
            if (list_, at) not in self._started:
                counts.pop(at, None)
                self._started.add((list_, at))
        for deeper in [one for one in counts if one > level]:
            restart = found.levels[deeper].restart if deeper in found.levels else ""
            if not restart or level < _whole(restart, MAX_LEVELS):
                del counts[deeper]
        counts[level] = counts[level] + 1 if level in counts else starts.get(level, 1)
        shown = found.levels.get(level)
        if shown is None or shown.form == "none":
            return ""
        if shown.form == "bullet":
            return "\u2022 "
        text = shown.text
        for at in range(MAX_LEVELS):
            if f"%{at + 1}" in text:
                form = found.levels[at].form if at in found.levels and not shown.is_legal else "decimal"
                text = text.replace(f"%{at + 1}", counted(counts.get(at, starts.get(at, 1)), form))
        return f"{text} " if text else ""


def _linked(text: str, code: str) -> str:
    """Return the result of a field, with the address after it if the instruction makes it a link."""
    found = _ADDRESS.match(code)
    return with_address(text, found[1]) if found else text


def _symbol(code: str, font: str) -> str:
    """Return a character of a symbol font, "" if it stands for none that is known."""
    try:
        number = int(code, 16)
    except ValueError:
        return ""
    if 0xF000 <= number <= 0xF0FF:
        return (_SYMBOL_FONT if font == "Symbol" else _SYMBOLS).get(number - 0xF000, "")
    return chr(number) if 0x20 <= number < 0xD800 else ""


def _is_on(element: Any) -> bool:
    return attribute(element, "val").lower() not in ("0", "false", "off", "none")


def _is_default(style: Any) -> bool:
    return attribute(style, "type") == "paragraph" and attribute(style, "default") in ("1", "true", "on")


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 7 else otherwise
