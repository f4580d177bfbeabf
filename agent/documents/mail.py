"""Reads e-mails and HTML pages. Runs inside the sandbox. Links and pictures on the network stay links."""

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from html.parser import HTMLParser

from agent.documents.refusals import checked_pages, clean
from agent.media.sentences import refused

_HEADERS = ("From", "To", "Cc", "Date", "Subject")
_HIDDEN = ("script", "style", "template", "svg", "head")
_BLOCKS = (
    "p",
    "div",
    "br",
    "li",
    "tr",
    "table",
    "ul",
    "ol",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "pre",
    "section",
    "hr",
)


def read_eml(data: bytes) -> tuple[str, list[str]]:
    """Return the subject, and as sections the message and the names of what is attached to it."""
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    if not any(message[name] for name in _HEADERS):
        raise refused("broken_document", kind="EML")
    heads = [f"{name}: {message[name]}" for name in _HEADERS if message[name]]
    body = message.get_body(("plain", "html"))
    text = body.get_content() if body is not None else ""
    if body is not None and body.get_content_subtype() == "html":
        text = html_text(text)[1]
    names = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    sections = ["\n".join(heads) + "\n\n" + text]
    if names:
        sections.append("Attached to this message, and not read:\n" + "\n".join(names))
    return clean(str(message["Subject"] or "")), checked_pages(sections)


def read_html(data: bytes) -> tuple[str, list[str]]:
    """Return the title and the visible text."""
    title, text = html_text(data.decode("utf-8-sig", "replace"))
    return clean(title), checked_pages(_parts(text))


def html_text(source: str) -> tuple[str, str]:
    """Return the title and the visible text of an HTML page."""
    parser = _Visible()
    parser.feed(source)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.texts).split("\n"))
    return "".join(parser.title), "\n".join(line for line in lines if line)


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


class _Visible(HTMLParser):
    """Collects the title and the visible texts, with a line break at each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.texts: list[str] = []
        self._hidden = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._in_title = tag == "title"
        self._hidden += tag in _HIDDEN
        if tag in _BLOCKS:
            self.texts.append("\n")
        elif tag in ("td", "th"):
            self.texts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self._in_title = False
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        if tag in _BLOCKS:
            self.texts.append("\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            # Line breaks in the source are spaces.
            self.texts.append(data.replace("\n", " "))
