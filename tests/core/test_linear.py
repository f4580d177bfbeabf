"""No parser and no pattern takes more than linear time for any input: each is run on texts of growing sizes.

`PARSERS` lists the functions that read untrusted text. The patterns are found in the source, so a new one is tested
without being listed, on texts made of its own literals. A pattern that cannot be read from the source needs an entry
in `COMPUTED`, and one with text that is short for another reason an entry in `BOUNDED`.
"""

import ast
import gc
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import pairwise, product
from operator import itemgetter
from time import process_time
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    Citation,
    ContentCitationAnchor,
    ModelRequest,
    PartStartEvent,
    TextContent,
    TextPart,
    ThinkingPart,
    UserPromptPart,
    WebCitationSource,
)

from agent.display import _CONTROL
from agent.errors import AgentError
from agent.fetch import Guard
from agent.files.convert import _without_tags
from agent.files.encodings import codec_of, decode_text
from agent.files.excel import _unescaped
from agent.files.images import _clean_gif, _clean_jpeg, _clean_png, _clean_webp
from agent.files.locate import find_passage
from agent.files.mail import _decoded_words, enriched_text, html_text, read_eml, rtf_text
from agent.files.number_formats import number_text
from agent.files.parts import extracted_text, fence, from_base64, from_data_url
from agent.files.store import display_name
from agent.history import Entry, Note
from agent.i18n.translator import LANGUAGES, Translator, negotiate
from agent.messages.cited_documents import _Document, _documents_as_text, _with_pages
from agent.messages.openai import from_openai
from agent.models.catalog import load_catalog
from agent.providers.errors import cut, explain, redact
from agent.providers.event_reading import EventReader
from agent.rendering.formulas import Formula, to_mathml
from agent.rendering.html import html_mark
from agent.rendering.markdown import to_blocks
from agent.rendering.notebook import tame
from agent.rendering.sources import Sources
from agent.responses import StreamDecoder, fix_surrogates
from agent.settings import ROOT
from agent.system.media_types import detect_mime
from agent.telemetry import Redactor
from agent.tools import arithmetic
from agent.transfer.imported import LeftOut
from agent.transfer.imports.chatgpt import read_chatgpt
from agent.transfer.imports.claude import read_claude
from agent.transfer.imports.open_webui import read_open_webui
from agent.web.chat.transcript import ConversationTurn
from agent.web.chat.turns import render_turn
from tests.support.gate_rows import gate_rows
from tests.tiers import in_full_tier

pytestmark = pytest.mark.slow

SIZES = (10_000, 100_000, 1_000_000) if in_full_tier() else (10_000, 60_000)
"""Characters. A text that is n times as long takes at most 3n times as long, where quadratic time would be n² times."""
PROBE = 3_000 if in_full_tier() else 1_500
"""Characters of the texts that say which three are the slowest."""
SLACK = 0.3
"""Seconds for other work of the machine. Quadratic time for 60,000 characters would be some."""


def seconds(work: Callable[[str], object], text: str, most: float) -> float:
    """Return the run's seconds of processor time, or those of a second run if the first one took more than `most`."""
    took = _once(work, text)
    return took if took <= most else min(took, _once(work, text))


