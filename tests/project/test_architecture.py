"""Rules for the source that no linter knows. The layers of imports are contracts in pyproject.toml.

The rules read the source with `ast`. The last test starts a new interpreter to see what `import agent` really loads.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import pytest

from agent.settings import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.full]  # `make check` runs it

HOMES = {
    "gradio": ("app", "agent.web.app", "agent.web.ui", "agent.web.gradio_compat"),
    "gradio_client": ("app", "agent.web.app", "agent.web.ui", "agent.web.gradio_compat"),
    "redis": ("agent.history.redis_server",),
    "psycopg": ("agent.history.sql.postgres", "agent.suspension.postgres_ledger"),
    "psycopg_pool": ("agent.history.sql.postgres",),
    "fsspec": (),
    "babel": (),
    "mcp": ("agent.tools.mcp", "agent.tools.mcp_sdk"),
    "openai": (
        "agent.providers.openai_client",
        "agent.providers.event_reading",
        "agent.providers.chat_completions",
        "agent.providers.openai_responses",
    ),
    "pydantic_ai.models.openai": ("agent.providers.chat_completions", "agent.providers.openai_responses"),
    "pydantic_ai.embeddings.openai": ("agent.providers.embeddings",),
    "anthropic": ("agent.providers.anthropic_messages",),
    "pydantic_ai.models.anthropic": ("agent.providers.anthropic_messages",),
    "google": ("agent.providers.google_generate_content",),
    "pydantic_ai.models.google": ("agent.providers.google_generate_content",),
    "xllamacpp": (),
    "vllm": (),
    "torch": (),
    "av": (),
    "soundfile": (),
    "pillow_heif": (),
    "numpy": (),
    "pypdfium2": (),
    "lxml": (),
    "onnxruntime": (),
    "faster_whisper": (),
    "ctranslate2": (),
}
"""Packages that are large or can be missing, and the modules that import them at import time."""

STORES = ("memory", "json_files", "sql.sqlite", "redis", "sql.postgres")
DIALECTS = ("chat_completions", "openai_responses", "anthropic_messages", "google_generate_content")
LAZY = {
    *(("agent.providers.connection", f"agent.providers.{name}") for name in DIALECTS),
    ("agent.providers.connection", "agent.providers.embeddings"),
    *(("agent.cli.main", name) for name in ("agent", "agent.doctor", "agent.deploy")),
    ("agent.agent", "agent.local.connection"),
    ("agent.runtime.arguments", "agent.tools.presets"),
    ("agent.tools.presets", "agent.tools.mcp"),
    *(("agent.history.open_store", f"agent.history.{name}") for name in STORES),
    *((f"agent.{name}", "agent.rendering.notebook") for name in ("context", "display", "result")),
    ("agent.files.sandbox_limits", "agent.system.resources"),
    *(("agent.suspension.ledger", f"agent.suspension.{name}_ledger") for name in ("postgres", "redis")),
}
"""Modules that are imported late, inside a function or by name, so that only what is used is loaded.

The launcher of sandboxed processes must name the project's packages before it imports from them.
"""

GRADIO_COMPAT = "agent.web.gradio_compat"
"""The one package that uses names that Gradio does not export."""
GRADIO_THEMES = "gradio.themes"
"""The only documented module of Gradio with names that Gradio does not export."""

DEFAULT_POOL = {
    "agent.chat": "closes its own loop",
    "agent.cli.chat": "the terminal has one person",
    "agent.doctor.storage": "the doctor has one person",
    "agent.fetch": "loads certificates, once",
    "agent.history.sql.sqlite": "makes the file, once",
    "agent.local.process": "loads certificates, once",
    "agent.local.manager": "looks for a model of the owner",
    "agent.providers.connection": "imports a vendor's SDK",
    "agent.providers.discovery": "loads certificates, once",
    "agent.suspension.ledger": "stores an id of fixed length",
    "agent.tools.mcp": "loads certificates, once",
    "agent.web.housekeeping": "collects garbage when nobody is there",
    "agent.web.middleware.page_delivery": "compresses our own files, once",
    "agent.web.server": "looks for changes of the program itself, and opens the tunnel, once",
    "agent.web.ui.handlers": "imports a vendor's SDK",
}
"""Modules that use the threads that asyncio shares, and why that takes nobody's time: no bytes of visitors go there.

