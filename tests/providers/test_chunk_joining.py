"""Joining the chunks of an answer changes nothing of its body, and spares the HTTP library most of them."""

from collections.abc import Sequence
from itertools import pairwise

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from agent.providers.chunk_joining import ChunkJoiner

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": []}\n\n'


def chunked(parts: Sequence[bytes]) -> bytes:
    """Return a body in chunks."""
    return b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts)


def read(pieces: Sequence[bytes]) -> tuple[bytes, str, int]:
    """Return the body that the HTTP library reads, how it ends, and the number of its events."""
    connection, body, count = h11.Connection(h11.CLIENT), b"", 0
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    try:
        for piece in [*pieces, b""]:
            connection.receive_data(piece)
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                count += isinstance(event, h11.Data)
                body += bytes(event.data) if isinstance(event, h11.Data) else b""
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return body, "end", count
    except h11.RemoteProtocolError:
        return body, "error", count
    return body, "none", count


def joined(pieces: Sequence[bytes]) -> list[bytes]:
    """Return what is given out of these reads."""
    joiner = ChunkJoiner()
    return [out for piece in pieces if (out := joiner.feed(piece))]


@given(
    st.lists(st.binary(min_size=1, max_size=40) | st.just(EVENT), max_size=8),
    st.binary(max_size=20)
    | st.sampled_from([b"0\r\n\r\n", b"0\r\na: b\r\n\r\n", b"3;x=y\r\nabc\r\n0\r\n\r\n", b"5\r\nabc\r\nX"]),
    st.sets(st.integers(0, 500), max_size=8),
)
@example([EVENT, EVENT], b"0\r\n\r\n", {len(HEAD) + 1, len(HEAD) + 3})
@example([b"a", b"b"], b"2\r\nabcd\r\n0\r\n\r\n", set())
@example([b"a"], b"1\r\nb", {len(HEAD) + 6})
def test_joined_chunks_have_the_same_body(parts: list[bytes], rest: bytes, cuts: set[int]) -> None:
    """The end can be whole, missing or broken."""
    sent = HEAD + chunked(parts) + rest
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(sent)), len(sent)]
    pieces = [sent[start:end] for start, end in pairwise(places)]
    assert read(joined(pieces))[:2] == read(pieces)[:2]


def test_chunks_of_one_read_are_one_event() -> None:
    body = chunked([EVENT] * 50)
    pieces = [HEAD + body, body, body + b"0\r\n\r\n"]
    assert read(pieces) == (EVENT * 150, "end", 150)
    assert read(joined(pieces)) == (EVENT * 150, "end", 3)


def test_other_answers_stay_as_they_are() -> None:
    body = chunked([EVENT, EVENT])
    heads = [
        HEAD.replace(b"chunked", b"identity"),
        HEAD.replace(b"event-stream", b"plain"),
        HEAD.replace(b"200 OK", b"500 No"),
        HEAD.replace(b"Transfer-Encoding: chunked", b"X-Transfer-Encoding: chunked"),
    ]
    for head in heads:
        assert joined([head + body, body]) == [head + body, body], head
