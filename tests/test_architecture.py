"""Which way imports may go: the rules as tables, and that both our files and made-up breaches are judged by them.

Only what is written is read (by ast); what really gets loaded is asked of a fresh interpreter at the end.
"""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from agent.settings import ROOT

FLOORS = (
    ("agent.deploy",),
    ("app",),
    ("agent.__main__", "agent.server", "agent.doctor"),
    ("agent.serving.health", "agent.serving.housekeeping", "agent.serving.share", "agent.serving.shutdown"),
    ("agent.ui",),
    ("agent.serving.streams", "agent.serving.upload_requests"),
    ("agent.serving.upload_progress",),
    ("agent.serving.walls", "agent.serving.uploads"),
    ("agent.serving.upload_form",),
    ("agent.terminal.session",),
    (
        "agent",
        "agent.terminal.asking",
        "agent.terminal.background",
        "agent.build",
        "agent.chat",
        "agent.terminal.conversation_file",
        "agent.terminal.display",
    ),
    ("agent.agent",),
    ("agent.run",),
    (
        "agent.runs.calls",
        "agent.runs.ending",
        "agent.runs.following",
        "agent.runs.message_log",
        "agent.runs.results",
        "agent.runs.step",
    ),
    ("agent.observe.recorder", "agent.observe.replay", "agent.observe.telemetry"),
    ("agent.observe",),
    ("agent.result",),
    (
        "agent.observe.cleaning",
        "agent.media.conversion",
        "agent.fitting",
        "agent.guardrails",
        "agent.reading",
        "agent.runs.meter",
        "agent.runs.own_loop",
        "agent.runs.retry",
        "agent.suspension",
        "agent.runs.toolsets",
        "agent.runs.unbroken",
        "agent.runs.watch",
    ),
    ("agent.providers", "agent.tools", "agent.knowledge"),
    ("agent.context", "agent.media", "agent.serving.visitor"),
    ("agent.suspension.ledgers",),
    ("agent.history",),
    (
        "agent.capabilities",
        "agent.catalog",
        "agent.checkpoints",
        "agent.guard",
        "agent.messages",
        "agent.openai_format",
        "agent.parts",
        "agent.prompt",
        "agent.responses",
        "agent.settings",
        "agent.media.sounds",
        "agent.serving.private_folder",
        "agent.space",
    ),
    ("agent.media.apart",),
    ("agent.media.decoding",),
    ("agent.media.images",),
    ("agent.media.kinds",),
    ("agent.guard.sentences", "agent.media.sentences", "agent.serving.sentences"),
    ("agent.errors",),
    (
        "agent.sayings",
        "agent.guard.addresses",
        "agent.media.limited",
        # Rooms without a word of their own.
        "agent.runs",
        "agent.serving",
        "agent.terminal",
    ),
)
"""From the roof down: a module imports from its own floor and from those below. A package stands for all in it."""

ROOMS = ("agent.providers", "agent.tools", "agent.history", "agent.suspension.ledgers", "agent.knowledge")
"""Packages with a door: from outside, only their `__init__` may be imported ..."""

BUILDERS = ("app", "agent.__main__", "agent.server", "agent.build", "agent.doctor.keeping", "agent.doctor.serving")
"""... except by those that put concrete things together ..."""

PAST_THE_DOOR = {
    ("agent.observe.cleaning", "agent.providers.redact"),
    ("agent.reading", "agent.providers.weights"),
}
"""... and for these."""

APART = (
    tuple(f"agent.history.{name}" for name in ("memory", "json_files", "sqlite", "redis", "postgres")),
    ("agent.suspension.ledgers.files", "agent.suspension.ledgers.sqlite"),
)
"""Siblings that never import each other; what two of them share lies beside them."""

HOMES = {
    "gradio": ("app", "agent.server", "agent.ui"),
    "gradio_client": ("app", "agent.server", "agent.ui"),
    "aiosqlite": ("agent.history.sqlite", "agent.history.sqlite_file"),
    "redis": ("agent.history.redis",),
    "psycopg": ("agent.history.postgres",),
    "mcp": ("agent.tools.mcp", "agent.tools.mcp_child"),
    "openai": ("agent.providers.completions", "agent.providers.openai_chat", "agent.providers.hosted"),
    "pydantic_ai.models.openai": ("agent.providers.openai_chat", "agent.providers.hosted"),
    "anthropic": ("agent.providers.hosted",),
    "pydantic_ai.models.anthropic": ("agent.providers.hosted",),
    "google": ("agent.providers.hosted",),
    "pydantic_ai.models.google": ("agent.providers.hosted",),
    "xllamacpp": (),
    "vllm": (),
    "torch": (),
    "av": (),
    "soundfile": (),
    "pillow_heif": (),
    "numpy": (),
    "onnxruntime": (),
    "faster_whisper": (),
    "ctranslate2": (),
}
"""Packages that cost much or may be missing: who may import them when it is itself imported. Nobody for the last."""