All others use `agent.system.threads`.
"""

MAX_FUNCTION_LINES = 60
"""Lines per function, its signature and docstring included."""

NOT_IMPORTED = (
    *("gradio", "anthropic", "google.genai", "openai", "mcp", "redis", "psycopg", "psycopg_pool", "fsspec"),
    *("xllamacpp", "av", "soundfile", "pillow_heif", "numpy", "onnxruntime", "faster_whisper", "ctranslate2"),
    *("pypdfium2", "lxml"),
)
"""Packages that `import agent` does not load."""


@dataclass(frozen=True)
class Module:
    """One file: the modules it imports at import time, and those it imports or names later."""

    source: str
    now: frozenset[str]
    later: frozenset[str]


Tree = Mapping[str, Module]
Rule = Callable[[Tree], list[str]]


def read(sources: Mapping[str, str], packages: frozenset[str]) -> Tree:
    """Read modules from their sources, by name. `packages` are the names of packages."""
    own = frozenset(sources)
    return {name: _module(name, source, own, name in packages) for name, source in sources.items()}


def _module(name: str, source: str, own: frozenset[str], is_package: bool) -> Module:
    now: set[str] = set()
    later: set[str] = set()
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            (later if inside else now).update(_targets(node, name, own, is_package))
        elif isinstance(node, ast.Constant) and node.value in own - {"app", "agent"}:
            later.add(node.value)
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending += [(child, inside) for child in ast.iter_child_nodes(node)]
    return Module(source, frozenset(now - {name}), frozenset(later - {name}))


def _targets(node: ast.Import | ast.ImportFrom, name: str, own: frozenset[str], is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = name.split(".") if is_package else name.split(".")[:-1]
        base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
    for alias in node.names:
        # `from agent.history import sqlite` imports a module, `from agent.history import Entry` imports the package.
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in own else base


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def imports(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield every import of one of the project's modules by another, at import time or later."""
    for name, module in tree.items():
        yield from ((name, target) for target in sorted(module.now | module.later) if target in tree)


def misplaced_imports(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target} when it is loaded"
        for name, module in tree.items()
        for target in sorted(module.now)
        for package, homes in HOMES.items()
        if within(target, package) and not any(within(name, home) for home in homes)
    ]


def cycles(tree: Tree) -> list[str]:
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            found.append(" -> ".join((*way[way.index(name) :], name)))
        elif name not in done:
            for target in sorted(tree[name].now & tree.keys()):
                visit(target, (*way, name))
            done.add(name)

    for name in tree:
        visit(name, ())
    return found


def late_imports(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target} inside a function or by its name"
        for name, module in tree.items()
        for target in sorted(module.later & tree.keys())
        if (name, target) not in LAZY
    ]


