#!/usr/bin/env python3
"""What a server makes of the bytes of a connection, and what its log says of them."""
import contextlib
import gzip
import http.client
import json
import pathlib
import re
import socket
import tempfile
import threading
import time
import unittest

from support import DEADLINE_S, IS_TIMED, ROOT, Server, wait_until

CHAT = {"model": "demo", "messages": [{"role": "user", "content": "Hello, secretprompt!"}], "max_tokens": 4}


def answers(server, sent, patience=DEADLINE_S):
    """Everything that comes back, to the end of the connection; the end must come within `patience`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=patience) as client:
        received = b""
        try:
            client.sendall(sent)
            while part := client.recv(65536):
                received += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        return received.decode("latin-1")


def request(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-body-bytes", "40M", "--body-timeout-s", "200", "--idle-timeout-s", "200",
                            "--enable-request-id-headers")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_no_byte_of_a_body_is_read_as_a_request(self):
        smuggled = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for framing in (b"Transfer-Encoding: gzip", b"Transfer-Encoding: identity", b"Transfer-Encoding: xchunked",
                        b'Transfer-Encoding: "chunked"', b"Transfer-Encoding:", b"Transfer-Encoding: gzip, chunked",
                        b"Transfer-Encoding : chunked", b"X: y\r\n Transfer-Encoding: chunked", b"Content-Length: +0",
                        b"Transfer-Encoding: chunked\r\nContent-Length: 0", b"Content-Length: 0\r\nContent-Length: 44",
                        b"X: y\nContent-Length: 44"):
            with self.subTest(framing=framing):
                head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                seen = answers(self.server, head + framing + b"\r\n\r\n" + smuggled)
                self.assertRegex(seen, r"^HTTP/1.1 (400|501) ")
                self.assertEqual(seen.count("HTTP/1.1 "), 1, seen)

    def test_a_body_that_drips_is_answered_and_ended(self):
        with Server("--body-timeout-s", "2") as server, \
                socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S) as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           b"Content-Length: 100000\r\n\r\n")
            client.settimeout(0.1)
            seen = b""

            def is_answered():
                nonlocal seen
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may be closed, with the answer unread
                    client.sendall(b" ")
                with contextlib.suppress(TimeoutError):
                    seen = client.recv(65536)
                return seen
            wait_until(is_answered, "an answer")
            self.assertTrue(seen.startswith(b"HTTP/1.1 408 "), seen)

    def test_health_answers_while_a_long_bad_body_is_read(self):
        part = b'{"a":[1,2,{}]},{},"x",-1,[[]],'
        body = b'{"model":"demo","prompt":[' + part * (30_000_000 // len(part)) + b"]}"
        result = []
        sender = threading.Thread(target=lambda: result.append(
            request(self.server, "POST", "/v1/completions", body, {"Content-Type": "application/json"})))
        sender.start()
        slowest = 0
        while sender.is_alive():
            began = time.monotonic()
            self.assertEqual(request(self.server, "GET", "/health")[0], 200)
            slowest = max(slowest, time.monotonic() - began)
        sender.join()
        print(f"/health beside a bad body of 30 MB: {slowest:.3f} s at most")
        self.assertEqual(result[0][0], 400)
        if IS_TIMED:
            self.assertLess(slowest, 2)

    def test_other_names_reach_nothing(self):
        for path in ("/v1/models", "/admin/topology"):
            self.assertEqual(request(self.server, "GET", path, headers={"Host": "evil.example"})[0], 403, path)
            for own in ("localhost:8000", "127.0.0.1", "[::1]:80"):
                self.assertEqual(request(self.server, "GET", path, headers={"Host": own})[0], 200, path)

    def test_packed_bodies_and_other_protocols(self):
        fields = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        status, text = request(self.server, "POST", "/v1/chat/completions", gzip.compress(json.dumps(CHAT).encode()), fields)
        self.assertEqual(status, 200, text)
        status, text = request(self.server, "POST", "/v1/chat/completions", b"x", fields | {"Content-Encoding": "br"})
        self.assertEqual((status, "gzip" in text), (415, True), text)
        bomb = gzip.compress(bytes(60_000_000))
        self.assertEqual(request(self.server, "POST", "/v1/completions", bomb, fields)[0], 413)
        self.assertIn("HTTP/1.1 only", answers(self.server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))

    def test_request_ids_are_printable_and_short(self):
        self.assertEqual(request(self.server, "GET", "/version", headers={"X-Request-Id": "x" * 256})[0], 200)
        for bad in ("x" * 257, "x" * 60_000, "gr\u00fc\u00df"):
            self.assertEqual(request(self.server, "GET", "/version", headers={"X-Request-Id": bad})[0], 400)

    def test_the_dashboard_shows_metrics_that_exist(self):
        self.assertEqual(request(self.server, "POST", "/v1/chat/completions", json.dumps(CHAT),
                                 {"Content-Type": "application/json"})[0], 200)
        # What is counted of a request when its answer has been sent.
        wait_until(lambda: 'http_requests_total{handler="/v1/chat/completions"' in self.server.get("/metrics"), "the count")
        text = self.server.get("/metrics")
        samples = {}
        for line in text.splitlines():
            if match := re.match(r"([\w:]+)(?:\{(.*)\})? ", line):
                samples.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2] or ""))
        dashboard = json.loads((ROOT / "tools" / "grafana" / "troupe.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        self.assertGreater(len(expressions), 15)
        for expression in expressions:
            for name, selected in re.findall(r"((?:vllm|troupe|http)[\w:]+)(?:\{(\w+)=)?", expression):
                self.assertIn(name, samples, expression)
                self.assertLessEqual({selected} - {""}, samples[name], expression)
            for label in re.findall(r"by \((\w+)\) \(rate\(((?:vllm|troupe|http)[\w:]+)", expression):
                self.assertIn(label[0], samples[label[1]], expression)

    def test_each_request_has_a_line_in_the_log(self):
        json_type = {"Content-Type": "application/json"}
        self.assertEqual(request(self.server, "POST", "/v1/chat/completions?token=hush", json.dumps(CHAT), json_type)[0], 200)
        self.assertEqual(request(self.server, "GET", "/no/such/path")[0], 404)
        self.assertEqual(request(self.server, "POST", "/v1/completions", "{", json_type)[0], 400)
        answers(self.server, b"\x1b[31mhello\r\n\r\n")
        for line in (r"http request client=127\.0\.0\.1:\d+ key=0 request=chatcmpl-\w+ method=POST "
                     r"path=/v1/chat/completions status=200 prompt_tokens=\d+ output_tokens=[1-4] "
                     r"queue_ms=\d+\.\d ttft_ms=\d+\.\d total_ms=\d+\.\d\n",
                     "path=/no/such/path status=404", "path=/v1/completions status=400", "method=- path=- status=400"):
            wait_until(lambda: re.search(line, self.server.log()), line)  # written when the answer has been sent
        for secret in ("secretprompt", "hush", "\x1b[31mhello"):
            self.assertNotIn(secret, self.server.log())
        with Server("--disable-uvicorn-access-log") as silent:
            request(silent, "GET", "/v1/models")
            self.assertIsNone(re.search("http request", silent.log()))

    def test_the_access_log_is_json(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "access.jsonl")
            with Server("--access-log", str(file)) as server:
                body = '{"prompt":"a","max_tokens":3,"ignore_eos":true}'
                request(server, "POST", "/v1/completions", body, {"Content-Type": "application/json"})
                request(server, "GET", "/nowhere?secret=1")
                wait_until(lambda: file.read_text().count("\n") == 2, "both lines")
            lines = (json.loads(line) for line in file.read_text().splitlines())
            second, first = sorted(lines, key=lambda line: line["path"])
            self.assertEqual((first["path"], first["status"], first["output_tokens"]), ("/v1/completions", 200, 3))
            self.assertGreaterEqual(first["duration_ms"], first["ttft_ms"])
            self.assertEqual((second["path"], second["status"], second["request_id"]), ("/nowhere", 404, None))
        with self.assertRaisesRegex(RuntimeError, "access-log: cannot open /nowhere/file: No such file"):
            Server("--access-log", "/nowhere/file")

    def test_tokenizing_needs_the_key(self):
        with Server("--api-key", "opensesame") as guarded:
            for path in ("/tokenize", "/detokenize"):
                body, fields = '{"prompt":"a","tokens":[1]}', {"Content-Type": "application/json"}
                self.assertEqual(request(guarded, "POST", path, body, fields)[0], 401)
                self.assertEqual(request(guarded, "POST", path, body, fields | {"Authorization": "Bearer opensesame"})[0], 200)


if __name__ == "__main__":
    unittest.main()