DIALECTS = ("openai_chat", "hosted.responses", "hosted.messages", "hosted.generate")
LAZY = {("agent.providers", f"agent.providers.{name}") for name in (*DIALECTS, "own")} | {
    ("agent.tools.presets", "agent.tools.mcp"),
}
"""Own modules imported late, inside a function or by their name: the door opens only the provider that is asked for."""

LONGEST = 350
"""Lines of a file."""

NOT_LOADED = (
    "gradio",
    "anthropic",
    "google.genai",
    "openai",
    "mcp",
    "redis",
    "psycopg",
    "xllamacpp",
    "aiosqlite",
    "av",
    "soundfile",
    "pillow_heif",
    "numpy",
    "onnxruntime",
    "faster_whisper",
    "ctranslate2",
)
"""What `import agent` leaves alone."""


@dataclass(frozen=True)
class Module:
    """What one file says: the modules it imports when it is loaded, and those it imports or names later."""

    source: str
    now: frozenset[str]
    later: frozenset[str]


Tree = Mapping[str, Module]
Rule = Callable[[Tree], list[str]]


def read(sources: Mapping[str, str], packages: frozenset[str]) -> Tree:
    """Modules by name, out of their sources by name; `packages` are the names that stand for a folder."""
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
        # `from agent.history import sqlite` asks for a module, `from agent.history import Entry` for its door.
        yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in own else base


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def floor(name: str) -> int | None:
    """The number of the floor, 0 at the top, by the longest name that it is under.

    The root package stands for its door alone, not for all below it.
    """
    under = [
        (len(one), number)
        for number, names in enumerate(FLOORS)
        for one in names
        if (name == one if one == "agent" else within(name, one))
    ]
    return max(under)[1] if under else None


def arrows(tree: Tree) -> Iterator[tuple[str, str]]:
    """Every import of one own module by another, early or late."""
    for name, module in tree.items():
        yield from ((name, target) for target in sorted(module.now | module.later) if target in tree)


def homeless(tree: Tree) -> list[str]:
    return [f"{name} stands on no floor: give it its place in FLOORS" for name in tree if floor(name) is None]


def upward(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target}, which is above it"
        for name, target in arrows(tree)
        if (here := floor(name)) is not None and (there := floor(target)) is not None and there < here
    ]


def past_the_door(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target}, which is behind the door {room}"
        for name, target in arrows(tree)
        for room in ROOMS
        if target != room and within(target, room) and not within(name, room)
        if name not in BUILDERS and (name, target) not in PAST_THE_DOOR
    ]


def touching(tree: Tree) -> list[str]:
    return [
        f"{name} imports its sibling {target}"
        for name, target in arrows(tree)
        for siblings in APART
        if name in siblings and target in siblings
    ]


def away_from_home(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target} when it is loaded"
        for name, module in tree.items()
        for target in sorted(module.now)
        for package, homes in HOMES.items()
        if within(target, package) and not any(within(name, home) for home in homes)
    ]


def gradio_in_the_core(tree: Tree) -> list[str]:
    """Core modules that load gradio through others, by the way they do."""
    return [
        " -> ".join(way)
        for name in tree
        if not any(within(name, home) for home in HOMES["gradio"])
        if (way := _way_to_gradio(tree, (name,), set()))
    ]


def _way_to_gradio(tree: Tree, way: tuple[str, ...], seen: set[str]) -> tuple[str, ...] | None:
    if within(way[-1], "gradio"):
        return way
    if way[-1] in seen or way[-1] not in tree:
        return None
    seen.add(way[-1])
    # Loading a module loads the packages it is in.
    parents = {way[-1].rsplit(".", 1)[0]} if "." in way[-1] else set[str]()
    return next(
        (found for each in sorted(tree[way[-1]].now | parents) if (found := _way_to_gradio(tree, (*way, each), seen))),
        None,
    )


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


