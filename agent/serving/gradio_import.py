"""Gradio without what a running page never uses of it: that is half of the time from start to page.

At each import Gradio 6.31 writes a type stub for each of its 81 component classes anew, to compare it with the one on
disk, and fills the docstring template of each event. It imports `mcp`, for pages that are tool servers, pandas, for
tables, its command line, and what makes pages of the hub's models. And it makes a web application anew with each step
in which a page is built. None of this shows in ours.
"""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

FOR_OTHERS = ("gradio.cli", "gradio.external", "gradio.workflow", "pandas")


def import_gradio() -> None:
    """Import Gradio, if nothing has yet. Afterwards all is imported as ever, `FOR_OTHERS` by Gradio once used."""
    if "gradio" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import gradio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        sys.meta_path.remove(finder)
        for name in FOR_OTHERS:
            sys.modules.pop(name, None)


@contextmanager
def one_application() -> Generator[None]:
    """While a page is built: no web application for each of its states. Who mounts it makes the only one."""
    from gradio.routes import App

    app = cast(Any, App)
    made = app.__dict__["create_app"]
    app.create_app = _nothing
    try:
        yield
    finally:
        app.create_app = made


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "mcp":
            raise ImportError("not while Gradio is imported", name=fullname)
        if fullname in FOR_OTHERS:
            return ModuleSpec(fullname, _WhenUsed())
        if fullname != "gradio.component_meta":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutStubs(spec.loader)
        return spec


class _WhenUsed(Loader):
    """Stands in for a module until Gradio is imported: its names are functions that import it when they are called.

    Then it has the names of the module itself. Not `importlib.util.LazyLoader`: of two threads that use such a module
    at once, one finds it empty.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def named(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)

            def later(*given: object, **more: object) -> Any:
                return getattr(import_module(module.__name__), name)(*given, **more)

            return (
                later if sys.modules.get(module.__name__) is module else getattr(import_module(module.__name__), name)
            )

        cast(Any, module).__getattr__ = named


class _WithoutStubs(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        meta = cast(Any, module)
        meta.create_or_modify_pyi = _nothing
        meta.EventListener.set_doc = _nothing


def _nothing(*_given: object, **_named: object) -> None: ...
