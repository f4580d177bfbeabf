"""From a Spacefile to a Space: the real huggingface_hub client against a hub on loopback."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.deploy import hub as hub_module
from agent.deploy.__main__ import main
from agent.deploy.plan import COLORS, LIST, PlannedSpace, find_secrets, front_matter, make_plan, read_spacefile, readme
from agent.errors import ConfigError
from agent.settings import ROOT
from tests.support.hub_server import serving
from tests.support.hub_state import OWNER, TOKEN, Asked, Hub, Stored
from tests.tiers import examples

pytestmark = pytest.mark.slow

SPACEFILE = """\
name = "switchboard"
title = "Switchboard: \\"chat\\""
emoji = "🎛️"
colors = ["indigo", "pink"]
sdk = "docker"
target = "app"
hardware = "l4x1"
sleep_seconds = 3600
private = true
oauth = true
storage = "kept"
preload = ["Qwen/Qwen3-0.6B-GGUF model.gguf 2374"]
secrets = ["OPENAI_API_KEY", "HF_TOKEN"]

[variables]
LOG_LEVEL = "INFO"
"""
PLAIN = 'name = "switchboard"\ntitle = "Switchboard"\nsdk = "gradio"\n'
SECRETS = {"OPENAI_API_KEY": "sk-open-sesame-1234", "SPACE_HF_TOKEN": "hf_readsonly_1234567890"}
REPO = f"{OWNER}/switchboard"
DOCKERFILE = """\
FROM python:3.11 AS base
COPY --chmod=755 .ci/uv .ci/
# COPY tests tests
FROM base AS packages
COPY requirements-app.txt \\
     ./
FROM base AS app
COPY --from=packages /venv /venv
COPY app.py agent ./
FROM base AS gpu
COPY ["requirements-gpu.txt", "./"]
"""
FILES = {
    "app.py": "print('app')\n",
    "agent/__init__.py": "",
    "agent/runtime/run.py": "RUN = 1\n",
    "agent/deploy/__init__.py": "",
    "agent/.env": "OPENAI_API_KEY=sk-in-a-file\n",
    "agent/server.pem": "key\n",
    "configs/app.toml": "[server]\n",
    "requirements.txt": "gradio==6.31.0\n    # via switchboard\npip==1\n",
    "requirements-app.txt": "gradio==6.31.0 --hash=sha256:aa\n",
    "requirements-gpu.txt": "vllm==1\n",
    "pyproject.toml": '[project]\nrequires-python = ">=3.11"\n',
    "README.md": "# Switchboard\n\nA chat page.\n\n## More\n\n![x](docs/x.png)\n",
    "Dockerfile": DOCKERFILE,
    ".ci/uv": "#!/bin/sh\n",
    ".env": "OPENAI_API_KEY=sk-in-a-file\n",
    "tests/test_x.py": "",
    "data/history.sqlite": "x",
    ".cache/weights": "x",
}
SENT = {"app.py", "agent/__init__.py", "agent/runtime/run.py", "configs/app.toml", "README.md", LIST}


@dataclass
class Checkout:
    """A small project under git. Deploys from it run in this process."""

    root: Path
    said: list[str] = field(default_factory=list)
    complained: list[str] = field(default_factory=list)

    def git(self, *arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=self.root, check=True, capture_output=True)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        self.git("add", "-f", path)

    def deploy(self, spacefile: str, *arguments: str, env: dict[str, str] | None = None) -> int:
        (self.root / "Spacefile").write_text(spacefile)
        self.said.clear()
        self.complained.clear()
        env = SECRETS if env is None else env
        return main(arguments, env=env, root=self.root, say=self.said.append, complain=self.complained.append)

    def plan(self, spacefile: str = SPACEFILE) -> Any:
        (self.root / "Spacefile").write_text(spacefile)
        return make_plan(read_spacefile(self.root / "Spacefile"), self.root)

    @property
    def output(self) -> str:
        return "\n".join([*self.said, *self.complained])


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seed")
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / ".ci/uv").chmod(0o755)
    (root / "agent/link.py").symlink_to("/etc/hostname")
    for arguments in (["init", "-q"], ["add", "-A", "-f"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    (root / "agent/new.py").write_text("")
    return root


@pytest.fixture
def checkout(seed: Path, tmp_path: Path) -> Checkout:
    root = tmp_path / "project"
    subprocess.run(["cp", "-a", seed, root], check=True)
    return Checkout(root)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with serving() as hub:
        at(hub, monkeypatch, tmp_path)
        yield hub


def at(hub: Hub, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Use that hub and its token in this process, without the home folder of the user who runs the tests."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(folder / "harnesses.json"))


def command(
    *arguments: str, python: tuple[str, ...] = ("-m", "agent.deploy"), root: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in this project or a copy of it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SPACE_", "PYTHONPATH"))}
    return subprocess.run(
        [sys.executable, *python, *arguments], cwd=root, env=kept | env, capture_output=True, text=True, timeout=100
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy this project as it is, with all files known to git, so that other work in the folder does not matter."""
    root = tmp_path_factory.mktemp("project")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0"):
        if path and (ROOT / path).is_file():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, root / path)
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return root


