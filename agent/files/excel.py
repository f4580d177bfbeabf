"""Reads Excel workbooks: the cells as Excel shows them, formulas without a result, comments, charts and text boxes.

Runs inside the sandbox. Reads each sheet once, whatever size it claims.
"""

# lxml's results are known only in part.
# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

import re
from collections.abc import Collection, Iterator, Sequence
from io import BytesIO
from itertools import islice
from typing import Any

from agent.files.archive import (
    Package,
    all_of,
    child,
    local,
    outermost,
    text_of,
    value_at,
    without_definitions,
    xml_refusal,
)
from agent.files.drawings import shape_texts
from agent.files.kinds import LINK, MAX_CHARACTERS, checked_pages, raised
from agent.files.number_formats import EPOCH, EPOCH_1904, number_text
from agent.files.passages import ranges_of
from agent.files.remarks import refused

MAX_COLUMNS, MAX_ROWS = 16_384, 1_048_576
"""Columns and rows of a sheet in Excel."""
MAX_EMPTY = 50
"""Empty cells before a cell in its row. One that is farther away is named instead: "AZ7: text"."""
_PICTURES = "xl/richdata/richvaluerel.xml"
"""The part of a workbook with pictures in cells."""
_DATE_FORMATS = {
    **dict.fromkeys((14, 15, 16, 17, *range(27, 37), *range(50, 59)), "yyyy-mm-dd"),
    **dict.fromkeys((18, 19, 20, 21, 45, 47), "hh:mm:ss"),
    **{22: "yyyy-mm-dd hh:mm", 46: "[h]:mm:ss", 9: "0%", 10: "0.00%"},
}
"""The built-in formats of dates, times and percents, by number."""
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")


