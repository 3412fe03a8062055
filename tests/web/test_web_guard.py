"""Who may call, and what happens to clients that send too much, hang, or leave."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time

import pytest

pytest.importorskip("fastapi")
from web_fakes import bright_service, client_of, listening, picture

SEGMENT = "/api/v1/segment"


def test_a_token_is_asked_for_everywhere_but_where_health_is_asked():
    _, service = bright_service()
    with client_of(service, token="s3cret") as client:
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            answer = client.get("/api/v1/status", headers=headers)
            assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert client.get("/metrics").status_code == 401
        assert client.get("/openapi.json").status_code == 401
        for scheme in ("Bearer", "bearer"):
            assert client.get("/api/v1/status", headers={"Authorization": f"{scheme} s3cret"}).status_code == 200


def test_a_token_may_hold_any_letters():
    _, service = bright_service()
    with client_of(service, token="geheim-ß") as client:
        for token, status in (("geheim-ß", 200), ("geheim-s", 401)):
            sent = {b"Authorization": f"Bearer {token}".encode()}
            assert client.get("/api/v1/status", headers=sent).status_code == status


def test_head_is_answered_like_get_without_its_body():
    _, service = bright_service()
    with client_of(service, token="s3cret") as client:
        for path in ("/", "/docs", "/static/index.html", "/v2/health/live", "/v2/health/ready", "/healthz"):
            asked, got = client.head(path), client.get(path)
            assert (asked.status_code, asked.content) == (got.status_code, b"") == (200, b""), path
            assert asked.headers["Content-Length"] == got.headers["Content-Length"] == str(len(got.content)), path
        assert client.head("/metrics").status_code == 401
        known = {"Authorization": "Bearer s3cret"}
        assert client.head("/metrics", headers=known).status_code == 200
        answer = client.head(SEGMENT, headers=known)
        assert (answer.status_code, answer.headers["Allow"], answer.content) == (405, "POST", b"")
        service.leaving = True
        assert client.head("/v2/health/ready").status_code == 503


def test_pages_of_other_sites_may_not_call_unless_they_are_listed():
    _, service = bright_service()
    with client_of(service, origins=("https://lab.example",)) as client:
        refused = client.post(SEGMENT, content=picture(), headers={"Origin": "https://evil.example"})
        assert (refused.status_code, "'https://evil.example'" in refused.json()["error"]) == (403, True)
        allowed = client.post(SEGMENT, content=picture(), headers={"Origin": "https://lab.example"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://lab.example"
        assert "Retry-After" in allowed.headers["access-control-expose-headers"], "else a page cannot read it"
        assert client.post(SEGMENT, content=picture(), headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_a_name_that_was_bent_to_this_machine_is_refused():
    _, service = bright_service()
    with client_of(service, base_url="http://evil.example") as client:
        answer = client.get("/api/v1/status")
        assert (answer.status_code, "'evil.example'" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize(("header", "value"), [("Host", "["), ("Origin", "http://[")])
def test_a_header_that_is_no_address_is_refused(header, value):
    _, service = bright_service()
    with client_of(service) as client:
        answer = client.get("/api/v1/status", headers={header: value})
        assert (answer.status_code, repr(value) in answer.json()["error"]) == (403, True), answer.text


def test_a_body_without_a_length_stops_at_the_limit():
    _, service = bright_service()
    with client_of(service, max_body_bytes=1000) as client:
        answer = client.post(SEGMENT, content=(b"x" * 100 for _ in range(100)))
        assert (answer.status_code, answer.json()["kind"]) == (413, "TooLarge")


def test_the_page_is_served_and_nothing_beside_it():
    _, service = bright_service()
    with client_of(service) as client:
        assert "<title>Hotlap</title>" in client.get("/").text
        assert client.get("/static/index.html").status_code == 200
        assert client.get("/static/../app.py").status_code == 404
        assert client.get("/static/%2e%2e/app.py").status_code == 404
        missing = client.get("/nowhere")
        assert (missing.status_code, set(missing.json())) == (404, {"error", "kind"})


def head(length):
    lines = [f"POST {SEGMENT} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: image/png", f"Content-Length: {length}"]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_client_that_hangs_in_the_middle_of_its_body_is_let_go(no_hang):
    _, service = bright_service()
    with listening(service, idle_s=0.2) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(head(1000) + b"some of it")
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 408"), answer
        assert "0.2 s" in json.loads(answer.partition(b"\r\n\r\n")[2] or client.recv(65536))["error"]
    assert service.counters.value("requests_total") == 0


@pytest.mark.parametrize("before", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"])
@pytest.mark.parametrize("drip", [b"", b"X"], ids=["silent", "drop by drop"])
def test_a_client_that_never_ends_the_head_of_a_request_is_let_go(before, drip, no_hang):
    _, service = bright_service()
    with listening(service, patience_s=1.0) as address, socket.create_connection(address, timeout=20) as client:
        if before:
            client.sendall(before)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        client.settimeout(0.1)
        for _ in range(100):
            try:
                if not client.recv(65536):
                    return
            except TimeoutError:
                client.sendall(drip)
            except ConnectionResetError:
                return
        pytest.fail("the connection is still open")


LONG = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def narrow(address):
    """A connection that takes little of an answer before it is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(20)
    client.connect(address)
    return client


