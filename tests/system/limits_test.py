#!/usr/bin/env python3
"""Limits on time and number, and who gets the engine when there is more to do than it can."""
import http.client
import json
import re
import signal
import socket
import tempfile
import threading
import unittest

import openai

from support import DEADLINE_S, Server, wait_until

DEMO = ("--served-model-name", "demo", "--generation-config", "vllm")
LONG = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 1900}


def post(server, body, key=None, path="/v1/completions"):
    """Status, headers and parsed JSON of one completion."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), json.loads(response.read())
    finally:
        connection.close()


class Stream:
    """A completion whose first event has been read: it runs."""

    def __init__(self, server, body, key=None):
        data = json.dumps({**body, "stream": True}).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                            + f"{authorization}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.received = b""
        while b"data: " not in self.received:
            self.more()

    def more(self):
        part = self.socket.recv(65536)
        if not part:
            raise AssertionError(f"the server closed the stream: {self.received[-400:]!r}")
        self.received += part

    def read_to_end(self):
        while not self.received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            self.more()
        events = [json.loads(line[6:]) for line in self.received.split(b"\n") if line.startswith(b"data: {")]
        return "".join(event["choices"][0]["text"] for event in events), events[-1]["choices"][0]["finish_reason"]

    def close(self):
        self.socket.close()


class Time(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*DEMO, "--max-num-seqs", "1", "--max-queue-time-s", "600", "--max-request-time-s", "900")

    @classmethod
    def tearDownClass(cls):
        code, errors = cls.server.stop()
        assert code == 0, errors

    def tearDown(self):
        self.assertEqual(self.server.wait_idle(), 0)

    def test_a_request_that_waits_too_long_fails_with_the_limit(self):
        # A new long request for as long as the short one has not been refused behind it.
        status = None
        while status != 503:
            running = Stream(self.server, LONG)
            status, headers, reply = post(self.server, {**LONG, "max_tokens": 1, "max_queue_time_s": 0.001})
            running.close()
            self.assertIn(status, (200, 503), reply)
        self.assertRegex(reply["error"]["message"], r"has waited [0-9.]+ s to be scheduled, max_queue_time_s is 0.001$")
        self.assertEqual(reply["error"]["param"], "max_queue_time_s")
        self.assertGreaterEqual(int(headers["Retry-After"]), 1)

    def test_a_timeout_keeps_the_generated_tokens(self):
        outcomes = set()
        limit = 0.001
        while not {"length", "timeout"} <= outcomes:
            status, _, reply = post(self.server, {**LONG, "max_request_time_s": limit})
            if status == 504:
                self.assertRegex(reply["error"]["message"], r"has taken [0-9.]+ s, max_request_time_s is [0-9.]+$")
                outcomes.add("nothing")
            else:
                self.assertEqual(status, 200, reply)
                choice = reply["choices"][0]
                outcomes.add(choice["finish_reason"])
                self.assertEqual(choice["finish_reason"] == "length", reply["usage"]["completion_tokens"] == 1900)
                self.assertTrue(choice["text"])
            limit = limit / 5 if "length" in outcomes else limit * 1.6
        self.assertRegex(self.server.get("/metrics"), r'vllm:request_success_total{[^}]*"timeout"[^}]*} [1-9]')

    def test_a_stream_ends_with_the_reason(self):
        limit = 0.05
        while True:
            stream = None
            try:
                stream = Stream(self.server, {**LONG, "max_request_time_s": limit})
                text, reason = stream.read_to_end()
                if reason == "timeout":
                    self.assertTrue(text)
                    return
                self.assertEqual(reason, "length")
                limit /= 1.7
            except AssertionError:
                limit *= 1.3  # nothing was generated in so short a time
            finally:
                if stream:
                    stream.close()

    def test_invalid_time_limits_are_rejected(self):
        for value in (-1, "5", 0, 1e300):
            self.assertEqual(post(self.server, {**LONG, "max_request_time_s": value})[0], 400, value)


class Number(unittest.TestCase):
    def test_the_queue_is_bounded_and_rejections_have_retry_after(self):
        with Server(*DEMO, "--max-num-queued-reqs", "2") as server:
            status, headers, reply = post(server, {**LONG, "temperature": 1, "n": 3})
            self.assertEqual(status, 400, reply)  # it never fits
            self.assertNotIn("Retry-After", headers)
            while status != 503:  # the stream has ended too early
                running = Stream(server, LONG)
                status, headers, reply = post(server, {**LONG, "temperature": 1, "n": 2, "max_tokens": 1})
                running.close()
                self.assertIn(status, (200, 503), reply)
            self.assertIn("max_num_queued_reqs is 2", reply["error"]["message"])
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            self.assertGreaterEqual(server.metric("vllm:admission_rejections_total"), 1)
            server.wait_idle()
            self.assertEqual(post(server, {**LONG, "temperature": 1, "n": 2, "max_tokens": 1})[0], 200)


class Turns(unittest.TestCase):
    def test_a_key_with_one_request_does_not_wait_for_a_key_with_many(self):
        with Server(*DEMO, "--max-num-seqs", "1", "--scheduling-policy", "fair", "--api-key", "many", "--api-key", "one",
                    "--server-dev-mode", "--enable-server-load-tracking") as server:
            def send(key, count):
                threads.append(threading.Thread(target=post, args=(server, {**LONG, "max_tokens": 100}, key)))
                threads[-1].start()
                wait_until(lambda: json.loads(server.get("/load"))["server_load"] == count, "the request to be there")

            # All are there before the first of them is scheduled.
            self.assertEqual(post(server, {}, "one", "/pause?mode=keep")[0], 200)
            threads = []
            for i in range(6):
                send("many", i + 1)
            send("one", 7)
            self.assertEqual(post(server, {}, "one", "/resume")[0], 200)
            for thread in threads:
                thread.join()

            def order():
                return re.findall(r"http request .* key=(\d) .* path=/v1/completions status=200", server.log())
            wait_until(lambda: len(order()) == 7, "all lines in the log")
            self.assertLess(order().index("1"), 3)

    def test_an_urgent_request_preempts_another_which_loses_nothing(self):
        with Server(*DEMO, "--max-num-seqs", "1", "--scheduling-policy", "priority",
                    "--enable-priority-preemption") as server:
            expected = post(server, LONG)[2]["choices"][0]["text"]
            while server.metric("vllm:num_preemptions_total") == 0:  # the other one has ended too early
                low = Stream(server, {**LONG, "priority": 10})
                status, _, reply = post(server, {**LONG, "max_tokens": 3, "priority": 1})
                self.assertEqual(status, 200, reply)
                text, reason = low.read_to_end()
                low.close()
                self.assertEqual((text, reason), (expected, "length"))


class Keys(unittest.TestCase):
    def test_a_key_has_limits_of_its_own(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("k-open\nk-slow name=slow requests-per-minute=2\nk-one name=one max-concurrent-requests=1\n")
            file.flush()
            with Server(*DEMO, "--api-key-file", file.name) as server:
                short = {"model": "demo", "prompt": "Once", "max_tokens": 1}
                self.assertEqual([post(server, short, "k-slow")[0] for _ in range(3)], [200, 200, 429])
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="k-slow", max_retries=0)
                with self.assertRaises(openai.RateLimitError) as refused:
                    client.completions.create(**short)
                self.assertEqual(refused.exception.code, "rate_limit_exceeded")
                self.assertIn("requests-per-minute is 2", refused.exception.message)
                self.assertEqual(refused.exception.response.reason_phrase, "Too Many Requests")
                self.assertIn(int(refused.exception.response.headers["Retry-After"]), range(1, 31))
                status = 200
                while status == 200:  # the stream has ended too early
                    wait_until(lambda: post(server, short, "k-one")[0] == 200, "the client's stream to end")
                    stream = Stream(server, LONG, "k-one")
                    status = post(server, short, "k-one")[0]
                    stream.close()
                self.assertEqual(status, 429)
                wait_until(lambda: post(server, short, "k-one")[0] == 200, "the client's stream to end")
                self.assertEqual([post(server, short, "k-open")[0] for _ in range(4)], [200] * 4)
                wait_until(lambda: re.search(r"http request client=\S+ key=slow .* status=429", server.log()), "the line in the log")
                file.write("k-more requests-per-minute=none\n")
                file.flush()
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: post(server, short, "k-open")[0] == 200 and
                           "line 4: requests-per-minute is 'none'" in server.log(), "the reload")
                self.assertIn("not reloaded", server.log())


if __name__ == "__main__":
    unittest.main()
