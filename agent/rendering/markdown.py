"""Renders Markdown as blocks of HTML, while the text grows or all at once.

A block is a top-level piece of the text: a paragraph, list, table, fence, quotation, heading or formula. A growing text
is read from the start of its last block, because a block does not change once the next one has begun. Of a longer
block only the last `WINDOW` characters are read: what is before them, up to an item, a row or a word, is kept as
HTML. A block that grows beyond `MOST` characters goes on in another one, whose element has the class `more`.

The Markdown is CommonMark with tables, `~~strikethrough~~`, task boxes, footnotes, bare links, formulas (`$x$`,
`\\(x\\)`, `$$x$$`, `\\[x\\]`, `\\begin{align}`), `<br>`, `<sub>`, `<sup>`, `<kbd>` and `<details>`. Other HTML is shown
as written.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from html import escape
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt, helpers
from markdown_it.common.utils import isMdAsciiPunct, isPunctChar, isWhiteSpace
from markdown_it.renderer import RendererHTML
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import table as read_table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Delimiter
from markdown_it.token import Token

from agent.rendering.code_colors import colored
from agent.rendering.formulas import INLINE, MAX_CHARACTERS, Formula, is_formula, to_mathml

WINDOW = 2_000
"""The characters that are read at once. Reading Markdown takes microseconds and kilobytes for each."""
MOST = 16_000
"""The most characters of a block, and of code or a formula that are read at once."""
MAX_CELLS = 16_000
"""The most cells of a table. A short row gets all cells of its head, so little text can have millions."""
LINKS = ("http", "https", "mailto")
_SCHEMES = ("http:", "https:", "mailto:", "data:image/")
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/avif")
"""The pictures that every browser shows."""
BEGIN, END = "\ufdd0", "\ufdd1"
"""Around a source in a text: its number, that of the cited passage, and its address (see `agent.rendering.html`). No
text of a message has these characters."""

_BAR = "\ufdd2"
"""Stands for a bar in a formula of a table while the cells are read."""
_STUB = "\ufdd3"
"""Stands for the part of a block that is kept as HTML, before the Markdown that goes on."""
_FORMULA = re.compile(INLINE.pattern + r"|\\\((?:[^\\\n`]|\\(?![()]))*+\\\)")
_CONTAINERS = ("bullet_list_open", "ordered_list_open", "list_item_open", "blockquote_open")
_TO_STUB = re.compile("(?:<(?:ul|ol|li|blockquote|p)(?: [^<>]*+)?+>|\n)*+\ufdd3")  # _STUB
_LIST = re.compile(r"\n?<(ul|ol)(?: [^<>]*+)?+>\n")
_TABLE = re.compile(r"<(table)>\n<thead>\n(?>(?:[^<]++|<(?!/thead>))*)</thead>\n<tbody>\n")
_FIRST_TAG = re.compile(r"<(\w++)[^<>]*+>")
_INDENT = re.compile(r"[ \t>]*+")
_QUOTES = re.compile(r" *+> ?")
_MARKS_ITEM = re.compile(r" *+(?:[-*+]|\d{1,9}[.)]) {1,4}+(?! )")
_WORD_ENDS = re.compile(
    r"(?P<space>(?<=[^\s>]) (?=\S)|(?<=\S)\n(?=[^\n])|(?<=[。！？；，、：])(?=\S))"  # noqa: RUF001
    r"|\\[(\[](?P<opens>)|\\[)\]](?P<closes>)|\\[^\n]"
    r"|(?P<turns>`++|\$(?!\d)|(?<=\S)\$)"
    r"|(?P<run>\*++|~~++|(?<!\w)_++|_++(?!\w))"
    r"|(?:[(\[\ufdd0]|<(?:sub|sup|kbd)>)(?P<begins>)|(?:[)\]\ufdd1]|</(?:sub|sup|kbd)>)(?P<ends>)"
)
_TITLE = re.compile(r'\btitle="([^"]{1,80})"')
"""The title of code, behind its language: ```html title="Clock"."""
_BLANK = re.compile(r"\n[ \t]*+\n")
_DASHES = re.compile(r"[|: \t]*+-[-|: \t]*+")
_LINE = re.compile(r"[^\r\n]*+(?:\r\n|\r|\n)|[^\r\n]++")
_DEFINITION = re.compile(r"^[ \t>]*+(?>(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*)\[(?!\^[0-9])", re.MULTILINE)
"""The beginning of a definition of a link, or of a footnote with a name. A definition holds for the whole text."""
_MARK = re.compile(
    "{\ufdd0([0-9]+)(?:[.]([0-9]+))? ([^\ufdd0\ufdd1]*)\ufdd1"
)  # BEGIN, and END; the inline rules are asked at a brace
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u303f\u3040-\u30ff\u3100-\u31ff\u3400-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Letters and signs of Chinese, Japanese and Korean, between which no spaces are written."""
_URL = re.compile(
    r"(?<![A-Za-z0-9_/.@-])https?://(?=[\w\[])[^\s<>\"`{}|\\^\u2e80-\u303f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff\uff00-\uffef]++"
)
_TAG = re.compile(r"<(?:(?P<br>br)\s*+/?|(?P<tag>sub|sup|kbd))>", re.IGNORECASE)
_ENDS = {tag: re.compile(f"</{tag}>", re.IGNORECASE) for tag in ("sub", "sup", "kbd")}
_DETAILS = re.compile(r"<details(?: open)?>[ \t]*+(?:<summary>(?P<summary>[^\n]*?)</summary>)?[ \t]*+$", re.IGNORECASE)
_SUMMARY = re.compile(r"<summary>(?P<summary>[^\n]*?)</summary>[ \t]*+$", re.IGNORECASE)
_OPENS = re.compile(r"<details(?: open)?>", re.IGNORECASE)
_CLOSES = re.compile(r"</details>[ \t]*+$", re.IGNORECASE)
_ADDRESS = re.compile(r"\(<?(?P<url>[^\s<>]*+)>?(?: ++(?:\"[^\"\n]*+\"?)?)?")
_FOOTNOTE = re.compile(r"\[\^([0-9]{1,3}|[A-Za-z][\w-]{0,31})\](?P<defines>:[ \t]*+)?")
_TASK = re.compile(r"\[([ xX])\][ \t]++")
_ENVIRONMENT = re.compile(
    r"\\begin\{((?:align(?:ed|at)?|equation|gather(?:ed)?|multline|cases|[pbvBV]?matrix|array)\*?)\}"
)
_INTERRUPTS: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}


