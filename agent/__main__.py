"""`python -m agent`, or `python -m switchboard`: a chat in the terminal with the same models as the web page.

If no model is named, it uses the server in VLLM_BASE_URL. If there is none, it starts a small model on this machine.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import NoReturn

from agent.agent import connect_by_name
from agent.cli.chat import ChatSetup, ConversationFile, Terminal
from agent.errors import AgentError, UnknownModel
from agent.limits import Limits
from agent.local.manager import LocalModels
from agent.models.catalog import use_table_in
from agent.providers.connection import Connection, Endpoint, connect
from agent.providers.discovery import discover
from agent.runtime.loop_thread import LoopThread
from agent.settings import Settings, load_settings, start_logging
from agent.tools import presets
from agent.tools.function_tools import Tool, Toolset


def main(argv: Sequence[str] | None = None) -> int:
    """Chat and return the exit status: 2 for invalid arguments, 1 if no model can be reached."""
    given = _arguments(argv)
    start_logging("ERROR", "%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _terminated)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    background = LoopThread()
    models: ModelConnector | None = None
    try:
        settings = load_settings()
        use_table_in(settings.data_dir)
        models = ModelConnector(settings, given)
        setup = ChatSetup(
            connection=background.wait(models.first()),
            connect=models.connect,
            system_message=settings.system_prompt or "" if given.system is None else given.system,
            tools=_tools(settings.tools if given.tools is None else given.tools),
            limits=Limits(
                steps=settings.max_steps,
                seconds=settings.run_seconds,
                tool_seconds=settings.tool_seconds,
                retries=settings.retries,
                interactive=True,
            ),
            file=ConversationFile(Path(given.history)) if given.history else None,
        )
        return Terminal(setup, background).run()
    except AgentError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if models is not None:
            background.wait(models.aclose())
        background.close()


class ModelConnector:
    """Connects to models by name. Owns the local model server if it started one."""

    def __init__(self, settings: Settings, given: argparse.Namespace) -> None:
        self._settings, self._options = settings, given
        self._local: LocalModels | None = None

    async def first(self) -> Connection:
        """Connect to the requested model, or else to the local one. Raises `AgentError`."""
        given = self._options
        if given.model:
            return await self.connect(given.model)
        if given.base_url:
            endpoint = Endpoint(given.base_url.rstrip("/"), self._settings.local.vllm_api_key)
            return connect((await discover(endpoint))[0], endpoint)
        say = print if sys.stdout.isatty() else _log
        self._local = LocalModels(self._settings.local, say=say)
        served = (await self._local.ready())[0]
        return connect(served.spec, served.endpoint)

    async def connect(self, name: str) -> Connection:
        """Connect to a model of the given server or of the catalogue. Raises `AgentError`."""
        given, local = self._options, self._settings.local
        if given.base_url:
            return connect_by_name(name, given.provider or "vllm", given.base_url, local.vllm_api_key)
        try:
            return connect_by_name(name, given.provider, None)
        except UnknownModel:
            if local.vllm_base_url is None:
                raise
            endpoint = Endpoint(local.vllm_base_url, local.vllm_api_key)
            for spec in await discover(endpoint):
                if name in (spec.id, spec.name, spec.label):
                    return connect(spec, endpoint)
            raise

    async def aclose(self) -> None:
        """Stop the local model server, if one was started."""
        if self._local is not None:
            await self._local.aclose()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m agent", description="A chat in the terminal.")
    parser.add_argument("--model", help="a name, as in openai:gpt-6-luna or Qwen/Qwen3-8B")
    parser.add_argument("--provider", help="the provider, if the name of the model does not imply it")
    parser.add_argument("--base-url", help="where it is served: an OpenAI-compatible address that ends in /v1")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--tools",
        nargs="*",
        metavar="TOOL",
        help="MODULE:NAME, preset:NAME or a preset's file, instead of the usual tools; alone: none",
    )
    parser.add_argument("--history", metavar="FILE", help="keep the conversation in this file, and go on from it")
    return parser.parse_args(argv)


def _tools(references: Sequence[str]) -> list[Tool | Toolset]:
    """Load the tools from references like those in configs/app.toml. Raises `ConfigError`."""
    sys.path.insert(0, "")  # tool modules can be in the current folder
    return [presets.load_presets(one) for one in references]


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
