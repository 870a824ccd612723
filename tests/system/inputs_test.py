#!/usr/bin/env python3
"""Prompts that take long to render and tokenise: whom they hold up, and how they end. In which order workers take them is what
tests/actors/input_workers_test.cpp has."""
import base64
import http.client
import json
import random
import socket
import threading
import time
import unittest

from support import DEADLINE_S, IS_TIMED, Server, cpu_seconds, wait_until

DEMO = ("--served-model-name", "demo", "--generation-config", "vllm", "--log-stats-interval-s", "0")
SMALL = ("/v1/completions", {"model": "demo", "prompt": "Once upon", "max_tokens": 1, "temperature": 0})


def large(megabytes):
    """Without words that come again: a tokenizer remembers those."""
    return "/tokenize", {"prompt": base64.b64encode(random.Random(1).randbytes(megabytes * 750_000)).decode()}


def post(server, path, body):
    """Status and parsed JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def send(server, path, body):
    """The socket of a request that has been sent, and not answered."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


class Inputs(unittest.TestCase):
    def test_small_requests_do_not_wait_for_large_ones(self):
        kwargs = {f"key{i}": "v" * 20 for i in range(60_000)}
        chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
                "chat_template_kwargs": kwargs}
        num_clients, num_small, answers, ending = 8, 40, [], threading.Event()
        with Server(*DEMO) as server:
            def keep_sending(request):
                while not ending.is_set():
                    answers.append(post(server, *request)[0])
            requests = [large(2), ("/v1/chat/completions", chat)]
            clients = [threading.Thread(target=keep_sending, args=(requests[i % 2],)) for i in range(num_clients)]
            try:
                for client in clients:
                    client.start()
                wait_until(lambda: len(answers) >= num_clients, "the large requests to be answered")
                num_meanwhile = 0
                for _ in range(num_small):
                    before = len(answers)
                    self.assertEqual(post(server, *SMALL)[0], 200)
                    num_meanwhile += len(answers) - before
            finally:
                ending.set()
                for client in clients:
                    client.join()
            self.assertEqual(set(answers), {200})
            if IS_TIMED:  # behind all others, each small one would have seen about num_clients / 2 of them end
                self.assertLessEqual(num_meanwhile, num_small)

    def test_a_prompt_that_takes_too_long_is_refused_with_the_limit(self):
        with Server(*DEMO, "--max-input-time-s", "0.1") as server:
            # Cut to its end, as a prompt that cannot fit is refused without a look at it.
            cut = {"model": "demo", "truncate_prompt_tokens": 9, **large(12)[1]}
            for path, body in (large(12), ("/v1/completions", cut)):
                status, answer = post(server, path, body)
                self.assertEqual(status, 400, answer)
                self.assertEqual(answer["error"]["message"], "rendering and tokenizing the prompt took too long, "
                                                             "max_input_time_s is 0.1")
            # Unless this machine takes so long for it, too.
            wait_until(lambda: post(server, *SMALL)[0] == 200, "a small request to be answered")

    def test_the_work_of_clients_that_leave_ends(self):
        with Server(*DEMO, "--max-input-time-s", "0") as server:
            def cpu():
                return cpu_seconds(server.process.pid)
            request, generation = large(8), ("/v1/completions", {"model": "demo", **large(8)[1]})
            post(server, *large(1))
            before = cpu()
            self.assertEqual(post(server, *request)[0], 200)
            alone = cpu() - before
            before = cpu()
            for i in range(8):
                send(server, *(request if i % 2 == 0 else generation)).close()
            self.assertEqual(post(server, *request)[0], 200)  # is behind all of them
            if IS_TIMED:
                self.assertLess(cpu() - before, 0.7 * 9 * alone)
            self.assertEqual(server.wait_idle(), 0)

    def test_the_server_ends_at_once_whatever_is_under_way(self):
        with Server(*DEMO, "--max-input-time-s", "0") as server:
            request = large(8)
            start = time.monotonic()
            self.assertEqual(post(server, *request)[0], 200)
            alone = time.monotonic() - start
            before = cpu_seconds(server.process.pid)
            clients = [send(server, *request) for _ in range(12)]
            wait_until(lambda: cpu_seconds(server.process.pid) > before + 0.5, "the work to begin")
            start = time.monotonic()
            code, log = server.stop()
            self.assertEqual(code, 0, log)
            if IS_TIMED:
                self.assertLess(time.monotonic() - start, max(5, 3 * alone))
            for client in clients:
                client.close()


if __name__ == "__main__":
    unittest.main()
