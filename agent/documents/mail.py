"""Reads e-mails and HTML pages. Runs inside the sandbox. Links and pictures on the network stay links."""

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
from typing import cast

from agent.documents.encodings import codec_of, decode_text
from agent.documents.refusals import checked_pages, clean
from agent.media.sentences import refused

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_HIDDEN = ("script", "style", "template", "svg")
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
_MAY_HIDE = ("div", "span", "table", "td", "tr", "section", "ul")
"""Tags whose end is always written, so that hidden ones end for sure."""
_LONG_NUMBER = re.compile(r"&#([0-9]{9})[0-9]*+")
"""The number of a character that does not exist, which Python may refuse to read."""
_NOT_SHOWN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_NOT_READ = ("text/calendar", "text/vcard", "text/x-vcard", "text/directory", "text/x-amp-html")
"""Texts that a mail program does not show as they are."""
_RTF = re.compile(
    r"\\([a-zA-Z]{1,32})(-?[0-9]{1,9})? ?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|([^\\{}\r\n]+)", re.DOTALL
)
"""The pieces of RTF: a word with a number, a byte, a sign, the bounds of a group, and text."""
_RTF_HIDDEN = {
    *("fonttbl", "colortbl", "stylesheet", "info", "pict", "object", "listtable", "listoverridetable", "rsidtbl"),
    *("fldinst", "header", "footer", "headerl", "headerr", "headerf", "footerl", "footerr", "footerf", "datafield"),
}
"""Groups of RTF with what is no text of the message."""
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
    message = message_from_bytes(data, policy=_POLICY)
    if not any(_header(message, name) for name in _HEADERS):
        raise refused("wrong_document", kind="EML")
    names: list[str] = []
    sections = [*_message(message, names)]
    if names:
        sections.append("Attached to this message, and not read:\n" + "\n".join(names))
    return clean(_header(message, "Subject")), checked_pages(sections), ()


def read_html(data: bytes) -> tuple[str, list[str], Collection[str]]:
    """Return the title and the visible text."""
    title, text = html_text(data.decode("utf-8-sig", "replace"))
    return clean(title), checked_pages(_parts(text)), ()


def html_text(source: str) -> tuple[str, str]:
    """Return the title and the visible text of an HTML page, with the addresses of links after their texts."""
    source = _LONG_NUMBER.sub(r"&#\1", source)
    end = source.rfind(">") + 1
    parser = _Visible()
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
        if kind == "message/delivery-status":
            yield from ("\n".join(f"{key}: {value}" for key, value in one.items()) for one in parts)
            return
        texts = [(one.get_content_type(), [*_texts(one, names, forwarded)]) for one in parts]
        if kind == "multipart/alternative":
            texts = [one for one in texts if any(text.strip() for text in one[1])]
            texts = [one for one in texts if one[0] == "text/plain"] or texts[-1:]
        yield from (text for _kind, found in texts for text in found)
    elif part.get_content_maintype() != "text" or part.get_content_disposition() == "attachment" or kind in _NOT_READ:
        names.append(name or kind)
    elif name and kind not in ("text/plain", *_FORMATTED):
        names.append(name)
    else:
        if isinstance(inner, str) and "quoted" in str(part.get("Content-Transfer-Encoding", "")).lower():
            part.set_payload(_BREAK.sub("=", inner))
        data = part.get_payload(decode=True)
        text = _decoded(data if isinstance(data, bytes) else b"", str(part.get_param("charset") or ""))
        if kind in _FORMATTED:
            text = _FORMATTED[kind](text)
        yield f"{name}:\n{text}" if name else text


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
            groups[-1] = True, width
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

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.texts: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._in_pre = 0
        self._lists: list[int | None] = []
        self._link: tuple[str, int] | None = None
        self._missing = set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._in_title = tag == "title" and not self._hidden
        if self._hidden:
            self._hidden += [tag] * (tag == self._hidden[-1])
            return
        if tag in _HIDDEN or (tag in _MAY_HIDE and ("hidden" in given or _NOT_SHOWN.search(given.get("style", "")))):
            self._hidden.append(tag)
        if tag in _BLOCKS:
            self.texts.append("\n")
        elif tag in ("td", "th"):
            self.texts.append(" ")
        if tag in ("ol", "ul"):
            start = given.get("start", "")
            self._lists.append((int(start) if start.isdecimal() and len(start) < 9 else 1) if tag == "ol" else None)
        elif tag == "li":
            self.texts.append(self._bullet())
        elif tag == "pre":
            self._in_pre += 1
            self.texts.append(_KEPT)
        elif tag == "a":
            self.end_link()
            if given.get("href", "").strip().lower().startswith(("http:", "https:", "mailto:", "tel:")):
                self._link = given["href"].strip(), len(self.texts)
        elif tag == "img" and (alt := given.get("alt", "").strip()):
            self.texts.append(f"[{alt}]")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif tag == "a":
            self.end_link()
        elif tag in ("ol", "ul") and self._lists:
            self._lists.pop()
        elif tag == "pre":
            self._in_pre = max(0, self._in_pre - 1)
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

    def _bullet(self) -> str:
        if not self._lists or (number := self._lists[-1]) is None:
            return "\u2022 "
        self._lists[-1] = number + 1
        return f"{number}. "

    def end_link(self) -> None:
        """Add the address of a link, unless its text is the address already."""
        if self._link is None:
            return
        (address, start), self._link = self._link, None
        text = "".join(self.texts[start:]).replace(_KEPT, "").strip()
        plain = re.sub(r"^(https?://|mailto:|tel:)", "", address).rstrip("/")
        if text and plain not in text:
            self.texts.append(f" ({address})")
