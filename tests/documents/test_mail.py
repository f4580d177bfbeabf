"""All texts of a mail and of an HTML page are read as people see them, whatever program wrote it."""

import json
from base64 import b64encode
from email.message import EmailMessage
from email.mime.text import MIMEText

import pytest

from agent.errors import InputError
from agent.files.mail import html_text, read_eml, read_html, read_notebook, read_rtf
from tests.support.documents import mail

HEAD = b"From: ann@example.org\nSubject: Lunch\nMIME-Version: 1.0\n"
SHOWN = "From: ann@example.org\nSubject: Lunch\n\n"


def text_part(text: str, subtype: str = "plain", charset: str = "utf-8") -> bytes:
    head = f"Content-Type: text/{subtype}; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n"
    return head.encode() + text.encode("utf-8" if charset == "utf-8" else "iso-8859-8")


def multipart(kind: str, *parts: bytes, boundary: str = "b") -> bytes:
    head = f'Content-Type: multipart/{kind}; boundary="{boundary}"\n\n'.encode()
    return (
        head + b"".join(b"--%s\n%s\n" % (boundary.encode(), part) for part in parts) + b"--%s--\n" % boundary.encode()
    )


PICTURE = b'Content-Type: image/png\nContent-Disposition: inline; filename="a.png"\n\nx'
NOTES = b'Content-Type: text/plain\nContent-Disposition: inline; filename="notes.txt"\n\nBring it.'
NAMED = "Attached to this message, and not read:\n"
CALENDAR = """BEGIN:VCALENDAR
BEGIN:VTIMEZONE
TZID:Europe/Berlin
DTSTART:19700101T000000
END:VTIMEZONE
BEGIN:VEVENT
SUMMARY:Lunch\\, with Bob
DTSTART;TZID=Europe/Berlin:20260503T120000
DTEND;VALUE=DATE:20260504
DESCRIPTION:Bring the
  contract.\\nThanks
BEGIN:VALARM
DESCRIPTION:Reminder
END:VALARM
END:VEVENT
END:VCALENDAR
"""
INNER = b"Content-Type: message/rfc822\nContent-Transfer-Encoding: base64\n\n" + b64encode(
    b"From: bob@example.org\n\nAt noon"
)
RTF = (
    r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Arial;}}{\*\generator x;}\uc1 Gr\'f6\'dfe \endash  5 \u8364? \{a\}\tab b\par"
    "\n"
    r"\u-10179?\u-8704? {\field{\*\fldinst HYPERLINK x}{\fldrslt here}}}"
)


def beside(*parts: bytes) -> bytes:
    """Return the same text in several forms."""
    return multipart("alternative", *parts)


