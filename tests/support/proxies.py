"""Proxies in front of the app, with the files of docs/proxies, and certificates for them."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agent.settings import ROOT
from tests.support.debian_root import Unavailable, package

DOCS = ROOT / "docs" / "proxies"
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/switchboard.conf;
}}
"""


def program(name: str) -> str:
    """Return the proxy of this machine, or Debian's, unpacked into the project's cache. Skips if there is neither."""
    if installed := shutil.which(name):
        return installed
    try:
        folders = [package(name) / folder for folder in ("usr/sbin", "usr/bin")]
    except Unavailable as reason:
        pytest.skip(f"{name} is not installed and cannot be had: {reason}")
    found = next(path for folder in folders if (path := folder / name).exists())
    asked = subprocess.run([found, "-v" if name == "nginx" else "version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"Debian's {name} does not run here: {(asked.stderr.strip() or 'nothing said').splitlines()[-1]}")
    return str(found)


def nginx_command(folder: str, text: str) -> list[str]:
    """Write this configuration into a folder, and return the command that runs nginx with it."""
    Path(folder, "switchboard.conf").write_text(text)
    Path(folder, "main.conf").write_text(NGINX.format(folder=folder))
    return [program("nginx"), "-p", folder, "-c", f"{folder}/main.conf", "-e", f"{folder}/log"]


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return a self-signed certificate for localhost in this folder, and its key."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]),
    )
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "crt").write_bytes(made.public_bytes(pem))
    (folder / "key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "crt", folder / "key"


@contextmanager
def running_proxy(name: str, argv: Sequence[str], folder: str, port: int) -> Iterator[int]:
    """Run a proxy until the block ends. The block begins when it listens, and gets the id of its process."""
    with Path(folder, "said").open("wb") as log:
        env = {**os.environ, "HOME": folder, "XDG_DATA_HOME": folder, "XDG_CONFIG_HOME": folder}
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder)
    try:
        until = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"{name} does not start: {Path(folder, 'said').read_text()[-2000:]}")
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def changed(file: str, changes: dict[str, str]) -> str:
    """Return a file of docs/proxies with these changes. Each must match exactly once."""
    text = (DOCS / file).read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, f"{file}: {old!r}"
        text = text.replace(old, new)
    return text


@contextmanager
def replicas_proxy(folder: str, port: int, pages: tuple[int, int], crt: Path, key: Path) -> Iterator[int]:
    """Run nginx with replicas.conf on this port, in front of the pages on two others. Give the id of its process."""
    changes = {
        "page1:7860": f"127.0.0.1:{pages[0]}",
        "page2:7860": f"127.0.0.1:{pages[1]}",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
        "server_name chat.example.org;": "server_name localhost;",
        "/etc/nginx/certificates/crt": str(crt),
        "/etc/nginx/certificates/key": str(key),
    }
    with running_proxy("nginx", nginx_command(folder, changed("replicas.conf", changes)), folder, port) as process:
        yield process
