"""The server as its clients meet it: real sockets, and a model that counts."""

import asyncio
import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest
import uvicorn

from diffwindow.inference.server import Limits, bound_socket, create_app, server_config

QUICK = Limits(body=2000, read_time=0.5, compute_time=5.0, waiting=40)


class Model:
    """Answers with the text, in two steps; some texts go wrong."""

    def __init__(self):
        self.texts = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, text):
        self.texts.append(text)
        self.gate.wait(10)
        if text == "long":
            raise ValueError("the sentence has 999 tokens; up to 128 are shown")
        if text == "broken":
            raise RuntimeError("secret detail")
        yield {"text": text[:1]}
        yield from ({"text": "x" * 1000} for _ in range(500 if text == "many" else 0))
        if text == "half":
            raise ValueError("it went wrong half-way")
        yield {"text": text}


@contextmanager
def serving(model, limits=QUICK):
    app = create_app(model, label="A sentence", title="Enc(AW)", limits=limits)
    server = uvicorn.Server(server_config(app, limits))
    listening = bound_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = listening.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        model.gate.set()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def address(model):
    with serving(model) as address:
        yield address


def ask(address, text, **options):
    return httpx.post(f"{address}/attention", json={"text": text}, timeout=20, **options)


def test_an_answer_comes_line_by_line(address):
    answer = ask(address, "  the keys ")
    assert answer.status_code == 200
    assert [json.loads(line) for line in answer.text.splitlines()] == [{"text": "t"}, {"text": "the keys"}]
    assert answer.headers["cache-control"] == "no-store"


def test_the_page_and_health(address):
    page = httpx.get(address)
    assert page.text.startswith("<!doctype html>")
    assert "connect-src 'self'" in page.text
    assert page.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{address}/health").json() == {"status": "ok", "model": "Enc(AW)"}


def test_two_hundred_at_once_are_answered_and_each_text_is_computed_once():
    model = Model()
    texts = [f"sentence {number % 20}" for number in range(200)]

    async def all_at_once(address):
        async with httpx.AsyncClient(limits=httpx.Limits(max_connections=200), timeout=60) as client:
            return await asyncio.gather(
                *(client.post(f"{address}/attention", json={"text": text}) for text in texts)
            )

    # all from one thread: some connections wait long for their turn to send
    with serving(model, Limits(read_time=30)) as address:
        answers = asyncio.run(all_at_once(address))
    assert [answer.status_code for answer in answers] == [200] * 200
    assert [json.loads(answer.text.splitlines()[-1])["text"] for answer in answers] == texts
    assert sorted(model.texts) == sorted(set(texts))


@pytest.mark.parametrize(
    ("content", "headers", "status", "reason"),
    [
        (b'{"text": "a"}', {"content-type": "text/plain"}, 415, "send application/json"),
        (b"{", {}, 400, "not JSON"),
        (b"\xff\xfe", {}, 400, "not JSON in UTF-8"),
        (b"[" * 1500, {}, 400, "not JSON"),
        (b'["text"]', {}, 400, 'send {"text"'),
        (b'{"text": 3}', {}, 400, 'send {"text"'),
        (b'{"text": "a", "path": "/etc/passwd"}', {}, 400, 'send {"text"'),
        (b'{"text": "\\ud800"}', {}, 400, "half a character"),
        (b"x" * 2001, {}, 413, "a request may have 2,000 bytes"),
        (b'{"text": "long"}', {}, 422, "999 tokens"),
        (b'{"text": "broken"}', {}, 500, "the model failed"),
        (b'{"text": "a"}', {"host": "evil.example"}, 421, "this server is not 'evil.example'"),
        (b'{"text": "a"}', {"host": "evil.example:8000"}, 421, "this server is not 'evil.example'"),
        (b'{"text": "a"}', {"host": "localhost.evil.example"}, 421, "this server is not"),
        (b'{"text": "a"}', {"origin": "http://evil.example"}, 403, "other sites"),
        (b'{"text": "a"}', {"origin": "null"}, 403, "other sites"),
    ],
)
def test_bad_requests_get_a_clear_error(address, caplog, content, headers, status, reason):
    with caplog.at_level("CRITICAL"):
        answer = httpx.post(
            f"{address}/attention", content=content, headers={"content-type": "application/json", **headers}
        )
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert reason in answer.json()["error"]
    assert "secret" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost:1234", "[::1]:80", "LOCALHOST"])
