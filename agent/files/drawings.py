"""Reads the drawings, charts and diagrams of Office documents, and presentations, whose slides are drawings.

Runs inside the sandbox.
"""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import re
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from agent.files.archive import Package, all_of, attribute, child, local, outermost, text_of, value_at
from agent.files.kinds import MAX_CHARACTERS, checked_pages, raised, with_address
from agent.files.number_formats import counted, number_text
from agent.files.remarks import refused

DELETED = ("del", "moveFrom", "delText", "delInstrText")
"""Elements of deleted text."""
MAX_SIGN = 8
"""The characters of a sign that is written many times."""
_CALLS = {
    **{"f": "({})/({})", "sSup": "{}^{}", "sSub": "{}_{}", "sSubSup": "{}_{}^{}", "func": "{} {}", "limLow": "{}_{}"},
    **{"limUpp": "{}^{}", "sPre": "_{}^{}{}"},
}
"""The signs with which the parts of an equation are written in a line."""


_FORMS = {"arabic": "decimal", "alphaLc": "lowerLetter", "alphaUc": "upperLetter"} | {
    "romanLc": "lowerRoman",
    "romanUc": "upperRoman",
}
"""Word's names of the forms of numbers in DrawingML."""
_LEVELS = (*"012345678",)
"""The levels of a list in PowerPoint."""
_FILE = re.compile(r"\S+\.\w{3,4}")


def paragraphs(body: Any, package: Package | None = None, part: str = "") -> str:
    """Return the paragraphs of DrawingML below this element, one on each line, with their numbers.

    The links of a part of a package get their addresses.
    """
    counts = Counter[str]()
    lines: list[str] = []
    for paragraph in outermost(body, "p"):
        number, text = _list_number(paragraph, counts), _runs(paragraph, package, part)
        lines.append(number + text if text.strip() else text)
    return "\n".join(lines)


def _list_number(paragraph: Any, counts: Counter[str]) -> str:
    """Return the number of a paragraph: "2. " or "b) ". Lists below it begin again."""
    properties, form = child(paragraph, "pPr"), child(paragraph, "pPr", "buAutoNum")
    level = attribute(properties, "lvl")[:1] if properties is not None else ""
    level = level if level in _LEVELS else "0"
    for deeper in [one for one in counts if one > level or (one == level and form is None)]:
        del counts[deeper]
    found = re.fullmatch(
        r"([a-z]+(?:Lc|Uc|))(Period|ParenR|ParenBoth|Plain)", attribute(form, "type") if form is not None else ""
    )
    if found is None:
        return ""
    start = attribute(form, "startAt")
    counts[level] += 1 if level in counts or not start.isdecimal() else min(int(start[:6]), 32_767)
    text = counted(counts[level], _FORMS.get(found[1], "decimal"))
    return {"Period": "{}. ", "ParenR": "{}) ", "ParenBoth": "({}) ", "Plain": "{} "}[found[2]].format(text)


def picture_text(element: Any) -> str:
    """Return what somebody wrote about a picture as its alternative text, in brackets, or ""."""
    for one in all_of(element, "docPr", "cNvPr", "shape"):
        text = " ".join((attribute(one, "descr") or attribute(one, "alt")).split())
        if text and not _FILE.fullmatch(text):
            return f"[{text}]"
    return ""


def shape_texts(package: Package, part: str, shapes: Any) -> Iterator[str]:
    """Yield the texts of the shapes, tables, charts and diagrams below this element, in their order."""
    for shape in shapes:
        tag = local(shape)
        if tag == "AlternateContent":
            yield from shape_texts(package, part, shown_content(shape))
        elif _is_hidden(shape):
            if text_of(shape, "t").strip():
                package.left_out.add("hidden")
        elif tag == "txBody":
            yield paragraphs(shape, package, part)
        elif tag == "tbl":
            yield "\n".join(
                "\t".join(" ".join(paragraphs(cell, package, part).split()) for cell in row if local(cell) == "tc")
                for row in outermost(shape, "tr")
            )
        elif tag in ("chart", "relIds"):
            yield drawn_text(package, package.target(part, shape), tag)
        elif tag in ("pic", "oleObj", "control"):
            package.left_out.add("pictures" if tag == "pic" else "objects")
            yield picture_text(shape) if tag == "pic" else ""
        elif not _is_page_number(shape):
            yield from shape_texts(package, part, shape)


def shown_content(alternatives: Any) -> Any:
    """Return the one of the alternatives that a program of today shows: the first with a text, or else the first."""
    found = [one for one in alternatives if local(one) in ("Choice", "Fallback")]
    with_text = [
        one
        for one in found
        if any(text.text and text.text.strip() for text in all_of(one, "t"))
        or next(all_of(one, "chart", "relIds"), None) is not None
    ]
    return next(iter([*with_text, *found]), alternatives)