@dataclass(slots=True)
class _Joint:
    """The place of a cut in a long block, and how the HTML of the rest goes on in the HTML that is kept."""

    prefix: str = ""
    """The Markdown that is read before the rest."""
    depth: int = 0
    """The number of elements that are open at the cut."""
    inner: str = ""
    """The tag of the innermost one, if that is a list or a table."""
    html: str = ""
    """The HTML that is kept, without the end tags, which are `ends`; "" if the rest goes on in another block."""
    ends: str = ""
    size: int = 0
    """The characters of the text that is kept."""
    number: int = 0
    """The number of the last item, if the block is a numbered list."""

    def joined(self, html: str) -> list[str]:
        """Return the HTML of the block that goes on. If it does not go on, this HTML is that of the next block."""
        is_new, stubs = not self.html, 0 if self.inner == "table" else self.prefix.count(_STUB)
        at: int | None = 0
        for _ in range(stubs):
            found = _TO_STUB.match(html, at) if at is not None else None
            at = found.end() if found else None
        rest = html[at:] if at is not None else ""
        if self.html.endswith("\n"):
            rest = rest.removeprefix("\n")
        begins = _LIST.match(rest) or _TABLE.match(rest)
        begins = begins if begins and begins[1] == self.inner else None
        if self.inner == "table" and not begins:  # it has no more rows
            return [] if is_new else [self.html + self.ends]
        if at is not None and not is_new and (begins or at):
            ends = f"</{self.inner}>\n" if self.inner and not begins else ""
            return [self.html + ends + rest[begins.end() if begins else 0 :]]
        html = html.replace(_STUB, "", stubs)
        if not is_new:
            return [self.html + self.ends, *([html] if html else [])]
        start = f' start="{self.number + (_STUB not in self.prefix)}"' if html.startswith("<ol") else ""
        return [_FIRST_TAG.sub(rf'<\1 class="more"{start}>', html, count=1)] if html else []


