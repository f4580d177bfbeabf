"""The wheel and the sdist: what they contain, and what works with the package alone, without the packages of the page.

The environments have locked packages and are new. Nothing of this checkout can be imported in them.
"""

import re
import subprocess
import tarfile
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from gradio_client import Client

from tests.conftest import ROOT, becomes
from tests.support.clean_environments import Distribution, Environment, build, install, requirements
from tests.support.scripted_server import Running

pytestmark = pytest.mark.slow

NOT_CORE = ("gradio", "fastapi", "starlette", "uvicorn", "mcp", "av", "numpy", "xllamacpp", "faster_whisper", "psycopg")
"""Modules of packages that only extras bring."""


def tracked(*paths: str) -> set[str]:
    """Return the files of the project below these paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}


def test_wheel_has_every_file_and_no_test(built: Distribution) -> None:
    data = {
        f"agent/installed/{name}"
        for name in tracked("configs", "app.py", "requirements-models.txt", "requirements-ocr.txt")
    }
    assert built.names_in_wheel() == tracked("agent") | data


@pytest.mark.full
def test_sdist_makes_the_same_wheel(built: Distribution, tmp_path: Path) -> None:
    assert [name for name in built.names_in_sdist() if name.startswith(("tests/", "bench/", "."))] == [".gitignore"]
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (again,) = build(unpacked, tmp_path / "again", "wheel")
    assert Distribution(again, built.sdist).names_in_wheel() == built.names_in_wheel()


def test_dependabot_watches_each_lock_file() -> None:
    updates = yaml.safe_load((ROOT / ".github/dependabot.yml").read_text(encoding="utf-8"))["updates"]
    watched = {(update["package-ecosystem"], update["directory"]) for update in updates}
    kinds = {".txt": "pip", ".json": "npm", "": "docker"}
    locks = tracked(":(glob)requirements*.txt", ".ci/uv.txt", ":(glob)**/package-lock.json", "Dockerfile")
    assert watched == {(kinds[Path(name).suffix], str(Path("/", name).parent)) for name in locks}


@pytest.mark.full
def test_import_needs_no_extra(core: Environment, tmp_path: Path) -> None:
    said = core.says(
        f"""
import sys
from importlib.util import find_spec
import agent, agent.history.sql.sqlite, agent.tools.rest, agent.suspension.ledger
print([name for name in {NOT_CORE} if find_spec(name)], agent.__file__)
""",
        cwd=tmp_path,
    )
    none, _, place = said.partition(" ")
    assert none == "[]"
    assert Path(place).is_relative_to(core.folder)


ASK = """
import asyncio
from agent import Agent, Chat, tool

@tool
def double(number: int) -> int:
    \"\"\"Double a number.\"\"\"
    return 2 * number

async def main():
    async with Agent("Qwen/Qwen3-8B", tools=[double]) as agent:
        result = await agent.ask('!tool double {"number": 21} !text It is done.')
        print(result.checked().text, [one["content"] for one in result.to_input_list() if one["role"] == "tool"])

asyncio.run(main())
"""


@pytest.mark.full
def test_run_needs_no_extra(core: Environment, server: Running, tmp_path: Path) -> None:
    said = core.says(ASK, cwd=tmp_path, VLLM_BASE_URL=server.base_url)
    assert said == "It is done. ['42']"


def test_first_program_of_readme_names_the_missing_extra(core: Environment, tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    source = next(program for program in programs if 'Agent("auto"' in program)
    source = source.replace("result.usage)", "result.note.detail)")
    no_servers = {name: "" for name in ("VLLM_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "MODEL", "LOCAL_MODEL")}
    said = core.says(source, cwd=tmp_path, **no_servers)
    assert said == 'error llama.cpp is not installed: pip install ".[local]" (in the folder of Switchboard)'


def test_no_text_tells_to_install_an_unregistered_name() -> None:
    """Anybody could register the name of the distribution, so each command names the checkout."""
    texts = [name for name in tracked("agent", "docs", "README.md") if Path(name).suffix in (".py", ".po", ".md")]
    command = re.compile(r"""\binstall(?: -\S+)* [\\"']*switchboard""")
    assert [name for name in texts if command.search((ROOT / name).read_text(encoding="utf-8"))] == []


