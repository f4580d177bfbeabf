"""A model hub on loopback: it keeps Spaces as the real one does, for the real huggingface_hub client, and files.

It records every request, and misbehaves if told to. It answers unknown requests with 404, so a test that makes one
fails.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.hub_state import OWNER, TOKEN, Asked, Hub, Refused, Stored, blob_id, commit, create, plan_of, runtime


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
            hub.asked.append(Asked(self.command, path, body, login, self.headers.get("Range")))
            if self.command == "GET" and (path in hub.files or not path.startswith(("/api/", "/spaces/", "/page/"))):
                return self.download(path)
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
                return self.send(error.status, json.dumps({"error": error.message} | error.more).encode(), headers)

        def download(self, path: str) -> None:
            if hub.login and self.headers.get("Authorization") != hub.login:
                return self.send_error(401)
            if path not in hub.files:
                return self.send_error(404)
            span = self.headers.get("Range")
            start = int(re.fullmatch(r"bytes=(\d+)-", span)[1]) if span else 0
            body = hub.files[path][start:]
            self.send_response(206 if span else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if hub.breaks > 0:
                hub.breaks -= 1
                self.wfile.write(body[: hub.breaks_after])
                self.close_connection = True
                return None
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            hub.gate.wait(30)
            with suppress(ConnectionError):
                self.wfile.write(body[half:])
            return None

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
            for kind, there in (("spaces", hub.spaces), ("datasets", hub.datasets)):
                if found := re.fullmatch(rf"(?:/api)?/{kind}/([^/]+/[^/]+)(?:/(.*))?", path):
                    if found[1] not in there:
                        raise Refused(404, "Repository not found", "RepoNotFound")
                    return self.space(found[1], there[found[1]], found[2] or "", body)
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
        hub.release()
        server.shutdown()
        server.server_close()
        thread.join()