def test_this_machine_has_several_names(address, host):
    assert httpx.get(address, headers={"host": host}).status_code == 200


def test_an_error_half_way_is_the_last_line(address):
    answer = ask(address, "half")
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"text": "h"},
        {"error": "it went wrong half-way"},
    ]


def test_a_failure_is_not_remembered(model, address):
    model.texts.clear()
    assert [ask(address, "long").status_code for _ in range(2)] == [422, 422]
    assert model.texts == ["long", "long"]


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/page.css", "/%2e%2e/x", "/attention/", "/" + "x" * 999]
)
def test_no_other_address_exists(address, path):
    answer = httpx.get(address + path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("there is no /")
    assert len(answer.text) < 120


def test_too_many_connections_are_told_in_json():
    with serving(Model(), replace(QUICK, connections=2)) as address, connected(address), connected(address):
        answer = httpx.get(f"{address}/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"error": "too many connections; try again in a moment"}
    with serving(Model(), replace(QUICK, connections=2)) as address, connected(address):
        assert httpx.get(f"{address}/health").status_code == 200


def test_a_wrong_method_is_told(address):
    assert httpx.get(f"{address}/attention").json() == {"error": "GET is not for this address"}
    assert httpx.get(f"{address}/attention").status_code == 405


def connected(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


POST = b"POST /attention HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_slow_body_is_cut_off(address):
    with connected(address) as client:
        client.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        begun = time.monotonic()
        answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("junk", [b"\0\1\r\n\r\n", POST + b"Transfer-Encoding: chunked\r\n\r\nno number\r\n"])
def test_what_is_not_http_is_told_in_json(address, junk, caplog):
    with connected(address) as client:
        client.sendall(junk)
        head, _, body = client.recv(4096).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(body) == {"error": "the request is not valid HTTP"}
        assert client.recv(4096) == b""
    assert not caplog.messages


def test_clients_that_leave_are_not_told_of(address, caplog):
    body = b'{"text": "many"}'
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    assert len(ask(address, "many").text.splitlines()) == 502
    # a connection that is reset while its answer is written, and one in the middle of a request
    for sent in [POST + length + body] * 10 + [POST + length]:
        with connected(address) as client:
            client.sendall(sent)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(address, "a").status_code == 200
    assert not caplog.messages


@pytest.mark.parametrize("beginning", [b"", b"POST /attention HTTP/1.1\r\nHost: loc"])
def test_a_connection_without_a_request_is_closed(address, beginning):
    with connected(address) as client:
        client.sendall(beginning)
        begun = time.monotonic()
        assert client.recv(4096) == b""
        assert time.monotonic() - begun < 5


def test_a_slow_second_head_is_closed_too(address):
    with connected(address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /hea")
        client.settimeout(5)
        while client.recv(4096):
            pass


def test_too_many_texts_are_refused_and_the_rest_go_on():
    model = Model()
    model.gate.clear()
    with serving(model, Limits(waiting=1, compute_time=20)) as address:
        answers = []
        first = threading.Thread(target=lambda: answers.append(ask(address, "first")))
        first.start()
        while model.texts != ["first"]:
            time.sleep(0.01)
        refused = ask(address, "one more")
        assert refused.status_code == 503
        assert refused.json()["error"].startswith("too many sentences are being computed")
        assert refused.headers["retry-after"] == "1"
        model.gate.set()
        first.join(10)
        assert [answer.status_code for answer in answers] == [200]
        assert ask(address, "one more").status_code == 200


def test_an_answer_that_takes_too_long_is_given_up():
    model = Model()
    model.gate.clear()
    with serving(model, Limits(compute_time=0.3)) as address:
        answer = ask(address, "slow")
        assert answer.status_code == 504
        assert answer.json()["error"] == "the answer took more than 0.3 seconds"
        model.gate.set()


def test_a_port_in_use_is_told(address):
    port = int(address.rpartition(":")[2])
    with pytest.raises(
        ValueError, match=f"cannot serve on 127.0.0.1, port {port}: .* in use; choose another"
    ):
        bound_socket("127.0.0.1", port)


def test_what_is_remembered_is_bounded():
    model = Model()
    with serving(model, Limits(kept=400)) as address:
        for text in ["a" * 100, "b" * 100, "c" * 100, "d" * 100]:
            assert ask(address, text).status_code == 200
        ask(address, "d" * 100)
        ask(address, "a" * 100)
    assert [text[0] for text in model.texts] == ["a", "b", "c", "d", "a"]