# The Spacefile


def test_spacefile_describes_a_space(tmp_path: Path) -> None:
    (tmp_path / "Spacefile").write_text(SPACEFILE)
    assert read_spacefile(tmp_path / "Spacefile") == PlannedSpace(
        name="switchboard",
        title='Switchboard: "chat"',
        emoji="🎛️",
        colors=("indigo", "pink"),
        sdk="docker",
        target="app",
        hardware="l4x1",
        sleep_seconds=3600,
        private=True,
        oauth=True,
        storage="kept",
        preload=("Qwen/Qwen3-0.6B-GGUF model.gguf 2374",),
        secrets=("OPENAI_API_KEY", "HF_TOKEN"),
        variables={"LOG_LEVEL": "INFO"},
    )


HEAD = '# A Space\nname = "a"\ntitle = """\nA"""\n'  # four lines, two of them one statement
MISTAKES = {
    "unknown key": (HEAD + 'colour = "red"\n', 5, "unknown key 'colour'"),
    "unknown table": (
        HEAD + "\n[varaibles]\nA = 'b'\n",
        6,
        "unknown section [varaibles]; perhaps 'variables' is meant",
    ),
    "a key as a key": (HEAD + 'OPENAI_API_KEY = "sk-1"\n', 5, "its value into the environment"),
    "title of two lines": ('name = "a"\n\ntitle = """\nA\nB"""\n', 3, "one line of text"),
    "wrong type": (HEAD + "private = 1\n", 5, "private must be true or false, not 1"),
    "boolean for a number": (HEAD + "sleep_seconds = true\n", 5, "a whole number, not True"),
    "wrong color": (HEAD + 'colors = [\n  "red",\n  "mauve",\n]\n', 7, "not 'mauve'"),
    "one color": (HEAD + 'colors = ["red"]\n', 5, "must be two"),
    "hardware": (HEAD + 'hardware = "abacus"\n', 5, "must be one of cpu-basic"),
    "sdk": (HEAD + 'sdk = "streamlit"\n', 5, "must be 'docker' or 'gradio', not 'streamlit'"),
    "emoji": (HEAD + 'emoji = "smile"\n', 5, "one emoji, not 'smile'"),
    "sleep on free hardware": (HEAD + "sleep_seconds = 3600\n", 5, "cannot be chosen on cpu-basic"),
    "too little sleep": (HEAD + 'hardware = "l4x1"\nsleep_seconds = 5\n', 6, "at least 60"),
    "target without docker": (HEAD + 'sdk = "gradio"\ntarget = "gpu"\n', 6, "a stage of the Dockerfile"),
    "ZeroGPU without gradio": (HEAD + 'hardware = "zero-a10g"\n', 5, 'it needs sdk = "gradio"'),
    "requirements without gradio": (HEAD + 'requirements = ["torch"]\n', 5, 'for sdk = "gradio"'),
    "requirement": (HEAD + 'sdk = "gradio"\nrequirements = [\n"-r x.txt"\n]\n', 7, "be like 'torch'"),
    "name": ('name = "a b"\ntitle = "A"\n', 1, "'owner/switchboard'"),
    "no name": ('\ntitle = "A"\n', 1, "name is missing"),
    "no title": ('name = "a"\n', 1, "title is missing"),
    "preload": (HEAD + 'preload = [\n"a/b",\n"gpt2"]\n', 7, "'owner/model'"),
    "secrets with values": (HEAD + '[secrets]\nA = "b"\nOPENAI_API_KEY = "sk-1"\n', 6, "must not stand in this file"),
    "a secret with its value": (HEAD + 'secrets = [\n"A",\n"K=hidden-12345678"\n]\n', 7, "must be a name alone"),
    "a secret's value": (HEAD + 'secrets = ["sk-hidden12345678"]\n', 5, "must be a name alone"),
    "a variable that is a secret": (HEAD + '[variables]\nA = "b"\nX_API_KEY = "hidden"\n', 7, "X_API_KEY looks like"),
    "a variable like a secret": (HEAD + '[variables]\nA = "hf_hidden12345678"\n', 6, "A looks like a secret"),
    "variable and secret": (HEAD + 'secrets = ["A"]\n[variables]\nB = "1"\nA = "hidden"\n', 8, "both a variable and"),
    "variable of another type": (HEAD + "[variables]\nA = 1\n", 6, "variables.A must be text in quotes"),
    "variable's name": (HEAD + '[variables]\nA = "b"\n"a b" = "c"\n', 7, "that an environment takes"),
    "no TOML": (HEAD + "hardware: cpu\n", 5, "not valid TOML"),
    "twice": (HEAD + 'emoji = "💬"\nname = "b"\n', 6, "not valid TOML"),
    "never closed": (HEAD + 'secrets = [\n"A",\n', 5, "not valid TOML"),
}


