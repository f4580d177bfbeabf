"""compose.yaml names only what there is: targets, files, settings, and the processes that nginx expects."""

import re
from typing import Any

import pytest
import yaml

from agent.models.families import family
from agent.settings import ROOT
from tests.support.dockerfile import stages

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PAGES = {name: service for name, service in SERVICES.items() if "build" in service}


def test_nginx_knows_each_process() -> None:
    text = (ROOT / "docs" / "proxies" / "replicas.conf").read_text()
    assert sorted(re.findall(r"^\s*server (\w+):7860 ", text, re.MULTILINE)) == sorted(PAGES)
    assert SERVICES["nginx"]["depends_on"] == [*PAGES]


def test_image_is_a_stage_with_drivers() -> None:
    for page in PAGES.values():
        assert page["build"]["target"] in stages((ROOT / "Dockerfile").read_text())
    assert "!requirements-stores.txt" in (ROOT / ".dockerignore").read_text().splitlines()


@pytest.mark.parametrize("name", sorted({name for page in PAGES.values() for name in page["environment"]}))
def test_settings_are_documented(name: str) -> None:
    assert f"| `{name}" in (ROOT / "docs" / "configuration.md").read_text() + (ROOT / "README.md").read_text()


def test_processes_share_what_they_must() -> None:
    values = [page["environment"] for page in PAGES.values()]
    assert all(value == values[0] for value in values)
    assert {"SWITCHBOARD_STORE", "SWITCHBOARD_SECRET"} <= values[0].keys()
    assert len({str(page["volumes"]) for page in PAGES.values()}) == 1


def test_mounted_files_exist() -> None:
    mounts = [str(mount).split(":") for service in SERVICES.values() for mount in service.get("volumes", ())]
    for source, *_ in mounts:
        if source.startswith("./") and source != "./certificates":  # which its owner makes
            assert (ROOT / source).exists(), source
        elif not source.startswith("./"):
            assert source in COMPOSE["volumes"]


def test_vllm_starts_as_make_run_does() -> None:
    command = SERVICES["vllm"]["command"].split()
    named = family(command[command.index("--model") + 1])
    assert command[command.index("--reasoning-parser") + 1] == named.reasoning_parser
    assert command[command.index("--tool-call-parser") + 1] == named.tool_parser
