"""Reads e-mails, HTML pages, RTF and notebooks. Runs inside the sandbox. What is on the network stays a link."""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from email.policy import Compat32
from html import unescape
from html.parser import HTMLParser
from typing import Any, cast

from agent.files.encodings import codec_of, decode_text
from agent.files.kinds import checked_pages, clean, raised, with_address
from agent.files.number_formats import counted
from agent.files.remarks import refused

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_HIDDEN = ("script", "style", "template", "noscript", "video", "audio", "canvas", "datalist", "defs", "metadata")
_FORMS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}
"""The forms of numbers in lists of HTML."""
_SIGNS = {"mfrac": "/", "msup": "^", "msub": "_", "mover": "^", "munder": "_"}
"""The signs between the parts of an equation in MathML."""
_LEFT_OUT = {"img": "pictures", "svg": "drawings"} | dict.fromkeys(
    ("video", "audio", "iframe", "canvas", "object", "embed"), "objects"
)
"""The parts of a page that show no text."""
_BLOCKS = {
    *("p", "div", "br", "li", "tr", "table", "ul", "ol", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "hr"),
    *(
        "blockquote",
        "article",
        "header",
        "footer",
        "main",
        "nav",
        "aside",
        "address",
        "figure",
        "figcaption",
        "caption",
    ),
    *("dl", "dt", "dd", "form", "fieldset", "legend", "option", "summary", "details", "center", "body"),
}
_MAY_HIDE = (
    "div",
    "span",
    "table",
    "td",
    "tr",
    "section",
    "ul",
    "font",
    "b",
    "i",
    "strong",
    "em",
    "a",
    "h1",
    "h2",
    "h3",
)
"""Tags whose end is always written, so that hidden ones end for sure. A hidden paragraph ends at the next block."""
_STRUCK = ("del", "s", "strike")
_LONG_NUMBER = re.compile(r"&#([0-9]{9})[0-9]*+")
"""The number of a character that does not exist, which Python may refuse to read."""
_NOT_SHOWN = re.compile(
    r"(?:display\s*:\s*none|visibility\s*:\s*hidden|mso-hide\s*:\s*all"
    r"|(?<![\w-])(?:opacity|font-size|max-height)\s*:\s*0(?:\.0+)?(?:px|pt|em|%)?\s*(?:!important\s*)?(?:;|$))",
    re.IGNORECASE,
)
"""Styles of texts that nobody sees, such as the preview of a mail in the list of mails."""
_NOT_READ = ("text/calendar", "text/vcard", "text/x-vcard", "text/directory", "text/x-amp-html")
"""Texts that a mail program does not show as they are."""
_RTF = re.compile(
    r"\\([a-zA-Z]{1,32})(-?[0-9]{1,9})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|([^\\{}\r\n]+)", re.DOTALL
)
"""The pieces of RTF: a word with a number, a byte, a sign, the bounds of a group, and text."""
_RTF_HIDDEN = {
    *("fonttbl", "colortbl", "stylesheet", "info", "pict", "object", "listtable", "listoverridetable", "rsidtbl"),
    *("fldinst", "header", "footer", "headerl", "headerr", "headerf", "footerl", "footerr", "footerf", "datafield"),
    *("v", "deleted"),
}
"""Groups of RTF with what is no text of the message."""
_RTF_LEFT_OUT = {
    "pictures": re.compile(rb"\\pict(?![a-z0-9])"),
    "objects": re.compile(rb"\\object(?![a-z0-9])"),
    "deleted": re.compile(rb"\\deleted(?![a-z0-9])"),
    "hidden": re.compile(rb"\\v(?![a-z0-9])"),
}
"""The words of RTF before what is left out."""
_RTF_SIGNS = {
    **dict.fromkeys(("par", "line", "row", "sect", "page"), "\n"),
    **{"tab": "\t", "cell": "\t", "emdash": "\u2014", "endash": "\u2013", "bullet": "\u2022", "lquote": "\u2018"},
    **{"rquote": "\u2019", "ldblquote": "\u201c", "rdblquote": "\u201d", "emspace": " ", "enspace": " "},
    **{"~": "\u00a0", "_": "-", "{": "{", "}": "}", "\\": "\\", "\n": "\n", "\r": "\n", "-": ""},
}
_ENRICHED = re.compile(r"<<|<param>[^<]{0,999}</param>|</?[a-zA-Z0-9-]{1,60}>", re.IGNORECASE)
"""A tag of text/enriched with its parameter, or "<" as a character."""
_BREAK = re.compile(r"=[ \t]+(?=\r?\n)")
"""A soft line break with white space that a server has added."""
_LENGTH = re.compile(rb"(\d{1,12}) *\r?\n")
"""The first line of a file of Apple Mail: the length of the mail."""
_MOST_OF_PARAMETERS = 2_000
"""Characters of a header about a part."""
_MOST_DECODED = 100_000
"""Characters of a header in which encoded words are decoded."""
_MOST_NESTED = 5
"""Forwarded messages in each other that are read."""
_STUB = 300
"""Characters of a plain text that only asks for a program that shows HTML, at most."""
_NEXT = re.compile(rb"\n\r?\nFrom [^\n]{1,200}\n(?=[A-Za-z-]{1,60}: )")
"""The line between two messages of a mailbox."""
_EVENT = {"SUMMARY": "Event", "DTSTART": "Begins", "DTEND": "Ends", "LOCATION": "Place", "DESCRIPTION": "Details"}
"""The properties of an event in a calendar that a person sees, and their names."""