@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["unix", "dos"])
@pytest.mark.parametrize(("text", "line", "what"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_named_with_line(text: str, line: int, what: str, ends: str, tmp_path: Path) -> None:
    (tmp_path / "Spacefile").write_bytes(text.replace("\n", ends).encode())
    with pytest.raises(ConfigError) as caught:
        read_spacefile(tmp_path / "Spacefile")
    assert str(caught.value).startswith(f"Spacefile, line {line}: ")
    assert what in str(caught.value)
    assert "hidden" not in str(caught.value)


STATEMENTS = (
    "",
    "# title = 1",
    'title = """\n# [variables]\\\n  secrets = 1"""',
    'colors = [ # two\n"red",\n\n"gray"]',
    "oauth=true",
    '"preload" = []',
)


@given(before=st.permutations(STATEMENTS), count=st.integers(0, len(STATEMENTS)))
def test_line_number_is_right_in_any_file(before: list[str], count: int, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "Spacefile"
    text = "".join(f"{statement}\n" for statement in ['name = "a"', *before[:count]])
    for wrong in ("sdk = 1", "= 1", 'sdk = [\n"a"\n]', "[secrets]"):
        path.write_text(f"{text}{wrong}\n")
        with pytest.raises(ConfigError, match=f"line {text.count(chr(10)) + 1}: "):
            read_spacefile(path)


def test_own_spacefile_is_valid() -> None:
    space = read_spacefile(ROOT / "Spacefile")
    assert space.private
    assert space.secrets == ()


# The plan


@given(
    title=st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable()),
    colors=st.tuples(st.sampled_from(COLORS), st.sampled_from(COLORS)),
    oauth=st.booleans(),
    preload=st.lists(st.sampled_from(["a/b", "a/b c,d", "a/b c 0f"])),
    sdk=st.sampled_from(["docker", "gradio"]),
)
def test_front_matter_matches_in_yaml(title: str, colors: Any, oauth: bool, preload: Any, sdk: Any) -> None:
    space = PlannedSpace(name="a", title=title, colors=colors, oauth=oauth, preload=tuple(preload), sdk=sdk)
    begin, block, end = front_matter(space, gradio="6.31.0", python="3.11").split("---\n")
    assert (begin, end) == ("", "")
    told = yaml.safe_load(block)
    assert told.pop("title") == title
    assert (told.pop("emoji"), told.pop("colorFrom"), told.pop("colorTo"), told.pop("sdk")) == ("💬", *colors, sdk)
    if sdk == "docker":
        assert told.pop("app_port") == 7860
    else:
        assert (told.pop("sdk_version"), told.pop("python_version"), told.pop("app_file")) == (
            "6.31.0",
            "3.11",
            "app.py",
        )
    assert told == ({"hf_oauth": True, "hf_oauth_scopes": ["inference-api"]} if oauth else {}) | (
        {"preload_from_hub": preload} if preload else {}
    )


def test_only_needed_files_are_sent(checkout: Checkout) -> None:
    assert set(checkout.plan().files) == SENT | {"Dockerfile", ".ci/uv", "requirements-app.txt"}
    assert set(checkout.plan(PLAIN).files) == SENT | {"requirements.txt"}
    gpu = checkout.plan(SPACEFILE.replace('"app"', '"gpu"'))
    assert set(gpu.files) == SENT | {"Dockerfile", ".ci/uv", "requirements-gpu.txt"}
    assert gpu.files["Dockerfile"].decode() == DOCKERFILE + "\nFROM gpu\n"
    assert sorted(gpu.notes) == [
        "agent/.env is left out: no Space needs such a file.",
        "agent/link.py is left out: no Space needs such a file.",
        "agent/new.py is left out: git does not know it (git add).",
        "agent/server.pem is left out: no Space needs such a file.",
    ]


def test_requirements_are_added_to_the_locked_ones(checkout: Checkout) -> None:
    more = PLAIN + 'requirements = ["torch==2.11.0", "transformers[torch]>=5"]\n'
    assert checkout.plan(more).files["requirements.txt"].decode() == (
        FILES["requirements.txt"] + "torch==2.11.0\ntransformers[torch]>=5\n"
    )
    with pytest.raises(ConfigError, match="pins that package"):
        checkout.plan(PLAIN + 'requirements = ["Gradio>=6"]\n')


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ("", ["needs torch and transformers in", "Without oauth"]),
        ('requirements = ["torch"]\noauth = true\n', ["needs transformers in"]),
        ('requirements = ["torch", "transformers>=5"]\noauth = true\n', ["name it in preload"]),
        ('requirements = ["torch", "transformers"]\noauth = true\npreload = ["Qwen/Qwen3-4B"]\n', []),
    ],
    ids=["nothing", "half", "no preload", "all"],
)
def test_zero_gpu_says_what_is_missing(more: str, missing: list[str], checkout: Checkout) -> None:
    notes = [one for one in checkout.plan(f'{PLAIN}hardware = "zero-a10g"\n{more}').notes if "left out" not in one]
    assert len(notes) == len(missing)
    assert all(part in note for part, note in zip(missing, notes, strict=True))


