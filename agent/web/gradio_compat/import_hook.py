"""Gradio without what a running page never uses of it: that is half of the time from start to page.

At each import Gradio 6.31 writes a type stub for each of its 81 component classes anew, to compare it with the one on
disk, and fills the docstring template of each event. It imports `mcp`, for pages that are tool servers, pandas, for
tables, its command line, and what makes pages of the hub's models. None of this shows in ours.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

FOR_OTHERS = ("gradio.cli", "gradio.external", "gradio.workflow", "pandas")


def import_gradio() -> None:
    """Import Gradio, if nothing has yet. Afterwards all is imported as ever, and `FOR_OTHERS` when called."""
    if "gradio" in sys.modules:
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import gradio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        sys.meta_path.remove(finder)
        for name in FOR_OTHERS:
            if _is_stand_in(sys.modules.get(name)):
                del sys.modules[name]


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


def _is_stand_in(module: ModuleType | None) -> bool:
    return module is not None and module.__spec__ is not None and isinstance(module.__spec__.loader, _WhenUsed)


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
            if sys.modules.get(module.__name__) is not module:
                return getattr(import_module(module.__name__), name)

            def later(*given: object, **more: object) -> Any:
                return getattr(import_module(module.__name__), name)(*given, **more)

            return later

        cast(Any, module).__getattr__ = named


class _WithoutStubs(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        meta = cast(Any, module)
        meta.create_or_modify_pyi = nothing
        meta.EventListener.set_doc = nothing


def nothing(*_given: object, **_named: object) -> None:
    """Stands in for a function of Gradio's that a page does without."""
