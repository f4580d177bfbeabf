"""Measures the style of the source: `python -m bench.style [FOLDER ...]`, of this project unless folders are given.

It counts the lines of files and functions, complex functions (McCabe, by ruff), classes with many public methods,
docstrings that begin with a question word, and the length of test names.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAX_COMPLEXITY, MAX_METHODS = 15, 10
QUESTION = re.compile(r"(What|Who|Whom|Whose|How|Whether|Which|Where|Why)\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Style:
    """Counts of some files. Each list has one entry per file, function, class, docstring or test."""

    files: list[int] = field(default_factory=list[int])
    functions: list[int] = field(default_factory=list[int])
    methods: list[int] = field(default_factory=list[int])
    docstrings: list[str] = field(default_factory=list[str])
    test_names: list[int] = field(default_factory=list[int])

    def read(self, path: Path) -> None:
        """Count one file of source."""
        text = path.read_text(encoding="utf-8")
        self.files.append(len(text.splitlines()))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, Function):
                self.functions.append((node.end_lineno or node.lineno) - node.lineno + 1)
            if isinstance(node, ast.ClassDef):
                self.methods.append(sum(isinstance(one, Function) and one.name[0] != "_" for one in node.body))
            if isinstance(node, Function | ast.ClassDef | ast.Module) and (said := ast.get_docstring(node)):
                self.docstrings.append(said)

    def read_tests(self, path: Path) -> None:
        """Count the names of the tests in one file."""
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        self.test_names += [len(one.name) for one in nodes if isinstance(one, Function) and one.name[:5] == "test_"]

    def lines(self, complex_functions: int) -> Iterable[str]:
        """The table, line by line."""
        yield f"files: median {middle(self.files)}, longest {max(self.files)}"
        yield f"functions: median {middle(self.functions)}, p95 {p95(self.functions)}, longest {max(self.functions)}"
        yield f"functions with a McCabe complexity over {MAX_COMPLEXITY}: {complex_functions}"
        many = sum(number > MAX_METHODS for number in self.methods)
        yield f"classes with more than {MAX_METHODS} public methods: {many} of {len(self.methods)}"
        questions = sum(bool(QUESTION.match(said)) for said in self.docstrings)
        yield f"docstrings that begin with a question word: {questions} of {len(self.docstrings)}"
        if self.test_names:
            yield f"test names, in characters: median {middle(self.test_names)}, p95 {p95(self.test_names)}"


def middle(numbers: Sequence[int]) -> int:
    return round(statistics.median(numbers))


def p95(numbers: Sequence[int]) -> int:
    return sorted(numbers)[int(len(numbers) * 0.95)]


def complex_functions(folders: Sequence[Path]) -> int:
    """The number of functions that are too complex for ruff."""
    limit = f"lint.mccabe.max-complexity={MAX_COMPLEXITY}"
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--config", limit]
    found = subprocess.run([*command, "--output-format", "concise", *map(str, folders)], capture_output=True, text=True)
    return found.stdout.count("C901")


def main(given: Sequence[str]) -> None:
    folders = [Path(one) for one in given] or [Path("agent")]
    style = Style()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            style.read(path)
    if not given:
        for path in sorted(Path("tests").rglob("test_*.py")):
            style.read_tests(path)
    print(*style.lines(complex_functions(folders)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