# https://huggingface.co/docs/hub/spaces-config-reference


def test_readme_has_the_front_matter_of_a_gradio_space(project: Path) -> None:
    """So that a plain push of the project makes a Space, with the Gradio that requirements.txt pins."""
    space = replace(read_spacefile(project / "Spacefile"), sdk="gradio", target=None)
    assert (project / "README.md").read_bytes().startswith(readme(space, project))
    assert "--hash" not in (project / "requirements.txt").read_text()


def test_readme_has_its_own_text(checkout: Checkout) -> None:
    before = checkout.plan().files["README.md"]
    assert before.decode().endswith("---\n# Switchboard\n\nA chat page.\n\n")
    checkout.write("README.md", "---\ntitle: Other\n---\n\n" + FILES["README.md"] + "More.\n")
    assert checkout.plan().files["README.md"] == before


INCOMPLETE: dict[str, tuple[Callable[[Checkout], object], str]] = {
    "no such target": (lambda it: it.write("Dockerfile", "FROM x AS other\n"), "no such stage"),
    "no app": (lambda it: it.git("rm", "--cached", "app.py"), "needs app.py"),
    "no Dockerfile": (lambda it: (it.root / "Dockerfile").unlink(), "Dockerfile is needed"),
    "copied, but unknown to git": (lambda it: it.git("rm", "--cached", ".ci/uv"), "needs .ci/uv"),
    "a program without --chmod": (
        lambda it: it.write("Dockerfile", DOCKERFILE.replace("--chmod=755 ", "")),
        ".ci/uv is a program",
    ),
    "no git": (lambda it: (it.root / ".git").rename(it.root / "gone"), "git cannot say"),
}


