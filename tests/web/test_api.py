"""The page's API for programs, through `gradio_client`.

    client = Client("http://127.0.0.1:7860")
    client.predict(message, model, options, api_name="/chat")       # the last value
    for value in client.submit(...): ...                            # each value as it comes

- `message`: `{"text": "...", "files": [handle_file("picture.png"), ...]}`. The client uploads the files. A URL is
  refused, because the server fetches nothing for programs.
- `model`: the id of a model that answers now, such as `"vllm:Qwen/Qwen3-8B"`. `""` is the first one.
- `options`: any of system_message (str), reasoning (bool), temperature (float), max_tokens (int), tools (bool) and new
  (bool: begin a new conversation). An unknown option is refused by name.
- each value: `{"text": all text so far, "bubbles": [{"type", "content"}, ...], "finish_reason": None}`. In the last
  one finish_reason says how the run ended ("stop", "length", ...).

One `Client` is one visitor with one conversation, which each call continues. `job.cancel()` ends the run and its
connection to the model server. No other event is listed, but events are not protected by being unlisted.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

from tests.conftest import App
from tests.support.models import VISION_MODEL
from tests.support.scripted_server import Config, Running

TEXT = "Qwen/Qwen3-8B"
Connect = Callable[[], Client]


SERVER = Config(models=(VISION_MODEL, TEXT), rate=200.0)


@pytest.fixture(scope="module")
def connect(own: App) -> Iterator[Connect]:
    """Yield a function that connects a client. All clients are closed at the end."""
    clients: list[Client] = []

    def client() -> Client:
        clients.append(Client(own.url, verbose=False, analytics_enabled=False))
        return clients[-1]

    yield client
    with ThreadPoolExecutor(64) as closing:  # each one waits a second for its heartbeat
        list(closing.map(Client.close, clients))


def chat(client: Client, text: str, *files: Any, model: str = "", **options: Any) -> dict[str, Any]:
    """Send one message and return its answer."""
    return client.predict({"text": text, "files": list(files)}, model, options, api_name="/chat")


def asked(server: Running) -> dict[str, Any]:
    """Return the last request to the model server."""
    return server.journal()[-1]["body"]


def test_answer_streams_and_reports_its_end(connect: Connect) -> None:
    job = connect().submit({"text": "!reasoning hm !tokens 200 @200"}, "", {}, api_name="/chat")
    values = list(job)
    assert len(values) > 4
    assert [value["finish_reason"] for value in values[:-1]] == [None] * (len(values) - 1)
    assert values[-1]["finish_reason"] == "stop"
    assert [bubble["type"] for bubble in values[-1]["bubbles"]] == ["reasoning", "output_text"]
    texts = [value["text"] for value in values]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    assert texts[-1].split()[-1].startswith("word199")
    assert job.outputs()[-1] == values[-1]


def test_files_travel_with_message(connect: Connect, server: Running, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("eggs and flour")
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    files = [handle_file(tmp_path / "list.txt"), handle_file(tmp_path / "red.png")]
    assert chat(connect(), "!text Seen.", *files)["text"].startswith("Seen.")
    parts = asked(server)["messages"][-1]["content"]
    assert "eggs and flour" in str(parts)
    assert [part["type"] for part in parts].count("image_url") == 1
    assert "data:image/png;base64," in str(parts)


def test_unsupported_file_is_refused(connect: Connect, tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    with pytest.raises(AppError, match=r'cannot see pictures\. Remove "red\.png"'):
        chat(connect(), "!text Seen.", handle_file(tmp_path / "red.png"), model=f"vllm:{TEXT}")


def test_model_and_options_reach_server(connect: Connect, server: Running) -> None:
    chat(
        connect(), "!text ok", model=f"vllm:{TEXT}",
        system_message="Be brief.", temperature=0.25, max_tokens=64, reasoning=False, tools=True,
    )  # fmt: skip
    body = asked(server)
    assert body["model"] == TEXT
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["temperature"] == 0.25
    assert (body.get("max_tokens") or body.get("max_completion_tokens")) == 64
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "calculate" in {tool["function"]["name"] for tool in body["tools"]}


def test_client_keeps_one_conversation(connect: Connect, server: Running) -> None:
    client, other = connect(), connect()

    def said() -> list[str]:
        return [message["content"] for message in asked(server)["messages"] if message["role"] == "user"]

    chat(client, "!text one")
    chat(other, "!text of another")
    chat(client, "!text two")
    assert said() == ["!text one", "!text two"]
    chat(client, "!text three", new=True)
    assert said() == ["!text three"]
    chat(client, "!text four")
    assert said() == ["!text three", "!text four"]
    chat(other, "!text on")
    assert said() == ["!text of another", "!text on"]


@pytest.mark.parametrize(
    ("text", "model", "options", "sentence"),
    [
        ("hi", "nobody/nothing", {}, "No model named 'nobody/nothing' is known here."),
        ("hi", "", {"tempreature": 1}, "unknown options: tempreature; known are system_message"),
        ("hi", "", {"tempreature": 1}, " and new"),
        ("hi", "", {"temperature": "warm"}, "temperature cannot be 'warm'. Known values: 0 - 2"),
        ("hi", "", {"reasoning": "false"}, "reasoning cannot be 'false'. Known values: True, False, None, none"),
        ("hi", "", {"reasoning": 0}, "reasoning cannot be 0. Known values"),
        ("hi", "", {"max_tokens": -5}, "max_tokens cannot be -5. Known values: 1, 2, 3"),
        ("hi", "", {"tools": "false"}, "tools cannot be 'false'. Known values: true, false"),
        ("", "", {}, "Write something first."),
        ("  \n", "", {}, "Write something first."),
    ],
)  # fmt: skip
def test_bad_input_gives_one_sentence(
    connect: Connect, server: Running, text: str, model: str, options: dict[str, Any], sentence: str
) -> None:
    before = len(server.journal())
    client = connect()
    with pytest.raises(AppError, match=sentence):
        client.predict({"text": text}, model, options, api_name="/chat")
    assert len(server.journal()) == before
    assert chat(client, "!text And on.")["text"] == "And on."


def test_non_json_argument_becomes_text(connect: Connect) -> None:
    large, most = 10**400, 2**64 - 1
    arguments = f'{{"expression": "1", "large": [{large}], "most": {most}}}'
    value = chat(connect(), f"!tool calculate {arguments} !text Done.", tools=True)
    assert (value["finish_reason"], value["text"]) == ("stop", "Done.")
    [call] = [one["content"] for one in value["bubbles"] if one["type"] == "tool_call"]
    assert call["arguments"] == {"expression": "1", "large": [str(large)], "most": most}


def test_url_is_not_fetched(connect: Connect, server: Running) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        chat(connect(), "!text Seen.", handle_file(f"{server.url}/health"))


def test_server_error_is_an_answer(connect: Connect) -> None:
    client = connect()
    value = chat(client, "!status 401")
    assert value["finish_reason"] == "error"
    assert "key was rejected" in str(value["bubbles"])
    assert chat(client, "!text Back.")["text"] == "Back."


@pytest.mark.parametrize("script", ["!tokens 4000 @100", "!stall-after 5"])
def test_cancelled_job_closes_connection(connect: Connect, server: Running, script: str) -> None:
    client, before = connect(), len(server.journal())
    job = client.submit({"text": script}, "", {}, api_name="/chat")
    server.wait_for(lambda journal: len(journal) > before and journal[before]["sent"] >= 5)
    assert next(job)["finish_reason"] is None
    job.cancel()
    line = server.wait_for(lambda journal: journal[before]["closed"])[before]
    assert line["ended"] == "client_closed"
    assert chat(client, "!text Onwards.")["text"] == "Onwards."


@pytest.mark.parametrize("is_guest", [False, True])
def test_chat_is_called_without_the_client(own: App, server: Running, is_guest: bool) -> None:
    with httpx.Client(base_url=f"{own.url}/", trust_env=False, timeout=120) as first:
        if not is_guest:
            first.get("/")
        path = "gradio_api/call/chat"

        def call(text: str, **more: str) -> tuple[str, str]:
            asked = {"data": [{"text": text}, "", {}], **more}
            id_ = first.post(path, json=asked).json()["event_id"]
            with httpx.Client(base_url=first.base_url, trust_env=False, timeout=60) as other:
                assert is_guest or other.get(f"{path}/{id_}").status_code == 404  # a guest has only the id
                other.get("/")
                assert other.get(f"{path}/{id_}").status_code == 404
            said = first.get(f"{path}/{id_}").text
            assert said.splitlines()[-3] == "event: complete"
            return id_, json.loads(said.splitlines()[-2].removeprefix("data: "))[0]["text"]

        id_, text = call("!text One.", session_hash="mine")
        assert text == "One."
        call("!text Two.", session_hash="mine")
        assert [one["role"] for one in asked(server)["messages"]][-3:] == ["user", "assistant", "user"]
        with httpx.Client(base_url=first.base_url, trust_env=False, timeout=60) as other:
            other.get("/")
            asked_by_other = {"data": [{"text": "!text Other."}, "", {}], "session_hash": "mine"}
            assert "Other." in other.get(f"{path}/{other.post(path, json=asked_by_other).json()['event_id']}").text
        assert [one["role"] for one in asked(server)["messages"]] == ["system", "user"]
        call("!text Three.")
        assert [one["role"] for one in asked(server)["messages"]][-2:] == ["system", "user"]
        assert first.get(f"{path}/{id_}").status_code == 404
        for data in ([], None, [{"text": "Hi", "files": [{"path": "/etc/passwd"}]}, "", {}]):
            assert first.post(path, json={"data": data}).status_code in (400, 404)
        assert first.post("gradio_api/call/refresh", json={"data": []}).status_code == 404


def test_guide_is_shown_where_it_is_asked_for(own: App) -> None:
    for query, links in (("", "[]"), ("?view=api", '["api"]'), ("", "[]")):
        assert f'"footer_links":{links},' in httpx.get(f"{own.url}/{query}", trust_env=False).text


def test_only_chat_is_listed(connect: Connect, own: App) -> None:
    for question in ("", "?all_endpoints=true", "?page="):
        info = httpx.get(f"{own.url}/gradio_api/info{question}", trust_env=False).json()
        assert list(info["named_endpoints"]) == ["/chat"], question
        assert info["unnamed_endpoints"] == {}
    told = connect().view_api(return_format="dict")
    assert list(told["named_endpoints"]) == ["/chat"]
    assert [p["parameter_name"] for p in told["named_endpoints"]["/chat"]["parameters"]] == [
        "message",
        "model",
        "options",
    ]
