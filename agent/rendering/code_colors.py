"""Colours the code of a document: marks keywords, texts, numbers, comments and names with classes of `document.css`.

The patterns of Pygments can take for ever with a few characters, and let no thread run meanwhile. So another process
reads the code, which the system ends when it has taken too much time. Run as a program, this is that process.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import groupby
from threading import Lock, Timer
from time import monotonic

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
LONGEST_READING_SECONDS = 0.5
"""Longer code has one colour, and so has code whose reading takes more processor time, as unfinished code can."""
LONGEST_WAIT_SECONDS = 5.0
"""The longest wait for the other process, which has one code at a time, and for its answer."""
_ENV = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""The environment variables of the other process."""
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


def colored(code: str, language: str) -> str | None:
    """Return the code as HTML with colours, "" for code that has none, and None if that took too long.

    It waits for another process.
    """
    name = language.lower()
    if name not in LANGUAGES or len(code) > MAX_CHARACTERS or not hasattr(signal, "setitimer"):  # Windows has no timer
        return ""
    return _reader(os.getpid()).read(name, code)


class _TextReader:
    """The process that reads code. It is started when it is needed, and again after it was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def read(self, language: str, code: str) -> str | None:
        """Return the coloured code, None if that took too long."""
        ends = monotonic() + LONGEST_WAIT_SECONDS
        if not self._lock.acquire(timeout=LONGEST_WAIT_SECONDS):
            return None
        try:
            return self._ask(json.dumps([language, code]), ends)
        except (OSError, ValueError):  # it was ended
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process, which ends with its stdin."""
        if (process := self._process) is not None:
            self._process = None
            process.communicate()

    def _ask(self, question: str, ends: float) -> str:
        """Return the answer. Only a process that has given its whole answer is kept: no answer is for another code."""
        process, self._process = self._process or _start(), None
        timer = Timer(max(ends - monotonic(), 0.0), process.kill)
        try:
            timer.start()
            print(question, file=process.stdin, flush=True)
            assert process.stdout
            answer = str(json.loads(process.stdout.readline()))
            self._process = process
            return answer
        finally:
            timer.cancel()
            if self._process is None:
                process.kill()
                process.communicate()


@cache
def _reader(_process: int) -> _TextReader:
    """Return the reader of this process. A forked process has one of its own."""
    reader = _TextReader()
    atexit.register(reader.close)
    return reader


def _start() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-I", "-B", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={name: os.environ[name] for name in _ENV if name in os.environ},
    )


def main() -> None:
    """Colour the code in each line of stdin, until it ends. The timer ends the process."""
    for line in sys.stdin:
        language, code = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_READING_SECONDS)
        found = _html(code, language)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        print(json.dumps(found), flush=True)


def _html(code: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return ""
    pieces = [*_pieces(lexer, code)]
    if "".join(text for _, text in pieces) != code:
        return ""
    return "".join(
        f'<span class="{kind}">{text}</span>' if kind else text
        for kind, group in groupby(pieces, key=lambda one: one[0])
        if (text := escape("".join(text for _, text in group)))
    )


def _pieces(lexer: Lexer, code: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of the code with their classes."""
    for kind, text in lexer.get_tokens(code):
        while kind is not None and kind not in CLASSES:
            kind = kind.parent
        yield CLASSES[kind] if kind else "", text


if __name__ == "__main__":
    main()
