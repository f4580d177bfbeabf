"""Measures what nginx needs for event streams: the CPU time of its worker, with docs/proxies/replicas.conf.

`python -m bench.proxy` puts the nginx of the tests in front of tiny servers that send what a page gets of an answer
with 30 tokens a second. Readers connect over TLS, one connection each. Nothing of the page is part of the figures.
"""

import asyncio
import os
import ssl
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from tests.support.event_source import Write, event_source
from tests.support.ports import free_port
from tests.support.proxies import replicas_proxy, self_signed

SECONDS = 20.0
RATE = 30
STREAMS = (100,)
EVENT = 'id: 1f2e3d4c-120\ndata: {"edits":[["append",1," tokens",0]]}\n\n'


def main() -> int:
    """Run the bench. Return the exit status."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(prefix="proxy-") as home:
        crt, key = self_signed(Path(folder))
        port, pages = free_port(), (free_port(), free_port())
        with replicas_proxy(home, port, pages, crt, key) as pid:
            for streams in STREAMS:
                print(asyncio.run(_measure(streams, port, pages, crt, pid)), flush=True)
    return 0


async def _measure(streams: int, port: int, pages: tuple[int, int], crt: Path, pid: int) -> str:
    context, received = ssl.create_default_context(cafile=str(crt)), 0

    async def send(write: Write) -> None:
        at = perf_counter()
        while True:
            await write(EVENT)
            at += 1 / RATE
            await asyncio.sleep(max(0.0, at - perf_counter()))

    async def read(visitor: int) -> None:
        nonlocal received
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        cookie = f"switchboard_visitor-443=visitor{visitor}"
        writer.write(f"GET /runs/{visitor}/events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        try:
            async for line in reader:
                received += line.startswith(b"id:")
        finally:
            writer.close()

    async with event_source("page1", send, pages[0]), event_source("page2", send, pages[1]):
        readers = [asyncio.create_task(read(visitor)) for visitor in range(streams)]
        await asyncio.sleep(3 + streams / 100)  # their handshakes are no part of the figures
        began, cpu, before = perf_counter(), _cpu_seconds(pid), received
        await asyncio.sleep(SECONDS)
        seconds, used, events = perf_counter() - began, _cpu_seconds(pid) - cpu, received - before
        for one in readers:
            one.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    share = used / seconds
    return (
        f"nginx: {streams} streams, {events / seconds:.0f} events a second ({events / seconds / streams:.1f} each): "
        f"{100 * share:.1f} % of a core, {1e6 * used / events:.0f} microseconds an event"
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
