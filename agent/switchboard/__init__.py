"""The second name of the package `agent`, for programs beside an `agent.py` of their own. A wheel has it at the top.

If `import agent` finds this project, `switchboard` and each of its modules are the same objects as `agent` and its
modules: `switchboard.errors is agent.errors`. If it finds other code, the project is loaded once under the name
`switchboard` alone, and `agent` stays the other code.

In the second case the project's own `import agent.x` must mean `import switchboard.x`. Each of its modules therefore
gets an `__import__` of its own. Replacing the other code in `sys.modules` instead, even for a moment, would break its
imports and those of other threads.
"""

import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

REAL, SECOND = "agent", "switchboard"


def _project() -> Path:
    """Return the folder of the project's package. It has a copy of this file, which other code of that name has not."""
    here = Path(__file__).resolve().parent
    for place in (here.parent, here.parent.parent, *map(Path, sys.path)):
        if (place / REAL / SECOND / "__init__.py").is_file():
            return (place / REAL).resolve()
    raise ImportError(
        f"The package {REAL} of {SECOND} is not installed: pip install --force-reinstall . in the folder of Switchboard"
    )


def _is_found(project: Path) -> bool:
    """Return True if `import agent` finds the project. False if it finds other code."""
    loaded = sys.modules.get(REAL)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        spec = find_spec(REAL)
        origin = spec and spec.origin
    return origin is not None and Path(origin).resolve() == project / "__init__.py"


class _SameModule(Loader):
    """Loads a module by its real name and returns that."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has replaced it

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the real module, which `python -m` runs."""
        del fullname
        spec = find_spec(self._name)
        loader = spec and spec.loader
        return loader.get_code(self._name) if isinstance(loader, InspectLoader) else None


class SameModules(MetaPathFinder):
    """Finds `switchboard.x` as `agent.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for modules of others and for those that do not exist."""
        if not fullname.startswith(f"{SECOND}."):
            return None
        name = REAL + fullname.removeprefix(SECOND)
        real = find_spec(name)
        if real is None:
            return None
        return spec_from_loader(fullname, _SameModule(name), origin=real.origin)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] = (),
    level: int = 0,
) -> ModuleType:
    """Import as Python does, but take the project's modules under their second name."""
    if level == 0 and (name == REAL or name.startswith(f"{REAL}.")):
        name = SECOND + name.removeprefix(REAL)
    return builtins.__import__(name, globals, locals, fromlist, level)


class _OwnLoader(SourceFileLoader):
    """Loads a module of the project under the second name."""

    def exec_module(self, module: ModuleType) -> None:
        self.run(module.__dict__)

    def get_code(self, fullname: str) -> CodeType:
        """Return code for `python -m`, which gives no chance to set its `__import__`: it runs the module's own code."""
        del fullname
        return compile("__loader__.run(globals())", self.path, "exec")

    def run(self, namespace: dict[str, Any]) -> None:
        """Run the module's own code in these globals, with an `__import__` of its own."""
        namespace["__builtins__"] = {**vars(builtins), "__import__": _import}
        code = super().get_code(self.name)
        assert code is not None
        exec(code, namespace)


class OwnModules(MetaPathFinder):
    """Finds `switchboard.x` in the folder of the project."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None for modules of others and for those that do not exist."""
        if not fullname.startswith(f"{SECOND}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _OwnLoader(fullname, spec.origin)
        return spec


def _load() -> None:
    """Put the package into `sys.modules` in place of this module."""
    project = _project()
    if _is_found(project):
        sys.modules[SECOND] = import_module(REAL)
        sys.meta_path.insert(0, SameModules())
        return
    origin = str(project / "__init__.py")
    spec = spec_from_file_location(
        SECOND, origin, loader=_OwnLoader(SECOND, origin), submodule_search_locations=[str(project)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[SECOND] = module_from_spec(spec)
    sys.meta_path.insert(0, OwnModules())
    spec.loader.exec_module(package)


if __name__ == SECOND:
    _load()
