"""A model hub on loopback that keeps Spaces as the real one does, for the real huggingface_hub client.

It records every request. It answers unknown ones with 404, so a test that makes one fails.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_" + "t" * 34
OWNER = "ada"


class Asked(NamedTuple):
    """A recorded request."""

    method: str
    path: str
    body: bytes
    token: str | None


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

    `build` are the stages after each commit. `refuse` maps "METHOD path" (a regular expression) to status and message;
    `logs` are those of builds and runs; `hold_logs` keeps their streams open, and alive. `page` is the page's status.
    """

    spaces: dict[str, Stored] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    build: list[str] = field(default_factory=lambda: ["BUILDING", "APP_STARTING", "RUNNING"])
    error: str = ""
    logs: dict[str, list[str]] = field(default_factory=lambda: {"build": ["built\n"], "run": ["ran\n"]})
    hold_logs: threading.Event | None = None
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    role: str = "write"
    page: int = 200
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    def seen(self, pattern: str) -> list[Asked]:
        """Return the requests that match "METHOD path"."""
        return [one for one in self.asked if re.fullmatch(pattern, f"{one.method} {one.path}")]

    def changes(self) -> list[str]:
        """Return the requests that could have changed something, as "METHOD path"."""
        return [f"{one.method} {one.path}" for one in self.asked if one.method not in ("GET", "HEAD")]


class Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code


def blob_id(data: bytes) -> str:
    """Return git's id of this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(**how: Any) -> Iterator[Hub]:
    """Serve on a free port until the block ends."""
    hub = Hub(**how)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = unquote(urlsplit(self.path).path)
            login = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            hub.asked.append(Asked(self.command, path, body, login))
            if path.startswith("/page/"):
                space = hub.spaces[path.removeprefix("/page/")]
                return self.send(401 if space.private and login != TOKEN else hub.page, b"<h1>The page</h1>")
            try:
                for pattern, (status, message) in hub.refuse.items():
                    if re.fullmatch(pattern, f"{self.command} {path}"):
                        raise Refused(status, message)
                if path.endswith("agent-harnesses"):
                    return self.send_json({})
                if login != TOKEN:
                    raise Refused(401, "Invalid credentials in Authorization header")
                return self.route(path, body)
            except Refused as error:
                headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
                return self.send(error.status, json.dumps({"error": error.message}).encode(), headers)

        def route(self, path: str, body: bytes) -> None:
            if path == "/api/whoami-v2":
                return self.send_json({"name": OWNER, "auth": {"accessToken": {"role": hub.role}}})
            if path == "/api/repos/create":
                return self.send_json(create(hub, json.loads(body)))
            if path == "/api/validate-yaml":
                return self.send_json({"errors": [], "warnings": []})
            if found := re.fullmatch(r"/api/buckets/([^/]+/[^/]+)", path):
                if found[1] in hub.buckets:
                    raise Refused(409, "You already created this bucket")
                hub.buckets.add(found[1])
                return self.send_json({"url": f"{hub.url}/buckets/{found[1]}", "id": found[1]})
            if found := re.fullmatch(r"(?:/api)?/spaces/([^/]+/[^/]+)(?:/(.*))?", path):
                if found[1] not in hub.spaces:
                    raise Refused(404, "Repository not found", "RepoNotFound")
                return self.space(found[1], hub.spaces[found[1]], found[2] or "", body)
            raise Refused(404, f"no such endpoint: {path}")

        def space(self, name: str, space: Stored, what: str, body: bytes) -> None:
            given = json.loads(body) if body and not what.startswith("commit") else {}
            match (self.command, what.split("/")):
                case ("GET", [""]):
                    return self.send_json(
                        {
                            "id": name,
                            "sha": space.sha,
                            "private": space.private,
                            "sdk": space.sdk,
                            "host": f"{hub.url}/page/{name}",
                            "runtime": runtime(hub, space, look=False),
                        }
                    )
                case ("GET", ["tree", "main"]):
                    return self.tree(name, space)
                case ("HEAD" | "GET", ["resolve", "main", *parts]):
                    data = space.files.get("/".join(parts))
                    if data is None:
                        raise Refused(404, "Entry not found", "EntryNotFound")
                    return self.send(200, data, {"ETag": f'"{blob_id(data)}"', "X-Repo-Commit": space.sha})
                case ("POST", ["preupload", "main"]):
                    return self.send_json({"files": [plan_of(space, one) for one in given["files"]]})
                case ("POST", ["commit", "main"]):
                    return self.send_json(commit(hub, name, space, [json.loads(line) for line in body.splitlines()]))
                case ("GET", ["variables" | "secrets" as kind]):
                    there = getattr(space, kind)
                    hidden = {key: {k: v for k, v in one.items() if k != "value"} for key, one in there.items()}
                    return self.send_json(hidden if kind == "secrets" else there)
                case ("POST" | "DELETE", ["variables" | "secrets" as kind]):
                    there = getattr(space, kind)
                    if self.command == "POST":
                        there[given["key"]] = {k: v for k, v in given.items() if k != "key"}
                    else:
                        del there[given["key"]]
                    return self.send_json(there if kind == "variables" else {})
                case ("GET", ["runtime"]):
                    return self.send_json(runtime(hub, space))
                case ("POST", ["hardware"]):
                    space.hardware, space.sleep = given["flavor"], given.get("sleepTimeSeconds", space.sleep)
                    return self.send_json(runtime(hub, space, look=False))
                case ("POST", ["sleeptime"]):
                    space.sleep = given["seconds"]
                    return self.send_json(runtime(hub, space, look=False))
                case ("PUT", ["volumes"]):
                    space.volumes = given["volumes"]
                    return self.send_json({})
                case ("GET", ["logs", kind]):
                    return self.log(hub.logs[kind])
                case _:
                    raise Refused(404, f"no such endpoint: {self.command} {what}")

        def tree(self, name: str, space: Stored) -> None:
            """Send ten files a page, which reveals a client that reads only one page."""
            files = [
                {"type": "file", "path": path, "size": len(data), "oid": blob_id(data)}
                for path, data in sorted(space.files.items())
            ]
            begin = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
            more = f"{hub.url}/api/spaces/{name}/tree/main?recursive=true&cursor={begin + 10}"
            headers = {"Link": f'<{more}>; rel="next"'} if begin + 10 < len(files) else {}
            self.send(200, json.dumps(files[begin : begin + 10]).encode(), headers)

        def log(self, lines: list[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            with suppress(ConnectionError):
                for line in lines:
                    event = json.dumps({"data": line, "timestamp": "2026-01-01T00:00:00.000Z"})
                    self.wfile.write(f"data: {event}\n\n".encode())
                while hub.hold_logs is not None and not hub.hold_logs.wait(0.2):
                    self.wfile.write(b"data:\n\n")
                    self.wfile.flush()

        def send_json(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode())

        def send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        if hub.hold_logs is not None:
            hub.hold_logs.set()
        server.shutdown()
        server.server_close()
        thread.join()


def create(hub: Hub, given: dict[str, Any]) -> dict[str, Any]:
    """Create a Space with the files that the hub itself adds."""
    name = f"{given['organization'] or OWNER}/{given['name']}"
    if given["organization"] not in (None, OWNER):
        raise Refused(403, f"You don't have the rights to create a space under the namespace {given['organization']!r}")
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
    return {"commitUrl": f"{hub.url}/spaces/{name}/commit/{space.sha}", "commitOid": space.sha}


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
