"""Checks of Python and its packages, the port, and the sandbox."""

import socket
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import httpx2
from packaging.requirements import Requirement
from packaging.version import Version

from agent.doctor.check import Check, fault, ok, warning
from agent.files.sandbox_limits import landlock, seccomp
from agent.system.project import FILES, IS_INSTALLED

OLDEST = (3, 11)


async def python() -> list[Check]:
    """Check that this Python is new enough and that the installed packages match the lock file."""
    python_version = f"Python {sys.version.split()[0]}"
    if sys.version_info < OLDEST:
        return [
            fault(
                "python", f"{python_version} is too old", "Install Python 3.11 or newer, then `make setup PYTHON=...`."
            )
        ]
    if IS_INSTALLED:
        return [ok("python", python_version), ok("packages", "their versions are those that the installer chose")]
    lock = FILES / "requirements-app.txt"
    if not lock.is_file():
        return [
            ok("python", python_version),
            warning("packages", "requirements-app.txt is not here", "Fetch the whole project."),
        ]
    wrong = list(_mismatches(lock.read_text(encoding="utf-8")))
    models = FILES / "requirements-models.txt"
    missing = list(_mismatches(models.read_text(encoding="utf-8"))) if models.is_file() else []
    if missing and not wrong:
        message = f"those that carry models are not as in requirements-models.txt: {', '.join(missing)}"
        return [ok("python", python_version), warning("packages", message, "make setup")]
    if not wrong:
        return [ok("python", python_version), ok("packages", "they are those of requirements-app.txt")]
    some = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
    return [ok("python", python_version), fault("packages", f"not as in requirements-app.txt: {some}", "make setup")]


def _mismatches(lock: str) -> Iterator[str]:
    """Yield the packages that this platform needs and that are missing or have another version."""
    for line in lock.splitlines():
        if not line[:1].isalnum():
            continue
        wanted = Requirement(line.rstrip("\\ "))
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            has = version(wanted.name)
        except PackageNotFoundError:
            yield f"{wanted.name} is missing"
            continue
        if not wanted.specifier.contains(Version(has), prereleases=True):
            yield f"{wanted.name} is {has}, not {str(wanted.specifier).removeprefix('==')}"


async def sandbox() -> list[Check]:
    """Check that the system isolates the decoding process from this user's other files and from the network."""
    missing = {"your files": "Landlock"} if not landlock() else {}
    missing |= {"the network": "seccomp"} if not seccomp() else {}
    if not missing:
        return [ok("sandbox", "files are decoded in a process that reaches neither your files nor the network")]
    reach, lacks = " and ".join(missing), " and no ".join(missing.values())
    message = f"the process that decodes files could reach {reach}: this system has no {lacks}"
    fix = "Use Linux 5.13 or newer on x86-64 or ARM64, and let a container call Landlock and seccomp."
    return [warning("sandbox", message, fix)]


async def port(host: str, number: int) -> list[Check]:
    """Check that the page can listen on this address, or already does."""
    where = f"{host}:{number}"
    try:
        socket.create_server((host, number)).close()
    except OSError as error:
        if await _is_our_page(host, number):
            return [ok("port", f"{where}: the page is running there")]
        fix = "Set GRADIO_SERVER_PORT and GRADIO_SERVER_NAME to what is free, or end what uses it."
        return [fault("port", f"{where} cannot be used: {error.strerror or error}", fix)]
    return [ok("port", f"{where} is free")]


async def _is_our_page(host: str, number: int) -> bool:
    here = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    try:
        async with httpx2.AsyncClient(trust_env=False, timeout=2) as client:
            answer = (await client.get(f"http://{here}:{number}/healthz")).json()
    except (httpx2.HTTPError, ValueError):
        return False
    return isinstance(answer, dict) and {"status", "model"} <= answer.keys()
