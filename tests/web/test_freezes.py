"""No visitor's input makes others wait: attacks on a running app, while another visitor measures its answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from tests.conftest import App
from tests.support import media_files
from tests.support.http_client import HttpVisitor
from tests.support.scripted_server import Config, running


def test_slow_files_do_not_block_other_visitors(start_app: Callable[..., App]) -> None:
    slow = media_files.encoded(Image.linear_gradient("L").resize((4800, 4800)).convert("RGB"), "PNG")
    with running(Config(models=("Qwen/Qwen3-VL-8B-Instruct",), rate=200.0)) as server:
        own = start_app(VLLM_BASE_URL=server.base_url)
        attacker, other = HttpVisitor(own.url), HttpVisitor(own.url)
        paths = [attacker.upload(f"{number}.png", slow + bytes([number])) for number in range(8)]
        small = other.upload("small.png", media_files.picture("PNG"))
        with ThreadPoolExecutor(1) as pool:
            assert attacker.begin("!text Done.", *paths).status == 200
            attack = pool.submit(attacker.listen, seconds=90)
            assert "Seen." in other.say("!text Seen.", small)
            assert not attack.done(), "the small picture waited for all the large ones"
            assert "Done." in attack.result()


def test_long_model_name_is_refused_to_programs(own: App) -> None:
    program = HttpVisitor(own.url)
    data = [{"text": "!text Hello.", "files": []}, "a" * 100_000, {}, None]
    assert program.join(program.chat, data).status == 200
    said = program.listen()
    assert "The name of a model has at most 200 characters; this one has 100,000." in said
    assert "aaaa" not in own.log


def test_no_model_means_the_first_one_to_programs(own: App) -> None:
    program = HttpVisitor(own.url)
    assert program.join(program.chat, [{"text": "!text Hello.", "files": []}, None, {}, None]).status == 200
    assert "Hello." in program.listen()


def test_event_without_a_function_is_not_found(own: App) -> None:
    program = HttpVisitor(own.url)
    [event, *_] = [one for one in program.events if one["backend_fn"] is False]
    assert program.join(event["id"], [None] * len(event["inputs"])).status == 404