@pytest.mark.parametrize(("spoil", "what"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_unbuildable_space_is_refused(
    spoil: Callable[[Checkout], object], what: str, checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.root.parent))
    spoil(checkout)
    with pytest.raises(ConfigError, match=what):
        checkout.plan()


def test_project_deploys_to_each_stage(project: Path) -> None:
    app = make_plan(read_spacefile(project / "Spacefile"), project)
    assert {
        *(".ci/uv", "app.py", "agent/web/server.py", "requirements-app.txt", "requirements-models.txt", "Dockerfile"),
    } <= app.files.keys()
    assert not {path for path in app.files if path.startswith(("tests", "docs", "bench", "agent/deploy"))}
    gpu = make_plan(replace(read_spacefile(project / "Spacefile"), target="gpu"), project)
    assert gpu.files.keys() - app.files.keys() == {"requirements-gpu.txt"}
    assert app.notes == gpu.notes == ()


def test_secrets_come_from_environment() -> None:
    space = PlannedSpace(name="a", title="A", secrets=("HF_TOKEN", "A", "B"))
    assert find_secrets(space, {"HF_TOKEN": "no", "A": "1", "SPACE_A": "2", "B": ""}) == {"A": "2"}
    assert find_secrets(space, {"SPACE_HF_TOKEN": "yes", "B": "3"}) == {"HF_TOKEN": "yes", "B": "3"}


# A dry run

NO_NETWORK = """
import sys, runpy
def hook(event, arguments):
    if event.startswith("socket."):
        print("network!", event, arguments, file=sys.stderr)
        raise SystemExit(9)
sys.addaudithook(hook)
sys.argv[0] = "agent.deploy"
runpy.run_module("agent.deploy", run_name="__main__", alter_sys=True)
"""


def test_dry_run_needs_no_token_or_network(tmp_path: Path) -> None:
    (tmp_path / "Spacefile").write_text(PLAIN + 'secrets = ["A_KEY", "B_KEY"]\n')
    arguments = ("--dry-run", "--spacefile", str(tmp_path / "Spacefile"))
    done = command(*arguments, python=("-c", NO_NETWORK), HF_HOME=str(tmp_path), A_KEY="open-sesame")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Secret A_KEY: from A_KEY in the environment\nSecret B_KEY: NOT SET: set B_KEY\n" in done.stdout
    assert '  title: "Switchboard"\n' in done.stdout
    size = (ROOT / "app.py").stat().st_size
    assert f"  {size:>9}  app.py\n" in done.stdout
    assert "open-sesame" not in done.stdout
    keys = {"A_KEY": "open-sesame", "B_KEY": "open-sesame-too"}
    wet = command(*arguments[1:], python=("-c", NO_NETWORK), HF_HOME=str(tmp_path), HF_TOKEN=TOKEN, **keys)
    assert (wet.returncode, "network!" in wet.stderr) == (9, True)


def test_dry_run_prints_whole_plan(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(SPACEFILE, "--dry-run", env={"OPENAI_API_KEY": "open-sesame"}) == 0
    assert checkout.output.splitlines() == [
        "Space switchboard (of whoever the token belongs to): created if it is not there, then private",
        "Hardware: l4x1, sleeping after 3600 s",
        "Storage: bucket kept at /data",
        "Variables: LOG_LEVEL=INFO",
        "Secret OPENAI_API_KEY: from OPENAI_API_KEY in the environment",
        "Secret HF_TOKEN: NOT SET: set SPACE_HF_TOKEN",
        "README.md begins with:",
        '  title: "Switchboard: \\"chat\\""',
        '  emoji: "🎛️"',
        '  colorFrom: "indigo"',
        '  colorTo: "pink"',
        '  sdk: "docker"',
        "  app_port: 7860",
        "  hf_oauth: true",
        '  hf_oauth_scopes: ["inference-api"]',
        '  preload_from_hub: ["Qwen/Qwen3-0.6B-GGUF model.gguf 2374"]',
        *(line for line in checkout.said if " files, " in line),
        *(f"  {len(data):>9}  {path}" for path, data in checkout.plan().files.items()),
        *(f"Note: {note}" for note in checkout.plan().notes),
    ]
    assert hub.asked == []


# A deploy


def test_new_space_matches_spacefile(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(SPACEFILE) == 0, checkout.output
    space = hub.spaces[REPO]
    assert (space.private, space.sdk, space.hardware, space.sleep) == (True, "docker", "l4x1", 3600)
    assert {name: one["value"] for name, one in space.variables.items()} == {"LOG_LEVEL": "INFO"}
    assert {name: one["value"] for name, one in space.secrets.items()} == {
        "OPENAI_API_KEY": SECRETS["OPENAI_API_KEY"],
        "HF_TOKEN": SECRETS["SPACE_HF_TOKEN"],
    }
    assert space.volumes == [{"type": "bucket", "source": f"{OWNER}/kept", "mountPath": "/data"}]
    assert hub.buckets == {f"{OWNER}/kept"}
    assert space.files == checkout.plan().files | {".gitattributes": space.files[".gitattributes"]}
    assert len(space.commits) == 2
    assert checkout.said[-5:] == [
        "Sent 9 files, removed 0.",
        f"{REPO}: BUILDING",
        f"{REPO}: APP_STARTING",
        f"{REPO}: RUNNING",
        f"The page answers: {hub.url}/page/{REPO}",
    ]
    # Everything that the build needs is set before the commit that starts it.
    assert hub.changes()[-1] == f"POST /api/spaces/{REPO}/commit/main"


def test_second_deploy_changes_nothing(checkout: Checkout, hub: Hub) -> None:
    spacefile = SPACEFILE.replace('secrets = ["OPENAI_API_KEY", "HF_TOKEN"]', "secrets = []")
    assert checkout.deploy(spacefile) == 0, checkout.output
    before, commits = json.dumps(vars(hub.spaces[REPO]), default=repr), len(hub.spaces[REPO].commits)
    hub.asked.clear()
    assert checkout.deploy(spacefile) == 0, checkout.output
    assert (hub.changes(), len(hub.spaces[REPO].commits)) == ([], commits)
    assert json.dumps(vars(hub.spaces[REPO]), default=repr) == before
    assert "The files are the same as there: nothing to send." in checkout.said


def test_update_removes_only_its_own_files(checkout: Checkout, hub: Hub) -> None:
    for number in range(25):  # more than one page of the hub's list
        checkout.write(f"configs/{number}.toml", f"n = {number}\n")
    assert checkout.deploy(SPACEFILE) == 0, checkout.output
    space = hub.spaces[REPO]
    space.files |= {"notes.txt": b"mine", "agent/mine.py": b"mine"}
    space.variables["MINE"] = {"value": "1"}
    space.secrets["MINE_TOO"] = {"value": "2"}
    space.volumes.append({"type": "model", "source": "a/b", "mountPath": "/models"})
    (checkout.root / "agent/runtime/run.py").unlink()
    checkout.write("agent/runtime/model_request.py", "STEP = 1\n")
    hub.asked.clear()
    spacefile = SPACEFILE.replace('"kept"', '"other"').replace("LOG_LEVEL", "LEVEL").replace('"l4x1"', '"t4-small"')
    assert checkout.deploy(spacefile.replace(', "HF_TOKEN"', "")) == 0, checkout.output
    assert {path for path in space.files if path.startswith("agent")} == {
        "agent/__init__.py",
        "agent/mine.py",
        "agent/runtime/model_request.py",
    }
    assert space.files["notes.txt"] == b"mine"
    assert space.variables.keys() == {"MINE", "LEVEL"}
    assert space.secrets.keys() == {"MINE_TOO", "OPENAI_API_KEY"}
    assert {(one["source"], one["mountPath"]) for one in space.volumes} == {
        ("a/b", "/models"),
        (f"{OWNER}/other", "/data"),
    }
    assert (space.hardware, space.sleep) == ("t4-small", 3600)
    [commit] = hub.seen("POST .*/commit/main")
    keys = [json.loads(line)["key"] for line in commit.body.splitlines()]
    assert keys == ["header", "file", "file", "deletedFile"]  # the list, step.py, run.py


def test_sleep_time_alone_can_change(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(SPACEFILE) == 0, checkout.output
    assert checkout.deploy(SPACEFILE.replace("3600", "-1")) == 0, checkout.output
    assert hub.spaces[REPO].sleep == -1


def test_foreign_files_are_never_overwritten(checkout: Checkout, hub: Hub) -> None:
    hub.spaces[REPO] = Stored(False, "gradio", files={"app.py": b"mine", "README.md": b"mine"})
    assert checkout.deploy(SPACEFILE) == 1
    assert "has files that no deploy sent: app.py." in checkout.complained[0]
    assert hub.changes() == []
    del hub.spaces[REPO].files["app.py"]
    assert checkout.deploy(SPACEFILE) == 0, checkout.output
    assert hub.spaces[REPO].files["app.py"] == FILES["app.py"].encode()


@pytest.mark.full
def test_sent_files_are_enough_to_load(project: Path, tmp_path: Path) -> None:
    """Run the command as a process, then load the app from the files on the hub."""
    (tmp_path / "Spacefile").write_text(PLAIN + 'secrets = ["A_KEY"]\n')
    with serving() as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
        env |= {"A_KEY": "open-sesame", "HF_DEBUG": "1"}
        first = command("--spacefile", str(tmp_path / "Spacefile"), root=project, **env)
        second = command("--spacefile", str(tmp_path / "Spacefile"), root=project, **env)
    assert (first.returncode, first.stderr) == (second.returncode, second.stderr) == (0, "")
    assert "nothing to send" in second.stdout
    assert "open-sesame" not in first.stdout + second.stdout
    assert hub.spaces[REPO].secrets["A_KEY"]["value"] == "open-sesame"
    for path, data in hub.spaces[REPO].files.items():
        (tmp_path / "space" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "space" / path).write_bytes(data)
    tops = {path.split("/")[0] for path in hub.spaces[REPO].files}
    assert tops == {
        *("app.py", "agent", "configs", "requirements.txt", "requirements-models.txt", "requirements-ocr.txt"),
        "README.md",
        *(LIST, ".gitattributes"),
    }
    loading = "import app, agent.web.server, agent.settings; agent.settings.load_settings(); print(agent.__file__)"
    loaded = subprocess.run(
        [sys.executable, "-c", loading], cwd=tmp_path / "space", capture_output=True, text=True, timeout=100
    )
    assert (loaded.stdout.strip(), loaded.stderr) == (str(tmp_path / "space/agent/__init__.py"), "")


# Failures

NOTHING_SENT: dict[str, tuple[dict[str, str], str]] = {
    "missing": ({"OPENAI_API_KEY": "sk-open-sesame-1234"}, "does not have: set SPACE_HF_TOKEN."),
    "all missing": ({}, "set OPENAI_API_KEY, SPACE_HF_TOKEN."),
    "too short": (SECRETS | {"OPENAI_API_KEY": "short"}, "OPENAI_API_KEY is shorter than 8"),
    "the deploying token": (SECRETS | {"SPACE_HF_TOKEN": TOKEN}, "SPACE_HF_TOKEN is the token that deploys"),
    "in a file": (SECRETS | {"OPENAI_API_KEY": "print('app')"}, "app.py holds the value of OPENAI_API_KEY"),
    "in the front matter": (SECRETS | {"OPENAI_API_KEY": "Switchboard: "}, "README.md holds the value"),
}


@pytest.mark.parametrize(("env", "what"), NOTHING_SENT.values(), ids=NOTHING_SENT)
def test_bad_secret_is_reported_before_requests(env: dict[str, str], what: str, checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(SPACEFILE, env=env) == 1
    assert what in checkout.complained[0]
    assert hub.asked == []


def test_secret_in_variable_is_refused(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(SPACEFILE + f'URL = "x?{SECRETS["OPENAI_API_KEY"][3:]}"\n') == 0, "not a secret as such"
    hub.asked.clear()
    assert checkout.deploy(SPACEFILE + 'URL = "x?open-sesame"\n', env=SECRETS | {"OPENAI_API_KEY": "open-sesame"}) == 1
    assert "variable URL holds the value of OPENAI_API_KEY" in checkout.complained[0]
    assert hub.asked == []


TOKENS: dict[str, tuple[str, str, str]] = {
    "none": ("", "write", "There is no token: set HF_TOKEN to one that may write, or run `hf auth login`."),
    "wrong": ("hf_wrong_1234567", "write", "refused to say whose token this is (401)"),
    "may only read": (TOKEN, "read", "The token may only read: make one that may write, and set HF_TOKEN to it."),
}


@pytest.mark.parametrize(("token", "role", "why"), TOKENS.values(), ids=TOKENS)
def test_bad_token_changes_nothing(
    token: str, role: str, why: str, checkout: Checkout, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.role = role
    assert checkout.deploy(SPACEFILE) == 1
    assert why in checkout.complained[0]
    assert (hub.asked if not token else hub.changes()) == []


REFUSALS = {
    "somebody else's name": (SPACEFILE.replace('"switchboard"', '"bob/chat"'), {}, "create the Space bob/chat (403)"),
    "to be paid": (
        PLAIN,
        {"POST /api/repos/create": (402, "Add a card.")},
        f"create the Space {REPO} (402): Add a card.",
    ),
    "forbidden": (PLAIN, {"POST .*/commit/main": (403, "Read only.")}, f"take the files of {REPO} (403): Read only."),
    "hardware": (SPACEFILE, {"GET .*/runtime": (500, "Oh.")}, f"give {REPO} the hardware l4x1 (500): Oh."),
    "secrets": (SPACEFILE, {"POST .*/secrets": (400, "No.")}, f"set the secrets of {REPO} (400): No."),
    "front matter": (PLAIN, {"POST /api/validate-yaml": (400, "Bad title.")}, f"take the files of {REPO}"),
}


@pytest.mark.parametrize(("spacefile", "refuse", "what"), REFUSALS.values(), ids=REFUSALS)
def test_refusal_is_one_sentence(
    spacefile: str, refuse: dict[str, tuple[int, str]], what: str, checkout: Checkout, hub: Hub
) -> None:
    hub.refuse = refuse
    assert checkout.deploy(spacefile) == 1
    assert what in checkout.complained[0]
    assert len(checkout.complained) == 1
    assert all(secret not in checkout.output for secret in SECRETS.values())


def test_unreachable_hub_is_reported(checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving() as hub:
        at(hub, monkeypatch, tmp_path)
    assert checkout.deploy(SPACEFILE) == 1
    assert f"{hub.url} cannot be reached to say whose token this is" in checkout.complained[0]


def test_lost_hub_is_reported(checkout: Checkout, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed polls are repeated for a while. The last failure is reported as the reason."""
    monkeypatch.setattr(hub_module, "REQUEST_SECONDS", 1.0)
    assert checkout.deploy(PLAIN) == 0
    hub.refuse = {"GET .*/runtime": (503, "Gone.")}
    client = hub_module.Hub(hub.url, TOKEN, checkout.said.append)
    with pytest.raises(hub_module.DeployError, match=rf"say how {REPO} is \(503\): Gone"):
        client._watch(REPO, hub.spaces[REPO].sha, "RUNNING", 60)
    assert len(hub.seen("GET .*/runtime")) > 3


# The build


def test_old_version_is_not_taken_for_new(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(PLAIN) == 0, checkout.output
    checkout.write("app.py", "print('new')\n")
    hub.build = ["RUNNING", "RUNNING", "RUNNING_BUILDING", "RUNNING"]
    assert checkout.deploy(PLAIN) == 0, checkout.output
    assert checkout.said[-4:-1] == [f"{REPO}: {stage}" for stage in ("RUNNING", "RUNNING_BUILDING", "RUNNING")]
    assert hub.spaces[REPO].running == hub.spaces[REPO].sha


def test_old_failure_is_not_taken_for_new(checkout: Checkout, hub: Hub) -> None:
    hub.build = ["BUILDING", "BUILD_ERROR"]
    assert checkout.deploy(PLAIN) == 1
    checkout.write("app.py", "print('new')\n")
    hub.build = ["BUILD_ERROR", "BUILDING", "RUNNING"]
    assert checkout.deploy(PLAIN) == 0, checkout.output


FAILURES = {
    "build": (["BUILDING", "BUILD_ERROR"], "its build failed", "build", "E: no such package"),
    "start": (["BUILDING", "RUNTIME_ERROR"], "ended when it was started", "run", "Traceback"),
    "configuration": (["CONFIG_ERROR"], "does not accept its configuration. The hub says: Bad.", "run", "Traceback"),
    "paused": (["BUILDING", "PAUSED"], "restart it in its settings", "run", "Traceback"),
}


@pytest.mark.full
@pytest.mark.parametrize(("stages", "why", "log", "line"), FAILURES.values(), ids=FAILURES)
def test_failed_build_shows_end_of_log(
    stages: list[str], why: str, log: str, line: str, checkout: Checkout, hub: Hub
) -> None:
    key = SECRETS["OPENAI_API_KEY"]
    hub.build, hub.error = stages, "Bad."
    hub.logs = {
        "build": [*(f"step {n}\n" for n in range(50)), f"key {key}\n", "E: no such package\n"],
        "run": [f"key {key}\n", "Trace", "back\n"],
    }
    assert checkout.deploy(SPACEFILE) == 1
    assert f"does not run ({stages[-1]}): " in checkout.complained[0]
    assert why in checkout.complained[0]
    told = checkout.said[checkout.said.index(f"The end of the {log} log of {REPO}:") :]
    assert told[-2:] == ["  key [hidden]", f"  {line}"]
    assert len(told) <= 21


def test_endless_log_does_not_block_deploy(checkout: Checkout) -> None:
    said: list[str] = []
    with serving(hold_logs=threading.Event(), logs={"run": ["one\n"]}) as hub:
        hub.spaces[REPO] = Stored(True, "gradio")
        client = hub_module.Hub(hub.url, TOKEN, said.append)
        client._say_log(REPO, build=False, seconds=1.0)
    assert said == [f"The end of the run log of {REPO}:", "  one"]


def test_sleeping_space_is_woken(checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(PLAIN) == 0
    hub.spaces[REPO].stages = ["SLEEPING", "SLEEPING", "APP_STARTING", "RUNNING"]
    hub.asked.clear()
    assert checkout.deploy(PLAIN) == 0, checkout.output
    assert len(hub.seen(f"GET /page/{REPO}")) >= 2


@pytest.mark.parametrize("private", [True, False])
def test_token_is_sent_only_to_private_pages(private: bool, checkout: Checkout, hub: Hub) -> None:
    assert checkout.deploy(PLAIN + f"private = {str(private).lower()}\n") == 0, checkout.output
    assert {one.token for one in hub.seen("GET /page/.*")} == {TOKEN if private else None}


# Secrets

VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=8, max_size=40).filter(
    lambda text: len(text.strip()) >= 8
) | st.lists(st.text("abcXYZ09\"\\'é=", min_size=8), min_size=2, max_size=3).map("\n".join)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=VALUES, ending=st.sampled_from(["RUNNING", "BUILD_ERROR", "refused"]))
def test_secret_reaches_only_its_endpoint(
    key: str, ending: str, checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Any, caplog: Any
) -> None:
    """No output, log line or other request contains it, although the hub's log and errors repeat it."""
    monkeypatch.setattr(constants, "HF_DEBUG", True)
    spacefile = SPACEFILE.replace(', "HF_TOKEN"', "")
    with serving(build=["BUILDING", ending]) as hub:
        at(hub, monkeypatch, tmp_path)
        hub.logs = {"build": [f"{key}\n", json.dumps(key) + "\n"], "run": []}
        if ending == "refused":
            hub.build = ["RUNNING"]
            hub.refuse = {"POST .*/secrets": (400, "No such value: " + json.dumps(key))}
        status = checkout.deploy(spacefile, env={"OPENAI_API_KEY": key})
    assert status == (0 if ending == "RUNNING" else 1), checkout.output
    printed = capfd.readouterr()
    everything = [checkout.output, printed.out, printed.err, caplog.text]
    forms = [part for part in (key, *key.splitlines()) if len(part.strip()) >= 8]
    assert all(form not in text for form in (*forms, *(json.dumps(one)[1:-1] for one in forms)) for text in everything)
    assert TOKEN not in "".join(everything)
    told = [one for one in hub.asked if _holds(one, key)]
    assert [f"{one.method} {one.path}" for one in told] == [f"POST /api/spaces/{REPO}/secrets"]


def _holds(asked: Asked, key: str) -> bool:
    texts = (asked.path, asked.body.decode(), asked.token or "")
    return any(
        form in text
        for form in (key, json.dumps(key)[1:-1], json.dumps(key, ensure_ascii=False)[1:-1])
        for text in texts
    )