def read_answer(client, pause_s):
    """The bytes of an answer's body that come, and how many were promised."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += client.recv(1024)
    top, _, body = read.partition(b"\r\n\r\n")
    promised = int(re.search(rb"content-length: (\d+)", top)[1])
    with contextlib.suppress(ConnectionResetError):
        while len(body) < promised and (more := client.recv(2048)):
            body += more
            time.sleep(pause_s)
    return len(body), promised


def test_a_client_that_never_reads_its_answer_is_let_go_and_one_that_reads_slowly_is_not(no_hang):
    """What it does not read lies in the service's memory: until now for as long as the client stayed."""
    _, service = bright_service()
    with listening(service, patience_s=1.0, sent_at_once=2048) as address, narrow(address) as idle:
        idle.sendall(LONG)
        with narrow(address) as slow:
            slow.sendall(LONG)
            got, promised = read_answer(slow, pause_s=0.5)
            assert got == promised
        time.sleep(2)
        got, promised = read_answer(idle, pause_s=0)
        assert got < promised


def test_a_client_may_wait_for_its_answer_for_longer_than_for_its_head(no_hang):
    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    body = picture()
    with listening(service, patience_s=0.1) as address, socket.create_connection(address, timeout=20) as client:
        client.sendall(head(len(body)) + body)
        threading.Timer(2.5, runner.gate.set).start()
        assert client.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_ours(no_hang, caplog):
    _, service = bright_service()
    with listening(service) as address:
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(head(1000) + b"some of it")
        with socket.create_connection(address, timeout=20) as client:
            body = picture()
            client.sendall(head(len(body)) + body)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if record.exc_info], caplog.text


def test_a_client_that_leaves_takes_its_work_along(no_hang):
    runner, service = bright_service(max_delay_s=0.0)
    runner.gate, runner.entered = threading.Event(), threading.Event()
    body = picture()
    with listening(service) as address, socket.create_connection(address, timeout=20) as busy:
        busy.sendall(head(len(body)) + body)
        assert runner.entered.wait(10)
        with socket.create_connection(address, timeout=20) as leaving:
            leaving.sendall(head(len(body)) + body)
            while not service.line.depth("bright"):
                time.sleep(0.001)
        while service.line.depth("bright"):
            time.sleep(0.001)
        runner.gate.set()
        assert busy.recv(65536).startswith(b"HTTP/1.1 200")
    assert runner.seen_rows == 1
    assert service.counters.value("requests_total", ended="cancelled") == 1


def test_the_interface_has_a_page_that_needs_no_network_and_no_token():
    _, service = bright_service()
    with client_of(service, token="s3cret") as client:
        page = client.get("/docs")
        assert page.status_code == 200 and "script-src 'self'" in page.headers["Content-Security-Policy"]
        parts = [page.text, *(client.get(f"/docs/{name}").text for name in ("reference.js", "reference.css"))]
        assert not any("://" in part for part in parts)
        assert "openapi.json" in parts[1] and client.get("/openapi.json").status_code == 401
        for name in ("..%2fapp.py", "index.html", "nothing.js"):
            assert client.get(f"/docs/{name}").status_code == 404
