"""Measures the style of the source: `python -m bench.style [FOLDER ...]`, of this project unless folders are given.

It counts the lines of files and functions, complex functions (McCabe, by ruff), classes with many public methods,
docstrings that begin with a question word, and the length of test names. Of the imports it counts their lines, the
modules with exactly one importer, the floors of the top-level rooms, and the imports from a lower floor to a higher.
"""

import ast
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

MAX_COMPLEXITY, MAX_METHODS, SHORT = 15, 10, 60
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
    import_lines: int = 0

    def read(self, path: Path) -> None:
        """Count one file of source."""
        text = path.read_text(encoding="utf-8")
        self.files.append(len(text.splitlines()))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.import_lines += (node.end_lineno or node.lineno) - node.lineno + 1
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
        total, short = sum(self.files), sum(number < SHORT for number in self.files)
        yield f"files: {len(self.files)} with {total} lines, median {middle(self.files)}, longest {max(self.files)}"
        yield f"files of fewer than {SHORT} lines: {short}"
        yield f"import lines: {100 * self.import_lines / total:.1f} %"
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


def imports_within(folder: Path) -> set[tuple[str, str]]:
    """The imports of a package's modules from one another, at any place of the source."""
    paths = {".".join(path.with_suffix("").relative_to(folder.parent).parts): path for path in folder.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found: set[tuple[str, str]] = set()
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                targets = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                longer = [f"{node.module}.{one.name}" for one in node.names]
                targets = [one if one in paths else node.module for one in longer]
            else:
                continue
            found |= {(name, one) for one in targets if one in paths and one != name}
    return found


def floors_and_arrows(imports: Iterable[tuple[str, str]]) -> tuple[dict[str, int], int]:
    """The floor of each top-level room, and the imports back up that remain when circles of rooms are cut."""
    arrows = Counter((one.split(".")[1], other.split(".")[1]) for one, other in imports if "." in one and "." in other)
    arrows = Counter({(one, other): number for (one, other), number in arrows.items() if one != other})
    back = 0
    while circle := _circle(set(arrows)):
        weakest = min(circle, key=lambda pair: arrows[pair])
        back += arrows.pop(weakest)
    below: dict[str, set[str]] = {}
    for one, other in arrows:
        below.setdefault(one, set()).add(other)

    def floor(room: str) -> int:
        return 1 + max((floor(other) for other in below.get(room, ())), default=0)

    return {room: floor(room) for pair in arrows for room in pair}, back


def _circle(arrows: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows of a shortest circle, none if there is no circle."""
    below: dict[str, list[str]] = {}
    for one, other in sorted(arrows):
        below.setdefault(one, []).append(other)
    circles: list[list[tuple[str, str]]] = []
    for start in below:
        ways, seen = [[start]], {start}
        for way in ways:
            for other in below.get(way[-1], ()):
                if other == start:
                    circles.append(list(pairwise([*way, start])))
                elif other not in seen:
                    seen.add(other)
                    ways.append([*way, other])
    return min(circles, key=len, default=[])


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
    for folder in folders:
        imports = imports_within(folder)
        once = sum(number == 1 for number in Counter(target for _, target in imports).values())
        floors, back = floors_and_arrows(imports)
        highest = max(floors.values(), default=0)
        print(f"{folder}: {once} modules with one importer, {highest} floors, {back} imports back up")


if __name__ == "__main__":
    main(sys.argv[1:])