@pytest.mark.full
def test_data_are_kept_in_the_users_folder(core: Environment, tmp_path: Path) -> None:
    source = "from agent.settings import load_settings\nprint(load_settings().data_dir, load_settings().title)"
    assert core.says(source, cwd=tmp_path) == f"{tmp_path}/.local/share/switchboard/data Switchboard"
    elsewhere = core.says(source, cwd=tmp_path, XDG_DATA_HOME=str(tmp_path / "mine"))
    assert elsewhere == f"{tmp_path}/mine/switchboard/data Switchboard"


MISSING = {
    "mcp": "from agent.tools.mcp import McpServer",
    "local": "from agent import Agent; Agent('Qwen/Qwen3-0.6B')",
    "media": "from pathlib import Path; from agent.files.convert import convert_audio, SoundLimits; "
    "convert_audio(Path(SOUND).read_bytes(), SoundLimits())",
    "redis": "import asyncio; from pathlib import Path; from agent.history import open_store; "
    "asyncio.run(open_store('redis://127.0.0.1:1', folder=Path()))",
    "postgres": "import asyncio; from pathlib import Path; from agent.history import open_store; "
    "asyncio.run(open_store('postgresql://127.0.0.1:1/x', folder=Path()))",
}
"""Programs that need an extra, by its name."""


def test_first_visit_installs_nothing_for_sound() -> None:
    """Models on this machine do not hear. `make extras` installs the rest, also in the image."""
    heavy = {"av", "soundfile", "faster-whisper", "ctranslate2", "onnxruntime"}
    names = {
        name: set(re.findall(r"(?m)^([a-z0-9-]+)==", (ROOT / f"requirements-{name}.txt").read_text()))
        for name in ("app", "extras", "dev")
    }
    assert names["app"] & heavy == set()
    assert heavy <= names["extras"] & names["dev"]


@pytest.mark.full
def test_missing_extra_is_named(core: Environment, tmp_path: Path) -> None:
    source = f"""
from agent import AgentError
SOUND = {str(ROOT / "agent/web/ui/samples/notes.wav")!r}
for extra, program in {MISSING!r}.items():
    try:
        exec(program)
        print(extra, "is not needed")
    except AgentError as error:
        print(extra if f".[{{extra}}]" in str(error) else error)
"""
    assert core.says(source, cwd=tmp_path).splitlines() == list(MISSING)


@pytest.mark.full
@pytest.mark.parametrize(
    "command", [[], ["doctor"], ["deploy", "--dry-run"]], ids=lambda words: " ".join(words) or "page"
)
def test_command_names_extra_of_the_page(core: Environment, tmp_path: Path, command: list[str]) -> None:
    done = core.run("switchboard", *command, cwd=tmp_path)
    name = " ".join(["switchboard", *command[:1]])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f'{name} needs more packages: pip install ".[page]" (in the folder of Switchboard)\n'


def status(url: str) -> int:
    """Return the HTTP status of a page."""
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


@pytest.fixture(scope="module")
def whole(built: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the package and the extra `page`."""
    wanted = [*requirements(built.wheel), *requirements(built.wheel, "page")]
    return install(built.wheel, tmp_path_factory.mktemp("whole") / "environment", wanted)


@pytest.mark.full
def test_doctor_runs_from_the_wheel(whole: Environment, server: Running, tmp_path: Path) -> None:
    done = whole.run("switchboard", "doctor", cwd=tmp_path, VLLM_BASE_URL=server.base_url)
    assert "their versions are those that the installer chose" in done.stdout, done.stderr


@pytest.mark.full
def test_deployment_from_the_wheel_sends_this_checkout(whole: Environment, tmp_path: Path) -> None:
    done = whole.run("switchboard", "deploy", "--dry-run", cwd=ROOT, HOME=str(tmp_path))
    assert "Hardware: cpu-basic" in done.stdout, done.stderr


@pytest.mark.full
def test_page_runs_from_the_wheel(whole: Environment, server: Running, tmp_path: Path) -> None:
    variables = whole.variables(tmp_path, VLLM_BASE_URL=server.base_url, GRADIO_SERVER_PORT="0")
    page = subprocess.Popen(
        [whole.folder / "bin" / "switchboard"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert page.stdout
        url = page.stdout.readline().removeprefix("The page is at ").strip()
        becomes(200, lambda: status(f"{url}/readyz"), 120)
        assert status(f"{url}/icon-180.png") == 200
        client = Client(url, verbose=False, analytics_enabled=False)
        value = client.predict({"text": "!text From the wheel.", "files": []}, "", {}, api_name="/chat")
        client.close()
        assert value["text"] == "From the wheel."
    finally:
        page.terminate()
        page.communicate(timeout=60)
    assert (tmp_path / ".local/share/switchboard/data").is_dir()
