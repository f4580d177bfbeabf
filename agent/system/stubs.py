"""Stubs of the package's second name, `switchboard.x` for each module `agent.x`, made while a wheel is built.

Each stub takes the names of its module, so nothing is kept twice. Beside it is an empty module, without which type
checkers warn that there is no source. Nothing loads it: `agent/switchboard/__init__.py` finds `agent.x` instead. Only
hatchling loads this module.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REAL, SECOND = "agent", "switchboard"
STUB = "# For type checkers: the names of `{module}`.\nfrom {module} import *  # noqa: F403\n"
SOURCE = "# Never loaded: while a program runs, this module is `{module}`.\n"


def stubs(package: Path) -> dict[str, str]:
    """Return the text of each stub and of the empty module beside it by their paths, for the package in this folder."""
    found: dict[str, str] = {}
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package)
        if path.parts[0] in (SECOND, "__init__.py") or path.stem == "__main__":
            continue  # `__init__.pyi` of the second name is a file of its own, and a program is not imported
        names = path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts
        module, place = ".".join((REAL, *names)), f"{SECOND}/{path.as_posix()}"
        found |= {place: SOURCE.format(module=module), f"{place}i": STUB.format(module=module)}
    return found


class StubsHook(BuildHookInterface[Any]):
    """Adds the stubs to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the stubs to a folder of their own, from which hatchling takes them. An editable wheel has none."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        for name, text in stubs(Path(self.root) / REAL).items():
            file = Path(self._folder.name) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            build_data["force_include"][str(file)] = name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        if version != "editable":
            self._folder.cleanup()
