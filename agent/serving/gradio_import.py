"""Gradio without what a running page never uses of it: that is 40 % of the time from start to page.

At each import Gradio 6.31 writes a type stub for each of its 81 component classes anew, to compare it with the one on
disk, and fills the docstring template of each event; it also imports `mcp`, for pages that are tool servers. None of
this shows in a page. What is left out is what Gradio itself can do without: it takes a missing `mcp` for granted.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast


def import_gradio() -> None:
    """Import Gradio, if nothing has yet. Afterwards everything is imported as ever, `mcp` too."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        import gradio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "mcp":
            raise ImportError("not while Gradio is imported", name=fullname)
        if fullname != "gradio.component_meta":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutStubs(spec.loader)
        return spec


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
