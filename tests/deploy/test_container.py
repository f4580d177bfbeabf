"""The image that the Dockerfile makes, built and run without a container engine (see `debian_root`).

It runs as the Dockerfile says: with its user and environment, on a read-only tree, as process 1, in a network with
loopback only.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

from agent.local.vllm_server import find_vllm
from agent.settings import ROOT
from tests.support.debian_root import PYTHON, Container, Image, Loopback, Unavailable, base, build, container
from tests.support.dockerfile import context, needed, settings, stages
from tests.support.scripted_server import Config, running

DOCKERFILE = ROOT / "Dockerfile"
URL = "http://127.0.0.1:7860"


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The target `app`, built once."""
    with tempfile.TemporaryDirectory(prefix="switchboard-image-") as work:
        try:
            yield build(DOCKERFILE, "app", Path(work))
        except Unavailable as reason:
            pytest.skip(f"no container can be made here: {reason}")


@pytest.fixture(scope="module")
def network(image: Image) -> Iterator[Loopback]:
    """A network namespace for the tests."""
    try:
        made = Loopback()
    except Unavailable as reason:
        pytest.skip(f"no container can be run here: {reason}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def model_url(network: Loopback) -> Iterator[str]:
    """Run the scripted model server inside the network and return its URL."""
    with ExitStack() as stack:
        yield network.do(stack.enter_context, running(Config(rate=200.0))).base_url
        network.do(stack.close)


@pytest.fixture(scope="module")
def page(
    image: Image, network: Loopback, model_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Container]:
    """Run the container with the scripted server, and wait until it is healthy."""
    volume = tmp_path_factory.mktemp("container") / "data"
    with container(image, network, volume, VLLM_BASE_URL=model_url) as started:
        assert started.healthy(), started.log.read_text()
        yield started


def answer(text: str) -> dict[str, Any]:
    """Send one message to the page and return its whole answer."""
    client = Client(URL, verbose=False, analytics_enabled=False)
    try:
        return client.predict({"text": text, "files": []}, "", {}, api_name="/chat")
    finally:
        client.close()


def test_dockerfile_passes_linter() -> None:
    linter = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_build_context_holds_only_the_app() -> None:
    seen = {str(path) for path in context(ROOT)}
    tops = {name.split("/")[0] for name in seen}
    locks = {
        "requirements-app.txt",
        "requirements-extras.txt",
        "requirements-models.txt",
        "requirements-ocr.txt",
        "requirements-gpu.txt",
        "requirements-stores.txt",
    }
    assert tops == {".ci", "agent", "app.py", "configs", *locks}
    assert {name for name in seen if name.startswith(".ci/")} == {".ci/uv", ".ci/uv.txt"}
    assert {"agent/web/server.py", "agent/web/ui/page.css", "configs/app.toml"} <= seen
    assert not [name for name in seen if "__pycache__" in name]


def test_default_target_is_the_app() -> None:
    assert list(stages(DOCKERFILE.read_text()))[-1] == "app"


def test_gpu_image_adds_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    every = stages(DOCKERFILE.read_text())
    names = [stage.name for stage in needed(every, "gpu")]
    assert "page" in names
    assert "packages-gpu" not in [stage.name for stage in needed(every, "app")]
    steps = every["gpu"].steps
    env = settings(next(step for step in steps if step.name == "ENV"), {})
    assert env["MODEL"] == "Qwen/Qwen3-8B"
    assert [step.rest for step in steps if step.name == "USER"][-1] == "1000"
    copied = next(step for step in steps if step.name == "COPY")
    assert copied.words == ["/app/.venv-gpu", ".venv-gpu"]
    # A virtual environment works only at its original path, and the app must look there.
    workdir = next(step.rest for step in every["base"].steps if step.name == "WORKDIR")
    looked_at: list[str] = []
    monkeypatch.setattr(Path, "is_file", lambda path: looked_at.append(str(path)))
    find_vllm(Path(workdir))
    assert "/app/.venv-gpu/bin/vllm" in looked_at


@pytest.mark.container
@pytest.mark.timeout(900)  # the first test waits for the build and maybe for the base image
class TestTheImage:
    """All tests that need the image."""

    def test_page_responds(self, page: Container, network: Loopback) -> None:
        value = network.do(answer, "!text Good morning from inside.")
        assert (value["text"], value["finish_reason"]) == ("Good morning from inside.", "stop")

    def test_stores_image_has_the_drivers(self, network: Loopback, model_url: str, tmp_path: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="switchboard-image-") as work:
            built, port = build(DOCKERFILE, "stores", Path(work)), "7861"
            store = "redis://127.0.0.1:1/0"  # where nothing listens: the page opens and says so
            given = {"VLLM_BASE_URL": model_url, "SWITCHBOARD_STORE": store, "GRADIO_SERVER_PORT": port}
            with container(built, network, tmp_path / "data", **given) as started:
                assert started.healthy(), started.log.read_text()
                assert started.run("python", "-c", "import psycopg, psycopg_pool, redis") == (0, "")

    def test_process_1_is_unprivileged(self, page: Container) -> None:
        said = Path(f"/proc/{page.pid}/status").read_text()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in said.splitlines())}
        assert fields["NSpid"][-1] == "1"
        assert fields["Uid"] == ["1000"] * 4
        assert fields["Gid"] == ["1000"] * 4
        assert fields["CapEff"] == ["0000000000000000"]
        assert Path(f"/proc/{page.pid}/cmdline").read_text().split("\0")[:2] == ["python", "app.py"]

    def test_only_volume_is_writable(self, page: Container) -> None:
        assert page.run("touch", "/data/x", "/tmp/x") == (0, "")
        page.run("rm", "/data/x")
        for place in ("/app/x", "/app/.venv/x", "/etc/x", "/usr/x"):
            status, said = page.run("touch", place)
            assert status != 0
            assert "Read-only file system" in said or "Permission denied" in said
        mounts = page.run("cat", "/proc/mounts")[1].splitlines()
        assert "ro" in next(line for line in mounts if line.split()[1] == "/").split()[3].split(",")

    def test_data_is_kept_on_volume(self, page: Container) -> None:
        assert {"history.sqlite", "secret"} <= {path.name for path in page.volume.iterdir()}
        assert {path.stat().st_uid for path in page.volume.rglob("*")} == {1000}

    def test_health_check_detects_missing_page(self, page: Container) -> None:
        assert page.run(*page.image.health)[0] == 0
        page.env = {**page.env, "GRADIO_SERVER_PORT": "7861"}
        assert page.run(*page.image.health)[0] != 0

    def test_container_uses_few_resources(self, image: Image) -> None:
        def installed(*layers: Path) -> set[str]:
            status = next(file for each in layers if (file := each / "var/lib/dpkg/status").exists())
            return {line.split()[1] for line in status.read_text().splitlines() if line.startswith("Package: ")}

        bare = installed(base(next(iter(stages(DOCKERFILE.read_text()).values())).parent))
        assert installed(*image.layers) - bare == {"libgomp1", "gcc-12-base"} - bare
        assert image.env["PATH"] == f"/app/.venv/bin:{PYTHON['PATH']}"

    def test_nothing_is_left_to_compile(self, image: Image) -> None:
        for package in ("agent", ".venv/lib/python3.11/site-packages/gradio"):
            [folder] = [found for layer in image.layers if (found := layer / "app" / package).is_dir()]
            # The image's Python has the version that runs this test, so the names are equal.
            sources = [path for path in folder.rglob("*.py") if "_frontend_code" not in path.parts]
            assert len(sources) > 20
            assert [path for path in sources if not Path(cache_from_source(str(path))).exists()] == []

    def test_llama_cpp_finds_its_libraries(self, page: Container) -> None:
        assert page.run("python", "-c", "import xllamacpp") == (0, "")

    def test_sigterm_during_answer_ends_cleanly(
        self, image: Image, network: Loopback, model_url: str, page: Container, tmp_path: Path
    ) -> None:
        with container(image, network, tmp_path / "data", VLLM_BASE_URL=model_url, GRADIO_SERVER_PORT="7870") as own:
            assert own.healthy(), own.log.read_text()

            def begin() -> Client:
                client = Client(URL.replace("7860", "7870"), verbose=False, analytics_enabled=False)
                job = client.submit({"text": "!tokens 2000 @20", "files": []}, "", {}, api_name="/chat")
                assert any(value["text"] for value in job)
                return client

            client = network.do(begin)
            assert own.stop(10) == 0, own.log.read_text()
            client.close()

    def test_small_model_answers_offline(self, image: Image, network: Loopback, tmp_path: Path) -> None:
        volume = tmp_path / "data"
        (volume / "home").mkdir(parents=True)
        for path in (volume, *volume.rglob("*")):
            os.chown(path, 1000, 1000)
        with container(image, network, volume, GRADIO_SERVER_PORT="7880") as own:
            assert own.healthy(), own.log.read_text()

            def ask() -> dict[str, Any]:
                client = Client(URL.replace("7860", "7880"), verbose=False, analytics_enabled=False)
                try:
                    message = {"text": "Write a sentence about the sea.", "files": []}  # one word would not do
                    return client.predict(message, "", {"max_tokens": 8, "temperature": 0}, api_name="/chat")
                finally:
                    client.close()

            answer = network.do(ask)  # its words depend on the processor
            assert answer["finish_reason"] in ("stop", "length"), own.log.read_text()
            assert re.search(r"\w{2,} \w", answer["text"]), own.log.read_text()
            assert own.stop(10) == 0, own.log.read_text()