def drawn_text(package: Package, part: str, kind: str) -> str:
    """Return the text of a chart, or of a diagram if the kind is "relIds". Each is read once.

    Raises `InputError` if those that are shown are too long together, because one can be shown many times.
    """
    if part not in package.drawn:
        package.drawn[part] = _chart_text(package, part) if kind == "chart" else _diagram_text(package, part)
    package.drawn_characters += len(package.drawn[part])
    if package.drawn_characters > MAX_CHARACTERS:
        raise refused("long_document", most=MAX_CHARACTERS)
    return package.drawn[part]


def _chart_text(package: Package, part: str) -> str:
    """Return a chart as its title and a table: a row for each category, and a column for each series."""
    root = package.xml(part)
    chart = next(all_of(root, "chart"), root)
    head = [" ".join(paragraphs(title).split()) for title in outermost(chart, "title")]
    tables: list[_DrawnTable] = []
    for series in outermost(chart, "ser"):
        found = {tag: _points(one) for tag in _AXES if (one := child(series, tag)) is not None}
        categories = found.pop("cat", {}) | found.pop("xVal", {})
        if not tables or any(tables[-1].categories.get(at, one) != one for at, one in categories.items()):
            tables.append(_DrawnTable())
        tables[-1].categories |= categories
        name = text_of(named, "v") if (named := child(series, "tx")) is not None else ""
        tables[-1].columns += [("" if at else name, one) for at, one in enumerate([*found.values()] or [{}])]
    lines = [line for table in tables for line in table.lines()]
    if not any(table.rows for table in tables):
        lines += [one.text for one in all_of(root, "pt") if one.text and one.text.strip()]  # a newer kind
    if not lines:
        package.left_out.add("charts")
    return "\n".join([text for text in head if text] + lines)


_AXES = ("cat", "xVal", "val", "yVal", "bubbleSize")
"""The elements of a series with stored values: first those of its categories."""


class _DrawnTable:
    """The values of the series of a chart that have the same categories: a column for each, with its name."""

    def __init__(self) -> None:
        self.categories: dict[int, str] = {}
        self.columns: list[tuple[str, dict[int, str]]] = []

    @property
    def rows(self) -> list[int]:
        """The numbers of the categories and of the values."""
        return sorted({*self.categories, *(at for _name, column in self.columns for at in column)})

    def lines(self) -> Iterator[str]:
        """Yield the head and the rows. Raises `InputError` if they are too many."""
        rows = self.rows
        if len(rows) * len(self.columns) > MAX_CHARACTERS:
            raise refused("long_document", most=MAX_CHARACTERS)
        if any(name for name, _column in self.columns):
            yield "\t".join(("", *(name for name, _column in self.columns))).rstrip("\t")
        for at in rows:
            yield "\t".join((self.categories.get(at, ""), *(column.get(at, "") for _name, column in self.columns)))


def _diagram_text(package: Package, part: str) -> str:
    """Return the texts of a diagram (SmartArt), one on each line."""
    texts = [paragraphs(point) for point in outermost(package.xml(part), "pt")]
    if not any(texts):
        package.left_out.add("drawings")
    return "\n".join(text for text in texts if text.strip())


def _points(values: Any) -> dict[int, str]:
    """Return the stored values of a series or of its categories by their numbers. Those of more levels are joined."""
    out: dict[int, list[str]] = {}
    code = text_of(values, "formatCode")
    for level in reversed(list(outermost(values, "lvl")) or [values]):
        for point in outermost(level, "pt"):
            if (at := attribute(point, "idx")).isdecimal() and len(at) < 10:
                text = text_of(point, "v")
                text = number_text(text, attribute(point, "formatCode") or code) if code else text
                out.setdefault(int(at), []).append(text)
    return {at: " ".join(texts) for at, texts in out.items()}


def _runs(paragraph: Any, package: Package | None, part: str) -> str:
    out: list[str] = []
    for one in outermost(paragraph, "r", "fld", "t", "br", "tab", "oMath", "Fallback"):
        match local(one):
            case "r" | "fld":
                out.append(_run(one, package, part))
            case "t":
                out.append(one.text or "")
            case "oMath":
                out.append(equation(one))
            case tag:
                out.append({"br": "\n", "tab": "\t"}.get(tag, ""))
    return "".join(out)


def _run(run: Any, package: Package | None, part: str) -> str:
    """Return the text of a run, with its address if it is a link, and marks if it is struck out or raised."""
    text, properties = text_of(run, "t"), child(run, "rPr")
    if properties is None:
        return text
    if attribute(properties, "baseline")[:1] in {*"123456789"}:
        text = raised(text)
    if attribute(properties, "strike") in ("sngStrike", "dblStrike") and text.strip():
        text = f"~~{text}~~"
    link = child(properties, "hlinkClick")
    return text if link is None or package is None else with_address(text, package.address(part, link))


def equation(element: Any) -> str:
    """Return an equation in a line: "(a)/(b)", "x^2", "√(x)"."""
    return "".join(_term(one) for one in element)