def assert_linear(work: Callable[[str], object], seeds: Mapping[str, Callable[[int], str]]) -> None:
    """Assert linear time for the slowest three of these texts.

    The gate tries only the slowest one in the last size, and so does the full tier if this size takes long.
    """
    slow = sorted(seeds, key=lambda name: _once(work, seeds[name](PROBE)), reverse=True)[:3]
    before = {name: _once(work, seeds[name](SIZES[0] // 10)) for name in slow}
    for shorter, size in pairwise((SIZES[0] // 10, *SIZES)):
        if size == SIZES[-1] and (not in_full_tier() or max(before.values()) > 1):
            before = dict([max(before.items(), key=itemgetter(1))])
        for name, took in before.items():
            most = 3 * size / shorter * took + SLACK
            now = seconds(work, seeds[name](size), most)
            assert now <= most, f"{size} characters of {name!r} take {now:.2f} s, {shorter} take {took:.3f} s"
            before[name] = now


def _once(work: Callable[[str], object], text: str) -> float:
    gc.disable()  # its time grows with the objects of all tests before
    try:
        start = process_time()
        work(text)
        return process_time() - start
    finally:
        gc.enable()


def asked(part: TextContent) -> ConversationTurn:
    """Return a turn whose message has this part."""
    entry = Entry(parent_id=None, message=ModelRequest([UserPromptPart([part])]), note=Note(run_id="r"))
    return ConversationTurn(user=entry, bubbles=(), note=None)


def repeated(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def after(first: str, piece: str) -> Callable[[int], str]:
    return lambda size: first + repeated(piece)(size - len(first))


ALPHABETS = (
    *'`a1.<[]{("\\ \n*-/:=,&é' + "\ud83d",
    *(
        *("a1", "a ", "``\n", "<a ", "](", '\\"', "\\u", "\\ud83d", "http://", "?a=", "sk-", "-eyJ", "api_"),
        *("key-", "<!--"),
    ),
    *("authorization: ", "bearer ", "'a", "a@", "a:/", "![", "\n- ", "1,", "support", "model ", "***", "a***", "; "),
)
NEAR_MISSES = (
    *("[1] ok ", "(p. 1) ", "[Page 1]\n", "a, from pages 1 of 9:\n", "[1]: a.pdf\n", "[1, 1]", "\u30101\u2020"),
    *("=?utf-8?q?a?= ", "=?utf-8?b?", "\r\n--a\r\n\r\n", "a: b\r\n", "\r\n--a\r\nContent-Type: message/rfc822\r\n\r\n"),
    *('<details type="reasoning">', "<think>", "\ue200cite\ue202turn0search0\ue201", "\ue200cite", "<![CDATA["),
    *("<antArtifact a>", '<details type="tool_calls" name="a">', '<a href="http://x">a', "<ol><li>", "<pre>\n"),
    *("<div hidden>", "&#1", "<!a", "<?", "\\frac{", "a_{b", "_x00", "\ufdfa", "{\\rtf1 ", "\\'e4", "\\u8364?", "<<"),
    "<param>",
)
"""What the parsers look for, whole and in part."""
TEXTS = {piece: repeated(piece) for piece in ALPHABETS}

# Parsers


def quiet(work: Callable[[str], object]) -> Callable[[str], object]:
    """Wrap `work` so that a refusal counts as a result."""

    def run(text: str) -> object:
        try:
            return work(text)
        except (AgentError, ValueError):
            return None

    return run


def explained(text: str) -> object:
    error = ModelHTTPError(400, "m", {"error": {"message": text, "code": text, "details": [{"reason": text}]}})
    return explain(error, "m", load_catalog().providers["openai"], key="swordfish")


def explained_page(text: str) -> object:
    return explain(ModelHTTPError(502, "m", text), "m", load_catalog().providers["openai"])


def streamed(text: str) -> object:
    live = StreamDecoder()
    parts = [
        TextPart(text[at : at + 400]) if at % 800 else ThinkingPart(text[at : at + 400])
        for at in range(0, len(text), 400)
    ]
    return [live.feed(PartStartEvent(index=number, part=part)) for number, part in enumerate(parts)]


def guarded(text: str) -> object:
    return Guard()._parse_url(f"https://example.com/{text}")


def messages(role: str, **more: Any) -> Callable[[str], object]:
    """Return a parser that takes a text, cut into messages of one role."""
    return lambda text: from_openai(
        [{"role": role, "content": text[at : at + 40], **more} for at in range(0, len(text), 40)]
    )


def named_model(text: str) -> object:
    return load_catalog().find(text)


def named_model_of(text: str) -> object:
    return load_catalog().find(text, "huggingface")


def pages_named(pages: tuple[str, ...], answer: str) -> object:
    documents = [_Document("a.pdf", "page", len(pages), dict(enumerate(pages, 1)))]
    return _with_pages(TextPart(answer), documents, {})


def documents_sent(text: str) -> object:
    read = {"kind": "document", "name": "a.pdf", "unit": "page", "count": "9", "read": text}
    return _documents_as_text([ModelRequest([UserPromptPart([TextContent(text, metadata=read)])])])


def sources_marked(text: str) -> object:
    source = WebCitationSource("https://example.com", excerpts=[text[:200]])
    at = (ContentCitationAnchor(start=end, end=end + 1) for end in range(0, len(text) - 1, 5))
    return Sources().mark(text, [Citation([source], anchor=anchor) for anchor in at], html_mark)


def chatgpt(role: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        message = {"author": {"role": role}, "content": {"parts": [text]}, "metadata": {}}
        return read_chatgpt({"mapping": {"a": {"message": message}}}, lambda _: None, LeftOut())

    return read


def claude(text: str) -> object:
    return read_claude({"chat_messages": [{"sender": "assistant", "text": text}]}, lambda _: None, LeftOut())


def open_webui(text: str) -> object:
    sources = [{"source": {"name": text[:50], "url": "https://example.com"}}]
    messages = [{"role": "assistant", "content": text, "sources": sources}]
    return read_open_webui({"chat": {"messages": messages}}, lambda _: None, LeftOut())


def mail(text: str) -> object:
    return read_eml(b"From: a\r\nContent-Type: multipart/mixed; boundary=a\r\n" + text.encode("utf-8", "replace"))


PARSERS: dict[str, Callable[[str], object]] = {
    "fence": fence,
    "redaction": redact,
    "redaction of a key": lambda text: redact(text, text[:9]),
    "cut": lambda text: cut(text, len(text) - 1),
    "a vendor's error": explained,
    "a vendor's page": explained_page,
    "cleaning": Redactor(("swordfish",)).text,
    "cleaning of JSON": lambda text: Redactor().value({"a": json.dumps([text]), "b": text}),
    "reasoning and text": streamed,
    "surrogates": fix_surrogates,
    "a web address": guarded,
    "a data: URL": from_data_url,
    "a data: URL's head": lambda text: from_data_url(f"data:{text},a"),
    "base64": from_base64,
    "messages of OpenAI's, user": messages("user"),
    "messages of OpenAI's, system": messages("system"),
    "messages of OpenAI's, assistant": messages("assistant"),
    "messages of OpenAI's, tool": messages("tool", tool_call_id="1"),
    "a model's name": named_model,
    "a model's name at a provider": named_model_of,
    "Accept-Language": negotiate,
    "a question": lambda text: to_blocks(text, is_typed=True),
    "Markdown": lambda text: to_blocks(f"{text}\n\n| {text}\n|---|\n\n$$\n{text}"),
    "formulas": lambda text: to_blocks(f"$a$ {text}"),
    "what was read of a file": lambda text: render_turn(asked(extracted_text(text, text, "image"))),
    "a file's name": lambda text: display_name(text, "image/png"),
    "arithmetic": arithmetic.evaluate,
    "terminal": lambda text: _CONTROL.sub("", text),
    "MIME sniffing": lambda text: detect_mime(text.encode("utf-8", "replace")),
}


READERS: dict[str, Callable[[str], object]] = {
    "pages that an answer names": lambda text: pages_named(("a word", "another"), text),
    "pages with a sentence": lambda text: pages_named((text, "another"), f"{text[:200]} [1] or (p. 1)"),
    "documents in messages": documents_sent,
    "sources in a text": sources_marked,
    "a text in a notebook": tame,
    "a passage": lambda text: find_passage(text, text[len(text) // 2 :]),
    "mail": mail,
    "words of a header": _decoded_words,
    "HTML": html_text,
    "RTF": rtf_text,
    "enriched text": enriched_text,
    "an encoding": lambda text: decode_text(text.encode("utf-8", "replace") + b"\xff"),
    "the name of an encoding": codec_of,
    "a number of a sheet": lambda text: number_text("1", text),
    "a text of a sheet": _unescaped,
    "MathML": lambda text: to_mathml(Formula(text, text, is_display=True)),
    "ChatGPT, user": chatgpt("user"),
    "ChatGPT, assistant": chatgpt("assistant"),
    "Claude": claude,
    "Open WebUI": open_webui,
}
"""Readers of files, exports and the places of sources."""


@pytest.mark.parametrize("name", gate_rows({name: name for name in PARSERS}, PARSERS.keys() - {"Markdown"}))
def test_parser_takes_linear_time(name: str) -> None:
    assert_linear(quiet(PARSERS[name]), TEXTS)


@pytest.mark.parametrize("name", gate_rows({name: name for name in READERS}, ["pages that an answer names"]))
def test_reader_takes_linear_time(name: str) -> None:
    assert_linear(quiet(READERS[name]), TEXTS | {piece: repeated(piece) for piece in NEAR_MISSES})


TAG = b"ID3\x04\0\0\0\0\0\0"
BYTES: dict[str, Callable[[bytes], object]] = {
    "tags of an MP3": _without_tags,
    "PNG": lambda data: _clean_png(b"\x89PNG\r\n\x1a\n" + data),
    "JPEG": lambda data: _clean_jpeg(b"\xff\xd8" + data),
    "WebP": lambda data: _clean_webp(b"RIFF\0\0\0\0WEBP" + data),
    "GIF": _clean_gif,
    "kind": detect_mime,
    "events of a model server": lambda data: list(EventReader(end_seconds=3.0)._feed(b"{\n" + data)),
}
BYTE_SEEDS = {
    "tags": TAG,
    "tags with a footer": b"ID3\x04\0\x10\0\0\0\0" + bytes(10),
    "tags of one byte": b"ID3\x04\0\0\0\0\0\x01a",
    "old tags": b"TAG" + bytes(125),
    "zeros": b"\0",
    "chunks": b"\0\0\0\0tEXt\0\0\0\0",
    "kept chunks": b"\0\0\0\0IDAT\0\0\0\0",
    "segments": b"\xff\xe1\0\x02",
    "kept segments": b"\xff\xdb\0\x02",
    "scans": b"\xff\xda\0\x02",
    "markers": b"\xff\xd0",
    "0xff": b"\xff",
    "RIFF chunks": b"EXIF\0\0\0\0",
    "kept RIFF chunks": b"VP8L\0\0\0\0",
    "VP8X": b"VP8X\x0a\0\0\0" + bytes(10),
    "ftyp": b"\0\xff\xff\xffftypheic",
    "lines of data": b"data: {\n",
    "lines of JSON": b"]\n",
}


@pytest.mark.parametrize("name", BYTES)
def test_byte_reader_takes_linear_time(name: str) -> None:
    seeds = {seed: repeated(piece.decode("latin-1")) for seed, piece in BYTE_SEEDS.items()}
    assert_linear(quiet(lambda text: BYTES[name](text.encode("latin-1"))), seeds)


# Patterns

METHODS = ("search", "match", "fullmatch", "sub", "split", "findall", "finditer")
CALLS = ("re.compile", *(f"re.{method}" for method in METHODS))


@dataclass
class Found:
    """A pattern in the source, and the methods that are called on it."""

    where: str
    pattern: re.Pattern[Any]
    methods: set[str] = field(default_factory=set[str])


def _kinds() -> Iterator[str]:
    """Yield the patterns of the kinds of values in configuration files, which `must` makes."""
    for module in (name for name, source in sources().items() if "must(" in source):
        values = list(vars(import_module(module)).values())
        fields = [kind for value in values for kind in getattr(value, "__annotations__", {}).values()]
        for one in (meta for kind in values + fields for meta in getattr(kind, "__metadata__", ())):
            check = getattr(one, "func", None)
            names = dict(zip(check.__code__.co_freevars, check.__closure__ or (), strict=True)) if check else {}
            if "holds" in names and isinstance(pattern := names["holds"].cell_contents, str):
                yield pattern


def constants(*names: str) -> Callable[[], list[Any]]:
    """Return a function that reads these names of modules ("agent.files.store:_ID")."""

    def read() -> list[Any]:
        return [getattr(import_module(module), name) for module, _, name in (each.partition(":") for each in names)]

    return read


COMPUTED: dict[tuple[str, str], Callable[[], list[Any]]] = {
    ("agent.files.store", "*"): constants("agent.files.store:_ID", "agent.files.store:_OLD_ID"),
    ("agent.errors", "*"): constants("agent.errors:_PATH"),
    ("agent.errors", "pattern"): lambda: [
        re.compile(one[0], re.IGNORECASE) for one in import_module("agent.errors")._CAUSES
    ],
    ("agent.providers.errors", "pattern"): lambda: [
        re.compile(one[0], re.IGNORECASE | re.DOTALL) for one in import_module("agent.providers.errors")._BY_PATTERN
    ],
    ("agent.providers.errors", "*"): constants(
        "agent.providers.errors:_LIMIT", "agent.providers.errors:_PROMPT", "agent.providers.errors:_TOTAL"
    ),
    ("agent.models.families", "*"): constants("agent.models.families:_OTHER_NAME"),
    ("agent.models.families", "pattern"): lambda: [one[0] for one in import_module("agent.models.families")._FAMILIES],
    ("agent.history.search", "pattern"): lambda: import_module("agent.history.search")._SIGNS,
    ("agent.local.vllm_server", "pattern"): lambda: [one[0] for one in import_module("agent.local.vllm_server")._STEPS],
    ("agent.runtime.model_request", "*"): lambda: [re.compile(r"\bcalculate\b")],
    ("agent.transfer.json_elements", "pattern"): constants(
        *(f"agent.transfer.json_elements:{name}" for name in ("_SKIPPED", "_IN_STRING", "_SPACES"))
    ),
    ("agent.tools.presets", "*"): lambda: [r"""(^|[\s.{,\["'])base["']?\s*([=\].]|$)"""],
    ("agent.web.chat.system_prompt", "*"): lambda: [
        import_module("agent.web.chat.system_prompt")._dates(Translator(language)) for language in LANGUAGES
    ],
    ("agent.web.middleware.isolation", "*"): lambda: [import_module("agent.web.middleware.isolation").CHANGES["POST"]],
    ("agent.system.toml_file", "holds"): lambda: list(_kinds()),
    ("agent.rendering.formulas", "*"): constants("agent.rendering.formulas:_GROUP"),
    ("agent.rendering.markdown", "*"): constants("agent.rendering.markdown:_FORMULA"),
    ("agent.deploy.plan", "*"): lambda: [re.compile("|".join(["a secret", "another"]))],
}
"""Patterns that are built at run time, by module and expression ("*": any)."""

BOUNDED: dict[str, int] = {}
"""Patterns that are not linear, by place, with the most characters that they are ever applied to."""


@cache
def sources() -> dict[str, str]:
    paths = [ROOT / "app.py", *sorted((ROOT / "agent").rglob("*.py"))]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    return {name: path.read_text(encoding="utf-8") for path, name in names.items()}


def patterns() -> Iterator[Found]:
    """Yield every pattern of the package."""
    for module, source in sources().items():
        if not any(f"{name}(" in source for name in CALLS):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        calls = {id(node): node for node in nodes if isinstance(node, ast.Call) and _method(node)}
        assigned = {
            id(node.value): ast.unparse(node.targets[-1])
            for node in nodes
            if isinstance(node, ast.Assign) and id(node.value) in calls
        }
        for number, call in calls.items():
            name = _method(call)
            methods = _used(assigned.get(number, "")) if name == "compile" else {name}
            yield from _found(module, call, methods)


def _method(call: ast.Call) -> str:
    """Return which function of `re` is called with a pattern, "" if none is."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=name) if f"re.{name}" in CALLS:
            return name
        case _:
            return ""


def _used(name: str) -> set[str]:
    """Return the methods that are called on a compiled pattern, or the usual two if it has no name."""
    return _methods().get(name.rpartition(".")[2], set()) if name else {"search", "fullmatch"}


@cache
def _methods() -> dict[str, set[str]]:
    """Return the methods of patterns that the package calls on each name."""
    found: dict[str, set[str]] = {}
    for source in sources().values():
        for name, method in re.findall(rf"(\w+)\.({'|'.join(METHODS)})\(", source):
            found.setdefault(name, set()).add(method)
    return found


def _found(module: str, call: ast.Call, methods: set[str]) -> Iterator[Found]:
    where = f"{module}:{call.lineno}"
    if isinstance(call.args[0], ast.Constant):
        flags = 0
        wanted = 1 if call.func.attr == "compile" else 3 if call.func.attr == "sub" else 2  # type: ignore[attr-defined]
        given = [*call.args[wanted : wanted + 1], *(one.value for one in call.keywords if one.arg == "flags")]
        for one in given:
            if "re." in ast.unparse(one):
                flags |= eval(ast.unparse(one), {"re": re})
        yield Found(where, re.compile(call.args[0].value, flags), methods or {"search", "fullmatch"})
        return
    named = getattr(import_module(module), ast.unparse(call.args[0]), None)
    if isinstance(named, str):
        yield Found(where, re.compile(named), methods)
        return
    made = COMPUTED.get((module, ast.unparse(call.args[0]))) or COMPUTED.get((module, "*"))
    assert made, f"{where} makes a pattern of {ast.unparse(call.args[0])!r}: give it an entry in COMPUTED"
    for number, pattern in enumerate(made()):
        yield Found(f"{where}#{number}", re.compile(pattern), methods or {"search", "fullmatch"})


def literals(pattern: re.Pattern[Any]) -> list[str]:
    """Return the runs of literal characters in a pattern, and one character of each class."""
    out: list[str] = []

    def walk(tree: Any) -> None:
        run = ""
        for op, given in tree:
            if str(op) == "LITERAL":
                run += chr(given)
                continue
            if run:
                out.append(run)
                run = ""
            if str(op) == "IN":
                out.extend(chr(one[1]) for one in given if str(one[0]) == "LITERAL")
            for inner in _inner(given):
                walk(inner)
        if run:
            out.append(run)

    walk(_tree(pattern))
    return list(dict.fromkeys(out))


def _inner(given: Any) -> Iterator[Any]:
    if type(given).__name__ == "SubPattern":
        yield given
    elif isinstance(given, tuple | list):
        for one in given:
            yield from _inner(one)


MEMBERS = "aA1_ \n\t.,;:-+*/=<>()[]{}|\"'`$&#@!\\\u03b1\u0391\u00e9\u0436\u4e2d\u0663\u00a0\u2003\u2028\U0001d7d8"
"""One character of each kind: letters, digits and white space of several scripts, and signs."""
CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}


def _is_member(char: str, op: str, given: Any) -> bool:
    """Return True if the character is matched by a single item of a pattern's tree."""
    match op:
        case "ANY":
            return char != "\n"
        case "LITERAL":
            return ord(char) == given
        case "NOT_LITERAL":
            return ord(char) != given
        case "RANGE":
            return given[0] <= ord(char) <= given[1]
        case "CATEGORY":
            name = str(given).removeprefix("CATEGORY_")
            return bool(re.match(CATEGORIES[name.removeprefix("NOT_")], char)) != name.startswith("NOT_")
        case "IN":
            rest = given[1:] if str(given[0][0]) == "NEGATE" else given
            return any(_is_member(char, str(one), value) for one, value in rest) != (rest is not given)
        case _:
            return False


def _tree(pattern: re.Pattern[Any]) -> Any:
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    return re._parser.parse(pattern.pattern, flags)  # type: ignore[attr-defined]


def repeated_classes(tree: Any, *, inside: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield what a pattern matches any number of times. Without it, a match is short."""
    for op, given in tree:
        is_repeat = str(op).endswith("REPEAT") and given[1] > MOST_REPEATS
        if inside and str(op) in ("ANY", "IN", "LITERAL", "NOT_LITERAL"):
            yield str(op), given
        for inner in _inner(given):
            yield from repeated_classes(inner, inside=inside or is_repeat)


MOST_REPEATS = 300
"""Repeats up to which a pattern is linear, because its longest match is short."""


def class_seeds(pattern: re.Pattern[Any]) -> dict[str, Callable[[int], str]]:
    """Return texts made of the characters that the pattern repeats, alone, in pairs, and after its literals."""
    out = dict[str, Callable[[int], str]]()
    members = list[str]()
    for op, given in repeated_classes(_tree(pattern)):
        own = [chr(given)] if op == "LITERAL" else [char for char in MEMBERS if _is_member(char, op, given)]
        members += [*own[:2], *own[-9::3]]
    members = list(dict.fromkeys(members))[:12]
    for one, other in product(members, members):
        out[f"{one!a}{other!a}"] = repeated(one if one == other else one + other)
    for literal, one in product(literals(pattern)[:8], members[:6]):
        out[f"{literal!a}, then {one!a}"] = after(literal, one)
        out[f"{literal!a} after {one!a}"] = repeated(one * 40 + literal)
    for one in members:
        out[f"{one!a}, then an end"] = lambda size, one=one: repeated(one)(size - 1) + "\0"
    return out


def seeds_of(pattern: re.Pattern[Any]) -> dict[str, Callable[[int], str]]:
    out = TEXTS | class_seeds(pattern)
    fillers = ("a", "1", " ", "-", "/", ".")
    for literal, filler in product(literals(pattern)[:40], fillers):
        out[literal] = repeated(literal)
        out[f"{literal} and {filler}"] = repeated(literal + filler)
        out[f"{literal}, then {filler}"] = after(literal, filler)
    return out


ALL = list(patterns())


def test_patterns_are_found() -> None:
    modules = {one.where.partition(":")[0] for one in ALL}
    assert {"agent.providers.errors", "agent.telemetry", "agent.files.store", "agent.i18n.translator"} <= modules
    assert len(ALL) > 60
    assert set(BOUNDED) <= {one.where for one in ALL}


REPEATING = [found for found in ALL if any(repeated_classes(_tree(found.pattern)))]


@pytest.mark.parametrize("found", REPEATING, ids=lambda found: found.where)
def test_pattern_takes_linear_time(found: Found) -> None:
    assert found.methods
    for method in found.methods:

        def work(text: str, method: str = method) -> object:
            given: Any = text.encode("utf-8", "replace") if isinstance(found.pattern.pattern, bytes) else text
            run = getattr(found.pattern, method)
            if method == "sub":
                return run(given[:0], given)
            return list(run(given)) if method == "finditer" else run(given)

        assert_linear(work, seeds_of(found.pattern))
