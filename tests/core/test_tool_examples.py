"""The examples of external tools, run as a reader would run them."""

import asyncio
import os
import sys

import pytest

from agent.settings import ROOT
from tests.support.scripted_server import running
from tests.support.small_site import as_json, site

pytestmark = pytest.mark.slow


async def shown(example: str, question: str, **env: str) -> list[str]:
    """Return the lines that an example prints."""
    with running() as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, f"examples/{example}.py", question),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "VLLM_BASE_URL": server.base_url, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    return out.decode().splitlines()


async def test_rest_tool_example() -> None:
    rates = {"amount": 1.0, "base": "USD", "date": "2026-11-20", "rates": {"EUR": 0.86}}
    async with site(star=lambda _: as_json(rates)) as there:
        asked = '!tool currency_rates {"base": "USD", "symbols": "EUR"} !text Done.'
        lines = await shown("rest_tool", asked, RATES_URL=f"{there.url}/v1")
    assert there.asked[0].target == "/v1/latest?base=USD&symbols=EUR"
    assert [line.partition(":")[0] for line in lines[:2]] == ["tool_call", "tool_call_result"]
    assert '{"EUR": 0.86}' in lines[1]
    assert lines[-1].startswith("output_text")


@pytest.mark.full
@pytest.mark.timeout(180)
async def test_mcp_server_example() -> None:
    lines = await shown("mcp_server", '!tool words-length {"word": "strawberry"} !text Done.')
    assert [line.partition(":")[0] for line in lines[:2]] == ["tool_call", "tool_call_result"]
    assert "'content': '10', 'is_error': False" in lines[1]
    assert lines[-1].startswith("output_text")
