"""Builds the wheel and the sdist, and installs the wheel into new environments with locked packages."""

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import ROOT

LOCK = ROOT / "requirements-app.txt"
NAME = "switchboard-chat"
SECONDS = 240
"""Enough to install all packages from the index of a slow network."""


@dataclass(frozen=True)
class Distribution:
    """The built files."""

    wheel: Path
    sdist: Path

    def names_in_wheel(self) -> set[str]:
        """Return the files of the wheel without its metadata."""
        with ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    def names_in_sdist(self) -> set[str]:
        """Return the files of the sdist, relative to its only folder."""
        with tarfile.open(self.sdist) as archive:
            return {one.name.partition("/")[2] for one in archive if one.isfile()}


def build(project: Path, into: Path, *targets: str) -> list[Path]:
    """Build "wheel" and "sdist" with the locked backend, which needs no network. Return them in this order."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", into, *(word for one in targets for word in ("-t", one))],
        cwd=project,
        check=True,
        capture_output=True,
        timeout=SECONDS,
    )
    suffixes = {"wheel": "*.whl", "sdist": "*.tar.gz"}
    return [next(into.glob(suffixes[target])) for target in targets]


def requirements(wheel: Path, extra: str = "") -> list[str]:
    """Return the requirements that the wheel states without extras, or for one extra, as an installer reads them."""
    with ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        stated = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: list[str] = []
    for requirement in map(Requirement, stated):
        if requirement.marker and not (extra and requirement.marker.evaluate({"extra": extra})):
            continue
        if not requirement.marker and extra:
            continue
        own = requirement.name == NAME
        found += (
            [more for one in requirement.extras for more in requirements(wheel, one)] if own else [_bare(requirement)]
        )
    return found


def _bare(requirement: Requirement) -> str:
    requirement.marker = None
    return str(requirement)


def locked(requirements: Iterable[str]) -> str:
    """Return the part of the lock file with these requirements and everything that they need.

    Raises `AssertionError` if the lock lacks a package, or has a version that a requirement does not allow.
    """
    blocks: dict[str, tuple[Version, str]] = {}
    for found in re.finditer(r"^([A-Za-z0-9._-]+==[^\\\n]+)(?:.*\n)(?:[ \t].*\n?)*", LOCK.read_text(), re.MULTILINE):
        pinned = Requirement(found[1])
        if pinned.marker is None or pinned.marker.evaluate():
            version = next(iter(pinned.specifier)).version
            blocks[canonicalize_name(pinned.name)] = Version(version), found[0]
    wanted: dict[tuple[str, str], str] = {}
    pending = [(Requirement(one), "") for one in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        assert name in blocks, f"{LOCK.name} lacks {requirement}"
        version, block = blocks[name]
        assert requirement.specifier.contains(version, prereleases=True), f"{LOCK.name} has {name} {version}"
        for wanted_extra in ("", *requirement.extras):
            if (name, wanted_extra) not in wanted:
                wanted[name, wanted_extra] = block
                pending += [(Requirement(one), wanted_extra) for one in requires(name) or ()]
    return "".join(sorted(set(wanted.values())))


@dataclass(frozen=True)
class Environment:
    """An environment with the wheel, and the folder in which its programs run."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self, home: Path, **more: str) -> dict[str, str]:
        """Return variables with which a program finds nothing of this checkout and writes below `home`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_", "XDG_"))}
        return {**kept, "HOME": str(home), **more}

    def run(self, *command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment's `bin` folder."""
        program, *arguments = command
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=cwd,
            env=self.variables(cwd, **variables),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def says(self, source: str, *, cwd: Path, **variables: str) -> str:
        """Run a Python program, whose folder is `cwd`, and return what it prints. It must succeed."""
        file = cwd / "program.py"
        file.write_text(source, encoding="utf-8")
        done = self.run("python", file, cwd=cwd, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def install(wheel: Path, folder: Path, requirements: Iterable[str]) -> Environment:
    """Make an environment with the locked packages of these requirements, and with the wheel.

    The packages come from uv's cache, where `make` has put them, or from the index.
    """
    part = folder.with_suffix(".txt")
    part.write_text(locked(requirements))
    options = ("pip", "install", "-q", "--python", folder)
    for arguments in (
        ("venv", "-q", "--python", sys.executable, folder),
        (*options, "--no-deps", "--require-hashes", "-r", part),
        (*options, "--no-deps", "--offline", wheel),
    ):
        done = subprocess.run([ROOT / ".ci" / "uv", *arguments], capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
    return Environment(folder)