NOON = [f"{SHOWN}At noon"]
MAILS = {
    "texts around a picture": (
        multipart("mixed", text_part("Here it is:"), PICTURE, text_part("The rent is 812.")),
        [f"{SHOWN}Here it is:\n\nThe rent is 812.", f"{NAMED}a.png"],
    ),
    "a forwarded message that is encoded": (
        multipart("mixed", text_part("See:"), INNER),
        [f"{SHOWN}See:", "Forwarded message:\nFrom: bob@example.org\n\nAt noon"],
    ),
    "parts that cannot be told apart": (
        b"Content-Type: multipart/mixed\n\n--b\n\nAt noon\n--b--\n",
        [f"{SHOWN}--b\n\nAt noon\n--b--"],
    ),
    "soft line breaks with white space": (
        b"Content-Type: text/plain\nContent-Transfer-Encoding: quoted-printable\n\nAt = \n=C3=A9 =\nnoon",
        [f"{SHOWN}At \u00e9 noon"],
    ),
    "blank plain text beside HTML": (beside(text_part("\u00a0 \n"), text_part("<p>At <b>noon</b>", "html")), NOON),
    "plain text beside HTML": (beside(text_part("At noon"), text_part("<p>Not this", "html")), NOON),
    "HTML with a picture beside a blank text": (
        beside(text_part(""), multipart("related", text_part("<p>At noon", "html"), PICTURE, boundary="c")),
        [f"{SHOWN}At noon", f"{NAMED}a.png"],
    ),
    "text with a name": (multipart("mixed", text_part("See:"), NOTES), [f"{SHOWN}See:\n\nnotes.txt:\nBring it."]),
    "unknown charset": (text_part("Hall 7: שלום", charset="iso-8859-8-i"), [f"{SHOWN}Hall 7: שלום"]),
    "wrong charset": (b"Content-Type: text/plain; charset=us-ascii\n\n" + "Größe".encode("cp1252"), [f"{SHOWN}Größe"]),
    "charset that nobody knows": (
        b"Content-Type: text/plain; charset=x-none\n\n" + "Größe".encode(),
        [f"{SHOWN}Größe"],
    ),
    "no type": ("Größe".encode(), [f"{SHOWN}Größe"]),
    "report of a failed delivery": (
        multipart("report", text_part("Not delivered."), b"Content-Type: message/delivery-status\n\nStatus: 5.1.1\n"),
        [f"{SHOWN}Not delivered.\n\nStatus: 5.1.1"],
    ),
    "enriched text": (
        text_part("<bold>At</bold> noon,\n<color><param>red</param>a << b</color>\n\n\nBring it.", "enriched"),
        [f"{SHOWN}At noon, a < b\n\nBring it."],
    ),
    "RTF": (text_part(RTF, "rtf"), [f"{SHOWN}Gr\u00f6\u00dfe \u2013 5 \u20ac {{a}}\tb\n\U0001f600 here"]),
    "RTF beside plain text": (beside(text_part("At noon"), text_part(RTF, "rtf")), NOON),
    "RTF that breaks off": (text_part("{\\rtf1 {At {noon\\'", "rtf"), NOON),
    "invitation beside HTML": (
        beside(text_part("<p>Come!", "html"), b"Content-Type: text/calendar\n\nBEGIN:VCALENDAR"),
        [f"{SHOWN}Come!", f"{NAMED}text/calendar"],
    ),
    "invitation with an event": (
        multipart("mixed", text_part("Come!"), text_part(CALENDAR, "calendar")),
        [
            f"{SHOWN}Come!\n\nEvent: Lunch, with Bob\nBegins: 2026-05-03 12:00 (Europe/Berlin)\nEnds: 2026-05-04\n"
            "Details: Bring the contract.\nThanks"
        ],
    ),
    "lines that flow": (
        b"Content-Type: text/plain; format=flowed\n\nAt noon, \nas always.\n> Quoted \n> text\n> >deep\nEnd\n-- \nAnn",
        [f"{SHOWN}At noon, as always.\n> Quoted text\n> >deep\nEnd\n--\nAnn"],
    ),
    "lines that flow without the space": (
        b"Content-Type: text/plain; format=flowed; delsp=yes\n\nhttps://example.org/ \npay\n  x",
        [f"{SHOWN}https://example.org/pay\n x"],
    ),
    "plain text that asks for HTML": (
        beside(text_part("Please use a program that shows HTML."), text_part("<p>At noon", "html")),
        NOON,
    ),
    "note that a mail was read": (
        multipart(
            "report",
            text_part("Read."),
            b"Content-Type: message/disposition-notification\n\nDisposition: manual-action; displayed\n",
        ),
        [f"{SHOWN}Read.\n\nDisposition: manual-action; displayed"],
    ),
    "file elsewhere": (
        multipart(
            "mixed",
            text_part("See:"),
            b"Content-Type: message/external-body; access-type=URL;\n"
            b' URL="https://example.org/a.pdf"\n\nContent-Type: application/pdf\n\n',
        ),
        [f"{SHOWN}See:", f"{NAMED}application/pdf (https://example.org/a.pdf)"],
    ),
    "name of an old encoding": (
        b"Content-Type: text/plain; charset=cp-850\n\n" + "Größe".encode("cp850"),
        [f"{SHOWN}Größe"],
    ),
    "invitation": (
        multipart("mixed", text_part("Come!"), b'Content-Type: text/calendar; name="invite.ics"\n\nBEGIN:VCALENDAR'),
        [f"{SHOWN}Come!", f"{NAMED}invite.ics"],
    ),
}


