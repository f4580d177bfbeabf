"""A real S3 server on loopback for tests: SeaweedFS, whose program is a package. It checks signatures of requests."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Self
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from agent.files.places import RemoteFolder, open_place
from tests.support.ports import free_port

KEY, SECRET = "AKIASWITCHBOARDTEST", "the-secret-key-of-the-tests"
BUCKET = "files"
SECONDS = 120.0
"""Seconds until the server must answer."""
PARTS = ("master", "volume", "filer", "s3")
# The shell ends the server when the pipe from the test's process breaks.
_GUARD = '"$0" "$@" >log 2>&1 & server=$!; cat >/dev/null; kill -9 $server; wait'


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. `variables` are those by which its clients find it, with the right keys."""

    variables: dict[str, str]
    process: "subprocess.Popen[bytes]"

    def set_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let this process find the server."""
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)

    def url(self, folder: str) -> str:
        """Return the URL of a folder, as in SWITCHBOARD_MEDIA."""
        return f"s3://{BUCKET}/{folder}"

    def stop(self) -> None:
        """Kill the server at once. A second call does nothing."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class S3Place(RemoteFolder):
    """A place on this server as S3 would show it. The server removes an empty folder only some seconds later."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Open the place with this URL."""
        found = open_place(url)
        assert isinstance(found, RemoteFolder)
        return cls(found._fs, found._root)

    def folders(self) -> list[str]:
        """Leave out the folders without a file."""
        return [folder for folder in super().folders() if self._has_files(folder)]

    def _has_files(self, folder: str) -> bool:
        found = self._fs.find(self._path(folder), detail=True)
        return any(one["type"] == "file" for one in found.values())


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Run a server that keeps its files in a folder and has one bucket. Files of an earlier one are there again."""
    server, url = _started(folder)
    try:
        _wait_until_up(server, url, folder / "log")
        _create_bucket(server.variables)
        yield server
    finally:
        server.stop()


def _started(folder: Path) -> tuple[S3Server, str]:
    ports = {part: free_port() for part in PARTS}
    given = [option for part, port in ports.items() for option in (f"-{part}.port={port}", _grpc_port(part))]
    person = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    (folder / "keys.json").write_text(json.dumps({"identities": [person]}))
    (folder / "data").mkdir(exist_ok=True)
    command = ["sh", "-c", _GUARD, str(Path(sys.executable).with_name("weed")), "-logtostderr=true", "server"]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-filer", "-s3", *given]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder / 'keys.json'}", "-volume.max=20"]
    command += [f"-s3.localSocket={folder / 's3.socket'}", f"-filer.localSocket={folder / 'filer.socket'}"]
    command += ["-master.volumeSizeLimitMB=64", "-master.telemetry=false"]
    url = f"http://127.0.0.1:{ports['s3']}"
    variables = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return S3Server(variables, subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE)), url


def _grpc_port(part: str) -> str:
    return f"-{part}.port.grpc={free_port()}"


def _wait_until_up(server: S3Server, url: str, log: Path) -> None:
    """Return when the server refuses a request without keys, which it does when it knows the keys."""
    until = monotonic() + SECONDS
    while monotonic() < until and server.process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                pass
        except HTTPError:
            return
        except OSError:
            sleep(0.05)
    raise RuntimeError("the S3 server does not start:\n" + log.read_text(errors="replace")[-2000:])


def _create_bucket(variables: dict[str, str]) -> None:
    """Create the bucket unless it is there. The server does this only some time after its first answer."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import Session

    session = Session()
    session.set_credentials(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"])
    where = {"region_name": variables["AWS_DEFAULT_REGION"], "endpoint_url": variables["AWS_ENDPOINT_URL_S3"]}
    client, until = session.create_client("s3", **where), monotonic() + SECONDS
    while True:
        with suppress(BotoCoreError, ClientError):
            if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=BUCKET)
            return
        assert monotonic() < until, "the S3 server creates no bucket"
        sleep(0.1)