class Blocks:
    """The blocks of a text that grows.

    `is_typed`: a visitor wrote it, and it is shown as typed. Only code between backticks, bare links, and formulas that
    are not between single dollar signs are drawn.
    """

    def __init__(self, *, is_typed: bool = False) -> None:
        self._is_typed = is_typed
        self.html: list[str] = []
        """One piece of HTML for each block."""
        self._closed = 0
        """The number of blocks that no longer change."""
        self._at: int = 0
        self._prefix = ""
        """Where the text after them begins, and the Markdown before it that a cut has left behind."""
        self._joint: _Joint | None = None
        self._has_colors = True
        """False once the colours of a code took too long: the rest of the code has none, so that it costs no time."""
        self._references: MutableMapping[str, Any] = {}

    @property
    def _reader(self) -> MarkdownIt:
        """The reader. It is no attribute, because it cannot be copied, and Gradio copies the states of a page."""
        return _TYPED if self._is_typed else _MARKDOWN

    def update(self, text: str, *, is_whole: bool = False) -> int:
        """Render a text that begins with the last one, and return the number of the first block that has changed.

        `is_whole` says that the text does not grow any more.
        """
        if is_whole and _DEFINITION.search(text):
            first = Blocks(is_typed=self._is_typed)
            first._has_colors = False  # its blocks are not shown
            first._read(text, is_whole=True)
            self.html, self._closed, self._at, self._prefix, self._has_colors = [], 0, 0, "", True
            self._joint, self._references = None, first._references
        return self._read(text, is_whole=is_whole)

    def _read(self, text: str, *, is_whole: bool) -> int:
        changed = self._closed
        while True:
            for size in (WINDOW, MOST):
                part = self._prefix + text[self._at : self._at + size]
                is_last = self._at + size >= len(text)
                lines = [found.end() for found in _LINE.finditer(part)]
                env: dict[str, Any] = {
                    "references": ChainMap({}, self._references),
                    "is_whole": is_whole and is_last,
                    "grows": is_last and not is_whole,
                    "is_typed": self._is_typed,
                    "color": self._color,
                }
                groups = [*_groups(self._reader.parse(part, env))]
                complete = len(lines) - (not part.endswith(("\n", "\r")))  # the last line can grow
                closed = _finished(groups, complete)
                can_cut = not (is_last or closed) and groups
                cut = _cut(part, groups[0], lines, complete, len(self._prefix)) if can_cut else None
                if is_last or closed or cut:
                    break
            del self.html[self._closed :]
            if is_last:
                self._write(groups, env)
                if closed:
                    self._closed = len(self.html) - len(groups) + closed
                    self._begin_at(groups[closed], lines, env)
                if is_whole:
                    self._references.update(env["references"].maps[0])
                return changed
            if closed:
                self._write(groups[:closed], env)
                self._begin_at(groups[closed], lines, env)
            else:
                hard = _hard_cut(part, groups[0] if groups else (), lines[:complete], len(self._prefix))
                self._cut_at(part, *(cut or hard), env)
            self._closed = len(self.html) - bool(self._joint and self._joint.html)

    def _write(self, groups: Sequence[Sequence[Token]], env: MutableMapping[str, Any]) -> None:
        html = [self._reader.renderer.render(group, self._reader.options, env) for group in groups]
        if self._joint:
            html[:1] = self._joint.joined(html[0] if html else "")
        self.html += html

    def _cut_at(self, part: str, end: int, joint: _Joint, env: MutableMapping[str, Any]) -> None:
        """Keep the text before the cut as HTML."""
        groups = [*_groups(self._reader.parse(part[:end], env))]
        self._write(groups, env)
        before = self._joint if self._joint and len(groups) == 1 else None
        joint.size = end - len(self._prefix) + (before.size if before and before.html else 0)
        if joint.depth and groups:
            ends = [token for token in groups[-1] if token.nesting < 0][-joint.depth :]
            joint.ends = "".join(f"</{token.tag}>\n" for token in ends if not token.hidden)
            items = sum(token.type == "list_item_open" and token.level == 1 for token in groups[-1])
            known = before.number - (_STUB in self._prefix) if before else int(groups[-1][0].attrGet("start") or 1) - 1
            joint.number = known + items
            html = self.html[-1]
            if joint.size < MOST and len(html) < 4 * MOST and joint.ends and html.endswith(joint.ends):
                joint.html = html.removesuffix(joint.ends)
        self._at, self._prefix, self._joint = self._at + end - len(self._prefix), joint.prefix, joint
        self._keep_definitions(env, part.count("\n", 0, end))

    def _color(self, code: str, language: str) -> str:
        found = colored(code, language) if self._has_colors else ""
        self._has_colors = found is not None and self._has_colors
        return found or ""

    def _begin_at(self, group: Sequence[Token], lines: Sequence[int], env: MutableMapping[str, Any]) -> None:
        """Let the next part begin at this block, and keep the definitions before it."""
        begins = _first_line(group)
        self._at += lines[begins - 1] - len(self._prefix)
        self._prefix, self._joint = "", None
        self._keep_definitions(env, begins)

    def _keep_definitions(self, env: MutableMapping[str, Any], line: int) -> None:
        """Keep the definitions before this line."""
        known = env["references"].maps[0]
        self._references.update({label: found for label, found in known.items() if found["map"][1] <= line})


def to_blocks(text: str, *, is_typed: bool = False) -> list[str]:
    """Return the blocks of a whole text."""
    blocks = Blocks(is_typed=is_typed)
    blocks.update(text, is_whole=True)
    return blocks.html


