"""Runs the attacks against its own app in public mode: `python -m bench.attack [words of an attack's name]`.

For each attack it prints the replies to the attacker, the time, the app's memory, and the answers to another visitor.
It fails if an attack misses the goal. It uses only loopback and ends only processes that it started. It takes a few
minutes.
"""

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.attack.attacks import ATTACKS
from bench.attack.client import bystander, memory, wait_until_settled
from bench.process import started, wait_until_up
from tests.support.ports import free_port
from tests.support.scripted_server import Config, running

CONFIG = "[public]\non = true\nlinks = true\nmessages = 1000\nmessages_per_address = 1000\nmessages_in_all = 2000\n"
"""A higher rate limit than the default, because the attacks test other limits."""
MODEL = "Qwen/Qwen3-Omni-30B-A3B-Instruct"
"""A model that takes pictures and sound."""
READY_S = 60.0
WAIT_S, GROWTH_MB = 1.0, 100.0
"""The goal of each attack: the longest wait of another visitor, and the growth of the app's memory."""


def main() -> None:
    """Run the attacks with names that contain the given words."""
    words, missed = " ".join(sys.argv[1:]), 0
    for name, attack in ATTACKS.items():
        if words not in name:
            continue
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attack-")))
            server = stack.enter_context(running(Config(models=(MODEL,), rate=200.0)))
            (folder / "app.toml").write_text(CONFIG)
            port = free_port()
            env = {
                "VLLM_BASE_URL": server.base_url,
                "GRADIO_SERVER_PORT": str(port),
                "SWITCHBOARD_DATA": str(folder / "data"),
                "SWITCHBOARD_CONFIG": str(folder / "app.toml"),
                "GRADIO_TEMP_DIR": str(folder / "tmp"),
            }
            url, log = f"http://127.0.0.1:{port}", folder / "log"
            app = stack.enter_context(started([sys.executable, "app.py"], log, env))
            wait_until_up(app, url + "/healthz", log, READY_S)
            with bystander(url, pause=0.2) as other:
                wait_until_settled(app.pid)
                with memory(app.pid) as held:
                    began = time.monotonic()
                    told = attack(url)
                    took = time.monotonic() - began
            is_held = not other.failures and other.slowest <= WAIT_S and held.grown <= GROWTH_MB
            missed += not is_held
            print(f"{name}: {'ok' if is_held else 'MISSED'}\n  told: {told!s:.600}\n  took {took:.1f} s")
            load = os.getloadavg()[0]
            print(f"  memory: {held}\n  another visitor: {other}\n  load: {load:.1f}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
