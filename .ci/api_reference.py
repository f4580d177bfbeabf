"""Makes docs/api.md from the docstrings and signatures of the public names, without importing them.

`make docs` writes the page. With `--check` it changes nothing, and exits with 1 if the page is out of date.
"""

import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
MODULES = (
    "agent",
    "agent.errors",
    "agent.events",
    "agent.tools.rest",
    "agent.tools.mcp",
    "agent.fetch",
    "agent.suspension.ledger",
    "agent.suspension.postgres_ledger",
    "agent.suspension.redis_ledger",
    "agent.history",
)
"""The modules that programs import from, in the order of the page."""
LONGEST_LINE = 100
HEAD = """# API reference

The public names with their signatures and docstrings. `make docs` makes this page from the code: change it there.
[package.md](package.md) explains how they are used.
"""


def page() -> str:
    """Return the text of the page."""
    package = griffe.load("agent", search_paths=[str(ROOT)], submodules=True)
    anchors = Anchors()
    described: dict[str, str] = {}
    contents, sections = list[str](), list[str]()
    for name in MODULES:
        module = package if name == "agent" else package[name.removeprefix("agent.")]
        links, lines = list[str](), [f"## {name}", _docstring(module)]
        contents.append(f"- [{name}](#{anchors.add(name)})")
        for one in _public(module):
            member = module.members[one]
            found = _target(member)
            path = found.path if found else member.target_path
            if path not in described:
                described[path] = anchors.add(f"{name}.{one}")
                lines += _entry(f"{name}.{one}", one, found, path)
            links.append(f"[{one}](#{described[path]})")
        contents[-1] += f": {', '.join(links)}"
        sections.append("\n\n".join(line for line in lines if line))
    return _format("\n".join([HEAD, *contents, "", "\n\n".join(sections), ""]))


def _format(text: str) -> str:
    """Format the code on the page as `make format` does."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(PAGE), "-"]
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", check=True, cwd=ROOT).stdout


class Anchors:
    """The anchors that GitHub gives to headings. Names that differ only in case get numbers."""

    def __init__(self) -> None:
        self._counts = Counter[str]()

    def add(self, heading: str) -> str:
        """Return the anchor of the next heading of the page."""
        anchor = heading.replace(".", "").lower()
        self._counts[anchor] += 1
        return anchor if self._counts[anchor] == 1 else f"{anchor}-{self._counts[anchor] - 1}"


def _public(module: griffe.Object) -> list[str]:
    """Return the names in `__all__`, or else those that the module defines itself, in alphabetical order."""
    if module.exports is not None:
        return sorted((str(one) for one in module.exports), key=str.casefold)
    own = (name for name, one in module.members.items() if not (one.is_alias or one.is_module or name.startswith("_")))
    return sorted((one for one in own if module.members[one].docstring), key=str.casefold)


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object | None:
    """Return the object that a name stands for, or None if it comes from another package."""
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None


def _entry(anchor: str, name: str, found: griffe.Object | None, path: str) -> Iterator[str]:
    yield f"### {anchor}"
    if found is None:
        yield f"`{path}`"
    elif isinstance(found, griffe.Class):
        yield _code(_class_line(name, found))
        yield _docstring(found)
        yield _attributes(found)
        for method in _methods(found):
            yield _code(_signature(method))
            yield _docstring(method)
    elif isinstance(found, griffe.Function):
        yield from (_code(_signature(one)) for one in found.overloads or (found,))
        yield _docstring(found)
    elif isinstance(found, griffe.Attribute):
        yield _code(f"{name} = {found.value}" if found.value is not None else f"{name}: {found.annotation}")
        yield _docstring(found)


def _class_line(name: str, found: griffe.Class) -> str:
    bases = ", ".join(str(one) for one in found.bases)
    first = f"class {name}({bases})" if bases else f"class {name}"
    own = found.members.get("__init__")
    makes = isinstance(own, griffe.Function) and not _is_value(found) and not own.inherited
    return f"{first}\n{_call(name, own, '')}" if makes and isinstance(own, griffe.Function) else first


def _is_value(found: griffe.Class) -> bool:
    """Return True for a dataclass or a TypedDict. Its attributes are its arguments."""
    return "dataclass" in found.labels or any("TypedDict" in str(base) for base in found.bases)


def _attributes(found: griffe.Class) -> str:
    lines: list[str] = []
    for name, one in found.members.items():
        if name.startswith("_") or not isinstance(one, griffe.Attribute):
            continue
        value = f" = {_default(one.value)}" if one.value is not None and _is_value(found) else ""
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        text = " ".join(one.docstring.value.split()) if one.docstring else ""
        lines.append(f"- `{name}{annotation}{value}`" + (f": {text}" if text else ""))
    return "\n".join(lines)


def _default(value: str | griffe.Expr) -> str:
    """Return the default of an attribute as a reader needs it: `field(default=1, repr=False)` is 1."""
    text = str(value)
    if not text.startswith("field("):
        return text
    found = re.search(r"default=([^,)]+)", text)
    return found[1] if found else "..."


def _methods(found: griffe.Class) -> Iterator[griffe.Function]:
    for name, one in found.members.items():
        if isinstance(one, griffe.Function) and not name.startswith("_") and one.docstring:
            yield one


def _signature(function: griffe.Function) -> str:
    marks = [f"@{mark}\n" for mark in ("classmethod", "staticmethod") if mark in function.labels]
    owner = f"{function.parent.name}." if isinstance(function.parent, griffe.Class) else ""
    word = "async def" if "async" in function.labels else "def"
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return f"{''.join(marks)}{word} {_call(owner + function.name, function, returns)}"


def _call(name: str, function: griffe.Function, returns: str) -> str:
    """Return the call with its parameters, each on a line of its own if all do not fit into one."""
    parameters: list[str] = []
    kinds = griffe.ParameterKind
    before: set[griffe.ParameterKind | None] = set()
    for one in function.parameters:
        if not before and one.name in ("self", "cls"):
            continue
        if one.kind is kinds.keyword_only and not {kinds.keyword_only, kinds.var_positional} & before:
            parameters.append("*")
        before.add(one.kind)
        prefix = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "")
        annotation = f": {one.annotation}" if one.annotation is not None else ""
        equals = " = " if annotation else "="
        default = f"{equals}{one.default}" if one.default is not None and not prefix else ""
        parameters.append(f"{prefix}{one.name}{annotation}{default}")
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= LONGEST_LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in parameters), f"){returns}"])


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _docstring(found: griffe.Object) -> str:
    return inspect.cleandoc(found.docstring.value) if found.docstring else ""


def main() -> None:
    """Write the page to the file that the argument names, or to docs/api.md."""
    Path(sys.argv[1] if len(sys.argv) > 1 else PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