def _groups(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Yield the tokens of each top-level block."""
    first = depth = 0
    for number, token in enumerate(tokens):
        depth += token.nesting
        if depth == 0:
            yield tokens[first : number + 1]
            first = number + 1


def _first_line(group: Sequence[Token]) -> int:
    return group[0].map[0] if group[0].map else 0


def _finished(groups: Sequence[Sequence[Token]], complete: int) -> int:
    """Return how many blocks no later text can change: those before the last one that has surely begun.

    A block has surely begun if its first two lines are complete, as the second one makes a table.
    """
    for number in range(len(groups) - 1, 0, -1):
        if _first_line(groups[number]) + 1 < complete and not groups[number][0].meta.get("is_pending"):
            return number
    return 0


def _cut(
    part: str, group: Sequence[Token], lines: Sequence[int], complete: int, prefix: int
) -> tuple[int, _Joint] | None:
    """Return where to cut a part that is one long block so that the rest can go on in its element; None: nowhere.

    The first `prefix` characters are of the cut before.
    """
    path, best = list[Token](), None
    while True:
        first, begins = group[0], _begin_of(group, lines)
        if first.type == "paragraph_open":
            begins, ends = max(prefix, begins), lines[first.map[1] - 1] if first.map else 0
            end = between_words(part, begins, ends) if ends - begins > WINDOW // 4 else 0
            stub = _stub(part, lines, path, first)
            return (end, _Joint(stub, len(path) + 1)) if end and stub else best
        if first.type == "table_open" and not path:
            head = _first_line(group) + 1
            after = min(first.map[1] if first.map else 0, complete)
            rows = [end for end in lines[head + 1 : after] if end > prefix]
            if not rows or lines[head] >= WINDOW // 2:
                return None
            return rows[-1], _Joint(part[begins : lines[head]], 2, "table")
        children = [*_groups(group[1:-1])]
        if first.type not in _CONTAINERS or not children:
            return best
        path.append(first)
        group = children[-1]
        end = _begin_of(group, lines)
        if len(children) > 1 and end > prefix and (stub := _stub(part, lines, path, None)) is not None:
            best = end, _Joint(stub, len(path), first.tag if first.type.endswith("_list_open") else "")
            if end > len(part) // 2:
                return best


def _begin_of(group: Sequence[Token], lines: Sequence[int]) -> int:
    return lines[_first_line(group) - 1] if _first_line(group) else 0


def _stub(part: str, lines: Sequence[int], path: Sequence[Token], paragraph: Token | None) -> str | None:
    """Return the Markdown that opens these elements, and a paragraph in them. None: it is too unusual."""
    out, line = list[str](), -1
    around = [token for token in path if not token.type.endswith("_list_open")]
    numbers = [token.map[0] if token.map else 0 for token in around]
    for line in sorted({*numbers}):
        at = lines[line - 1] if line else 0
        begins = at
        for token, number in zip(around, numbers, strict=True):
            if number == line or (number < line and token.type == "blockquote_open"):
                is_quote = token.type == "blockquote_open"
                found = _QUOTES.match(part, at) if is_quote else _MARKS_ITEM.match(part, at)
                if found is None:
                    return None
                at = found.end()
        out.append(f"{part[begins:at]}# {_STUB}\n")
    if paragraph is not None:
        own = paragraph.map[0] if paragraph.map else 0
        if own == line:
            out[-1] = out[-1].removesuffix(f"# {_STUB}\n") + _STUB
        else:
            found = _INDENT.match(part, lines[own - 1] if own else 0)
            out.append((found[0] if found else "") + _STUB)
    return "".join(out)


def between_words(text: str, first: int, after: int) -> int:
    """Return the last place between two words of this part at which no emphasis, code, formula or link is open.

    If there is none in its second half, return the last place between two words, or 0.
    """
    signs, depth, last, best = dict[str, int](), 0, 0, 0
    for found in _WORD_ENDS.finditer(text, first, after):
        sign, at = found[0], found.start()
        if found.lastgroup == "space":
            if at > first:
                last = at
                best = at if depth <= 0 and not any(signs.values()) else best
        elif found.lastgroup == "turns":
            signs[sign] = not signs.get(sign)
        elif found.lastgroup == "run":
            if signs.get(sign[0]) and not text[at - 1 : at].isspace():
                signs[sign[0]] = max(signs[sign[0]] - len(sign), 0)
            elif not text[found.end() : found.end() + 1].isspace():
                signs[sign[0]] = signs.get(sign[0], 0) + len(sign)
        elif found.lastgroup:
            depth = max(depth + (1 if found.lastgroup in ("opens", "begins") else -1), 0)
    return best if best > (first + after) // 2 else last


def _hard_cut(part: str, group: Sequence[Token], lines: Sequence[int], prefix: int) -> tuple[int, _Joint]:
    """Return where to cut a part whose rest is another block, because nothing else can be done."""
    ends = [end for end in lines if end > prefix]
    whole_line = ends[-1] if ends else max(part.rfind(" ", prefix + 1), 0) + 1
    if whole_line <= prefix + 1:
        whole_line = len(part)
    is_code = bool(group) and group[0].type == "fence"
    return whole_line, _Joint(f"{group[0].markup}{group[0].info}\n" if is_code else "")


class _Renderer(RendererHTML):
    """Renders links that leave no trace, and remote pictures as links, because the page makes no requests."""

    def link_open(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        tokens[idx].attrSet("rel", "noopener noreferrer")
        return self.renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        url = str(tokens[idx].attrGet("src") or "")
        name = escape(self.renderInlineAsText(tokens[idx].children or [], options, env) or url)
        if url.startswith("data:"):
            return f'<img src="{escape(url)}" alt="{name}">'
        return link(name, url)

    def softbreak(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return "<br>"  # without a line break of the source, which a question would show

    hardbreak = softbreak

    def fence(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        token = tokens[idx]
        language = token.info.split(maxsplit=1)[0] if token.info.strip() else ""
        first, after = token.map or (0, 0)
        lines = token.content.count("\n") + (not token.content.endswith("\n"))
        is_closed = after - first == lines + 2 or env.get("is_whole")
        code = (env["color"](token.content, language) if is_closed else "") or escape(token.content)
        named = f' class="language-{escape(language)}"' if language else ""
        if title := _TITLE.search(token.info):
            named += f' data-title="{escape(title[1])}"'
        return f"<pre><code{named}>{code}</code></pre>\n"

    def source(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        number, url, passage = escape(tokens[idx].content), str(tokens[idx].meta["url"]), tokens[idx].meta["passage"]
        url = url if _is_link(url) else ""
        if passage is None:
            return f'<sup class="mark">{link(f"[{number}]", url)}</sup>'
        shown = f'class="mark" data-source="{number}" data-passage="{passage}"'
        if url:
            return f'<a {shown} href="{escape(url)}" rel="noopener noreferrer">{number}</a>'
        return f'<button type="button" {shown}>{number}</button>'

    def formula(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return to_mathml(tokens[idx].meta["formula"])

    def formula_block(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        formula: Formula = tokens[idx].meta["formula"]
        if tokens[idx].meta["is_pending"]:
            return f'<code class="formula block">{escape(formula.text)}</code>\n'
        return f"{to_mathml(formula)}\n"

    def task(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f'<input type="checkbox" disabled{" checked" if tokens[idx].meta["is_done"] else ""}> '

    def footnote(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f'<sup class="footnote">{tokens[idx].content}</sup>'

    def summary(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return f"<summary>{escape(tokens[idx].content)}</summary>"


def link(inside: str, url: str) -> str:
    """Return a link with this HTML inside, or only that without an address."""
    return f'<a href="{escape(url)}" rel="noopener noreferrer">{inside}</a>' if url else inside


def _is_link(url: str) -> bool:
    """Return True for a link that stays one: to the web, to a mail address, or a picture that is in the text."""
    try:
        scheme = urlsplit(url.strip()).scheme.lower()
    except ValueError:
        return False
    return scheme in LINKS or url.startswith(tuple(f"data:{kind};base64," for kind in PICTURES))


# Inline rules


def _find_label_end(state: StateInline, start: int, disableNested: bool = False) -> int:
    """Return the place of the bracket that ends the name of a link, or -1.

    It remembers the end of each bracket, because otherwise each of many open ones is read to the end of the text.
    With `disableNested`, a name has no end if there is a link in it.
    """
    most, ends = state.posMax, state.cache
    key = _key(state, start, disableNested)
    if key in ends:
        return ends[key]
    ends[key], begins, depth = -1, state.pos, 1
    state.pos = start + 1 if state.src.find("]", start, most) > 0 else most
    while state.pos < most:
        at, sign = state.pos, state.src[state.pos]
        if sign == "]" and not (depth := depth - 1):
            ends[key] = at
            break
        state.md.inline.skipToken(state)
        if sign != "[":
            continue
        if state.pos > at + 1:
            if disableNested:
                break
        elif (end := ends.get(_key(state, at, disableNested))) is None:
            depth += 1
        elif end < 0:
            break
        else:
            state.pos = end + 1
    state.pos = begins
    return ends[key]


def _key(state: StateInline, start: int, is_flat: bool) -> int:
    """Return the key of a bracket in the cache of this text, beside those of its places and of `_read_formula`."""
    return -100 - 2 * (start * (len(state.src) + 1) + state.posMax) - is_flat


_LINK_PARSERS = SimpleNamespace(**{**vars(helpers), "parseLinkLabel": _find_label_end})


def _read_source(state: StateInline, silent: bool) -> bool:
    found = _MARK.match(state.src, state.pos)
    if found is None:
        return False
    if not silent:
        token = state.push("source", "sup", 0)
        token.content, token.meta = found[1], {"url": found[3], "passage": found[2]}
    state.pos = found.end()
    return True


_SIGNS = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False))


def _read_formula(state: StateInline, silent: bool) -> bool:
    at = state.pos
    for number, (opens, closes, is_display) in enumerate(_SIGNS, 1):
        if not state.src.startswith(opens, at):
            continue
        if at >= state.cache.get(-number, at + 1):  # the rest of the text has no end of such a formula
            return False
        end = state.src.find(closes, at + 2)
        if end < 0:
            state.cache[-number] = at
        if not at < end <= state.posMax - 2:
            return False
        return _push_formula(state, end + 2, state.src[at + 2 : end], silent=silent, is_display=is_display)
    if state.env["is_typed"]:  # they are prices
        return False
    if (found := INLINE.match(state.src, at, state.posMax)) and is_formula(found[1]):
        before = state.src[at - 1 : at]
        if not (before.isascii() and before.isalnum()):
            return _push_formula(state, found.end(), found[1], silent=silent, is_display=False)
    return False


def _push_formula(state: StateInline, end: int, latex: str, *, silent: bool, is_display: bool) -> bool:
    if not latex.strip():
        return False
    if not silent:
        written = without_marks(state.src[state.pos : end])
        formula = Formula(written, without_marks(latex).strip(), is_display)
        state.push("formula", "math", 0).meta = {"formula": formula}
    state.pos = end
    return True


def without_marks(text: str) -> str:
    """Return the text without the numbers of sources."""
    return _MARK.sub("", text)


def _read_tag(state: StateInline, silent: bool) -> bool:
    """Read `<br>`, and the other tags up to their end."""
    found = _TAG.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if found["br"]:
        if not silent:
            state.push("hardbreak", "br", 0)
        state.pos = found.end()
        return True
    tag = found["tag"].lower()
    number = -10 - ("sub", "sup", "kbd").index(tag)
    has_end = state.pos < state.cache.get(number, state.pos + 1)
    ends = _ENDS[tag].search(state.src, found.end()) if has_end else None
    if has_end and ends is None:
        state.cache[number] = state.pos
    if ends is None or ends.end() > state.posMax:
        return False
    if not silent:
        most = state.posMax
        state.push(f"{tag}_open", tag, 1)
        state.pos, state.posMax = found.end(), ends.start()
        state.md.inline.tokenize(state)
        state.posMax = most
        state.push(f"{tag}_close", tag, -1)
    state.pos = ends.end()
    return True


def _read_open_link(state: StateInline, silent: bool) -> bool:
    """Read a link or a picture at the end of a text that grows: only its name is shown until its end has come."""
    begins = state.pos + (state.src[state.pos] == "!")
    if state.tokens is not state.env.get("open") or not state.src.startswith("[", begins):
        return False
    ends = state.md.helpers.parseLinkLabel(state, begins, False)
    most = state.posMax
    if ends < 0 or most < len(state.src) or not (found := _ADDRESS.fullmatch(state.src, ends + 1)):
        return False
    url = found["url"].lower()
    if url.count(")") > url.count("(") or not any(one.startswith(url) or url.startswith(one) for one in _SCHEMES):
        return False
    texts = (token.content for token in state.tokens if token.type == "text")
    if "`" in state.pending or any("`" in text for text in texts):  # it can be in code that has no end yet
        return False
    if not silent:
        state.pos, state.posMax = begins + 1, ends
        state.md.inline.tokenize(state)
        state.posMax = most
    state.pos = most
    return True


def _read_footnote(state: StateInline, silent: bool) -> bool:
    found = _FOOTNOTE.match(state.src, state.pos, state.posMax)
    if found is None or found["defines"]:
        return False
    if not (found[1].isdigit() or found[0] in state.env["references"]):  # it can be a pattern, such as [^a]
        return False
    if not silent:
        state.push("footnote", "sup", 0).content = found[1]
    state.pos = found.end()
    return True


def _read_emphasis(state: StateInline, silent: bool) -> bool:
    """Read a run of `*`, `_` or `~`.

    Beside Chinese, Japanese and Korean it can begin and end emphasis, because no spaces are written there.
    """
    marker = state.src[state.pos]
    if silent or marker not in "*_~":
        return False
    end = state.pos
    while end < state.posMax and state.src[end] == marker:
        end += 1
    length = end - state.pos
    if marker == "~" and length < 2:
        return False
    opens, closes = _flanks(state.src[state.pos - 1 : state.pos], state.src[end : min(end + 1, state.posMax)], marker)
    size = 2 if marker == "~" else 1
    if length % size:
        state.push("text", "", 0).content = marker
    for _ in range(length // size):
        state.push("text", "", 0).content = marker * size
        state.delimiters.append(
            Delimiter(
                marker=ord(marker),
                length=0 if marker == "~" else length,
                token=len(state.tokens) - 1,
                end=-1,
                open=opens,
                close=closes,
            )
        )
    state.pos = end
    return True


def _flanks(before: str, after: str, marker: str) -> tuple[bool, bool]:
    """Return whether a run between these characters can begin emphasis, and whether it can end it."""
    is_space = [not one or isWhiteSpace(ord(one)) for one in (before, after)]
    is_cjk = [bool(_CJK.match(one)) for one in (before, after)]
    is_sign = [bool(one) and (isMdAsciiPunct(ord(one)) or isPunctChar(one)) for one in (before, after)]
    splits = [sign and not cjk for sign, cjk in zip(is_sign, is_cjk, strict=True)]
    left = not is_space[1] and (not splits[1] or is_space[0] or splits[0] or is_cjk[0])
    right = not is_space[0] and (not splits[0] or is_space[1] or splits[1] or is_cjk[1])
    if marker == "_":
        return left and (not right or is_sign[0]), right and (not left or is_sign[1])
    return left, right


# Block rules


def _read_table(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """Read a table, unless it would have too many cells. The bars in its formulas end no cell."""
    if first + 1 >= after or not _DASHES.fullmatch(_line_of(state, first + 1)) or "|" not in _line_of(state, first):
        return False
    written, count, line = state.src, len(state.tokens), first + 1
    state.src = _without_bars(written, state.bMarks[first], state.eMarks[line])
    found = read_table(state, first, after, True)
    if found and not silent:
        while line < after and not state.isEmpty(line):
            line += 1
        state.src = _without_bars(written, state.bMarks[first], state.eMarks[line - 1])
        bars = state.src.count("|", state.bMarks[first], state.eMarks[first])
        found = (line - first) * bars <= MAX_CELLS and read_table(state, first, after, False)
    state.src = written
    for token in state.tokens[count:]:
        token.content = token.content.replace(_BAR, "|")
    return found


def _without_bars(text: str, first: int, after: int) -> str:
    """Return the text with other signs for the bars in the formulas of this part."""
    return text[:first] + _FORMULA.sub(_hide_bars, text[first:after]) + text[after:]


def _hide_bars(formula: re.Match[str]) -> str:
    return formula[0].replace("|", _BAR) if formula[1] is None or is_formula(formula[1]) else formula[0]


def _line_of(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]]


def _read_display(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """Read a formula on lines of its own, in which there is no blank line.

    Until its end has come, it is shown as it was written.
    """
    text = _line_of(state, first)
    opens = text[:2]
    environment = _ENVIRONMENT.match(text)
    closes = f"\\end{{{environment[1]}}}" if environment else {"$$": "$$", "\\[": "\\]"}.get(opens, "")
    if not closes or state.is_code_block(first) or not _can_end(state, first, after, closes):
        return False
    line, end = first, text.find(closes, 2)
    while end < 0 and len(text) <= MAX_CHARACTERS:
        line += 1
        if line >= after or state.isEmpty(line) or state.sCount[line] < state.blkIndent:
            break
        begins = len(text) + 1
        text += f"\n{_line_of(state, line)}"
        end = text.find(closes, begins)
    is_pending = end < 0 and line >= after and not state.env.get("is_whole")
    end = len(text) if end < 0 else end + len(closes)
    if (
        text[end:].strip()
        or (line >= after and not is_pending)
        or (end == len(text) and not text.endswith(closes) and not is_pending)
    ):
        return False
    latex = text if environment else text[2 : -2 if not is_pending else None]
    if not latex.strip():
        return False
    if silent:
        return True
    state.line = min(line + 1, after)
    token = state.push("formula_block", "math", 0)
    token.map = [first, state.line]
    token.meta = {"formula": Formula(without_marks(text), without_marks(latex).strip(), True), "is_pending": is_pending}
    return True


def _can_end(state: StateBlock, first: int, after: int, closes: str) -> bool:
    """Return False if the formula surely has no end. This is quick, because it is asked for each line."""
    begins, ends = state.bMarks[first] + state.tShift[first] + 2, state.eMarks[after - 1]
    end = state.src.find(closes, begins, min(begins + MAX_CHARACTERS, ends))
    if end < 0:
        return (
            not state.env.get("is_whole") and ends - begins <= MAX_CHARACTERS and not _BLANK.search(state.src, begins)
        )
    line_end = state.src.find("\n", end)
    rest = state.src[end + len(closes) : line_end if line_end >= 0 else None]
    return not rest.strip() and not _BLANK.search(state.src, begins, end)


def _read_details(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """Read a `<details>` element."""
    found = None if state.is_code_block(first) else _DETAILS.match(_line_of(state, first))
    if found is None:
        return False
    if silent:
        return True
    depth, line = 1, first + 1
    while line < after and state.sCount[line] >= state.blkIndent:
        text = _line_of(state, line)
        depth += bool(_OPENS.match(text)) - bool(_CLOSES.search(text))
        if not depth:
            break
        line += 1
    inside = first + 1
    while found["summary"] is None and inside < line and state.isEmpty(inside):
        inside += 1
    summary = found["summary"]
    if summary is None and inside < line and (own := _SUMMARY.match(_line_of(state, inside))):
        summary, inside = own["summary"], inside + 1
    opening = state.push("details_open", "details", 1)
    if summary:
        state.push("summary", "summary", 0).content = summary
    kind, most = state.parentType, state.lineMax
    state.parentType, state.lineMax = "details", line
    state.md.block.tokenize(state, inside, line)
    state.parentType, state.lineMax = kind, most
    state.push("details_close", "details", -1)
    state.line = line + 1 if line < after and not depth else line
    opening.map = [first, state.line]
    return True


def _read_footnote_text(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """Read the text of a footnote, which is shown where it stands."""
    found = None if state.is_code_block(first) else _FOOTNOTE.match(_line_of(state, first))
    if found is None or not found["defines"]:
        return False
    if silent:
        return True
    line = first + 1
    while line < after and not state.isEmpty(line) and not _FOOTNOTE.match(_line_of(state, line)):
        line += 1
    state.line = line
    opening = state.push("footnote_open", "p", 1)
    opening.attrs, opening.map = {"class": "footnote"}, [first, line]
    state.push("footnote", "sup", 0).content = found[1]
    token = state.push("inline", "", 0)
    token.content = state.getLines(first, line, state.blkIndent, False).strip()[found.end() :]
    state.env["references"].setdefault(f"[^{found[1]}]", {"map": [first, line], "href": "", "title": ""})
    token.map, token.children = [first, line], []
    state.push("footnote_close", "p", -1)
    return True


# Rules for texts that visitors typed


def _read_typed(state: StateBlock, first: int, after: int, silent: bool) -> bool:
    """Read all lines before code or a formula on lines of its own, with their spaces and blank lines."""
    ends = state.md.block.ruler.getRules("paragraph")
    line = first + 1
    while line < after and not any(rule(state, line, after, True) for rule in ends):
        line += 1
    state.line = line
    token = state.push("paragraph_open", "p", 1)
    token.map = [first, line]
    token = state.push("inline", "", 0)
    token.content = state.src[state.bMarks[first] : state.eMarks[line - 1]].rstrip("\n")
    token.map, token.children = [first, line], []
    state.push("paragraph_close", "p", -1)
    return True


def _read_line_end(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] != "\n":
        return False
    if not silent:
        state.push("softbreak", "br", 0)
    state.pos += 1
    return True


# Rules for what has been read


def _find_open(state: StateCore) -> None:
    """Remember the text that grows: the last one, if nothing is written after it."""
    shown = (
        token for token in reversed(state.tokens) if token.nesting >= 0 and (token.content or token.type != "inline")
    )
    last = next(shown, None)
    if state.env.get("grows") and last and last.type == "inline":
        line = last.content.rsplit("\n", 1)[-1]
        state.env["open"] = last.children if state.src.rstrip(" ").endswith(line) else None


def _read_urls(state: StateCore) -> None:
    """Turn the bare addresses in texts into links."""
    for block in state.tokens:
        if block.type == "inline" and block.children and "://" in block.content:
            depth, out = 0, list[Token]()
            for token in block.children:
                depth += (token.type == "link_open") - (token.type == "link_close")
                out += _with_links(token) if token.type == "text" and not depth else [token]
            block.children = out


def _with_links(token: Token) -> Iterator[Token]:
    at, text = 0, token.content
    for found in _URL.finditer(text):
        url = found[0].rstrip("?!.,:;'*_~&")
        while url.endswith((")", "]")) and url.count(url[-1]) > url.count("(["[")]".index(url[-1])]):
            url = url[:-1].rstrip("?!.,:;'*_~&")
        if not _is_link(url) or url.endswith("//"):
            continue
        if found.start() > at:
            yield Token("text", "", 0, content=text[at : found.start()])
        yield Token("link_open", "a", 1, attrs={"href": _MARKDOWN.normalizeLink(url)})
        yield Token("text", "", 0, content=url)
        yield Token("link_close", "a", -1)
        at = found.start() + len(url)
    if at < len(text):
        yield Token("text", "", 0, content=text[at:])


def _read_tasks(state: StateCore) -> None:
    """Turn `[ ]` and `[x]` at the beginning of an item into boxes."""
    for number, block in enumerate(state.tokens[2:], 2):
        if block.type != "inline" or not block.children or state.tokens[number - 2].type != "list_item_open":
            continue
        first = block.children[0]
        if first.type == "text" and (found := _TASK.match(first.content)):
            first.content = first.content[found.end() :]
            block.children.insert(0, Token("task", "input", 0, meta={"is_done": found[1] != " "}))


def _read_stubs(state: StateCore) -> None:
    """Draw no heading for what stands for the part that is kept."""
    for number, token in enumerate(state.tokens):
        if token.type == "heading_open" and state.tokens[number + 1].content == _STUB:
            token.hidden = state.tokens[number + 2].hidden = True


def _align_cells(state: StateCore) -> None:
    """Turn the alignment of a cell into a class, because the policy of the page forbids styles."""
    for token in state.tokens:
        if style := token.attrs.pop("style", None):
            token.attrSet("class", f"at-{str(style).removeprefix('text-align:')}")


def _markdown() -> MarkdownIt:
    found = MarkdownIt("commonmark", {"html": False, "breaks": True}, renderer_cls=_Renderer)
    found.enable(["table", "strikethrough"])
    found.disable("html_inline")
    found.block.ruler.at("table", _read_table, {"alt": ["paragraph", "reference"]})
    found.block.ruler.before("fence", "formula", _read_display, _INTERRUPTS)
    found.block.ruler.before("fence", "details", _read_details, _INTERRUPTS)
    found.block.ruler.before("reference", "footnote", _read_footnote_text, _INTERRUPTS)
    found.inline.ruler.before("text", "source", _read_source)
    found.inline.ruler.before("text", "formula", _read_formula)
    found.inline.ruler.at("emphasis", _read_emphasis)
    found.inline.ruler.at("strikethrough", lambda state, silent: False)  # it is read with the emphasis
    found.inline.ruler.before("link", "footnote", _read_footnote)
    found.inline.ruler.before("autolink", "tag", _read_tag)
    found.inline.ruler.after("image", "open_link", _read_open_link)
    found.core.ruler.before("inline", "open", _find_open)
    for rule in (_read_urls, _read_tasks, _align_cells, _read_stubs):
        found.core.ruler.push(rule.__name__, rule)
    found.validateLink = _is_link  # pyright: ignore[reportAttributeAccessIssue]
    found.helpers = _LINK_PARSERS  # pyright: ignore[reportAttributeAccessIssue]
    return found


def _typed() -> MarkdownIt:
    found = MarkdownIt("zero", {"html": False}, renderer_cls=_Renderer)
    found.enable(["fence", "backticks"])
    found.block.ruler.before("fence", "formula", _read_display, _INTERRUPTS)
    found.block.ruler.at("paragraph", _read_typed)
    found.inline.ruler.before("backticks", "line_end", _read_line_end)
    found.inline.ruler.before("backticks", "formula", _read_formula)
    found.inline.ruler2.enableOnly([])
    found.core.ruler.push("urls", _read_urls)
    found.validateLink = _is_link  # pyright: ignore[reportAttributeAccessIssue]
    return found


_MARKDOWN, _TYPED = _markdown(), _typed()