@pytest.mark.parametrize(("body", "sections"), MAILS.values(), ids=list(MAILS))
@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf", b"From ann Mon Jan  1 00:00:00 2026\n"])
def test_all_texts_of_a_mail_are_read(before: bytes, body: bytes, sections: list[str]) -> None:
    separator = b"" if body.startswith(b"Content-Type") else b"\n"
    assert read_eml(before + HEAD + separator + body)[1] == sections


def test_all_messages_of_a_mailbox_are_read() -> None:
    mailbox = b"".join(
        b"From ann Mon Jan  1 00:00:00 2026\nFrom: %s@example.org\nSubject: %s\n\nOn\n\n>From here\n\n" % (name, name)
        for name in (b"ann", b"bob")
    )
    assert read_eml(mailbox)[1] == [
        f"From: {name}@example.org\nSubject: {name}\n\nOn\n\nFrom here" for name in ("ann", "bob")
    ]
    one = b"From: ann@example.org\n\nOn\n\nFrom bob Mon\nDear: x\n"
    assert read_eml(one)[1] == ["From: ann@example.org\n\nOn\n\nFrom bob Mon\nDear: x"]


def test_forwarded_message_is_read() -> None:
    inner, outer = EmailMessage(), EmailMessage()
    inner["From"], inner["Subject"] = "bob@example.org", "Rent"
    inner.set_content("It is 812 euros.")
    outer["From"], outer["Subject"] = "ann@example.org", "Lunch"
    outer.set_content("See below.")
    outer.add_attachment(inner)
    [first, second] = read_eml(outer.as_bytes())[1]
    assert first == f"{SHOWN}See below."
    assert second == "Forwarded message:\nFrom: bob@example.org\nSubject: Rent\n\nIt is 812 euros."


def test_mails_in_each_other_are_read_up_to_a_depth() -> None:
    message = b"From: ann@example.org\n\nMail 0"
    for number in range(1, 8):
        inner = b"Content-Type: message/rfc822\n\n" + message
        parts = multipart("mixed", text_part(f"Mail {number}"), inner, boundary=f"b{number}")
        message = b"From: ann@example.org\n" + parts
    *read, rest = read_eml(message)[1]
    assert [one.rpartition("\n")[2] for one in read] == [f"Mail {number}" for number in (7, 6, 5, 4, 3, 2)]
    assert rest == f"{NAMED}message/rfc822"


def test_heads_and_names_of_files_are_decoded() -> None:
    made = MIMEText("x", "plain", "utf-8")
    made["Subject"] = "=?utf-8?q?Gr=C3=B6=C3=9Fe?="
    title, [page], _left_out = read_eml(made.as_bytes())
    assert (title, page) == ("Größe", "Subject: Größe\n\nx")
    assert read_eml("From: Jürgen <j@example.org>\nSubject: Größe\n\nx".encode())[0] == "Größe"
    data = mail("x", attached="Größe.pdf")
    assert read_eml(data)[1][-1].endswith("Größe.pdf")