def hidden(tree: Tree) -> list[str]:
    return [
        f"{name} imports {target} inside a function or by its name"
        for name, module in tree.items()
        for target in sorted(module.later & tree.keys())
        if (name, target) not in LAZY
    ]


def too_long(tree: Tree) -> list[str]:
    lengths = {name: len(module.source.splitlines()) for name, module in tree.items()}
    return [f"{name} has {length} lines of {LONGEST}" for name, length in lengths.items() if length > LONGEST]


RULES = (homeless, upward, past_the_door, touching, away_from_home, gradio_in_the_core, cycles, hidden, too_long)


def ours() -> Tree:
    """The files of this project, but for its tests."""
    paths = [path for path in [ROOT / "app.py", *sorted((ROOT / "agent").rglob("*.py"))] if path.exists()]
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths}
    packages = frozenset(name for path, name in names.items() if path.name == "__init__.py")
    return read({name: path.read_text(encoding="utf-8") for path, name in names.items()}, packages)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_our_files_keep_the_rule(rule: Rule) -> None:
    assert rule(ours()) == []


def test_there_are_files_to_judge() -> None:
    tree = ours()
    assert {"agent", "agent.errors", "agent.history"} <= tree.keys()
    assert ("agent.run", "agent.context") in set(arrows(tree))


BREACHES = {
    "homeless": (homeless, {"agent.utils": ""}),
    "upward": (upward, {"agent.history": "from agent.run import Agent", "agent.run": ""}),
    "upward, late": (upward, {"agent.errors": "def f():\n    import agent.messages", "agent.messages": ""}),
    "upward, for types": (
        upward,
        {
            "agent.run": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import agent.ui.turn",
            "agent.ui.turn": "",
        },
    ),
    "past the door": (past_the_door, {"agent.run": "from agent.history import sqlite", "agent.history.sqlite": ""}),
    "a store from a store": (
        touching,
        {"agent.history.redis": "from .memory import Memory", "agent.history.memory": ""},
    ),
    "a vendor in the loop": (
        away_from_home,
        {"agent.run": "try:\n    from google import genai\nexcept Exception: ..."},
    ),
    "gradio in the core": (away_from_home, {"agent.run": "import gradio.components as gc"}),
    "gradio through another": (gradio_in_the_core, {"agent.run": "import agent.ui", "agent.ui": "import gradio"}),
    "gradio through a package": (
        gradio_in_the_core,
        {"agent.run": "import agent.ui.render", "agent.ui.render": "", "agent.ui": "import gradio"},
    ),
    "a cycle": (
        cycles,
        {"agent.a": "import agent.b", "agent.b": "import agent.c", "agent.c": "from agent import a"},
    ),
    "an import in a function": (hidden, {"agent.run": "def f():\n    from agent import chat", "agent.chat": ""}),
    "an import in a class in a function": (
        hidden,
        {"agent.run": "async def f():\n    class C:\n        import agent.chat", "agent.chat": ""},
    ),
    "an import by name": (hidden, {"agent.run": "M = {'x': 'agent.chat'}", "agent.chat": ""}),
    "a long file": (too_long, {"agent.run": "#\n" * (LONGEST + 1)}),
}


@pytest.mark.parametrize(("rule", "sources"), BREACHES.values(), ids=BREACHES)
def test_a_breach_is_seen(rule: Rule, sources: dict[str, str]) -> None:
    assert len(rule(read(sources, frozenset({"agent", "agent.ui"})))) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_is_allowed_is_not_reported(rule: Rule) -> None:
    allowed = {
        "app": "from agent.server import serve\nfrom agent.history.sqlite import Sqlite\nimport gradio",
        "agent.server": "import gradio\nfrom agent.ui import page",
        "agent.ui": "import gradio",
        "agent.run": "from agent.history import Entry\nfrom agent.errors import E",
        "agent.history": "def f():\n    import redis",
        "agent.history.sqlite": "import aiosqlite\nfrom agent.history import Entry\nfrom .codec import dump",
        "agent.history.codec": "from . import Entry\n'agent'",
        "agent.errors": "#\n" * LONGEST,
    }
    assert rule(read(allowed, frozenset({"agent.ui", "agent.history"}))) == []


def test_importing_the_package_loads_neither_the_page_nor_a_vendor() -> None:
    asked = f"import agent, sys; print(*[name for name in {NOT_LOADED!r} if name in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert loaded.stdout.split() == []
