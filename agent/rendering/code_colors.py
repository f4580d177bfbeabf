"""Colours the code of a document: marks keywords, texts, numbers, comments and names with classes of `document.css`."""

from html import escape
from itertools import groupby
from time import thread_time

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType] - its options are any
from pygments.token import Token
from pygments.util import ClassNotFound

_LANGUAGES = (
    "bash c c++ cpp cs csharp css dart diff docker dockerfile go graphql haskell html ini java javascript js json jsx "
    "kotlin lua makefile markdown matlab md nginx objective-c perl php postgresql powershell py python r rb rs ruby "
    "rust scala sh shell sql swift toml ts tsx typescript xml yaml yml zig zsh"
)
LANGUAGES = frozenset(_LANGUAGES.split())
"""The languages that are coloured, by the names that people and models give them."""
MAX_CHARACTERS = 20_000
LONGEST_READING_SECONDS = 1.0
"""Longer code has one colour, and so has code whose reading takes longer, as unfinished code can."""
CLASSES = {
    Token.Comment.Preproc: "k",
    Token.Comment.PreprocFile: "s",
    Token.Comment: "c",
    Token.Keyword.Constant: "n",
    Token.Keyword: "k",
    Token.Operator.Word: "k",
    Token.Literal.Number: "n",
    Token.Literal: "s",
    Token.Name.Tag: "k",
    Token.Name.Function: "f",
    Token.Name.Class: "f",
    Token.Name.Decorator: "f",
    Token.Name.Attribute: "f",
    Token.Name.Builtin: "f",
    Token.Generic.Deleted: "d",
    Token.Generic.Inserted: "s",
    Token.Generic.Heading: "k",
    Token.Generic.Subheading: "k",
}
"""The class by the kind of a token. A kind that is not here has the class of the kind that it is a part of."""


def colored(code: str, language: str, _attributes: str = "") -> str:
    """Return the code as HTML with colours, or "" for code that has none."""
    name = language.lower()
    if name not in LANGUAGES or len(code) > MAX_CHARACTERS:
        return ""
    try:
        lexer = get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return ""
    pieces = _pieces(lexer, code)
    if "".join(text for _, text in pieces) != code:
        return ""
    return "".join(
        f'<span class="{kind}">{text}</span>' if kind else text
        for kind, group in groupby(pieces, key=lambda one: one[0])
        if (text := escape("".join(text for _, text in group)))
    )


def _pieces(lexer: Lexer, code: str) -> list[tuple[str, str]]:
    """Return the pieces of the code with their classes; not all of them if it takes too long."""
    pieces, until = list[tuple[str, str]](), thread_time() + LONGEST_READING_SECONDS
    for kind, text in lexer.get_tokens(code):
        if thread_time() > until:
            break
        while kind is not None and kind not in CLASSES:
            kind = kind.parent
        pieces.append((CLASSES[kind] if kind else "", text))
    return pieces