def _term(element: Any) -> str:
    tag = local(element)
    if tag in DELETED or tag.endswith("Pr"):
        return ""
    if tag == "t":
        return element.text or ""
    inner = [one for one in element if not local(one).endswith("Pr")]
    parts = [_term(one) if local(one) == "mr" else equation(one) for one in inner]
    if tag not in ("f", "d", "rad", "nary", "m", "eqArr", "mr", "func"):  # signs that only grouped ones need
        parts[1:] = map(_grouped, parts[1:])
    if tag in _CALLS and len(parts) == _CALLS[tag].count("{}"):
        return _CALLS[tag].format(*parts)
    if tag == "rad":
        degree = parts[0] if len(parts) > 1 else ""
        return f"{degree}\u221a({parts[-1] if parts else ''})"
    if tag == "nary":
        sign = value_at(element, "naryPr", "chr") or "\u222b"
        below, above, *rest = [*parts, "", ""]
        below, above = (sign + _grouped(one) if one else "" for sign, one in (("_", below), ("^", above)))
        return f"{sign}{below}{above} {''.join(rest)}"
    if tag == "d":
        begin, end = child(element, "dPr", "begChr"), child(element, "dPr", "endChr")
        separator = value_at(element, "dPr", "sepChr")[:MAX_SIGN]
        left, right = (
            ("(" if begin is None else attribute(begin, "val")),
            (")" if end is None else attribute(end, "val")),
        )
        return left + (f" {separator} " if separator else ", ").join(parts) + right
    if tag in ("acc", "bar"):
        top = "\u0305" if value_at(element, "barPr", "pos") == "top" else "\u0332"
        sign = (value_at(element, "accPr", "chr")[:MAX_SIGN] or "\u0302") if tag == "acc" else top
        return "".join(f"{one}{sign}" for one in "".join(parts)) if len("".join(parts)) < 9 else "".join(parts)
    if tag in ("m", "eqArr"):
        return "; ".join(parts)
    if tag == "mr":
        return ", ".join(parts)
    return "".join(parts) if tag != "r" else text_of(element, "t")


def _grouped(term: str) -> str:
    """Return a term that stands above or below another, in parentheses if it has several signs."""
    return term if term.isalnum() or len(term) < 2 else f"({term})"


def _is_hidden(shape: Any) -> bool:
    """Return True for a shape, a group or a frame that somebody has hidden."""
    properties = next((found for one in shape if (found := child(one, "cNvPr")) is not None), None)
    return properties is not None and attribute(properties, "hidden") in ("1", "true")


def _is_page_number(shape: Any) -> bool:
    found = next(all_of(shape, "ph"), None) if local(shape) == "sp" else None
    return found is not None and attribute(found, "type") in ("sldNum", "sldImg")


def read_pptx(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the text of each slide, and what is left out."""
    package = Package(data, "PPTX")
    main = package.main("presentation")
    listed = child(package.xml(main), "sldIdLst")
    slides = [package.target(main, slide) for slide in (() if listed is None else listed)]
    seen = set[str]()
    pages = (
        "\n\n".join(text for text in _texts(package, slide, seen) if text.strip()) for slide in dict.fromkeys(slides)
    )
    return package.title(), checked_pages(pages), package.left_out


def _texts(package: Package, slide: str, seen: set[str]) -> Iterator[str]:
    root = package.xml(slide)
    if attribute(root, "show") in ("0", "false"):
        yield "(hidden slide)"
    yield from shape_texts(package, slide, root)
    if behind := [text for text in _behind(package, slide, root, seen) if text.strip()]:
        yield "Behind this slide:\n" + "\n".join(behind)
    for part in _new(package, slide, "notesSlide", seen):
        notes = [text for text in shape_texts(package, part, package.xml(part)) if text.strip()]
        if notes:
            yield "Notes:\n" + "\n".join(notes)
    for part in _new(package, slide, "comments", seen):
        for comment in outermost(package.xml(part), "cm"):
            if text := (text_of(comment, "text") or paragraphs(comment)):
                yield f"Comment: {text}"


def _new(package: Package, slide: str, kind: str, seen: set[str]) -> Iterator[str]:
    """Yield the parts of this kind that no slide before this one has."""
    for part in package.related(slide, kind):
        if part not in seen:
            seen.add(part)
            yield part


def _behind(package: Package, slide: str, root: Any, seen: set[str]) -> Iterator[str]:
    """Yield the texts that a layout and its master show behind their slides. Those in `seen` were read before."""
    while attribute(root, "showMasterSp") not in ("0", "false"):
        kind = "slideMaster" if local(root) == "sldLayout" else "slideLayout"
        part = next(package.related(slide, kind), "")
        if not part or part in seen:
            return
        seen.add(part)
        slide, root = part, package.xml(part)
        for tree in outermost(root, "spTree"):
            own = [one for one in tree if next(all_of(one, "ph", "pic"), None) is None]
            yield from shape_texts(package, slide, own)