PAGES = {
    "head without an end": ("<html><head><title>Invoice</title><meta charset=utf-8><body><p>812", "812"),
    "no head": ("<title>Invoice</title><p>812", "812"),
    "address of a link": ('Pay <a href="https://example.org/pay">here</a>.', "Pay here (https://example.org/pay)."),
    "link that is its address": ('<a href="https://example.org/">example.org</a>', "example.org"),
    "mail address": ('<a href="mailto:a@example.org">Ann</a>', "Ann (mailto:a@example.org)"),
    "link in the page, script": ('<a href="#x">a</a><a href="javascript:x()">b</a>', "ab"),
    "lists": ("<ul><li>a<li>b</ul><ol start=3><li>c<li>d</ol>", "\u2022 a\n\u2022 b\n3. c\n4. d"),
    "white space": ("<pre>a  b\n  c</pre><p>d\n   e", "a  b\n  c\nd e"),
    "hidden": ('<div style="display:none">a<div>b</div></div>c<div hidden>d</div><style>e</style>f', "c\nf"),
    "picture": ('<img src="x" alt="Plan of the flat"><img alt="">', "[Plan of the flat]"),
    "table": ("<table><tr><td>Rent<td>812<tr><td>Heating<td>80</table>", "Rent 812\nHeating 80"),
    "previews of mails": (
        '<div style="max-height:0;overflow:hidden">a</div><span style="font-size: 0px">b</span>'
        '<p style="display:none">c<h1 style="opacity:0">d</h1>e<p style="mso-hide:all">f<p>g'
        '<p style="font-size:0.9em">h<i style="opacity:0.5">i',
        "e\ng\nhi",
    ),
    "raised": ("10<sup>6</sup> m<sup>2</sup>, H<sub>2</sub>O, the 1<sup>st</sup>", "10\u2076 m\u00b2, H2O, the 1st"),
    "struck out": ("<del>700</del> <s>750</s> 812", "~~700~~ ~~750~~ 812"),
    "form": (
        '<label>Name <input value="Ann"></label><p><input type=checkbox checked>Pets <input type=radio>Garden'
        "<input type=hidden value=x><input type=password value=y>",
        "Name Ann\n\u2612 Pets \u2610 Garden",
    ),
    "numbers of lists": ("<ol type=a start=2><li>x<li>y</ol><ol type=I><li value=4>z</ol>", "b. x\nc. y\nIV. z"),
    "choices": (
        "<select><option>a<option selected>b</select>, <select><option>c</option><option>d</option></select>",
        "b, c",
    ),
    "not shown": (
        "<noscript>a</noscript><dialog>b</dialog><datalist><option>c</datalist><video>d</video><dialog open>e</dialog>",
        "e",
    ),
    "drawing": ("<svg><metadata>a</metadata><defs>b</defs><text>Rent</text><text>812</text></svg>", "Rent\n812"),
    "equations": (
        "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac><msup><mi>x</mi><mn>2</mn></msup>"
        "<msqrt><mi>y</mi></msqrt><annotation>no</annotation></math>, <math alttext='a/b'><mi>a</mi></math> end",
        "(a+b)/2x^2\u221a(y), a/b end",
    ),
    "quotation": ("<blockquote>a</blockquote>b<article>c</article>", "a\nb\nc"),
}


@pytest.mark.parametrize(("source", "text"), PAGES.values(), ids=list(PAGES))
def test_html_is_read_as_it_is_seen(source: str, text: str) -> None:
    title, shown = html_text(source)
    assert shown.strip() == text
    assert title == ("Invoice" if "<title>" in source else "")


def test_what_a_page_shows_without_text_is_named() -> None:
    source = b"<p>Text<img src=x><img src=y alt=Plan><svg></svg><iframe src=z></iframe>"
    assert read_html(source)[1:] == (["Text[Plan]"], {"pictures", "drawings", "objects"})


def test_rtf_is_read() -> None:
    source = RTF.replace("here}", "here}{\\pict 00ff}{\\v x}\\v y\\v0  ")
    assert read_rtf(source.encode())[1:] == (
        ["Gr\u00f6\u00dfe \u2013 5 \u20ac {a}\tb\n\U0001f600 here"],
        {"pictures", "hidden"},
    )
    with pytest.raises(InputError, match="is no RTF file, although its name says so"):
        read_rtf(b"Rent")


def test_notebook_is_read_by_cell() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Rent\n", "of May"]},
        {"cell_type": "code", "source": "1 + 1", "outputs": [
            {"output_type": "execute_result", "data": {"text/plain": ["2"], "image/png": "AAAA"}},
            {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n"]},
            {"output_type": "error", "ename": "KeyError", "evalue": "'x'", "traceback": ["long"]},
            {"output_type": "display_data", "data": {"text/html": "<b>bold</b>"}},
        ]},
        {"cell_type": "code", "source": []},
    ]  # fmt: skip
    assert read_notebook(json.dumps({"cells": cells, "nbformat": 4}).encode())[1:] == (
        [
            "# Rent\nof May",
            "```\n1 + 1\n```\n\nOutput:\n2\n\nOutput:\na\nb\n\nOutput:\nKeyError: 'x'\n\nOutput:\nbold",
            "",
        ],
        {"pictures"},
    )
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": "x", "outputs": []}]}]}
    assert read_notebook(json.dumps(old).encode())[1] == ["```\nx\n```"]
    for damaged in (b"{", b"[]", b'{"cells": 5}', b'{"cells": [5]}'):
        with pytest.raises(InputError, match="is damaged or cut off: it can't be read as IPYNB"):
            read_notebook(damaged)
