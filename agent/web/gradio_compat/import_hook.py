"""Imports Gradio without the parts that a running page never uses, which halves the time from start to page.

At each import Gradio 6.31 rewrites a type stub for each of its 81 component classes, to compare it with the file on
disk, and fills the docstring template of each event. It also imports `mcp` (for pages that are tool servers), pandas
(for tables), its command line, and the code that makes pages from models of the Hub. This app uses none of them. See
https://github.com/gradio-app/gradio/pull/11156.
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
    """Import Gradio unless it is imported already. Afterwards, imports work as usual.

    `FOR_OTHERS` are imported when one of their functions is called.
    """
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
    """Replaces a module until Gradio is imported. Its names are functions that import the module when called.

    After Gradio is imported, it has the module's own names. `importlib.util.LazyLoader` does not work here: if two
    threads use a lazy module at once, one of them finds it empty.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        def get_attribute(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if sys.modules.get(module.__name__) is not module:
                return getattr(import_module(module.__name__), name)

            def import_and_call(*given: object, **more: object) -> Any:
                return getattr(import_module(module.__name__), name)(*given, **more)

            return import_and_call

        cast(Any, module).__getattr__ = get_attribute


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
    """Do nothing. Replaces functions of Gradio that a page does not need."""