def read_xlsx(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, each sheet as lines of cells with tabs between them, and what is left out."""
    package = Package(data, "XLSX")
    workbook = _Workbook(package)
    return package.title(), checked_pages(workbook.sheets()), package.left_out


class _Workbook:
    """Reads the sheets of a workbook with their shared strings and formats."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._main = package.main("workbook")
        self._root = package.xml(self._main)
        properties = child(self._root, "workbookPr")
        is_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        self._epoch = EPOCH_1904 if is_1904 else EPOCH
        shared = [package.xml(part) for part in package.related(self._main, "sharedStrings")]
        self._strings = [" ".join(_string(one).split()) for root in shared for one in root if local(one) == "si"]
        self._formats = self._read_formats()
        self._size = 0
        self._seen = set[str]()
        self._has_pictures = len(package.xml(_PICTURES)) > 0

    def sheets(self) -> Iterator[str]:
        """Yield the text of each sheet: its name, its rows, its drawings and its comments."""
        listed = child(self._root, "sheets")
        for sheet in () if listed is None else listed:
            part = self._package.target(self._main, sheet)
            if not self._is_new(part):
                continue
            name = sheet.get("name", "") + (" (hidden)" if sheet.get("state", "visible") != "visible" else "")
            yield "\n".join([name, *self._rows(part), *self._drawn(part), *self._comments(part)])

    def _read_formats(self) -> list[str]:
        """Return the number format of each cell style."""
        styles = next((self._package.xml(part) for part in self._package.related(self._main, "styles")), None)
        if styles is None:
            return []
        own = {one.get("numFmtId"): one.get("formatCode", "") for one in all_of(styles, "numFmt")}
        cells = child(styles, "cellXfs")
        numbers = [one.get("numFmtId", "0") for one in (() if cells is None else cells)]
        return [
            own.get(one) or _DATE_FORMATS.get(int(one) if len(one) < 5 and one.isdecimal() else 0, "")
            for one in numbers
        ]

    def _rows(self, part: str) -> Iterator[str]:
        from lxml import etree  # pyright: ignore[reportAttributeAccessIssue]

        shared: dict[str, str] = {}
        tags = [f"{{*}}{tag}" for tag in ("row", "col", "hyperlink", "oleObject", "control")]
        rows = etree.iterparse(BytesIO(self._package.bytes_of(part)), tag=tags, resolve_entities=False, huge_tree=True)
        around = _Around(self._package, part)
        try:
            for number, (_event, row) in enumerate(islice(rows, MAX_ROWS + MAX_COLUMNS)):
                if not number:
                    without_definitions(row)
                if local(row) != "row":
                    around.add(row)
                    continue
                if (line := self._row(row, shared).rstrip("\t")).strip():
                    self._size += len(line)
                    if self._size > MAX_CHARACTERS:
                        raise refused("long_document", most=MAX_CHARACTERS)
                    around.read(row, line)
                    yield line
                row.clear()
                while row.getprevious() is not None:
                    del row.getparent()[0]
        except etree.XMLSyntaxError as error:
            raise xml_refusal(error, "XLSX") from error
        yield from around.lines()

    def _row(self, row: Any, shared: dict[str, str]) -> str:
        texts: list[str] = []
        left = MAX_CHARACTERS - self._size
        at = 0
        for cell in row:
            if local(cell) != "c":
                continue
            column = _column(cell.get("r", "")) or at + 1
            text = self._cell(cell, shared)
            if text and at < column <= MAX_COLUMNS:
                is_near = column - at <= MAX_EMPTY
                texts += [""] * (column - at - 1) + [text] if is_near else [f"{cell.get('r')}: {text}"]
                at = column
                left -= len(text)
                if left < 0:
                    raise refused("long_document", most=MAX_CHARACTERS)
            elif not cell.get("r"):
                texts.append("")
                at += 1
        return "\t".join(texts)

    def _cell(self, cell: Any, shared: dict[str, str]) -> str:
        """Return the text of a cell, without line breaks and tabs."""
        kind, value, formula = cell.get("t", "n"), text_of(cell, "v"), child(cell, "f")
        if formula is not None and not value and kind != "str":
            group = formula.get("si", "")  # cells with the same formula: the first one has it
            text = " ".join((formula.text or "").split())
            if text and group:
                shared[group] = f"{text} (as in {cell.get('r', '')})"
            return f"={text or shared.get(group, '')}"
        if kind == "e" and cell.get("vm") and self._has_pictures:
            self._package.left_out.add("pictures")
            return ""
        if kind == "s":
            return _at(self._strings, value)
        if kind == "n" and value:
            return number_text(value, _at(self._formats, cell.get("s", "0")), self._epoch)
        if kind == "b" and value:
            return "TRUE" if value == "1" else "FALSE"
        return " ".join((_string(cell) if kind == "inlineStr" else _unescaped(value)).split())

    def _is_new(self, part: str) -> bool:
        """Return True for a part that was not read before. A workbook can name one many times."""
        is_new = part not in self._seen
        self._seen.add(part)
        return is_new

    def _new(self, part: str, kind: str) -> Iterator[str]:
        return filter(self._is_new, self._package.related(part, kind))

    def _drawn(self, part: str) -> Iterator[str]:
        for drawing in self._new(part, "drawing"):
            yield from (
                text for text in shape_texts(self._package, drawing, self._package.xml(drawing)) if text.strip()
            )

    def _comments(self, part: str) -> Iterator[str]:
        threads = [one for found in self._new(part, "threadedComment") for one in self._package.xml(found)]
        notes = [one for found in self._new(part, "comments") for one in outermost(self._package.xml(found), "comment")]
        threaded = {one.get("ref") for one in threads}  # each has a note too, for old programs
        for comment in (*threads, *(one for one in notes if one.get("ref") not in threaded)):
            text = text_of(comment, "text") if local(comment) == "threadedComment" else _string(comment)
            yield f"Comment on {comment.get('ref', '')}: {' '.join(text.split())}"


class _Around:
    """Collects what a sheet has around its cells: links, embedded objects, hidden rows and columns."""

    def __init__(self, package: Package, part: str) -> None:
        self._package, self._part = package, part
        self._rows: list[int] = []
        self._columns: list[tuple[int, str]] = []
        self._width = 0
        self._links: list[str] = []
        self._shown = set[str]()

    def read(self, row: Any, line: str) -> None:
        """Note a row that has cells."""
        number = row.get("r", "")
        if row.get("hidden") in ("1", "true") and number.isdecimal() and len(number) < 8:
            self._rows.append(int(number))
        self._width = max(self._width, line.count("\t") + 1)
        self._shown.update(text for text in line.split("\t") if LINK.match(text))

    def add(self, element: Any) -> None:
        """Note a column, a link or an object."""
        tag = local(element)
        if tag == "col" and element.get("hidden") in ("1", "true"):
            first, last = (_letters(element.get(name, "")) for name in ("min", "max"))
            self._columns.append((_column(first), first if first == last else f"{first}-{last}"))
        elif tag == "hyperlink":
            address = self._package.address(self._part, element)
            if LINK.match(address) and address not in self._shown:
                self._links.append(f"Link in {element.get('ref', '')}: {address}")
        elif tag in ("oleObject", "control"):
            self._package.left_out.add("objects")

    def lines(self) -> Iterator[str]:
        """Yield a line for what is hidden and for each link."""
        if self._rows:
            yield f"Hidden rows: {ranges_of(self._rows)}"
        if columns := [name for first, name in self._columns if first <= self._width]:
            yield f"Hidden columns: {', '.join(columns)}"
        yield from self._links


def _at(texts: Sequence[str], number: str) -> str:
    """Return the text with this number, or "" if there is none."""
    return texts[int(number)] if number.isdecimal() and len(number) < 10 and int(number) < len(texts) else ""


def _string(element: Any) -> str:
    """Return the text of a string, without the readings of its characters."""
    hidden = {text for reading in outermost(element, "rPh") for text in all_of(reading, "t")}
    texts: list[str] = []
    run, is_raised = None, False
    for one in all_of(element, "t"):
        if (parent := one.getparent()) is not run:  # looking at the same one for each of its texts takes quadratic time
            run, is_raised = parent, local(parent) == "r" and value_at(parent, "rPr", "vertAlign") == "superscript"
        texts.append("" if one in hidden else raised(one.text or "") if is_raised else one.text or "")
    return _unescaped("".join(texts))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _column(reference: str) -> int:
    """Return the number of the column in a reference such as "AB12", counted from 1, or 0."""
    number = 0
    for letter in reference[:4].upper():
        if not "A" <= letter <= "Z":
            break
        number = number * 26 + ord(letter) - 64
    return number


def _letters(number: str) -> str:
    """Return the name of a column: "AB" for "28"."""
    left = int(number) if number.isdecimal() and len(number) < 6 else 0
    out = ""
    while left:
        left, letter = divmod(left - 1, 26)
        out = chr(65 + letter) + out
    return out
