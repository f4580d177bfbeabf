"""The state of a model hub: its Spaces and files, its faults, and the requests that it has received."""

import base64
import hashlib
import re
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TOKEN = "hf_" + "t" * 34
OWNER = "ada"


class Asked(NamedTuple):
    """A recorded request."""

    method: str
    path: str
    body: bytes
    token: str | None
    range: str | None


@dataclass
class Stored:
    """A Space. `stages` are the stages that the next polls report. The last one is reported forever."""

    private: bool
    sdk: str
    hardware: str = "cpu-basic"
    sleep: int | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    stages: list[str] = field(default_factory=lambda: ["RUNNING"])
    running: str = ""

    @property
    def sha(self) -> str:
        """The id of the newest commit."""
        return hashlib.sha1(repr(self.commits).encode()).hexdigest()


@dataclass
class Hub:
    """The hub's state and behaviour.

    `files` are downloads by path; if `login` is set, they need this header. `breaks` downloads are cut after
    `breaks_after` bytes, and `gate` holds back their second half.

    `build` are the stages after each commit. `refuse` maps "METHOD path" (a regular expression) to status and message;
    `logs` are those of builds and runs; `hold_logs` keeps their streams open, and alive. `page` is the page's status.
    """

    spaces: dict[str, Stored] = field(default_factory=dict)
    datasets: dict[str, Stored] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    build: list[str] = field(default_factory=lambda: ["BUILDING", "APP_STARTING", "RUNNING"])
    error: str = ""
    logs: dict[str, list[str]] = field(default_factory=lambda: {"build": ["built\n"], "run": ["ran\n"]})
    hold_logs: threading.Event | None = None
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    role: str = "write"
    page: int = 200
    files: dict[str, bytes] = field(default_factory=dict)
    login: str | None = None
    breaks: int = 0
    breaks_after: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()

    def release(self) -> None:
        """End every answer that waits."""
        self.gate.set()
        if self.hold_logs is not None:
            self.hold_logs.set()

    def seen(self, pattern: str) -> list[Asked]:
        """Return the requests that match "METHOD path"."""
        return [one for one in self.asked if re.fullmatch(pattern, f"{one.method} {one.path}")]

    def changes(self) -> list[str]:
        """Return the requests that could have changed something, as "METHOD path"."""
        return [f"{one.method} {one.path}" for one in self.asked if one.method not in ("GET", "HEAD")]


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str, code: str = "", **more: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more


def blob_id(data: bytes) -> str:
    """Return git's id of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def create(hub: Hub, given: dict[str, Any]) -> dict[str, Any]:
    """Create a Space with the files that the hub itself adds, or an empty dataset."""
    name = f"{given['organization'] or OWNER}/{given['name']}"
    if given["organization"] not in (None, OWNER):
        raise Refused(403, f"You don't have the rights to create a space under the namespace {given['organization']!r}")
    if given.get("type") == "dataset":
        if name in hub.datasets:
            raise Refused(409, "You already created this dataset repo", url=f"{hub.url}/datasets/{name}")
        hub.datasets[name] = Stored(
            private=given.get("private") is True or given.get("visibility") == "private", sdk=""
        )
        return {"url": f"{hub.url}/datasets/{name}"}
    if name in hub.spaces:
        raise Refused(409, "You already created this space repo")
    hub.spaces[name] = Stored(
        private=given.get("visibility") == "private",
        sdk=given["sdk"],
        hardware=given.get("hardware", "cpu-basic"),
        sleep=given.get("sleepTimeSeconds"),
        files={"README.md": b"---\ntitle: New\n---\n", ".gitattributes": b"*.bin filter=lfs\n"},
        commits=[{"summary": "initial commit"}],
        stages=["NO_APP_FILE"],
    )
    return {"url": f"{hub.url}/spaces/{name}"}


def plan_of(space: Stored, asked: dict[str, Any]) -> dict[str, Any]:
    """Return how to send a file, and what is there at its path."""
    there = {"oid": blob_id(space.files[asked["path"]])} if asked["path"] in space.files else {}
    return {"path": asked["path"], "uploadMode": "regular", "shouldIgnore": False} | there


def commit(hub: Hub, name: str, space: Stored, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Apply a commit as a whole or not at all. Afterwards the Space is built."""
    header, operations = lines[0]["value"], lines[1:]
    if header.get("parentCommit") not in (None, space.sha):
        raise Refused(412, "A commit has happened since. Please refresh and try again.")
    if absent := [
        one["value"]["path"]
        for one in operations
        if one["key"] == "deletedFile" and one["value"]["path"] not in space.files
    ]:
        raise Refused(404, f"A file with this name doesn't exist: {absent}", "EntryNotFound")
    for one in operations:
        match one["key"]:
            case "file":
                space.files[one["value"]["path"]] = base64.b64decode(one["value"]["content"])
            case "deletedFile":
                del space.files[one["value"]["path"]]
            case other:
                raise Refused(400, f"not known here: {other}")
    before = space.sha
    space.commits.append({"summary": header["summary"], "operations": len(operations)})
    space.running, space.stages = before, list(hub.build)
    kind = "spaces" if space.sdk else "datasets"
    return {"commitUrl": f"{hub.url}/{kind}/{name}/commit/{space.sha}", "commitOid": space.sha}


def runtime(hub: Hub, space: Stored, *, look: bool = True) -> dict[str, Any]:
    """Return the state of a Space. Each poll moves it on one stage, and in the last stage the newest commit runs."""
    stage = space.stages.pop(0) if look and len(space.stages) > 1 else space.stages[0]
    if look and len(space.stages) == 1 and stage == space.stages[0] == "RUNNING":
        space.running = space.sha
    return {
        "stage": stage,
        "hardware": {"current": None if stage == "NO_APP_FILE" else space.hardware, "requested": space.hardware},
        "gcTimeout": space.sleep,
        "volumes": space.volumes or None,
        **({"sha": space.running} if stage.startswith("RUNNING") else {}),
        **({"errorMessage": hub.error} if hub.error and stage.endswith("ERROR") else {}),
    }
