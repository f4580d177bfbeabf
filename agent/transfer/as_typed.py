"""Shows a visitor's text as it was typed, although the page and documents read it as Markdown.

Whoever types "2*3*4" or "# x" does not mean Markdown. So each sign that Markdown would read is written as a reference,
and the page's script can restore the text (`unescaped` in agent/web/ui/shared.js). Blocks and spans of code, formulas
and bare links are drawn. Pure and linear in the length of the text.
"""

import re
from collections.abc import Iterator

from agent.rendering.code_spans import code_spans
from agent.transfer.formulas import DELIMITERS, LEFT, as_reference, with_references

_LINE = re.compile(r"[^\r\n]++(?:\r\n?|\n)?|\r\n?|\n")
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`\r\n]*+(?:[\r\n]|\Z))|~{3,})")
_FENCE_IN_BLOCK = re.compile(r"[ \t>]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++[ \t>]*+)*+(`{3,}|~{3,})[ \t]*+([^\r\n]*)")
"""A line that could begin or end code in a list or a quotation, which are not drawn."""
_TOKEN = re.compile(
    r"(?P<ticks>`+)|(?P<opens>\\[(\[]|\$\$)|(?P<link>(?i:https?)://[^\s<]++)",
)
_LINE_END = re.compile(r"[\r\n]|\Z")
_PARAGRAPH_END = re.compile(r"(?:\r\n?|\n)[ \t]*+(?:\r\n?|\n)|\Z")
_CLOSES = {left: right for left, right, _ in DELIMITERS if left != LEFT}
_OUTER = {"$$": (), "\\[": ("$$",), "\\(": ("$$", "\\[")}
"""The signs of formulas that Gradio looks for before each one."""
_SIGNS = "\\`*_~[<@"
_SIGN = re.compile(
    r"&(?=[#\w])"
    r"|\$(?=[$\u2063])|(?<=[$\u2063])\$"
    r"|(?i:(?<=www)\.|(?:(?<=http)|(?<=https)|(?<=ftp)):(?=//))"  # what is no bare link
    r"|(?<![^\r\n])(?:[ \t\v\f#>+=:|-]|\d(?=\d{0,8}[.)]))"  # begins a line
    r"|(?:(?<=\n)|(?<=\r)(?!\n))[\r\n]"  # a further line break; a link ends at the first one
)
"""The signs besides `_SIGNS` that are read at some places."""
_SIGN_IN_LINK = re.compile(r"[\\`*~\[]|(?<![^\W_])_|&(?=[#\w])|\$(?=[$\u2063])|(?<=[$\u2063])\$")


def as_typed(text: str) -> str:
    """Return the Markdown that shows this text as it is, but for its code, formulas and links."""
    return "".join(chunk if is_code else _prose(chunk) for is_code, chunk in _chunks(text))


def _chunks(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the fenced blocks of code and what is between them. True stands for a block."""
    chunk, fence, undrawn = list[str](), "", ""
    for line in _LINE.findall(text):
        found = _FENCE_IN_BLOCK.match(line)
        top = None if fence or undrawn else _FENCE.match(line)
        ends = found is not None and not found[2] and found[1].startswith(fence or undrawn or " ")
        if top:
            yield False, "".join(chunk)
            chunk, fence = [line], top[1]
            continue
        chunk.append(line)
        if fence and ends and _FENCE.match(line):
            yield True, "".join(chunk)
            chunk, fence = [], ""
        elif undrawn and (ends or (line.strip() and not line.startswith((">", "  ", "\t")))):
            undrawn = ""
        elif found and not fence and not undrawn and not (found[1][0] == "`" and "`" in found[2]):
            undrawn = found[1]
    yield bool(fence), "".join(chunk)


def _prose(text: str) -> str:
    """Return text without blocks of code as one paragraph. Its first and last line breaks stay, which are not drawn."""
    first, after = len(text) - len(text.lstrip(" \t\r\n")), len(text.rstrip(" \t\r\n"))
    if first >= after:
        return text
    while first and text[first - 1] in " \t":  # of its first line
        first -= 1
    return text[:first] + "".join(_pieces(text[first:after])) + text[after:]


def _pieces(text: str) -> Iterator[str]:
    """Yield the pieces of a text: what is drawn, and what is between."""
    copied = at = 0
    line_end = paragraph_end = -1
    spans, unclosed = dict[int, int](), set[str]()
    while token := _TOKEN.search(text, at):
        start, at = token.span()
        if start >= paragraph_end:
            paragraph_end = _end(_PARAGRAPH_END, text, start)
            unclosed.clear()
        drawn = ""
        if token["ticks"]:
            if start >= line_end:
                line_end = _end(_LINE_END, text, start)
                spans = code_spans(text, start, line_end)
            at = spans.get(start, at)
            code = text[start:at]
            drawn = code if start in spans and not _opens_formula(code) else _literal(text, start, at)
        elif (opens := token["opens"]) and opens not in unclosed:
            end = text.find(_CLOSES[opens], at, paragraph_end)
            inside = text[at : max(end, at)]
            if inside.strip() and not any(outer in inside for outer in _OUTER[opens]):
                at = end + 2
                drawn = text[start:at]
            else:
                unclosed.add(opens)
        elif token["link"]:
            drawn = ("" if text.startswith("<", at) else _link(token["link"])) or _literal(text, start, at)
        if drawn:
            yield _literal(text, copied, start)
            yield drawn
            copied = at
    yield _literal(text, copied, len(text))


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.search(text, at)
    return found.start() if found else len(text)


def _literal(text: str, first: int, after: int) -> str:
    """Return this part of the text so that it shows each sign."""
    out, copied = list[str](), first
    for found in _SIGN.finditer(text, first, after):
        out += [text[copied : found.start()], as_reference(found[0])]
        copied = found.end()
    part = "".join([*out, text[copied:after]])
    for sign in _SIGNS:
        part = part.replace(sign, as_reference(sign))
    return part


def _link(url: str) -> str:
    """Return a bare link, or "" if the page, which ends one before the end of a sentence, would not find its end."""
    whole = url.rstrip("?!.,:;'\")*_~")
    if ">" in url or set("*_~") & set(url[len(whole) :]):
        return ""
    escaped = with_references(url, _SIGN_IN_LINK)
    if escaped != url and (set("()") & set(url) or _SIGN_IN_LINK.search(whole, len(whole) - 1)):
        return ""
    return escaped


def _opens_formula(code: str) -> bool:
    """Return True if Gradio would read from this code to the end of a later formula."""
    for opens in _CLOSES:
        before, found, rest = code.rpartition(opens)
        if found and (before.count(opens) % 2 == 0 if opens == "$$" else _CLOSES[opens] not in rest):
            return True
    return False