def long_functions(tree: Tree) -> list[str]:
    return [
        f"{name}.{node.name} has {length} lines of {MAX_FUNCTION_LINES}"
        for name, module in tree.items()
        for node in ast.walk(ast.parse(module.source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (length := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


@cache
def exported_by_gradio() -> frozenset[str]:
    """Return the names in `gradio.__all__`, without importing Gradio, which takes seconds."""
    spec = find_spec("gradio")
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return frozenset(ast.literal_eval(node.value))
            case _:
                pass
    raise AssertionError("Gradio lists its public names in another way: adapt this function.")


def private_names_of_gradio(tree: Tree) -> list[str]:
    """Return names with an underscore on objects of other modules, and names that Gradio does not export."""
    return [
        f"{name} uses {used}: what reaches behind Gradio's public names lives in {GRADIO_COMPAT}"
        for name, module in tree.items()
        if (name == "app" or within(name, "agent.web")) and not within(name, GRADIO_COMPAT)
        for used in _private_names(ast.parse(module.source))
    ]


def _private_names(parsed: ast.AST) -> Iterator[str]:
    nodes, exported = list(ast.walk(parsed)), exported_by_gradio()
    modules = {alias.asname or alias.name for one in nodes if isinstance(one, ast.Import) for alias in one.names}
    gradios = {"gradio"} | {
        alias.asname
        for one in nodes
        if isinstance(one, ast.Import)
        for alias in one.names
        if alias.name == "gradio" and alias.asname
    }
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.startswith("gradio."))
            case ast.ImportFrom(module=str(module)) if module.startswith("gradio.") and module != GRADIO_THEMES:
                yield module
            case ast.ImportFrom(module="gradio", names=names):
                yield from (f"gradio.{alias.name}" for alias in names if alias.name not in exported)
            case ast.Constant(value=str(text)) if text.startswith("gradio.") and " " not in text:
                yield text  # a module that is imported by name
            case ast.Attribute(value=ast.Name(id=base), attr=attr) if base in gradios and attr not in exported:
                yield f"gradio.{attr}"
            case ast.Attribute(value=value, attr=attr) if attr.startswith("_") and not attr.startswith("__"):
                if not (_is_own(value) or (isinstance(value, ast.Name) and value.id in modules)):
                    yield ast.unparse(node)
            case _:
                pass


def _is_own(value: ast.expr) -> bool:
    """Return True for `self`, `cls` and `super()`."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def imported_tests(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target}: move what both need to tests/support"
        for name, target in imports(tree)
        if target.rpartition(".")[2].startswith("test_")
    ]


def times_without_unit(tree: Tree) -> list[str]:
    """Return numbers that are described in seconds, but whose name lacks the unit."""
    return [
        f"{name}.{constant}: put the unit into the name, as in {constant}_SECONDS"
        for name, constant, _, described in _numbers(tree)
        if described.startswith("Seconds ") and not constant.endswith("_SECONDS")
    ]


def different_times_of_one_name(tree: Tree) -> list[str]:
    """Return times that have the name of another one with another value."""
    values: dict[str, str] = {}
    return [
        f"{name}.{constant} is {value}, and {values[stem]} in another module: give it a name of its own"
        for name, constant, value, _ in _numbers(tree)
        if (stem := constant.lstrip("_")).endswith("_SECONDS") and values.setdefault(stem, value) != value
    ]


def _numbers(tree: Tree) -> Iterator[tuple[str, str, str, str]]:
    """Yield module, name, value and docstring of each constant that is a number."""
    for name, module in tree.items():
        body = ast.parse(module.source).body
        for node, following in zip_longest(body, body[1:]):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=constant)], value=ast.Constant(value=int() | float()) | ast.BinOp()
                ):
                    match following:
                        case ast.Expr(value=ast.Constant(value=str(described))):
                            yield name, constant, ast.unparse(node.value), described
                        case _:
                            yield name, constant, ast.unparse(node.value), ""
                case _:
                    pass


def shared_threads(tree: Tree) -> list[str]:
    def uses(node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "run_in_executor":
            return not node.args or (isinstance(node.args[0], ast.Constant) and node.args[0].value is None)
        if isinstance(node, ast.ImportFrom):
            return node.module == "asyncio" and any(alias.name == "to_thread" for alias in node.names)
        return isinstance(node, ast.Attribute) and node.attr == "to_thread" and ast.unparse(node.value) == "asyncio"

    found = {name for name, module in tree.items() if any(map(uses, ast.walk(ast.parse(module.source))))}
    return [f"{name} uses the threads that asyncio shares" for name in sorted(found - DEFAULT_POOL.keys())]


RULES = (
    *(misplaced_imports, private_names_of_gradio, cycles, late_imports, long_functions, shared_threads),
    *(times_without_unit, different_times_of_one_name),
)


@cache
def project_tree() -> Tree:
    """The modules of this project without its tests."""
    return tree_of(path for path in [ROOT / "app.py", *sorted((ROOT / "agent").rglob("*.py"))] if path.exists())


def tree_of(paths: Iterable[Path]) -> Tree:
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    packages = frozenset(name for path, name in names.items() if path.name == "__init__.py")
    return read({name: path.read_text(encoding="utf-8") for path, name in names.items()}, packages)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule) -> None:
    assert rule(project_tree()) == []


def test_files_are_found() -> None:
    tree = project_tree()
    assert {"agent", "agent.errors", "agent.history"} <= tree.keys()
    assert ("agent.runtime.run", "agent.context") in set(imports(tree))


def test_tests_import_no_tests() -> None:
    tree = tree_of(path for path in (ROOT / "tests").rglob("*.py") if "node_modules" not in path.parts)
    assert ("tests.conftest", "tests.support.scripted_server") in set(imports(tree))
    assert imported_tests(tree) == []


def test_import_agent_loads_no_page_and_no_vendor() -> None:
    asked = f"import agent, sys; print(*[name for name in {NOT_IMPORTED!r} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout.split() == []