class _Policy(Compat32):
    """Keeps only the beginning of a header about a part: finding its parameters takes quadratic time."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_MOST_OF_PARAMETERS] if name.lower().startswith("content-") else value


_POLICY = _Policy()


def read_eml(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the subject, as sections the message and the names of what is attached to it, and what is left out."""
    if length := _LENGTH.match(data):
        data = data[length.end() :][: int(length[1])]
    data = data.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n")
    mails = _NEXT.split(data) if data.startswith(b"From ") else [data]
    if len(mails) > 1:  # in a mailbox such lines of a message begin with ">"
        mails = [re.sub(rb"^>(>*From )", rb"\1", one, flags=re.MULTILINE) for one in mails]
    message = message_from_bytes(mails[0], policy=_POLICY)
    if not any(_header(message, name) for name in _HEADERS):
        raise refused("wrong_document", kind="EML")
    return clean(_header(message, "Subject")), checked_pages(_sections(message, mails[1:])), ()


def _sections(message: "Message[str, str]", more: list[bytes]) -> Iterator[str]:
    """Yield the sections of a message and of those after it in a mailbox, and the names of what is not read."""
    names: list[str] = []
    yield from _message(message, names)
    for one in more:
        yield from _message(message_from_bytes(one, policy=_POLICY), names)
    if names:
        yield "Attached to this message, and not read:\n" + "\n".join(names)


def read_html(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title, the visible text, and what is left out."""
    left_out = set[str]()
    title, text = html_text(data.decode("utf-8-sig", "replace"), left_out)
    return clean(title), checked_pages(_parts(text)), left_out


def read_rtf(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return no title, the text in sections, and what is left out."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise refused("wrong_document", kind="RTF")
    left_out = {name for name, found in _RTF_LEFT_OUT.items() if found.search(data)}
    return "", checked_pages(_parts(rtf_text(data.decode("latin-1")))), left_out


def read_notebook(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return no title, each cell of a Jupyter notebook with its outputs, and what is left out."""
    try:
        book: Any = json.loads(data.decode("utf-8-sig", "replace"))
        cells: Any = book["cells"] if "cells" in book else book["worksheets"][0]["cells"]
        left_out = set[str]()
        texts = ["\n\n".join(filter(None, _cell(cell, left_out))) for cell in cells]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise refused("broken_document", kind="IPYNB") from error
    return "", checked_pages(texts), left_out


def _cell(cell: Any, left_out: set[str]) -> Iterator[str]:
    """Yield the text of a cell and its outputs. Marks tell code and outputs from other text."""
    source = _lines(cell.get("source", cell.get("input", "")))
    yield f"```\n{source}\n```" if cell.get("cell_type") == "code" and source.strip() else source
    for output in cell.get("outputs", ()):
        data = output.get("data", output)
        if any(str(kind).startswith(("image/", "png", "jpeg", "svg")) for kind in data):
            left_out.add("pictures")
        if output.get("output_type") == "error":
            text = f"{output.get('ename', '')}: {output.get('evalue', '')}"
        else:
            text = _lines(data.get("text/markdown") or data.get("text/plain") or data.get("text") or "")
        if not text.strip() and "text/html" in data:
            text = html_text(_lines(data["text/html"]))[1]
        yield f"Output:\n{text.strip()}" if text.strip() else ""


def _lines(given: Any) -> str:
    return given if isinstance(given, str) else "".join(map(str, given))


def html_text(source: str, left_out: set[str] | None = None) -> tuple[str, str]:
    """Return the title and the visible text of an HTML page, with the addresses of links after their texts.

    Adds what has no text to `left_out`.
    """
    source = _LONG_NUMBER.sub(r"&#\1", source)
    end = source.rfind(">") + 1
    parser = _Visible(set() if left_out is None else left_out)
    parser.feed(source[:end])
    parser.close()
    parser.handle_data(unescape(source[end:]))  # in it the parser would look for the end of each tag
    parser.end_link()
    lines = (line.rstrip() if _KEPT in line else " ".join(line.split()) for line in "".join(parser.texts).split("\n"))
    kept = (line.replace(_KEPT, "") for line in lines if line.strip(f"{_KEPT} \t"))
    return " ".join("".join(parser.title).split()), "\n".join(kept)


def _message(message: "Message[str, str]", names: list[str], depth: int = 0) -> Iterator[str]:
    """Yield a message with its heads, and each one that is forwarded in it. Adds the names of what is not read."""
    forwarded: list[Message[str, str]] = []
    heads = [f"{name}: {text}" for name in _HEADERS if (text := _header(message, name))]
    texts = [text.strip("\n") for text in _texts(message, names, forwarded) if text.strip()]
    yield "\n".join(heads) + "\n\n" + "\n\n".join(texts)
    for inner in forwarded:
        if depth < _MOST_NESTED:
            first, *more = _message(inner, names, depth + 1)
            yield from (f"Forwarded message:\n{first}", *more)
        else:
            names.append("message/rfc822")


def _texts(part: "Message[str, str]", names: list[str], forwarded: list["Message[str, str]"]) -> Iterator[str]:
    """Yield the texts of a part in their order, one of each alternatives. Collects what is no text of the message."""
    inner = part.get_payload()
    kind, name = part.get_content_type(), _decoded_words(part.get_filename() or "")
    if part.get_content_maintype() == "multipart" and isinstance(inner, str) and inner.strip():
        yield inner  # its parts cannot be told apart
    elif kind == "message/rfc822" and isinstance(inner, list):
        forwarded += map(_unpacked, cast("list[Message[str, str]]", inner))
    elif isinstance(inner, list):
        parts = cast("list[Message[str, str]]", inner)
        if kind == "message/external-body":
            names.append(f"{parts[0].get_content_type()} ({part.get_param('url') or part.get_param('name') or kind})")
            return
        if part.get_content_maintype() == "message":  # a report
            yield from ("\n".join(f"{key}: {value}" for key, value in one.items()) for one in parts)
            return
        texts = [(one.get_content_type(), [*_texts(one, names, forwarded)]) for one in parts]
        if kind == "multipart/alternative":
            texts = [one for one in texts if any(text.strip() for text in one[1])]
            texts = _shown_one(texts)
        yield from (text for _kind, found in texts for text in found)
    elif part.get_content_maintype() != "text" or part.get_content_disposition() == "attachment" or kind in _NOT_READ:
        event = event_text(_text_of(part)) if kind == "text/calendar" else ""
        if event:
            yield event
        else:
            names.append(name or kind)
    elif name and kind not in ("text/plain", *_FORMATTED):
        names.append(name)
    else:
        text = _text_of(part)
        if kind in _FORMATTED:
            text = _FORMATTED[kind](text)
        elif str(part.get_param("format") or "").lower() == "flowed":
            text = flowed_text(text, joins=str(part.get_param("delsp") or "").lower() == "yes")
        yield f"{name}:\n{text}" if name else text


def _text_of(part: "Message[str, str]") -> str:
    """Return the decoded text of a part."""
    inner = part.get_payload()
    if isinstance(inner, str) and "quoted" in str(part.get("Content-Transfer-Encoding", "")).lower():
        part.set_payload(_BREAK.sub("=", inner))
    data = part.get_payload(decode=True)
    return _decoded(data if isinstance(data, bytes) else b"", str(part.get_param("charset") or ""))


def _shown_one(texts: list[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Return the plain one of the alternatives, or the last one if there is none, or it only asks for HTML."""
    plain = [one for one in texts if one[0] == "text/plain"]
    asks = [" ".join(" ".join(text for _kind, found in some for text in found).split()) for some in (plain, texts[-1:])]
    is_stub = len(asks[0]) < _STUB and "html" in asks[0].lower() and "html" not in asks[1].lower()
    return plain if plain and not is_stub else texts[-1:]


def flowed_text(source: str, *, joins: bool) -> str:
    """Return a text whose lines with a space at the end go on in the next one (RFC 3676).

    `joins`: that space belongs to no word.
    """
    out: list[list[str]] = []
    before: str | None = None
    for line in source.replace("\r\n", "\n").split("\n"):
        text = line.lstrip(">")
        quote = line[: len(line) - len(text)]
        text = text.removeprefix(" ")
        is_open = text.endswith(" ") and text != "-- "
        shown = text[:-1] if is_open and joins else text
        if before == quote:
            out[-1].append(shown)
        else:
            out.append([f"{quote}{' ' * bool(quote)}", shown])
        before = quote if is_open else None
    return "\n".join(map("".join, out))


def event_text(source: str) -> str:
    """Return what a person sees of the events in a calendar (RFC 5545), "" if it has none."""
    lines: list[str] = []
    is_event = False
    for line in re.sub(r"\r?\n[ \t]", "", source).splitlines():
        head, _colon, value = line.partition(":")
        name, _semicolon, _options = head.upper().partition(";")
        if name in ("BEGIN", "END"):
            is_event = name == "BEGIN" and value.strip().upper() == "VEVENT"
        elif is_event and name in _EVENT and value.strip():
            text = re.sub(r"\\([nN\\,;])", lambda found: "\n" if found[1] in "nN" else found[1], value)
            if name.startswith("DT"):
                zone = re.search(r"TZID=\"?([^\";:]+)", head)
                text = re.sub(r"^(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)\d\d(Z?))?$", _moment, value.strip())
                text += f" ({zone[1]})" if zone else ""
            lines.append(f"{_EVENT[name]}: {text.strip()}")
    return "\n".join(lines)


def _moment(found: "re.Match[str]") -> str:
    year, month, day, hour, minute, utc = found.groups()
    return f"{year}-{month}-{day}" + (f" {hour}:{minute}{' UTC' * bool(utc)}" if hour else "")


def enriched_text(source: str) -> str:
    """Return the text of text/enriched, in which a single line break is a space."""
    text = re.sub(r"\n+", lambda found: "\n" * (len(found[0]) - 1) or " ", source.replace("\r\n", "\n"))
    return _ENRICHED.sub(lambda found: "<" if found[0] == "<<" else "", text)


def rtf_text(source: str) -> str:
    """Return the text of RTF."""
    out: list[str] = []
    raw = bytearray()
    groups, codec, skipped = [(False, 1)], "cp1252", 0
    for found in _RTF.finditer(source):
        word, number, byte, sign, bound, text = found.groups()
        is_hidden, width = groups[-1]
        if byte and not is_hidden and not skipped:
            raw.append(int(byte, 16))
            continue
        if raw and not byte:
            out.append(raw.decode(codec, "replace"))
            raw.clear()
        if bound:
            if bound == "{":
                groups.append(groups[-1])
            elif len(groups) > 1:
                groups.pop()
            skipped = 0
        elif sign == "*" or word in _RTF_HIDDEN:
            groups[-1] = number != "0", width
        elif word == "uc":
            groups[-1] = is_hidden, min(int(number or 1), 9)
        elif word == "ansicpg":
            codec = codec_of(f"cp{number}") or codec
        elif is_hidden:
            continue
        elif word == "u" and number:
            out.append(chr(int(number) % 0x10000))
            skipped = width
        elif word or sign:
            out.append(_RTF_SIGNS.get(word or sign, ""))
        elif byte:
            skipped -= 1
        elif text:
            out.append(text[skipped:])
            skipped = max(0, skipped - len(text))
    out.append(raw.decode(codec, "replace"))
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_FORMATTED: dict[str, Callable[[str], str]] = {
    "text/html": lambda text: html_text(text)[1],
    "text/enriched": enriched_text,
    "text/richtext": enriched_text,
    "text/rtf": rtf_text,
}
"""The readers of texts that are not shown as they are."""


def _unpacked(message: "Message[str, str]") -> "Message[str, str]":
    """Return a forwarded message, also if it is encoded, which the standard forbids."""
    text = message.get_payload()
    if [*message.keys()] or not isinstance(text, str):
        return message
    with suppress(ValueError):
        return message_from_bytes(b64decode(text), policy=_POLICY)
    return message


def _header(message: "Message[str, str]", name: str) -> str:
    """Return a header as people read it, also if it is not encoded as it should be."""
    found = (value for key, value in message.raw_items() if key.lower() == name.lower())
    return " ".join(_decoded_words(next(found, "")).split())


def _decoded_words(text: str) -> str:
    """Return a header without its encoded words. Those of a text that is too long for a header stay as they are."""
    head, rest = text[:_MOST_DECODED], text[_MOST_DECODED:]  # `decode_header` takes quadratic time
    try:
        found = decode_header(head)
    except (ValueError, HeaderParseError):
        return text
    words = (_decoded(one if isinstance(one, bytes) else _raw(one), charset or "") for one, charset in found)
    return "".join(words) + rest


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _decoded(data: bytes, charset: str) -> str:
    """Return a text in the declared encoding, or the one that suits it if that is unknown or wrong."""
    codec = codec_of(charset)
    if codec and charset.lower() not in ("us-ascii", "ascii"):
        try:
            return data.decode(codec)
        except ValueError:
            pass
    found = decode_text(data)
    return found[0] if found else data.decode(codec or "cp1252", "replace")


def _parts(text: str, most: int = 8_000) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    for line in text.split("\n"):
        lines.append(line)
        size += len(line)
        if size > most:
            yield "\n".join(lines)
            lines, size = [], 0
    if lines:
        yield "\n".join(lines)


_KEPT = "\x00"
"""Marks a line whose white space counts. It is no character of HTML."""


class _Visible(HTMLParser):
    """Collects the title and the visible texts, with a line break at each block."""

    def __init__(self, left_out: set[str]) -> None:
        super().__init__(convert_charrefs=True)
        self._left_out = left_out
        self.title: list[str] = []
        self.texts: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._in_pre = 0
        self._lists: list[tuple[str, int] | None] = []
        self._choice: list[tuple[int, bool]] = []
        self._math: list[list[Any]] = []
        self._is_drawing = False
        self._link: tuple[str, int] | None = None
        self._missing = set[str]()
        self._raised: int | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_title = tag == "title" and not self._hidden and not self._is_drawing
        if tag in _LEFT_OUT and not (tag == "img" and given.get("alt", "").strip()) and not self._hidden:
            self._left_out.add(_LEFT_OUT[tag])
        if self._hidden == ["p"] and tag in _BLOCKS:
            self._hidden.pop()
        if self._hidden:
            self._hidden += [tag] * (tag == self._hidden[-1])
            return
        if self._hides(tag, given):
            self._hidden.append(tag)
            return
        if tag == "math" or self._math:
            self._begin_term(tag, given)
        if tag in _BLOCKS:
            self.texts.append("\n")
        elif tag in ("td", "th"):
            self.texts.append(" ")
        if tag in ("ol", "ul", "li", "select", "option"):
            self._begin_item(tag, given)
        elif tag == "svg":
            self._is_drawing = True
        elif tag == "pre":
            self._in_pre += 1
            self.texts.append(_KEPT)
        elif tag == "a":
            self.end_link()
            if given.get("href", "").strip().lower().startswith(("http:", "https:", "mailto:", "tel:")):
                self._link = given["href"].strip(), len(self.texts)
        elif tag == "sup":
            self._raised = len(self.texts)
        else:
            self.texts.append(self._sign_of(tag, given))

    def _hides(self, tag: str, given: dict[str, str]) -> bool:
        """Return True for an element whose texts nobody sees."""
        if tag in (*_MAY_HIDE, "p") and ("hidden" in given or _NOT_SHOWN.search(given.get("style", ""))):
            return True
        return tag in _HIDDEN or {
            "dialog": "open" not in given,
            "annotation": bool(self._math),
            "title": self._is_drawing,
        }.get(tag, False)

    def _begin_item(self, tag: str, given: dict[str, str]) -> None:
        """Begin a list, a choice, or an item of one."""
        if tag in ("ol", "ul"):
            form = _FORMS.get(given.get("type", ""), "decimal")
            self._lists.append((form, _number(given.get("start", ""), 1)) if tag == "ol" else None)
        elif tag == "li":
            self.texts.append(self._bullet(given.get("value", "")))
        elif tag == "select":
            self._choice = [(len(self.texts), "multiple" in given)]
        elif self._choice:
            self._choice.append((len(self.texts), "selected" in given))

    def _sign_of(self, tag: str, given: dict[str, str]) -> str:
        """Return what an element shows without a text of its own."""
        if tag == "img" and (alt := given.get("alt", "").strip()):
            return f"[{alt}]"
        if tag == "input":
            return _value_of(given)
        return "~~" if tag in _STRUCK else "\n" * (tag == "text" and self._is_drawing)

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif tag == "a":
            self.end_link()
        elif tag in ("ol", "ul") and self._lists:
            self._lists.pop()
        elif tag == "svg":
            self._is_drawing = False
        elif tag == "select" and self._choice:
            self._end_choice()
        elif tag == "math":
            self._math = []
        elif self._math and tag == self._math[-1][0]:
            self.texts.append(self._math.pop()[2])
        elif tag == "pre":
            self._in_pre = max(0, self._in_pre - 1)
        elif tag == "sup" and self._raised is not None:
            self.texts[self._raised :] = [raised("".join(self.texts[self._raised :]))]
            self._raised = None
        elif tag in _STRUCK:
            self.texts.append("~~")
        if tag in _BLOCKS and not self._hidden:
            self.texts.append("\n")

    def handle_data(self, data: str) -> None:
        data = data.replace(_KEPT, "")
        if self._in_title:
            self.title.append(data)
        elif self._hidden:
            return
        elif self._in_pre:
            self.texts.append(data.replace("\r\n", "\n").replace("\n", f"\n{_KEPT}") if "\n" in data else data)
            self.texts.append(_KEPT * bool(data))
        else:  # line breaks in the source are spaces
            self.texts.append(data.replace("\n", " "))

    def parse_comment(self, i: int, report: bool = True) -> int:
        return self._after("-->", i + 2)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        end = self._after("]]>", i) if self.rawdata.startswith("<![CDATA[", i) else -1
        return end if end >= 0 else self.rawdata.find(">", i) + 1

    def _after(self, end: str, start: int) -> int:
        """Return the place after the next `end`, or -1. The whole text is there, so one that is missing stays so."""
        at = -1 if end in self._missing else self.rawdata.find(end, start)
        if at < 0:
            self._missing.add(end)
            return -1
        return at + len(end)

    def _bullet(self, value: str) -> str:
        if not self._lists or (found := self._lists[-1]) is None:
            return "\u2022 "
        form, number = found[0], _number(value, found[1])
        self._lists[-1] = form, number + 1
        return f"{counted(number, form)}. "

    def _end_choice(self) -> None:
        """Leave only the chosen options of a list, or the first one, as a browser does."""
        (start, is_long), *options = self._choice
        ends = [*(at for at, _is_chosen in options[1:]), len(self.texts)]
        chosen = [number for number, (_at, is_chosen) in enumerate(options) if is_chosen]
        shown = range(len(options)) if is_long and not chosen else chosen or [0][: len(options)]
        self.texts[start:] = [text for number in shown for text in self.texts[options[number][0] : ends[number]]]
        self._choice = []

    def _begin_term(self, tag: str, given: dict[str, str]) -> None:
        """Write the sign before the second part of a term, and parentheses around a part of several signs."""
        if tag == "math" and given.get("alttext", "").strip():
            self.texts.append(given["alttext"].strip())
            self._hidden.append(tag)
            return
        sign = _SIGNS.get(self._math[-1][0], "") if self._math else ""
        if self._math:
            self._math[-1][1] += 1
            self.texts.append(sign if self._math[-1][1] == 2 else "")
        is_group = bool(sign) and tag == "mrow"
        self.texts.append("\u221a(" if tag == "msqrt" else "(" * is_group)
        self._math.append([tag, 0, ")" * (is_group or tag == "msqrt")])

    def end_link(self) -> None:
        """Add the address of a link, unless its text is the address already."""
        if self._link is None:
            return
        (address, start), self._link = self._link, None
        text = "".join(self.texts[start:]).replace(_KEPT, "").strip()
        self.texts.append(with_address(text, address).removeprefix(text))


def _value_of(field: dict[str, str]) -> str:
    """Return what a field of a form shows: its text, or whether it is ticked."""
    kind = field.get("type", "text").lower()
    if kind in ("checkbox", "radio"):
        return "\u2612 " if "checked" in field else "\u2610 "
    return "" if kind in ("hidden", "password", "image", "file") else f" {field.get('value', '')} "


def _number(text: str, otherwise: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else otherwise
