#!/usr/bin/env python3
"""What clients do wrong, what they do at once, and how the server ends."""
import asyncio
import concurrent.futures
import http.client
import json
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from streams import allow_descriptors, read_streams
from support import BINARY, DEADLINE_S, ENVIRONMENT, PATIENT, Server, communicate, nodes_of, reserve_port, wait_until

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
STORY = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story about a dragon."}], "temperature": 0}
# Many samples make it long, whatever the machine's speed: some 200,000 tokens, which is minutes.
ENDLESS = {**STORY, "ignore_eos": True, "max_tokens": 1900, "n": 128, "temperature": 1}


def post(server, path, body, headers=None):
    """Status and parsed JSON (or text) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        try:
            return response.status, json.loads(text)
        except json.JSONDecodeError:
            return response.status, text
    finally:
        connection.close()


class Stream:
    """A chat stream that has begun: the first event is there when the constructor returns."""

    def __init__(self, server, body):
        data = json.dumps({**body, "stream": True}).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                            + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.received = b""
        while b"data: " not in self.received:
            if not self._read():
                raise AssertionError(f"the server closed the stream: {self.received!r}")

    def _read(self):
        part = self.socket.recv(65536)
        self.received += part
        return part

    def close(self):
        self.socket.close()

    def read_to_end(self):
        """The events, from the first to the last; the connection is closed."""
        while not self.received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and self._read():
            pass
        self.close()
        lines = (line.strip() for line in self.received.split(b"\n"))
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    @staticmethod
    def text(events):
        return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])

    @staticmethod
    def finish_reasons(events):
        return [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]


def bad_bodies():
    """200 bodies that are wrong, each with the status that it deserves."""
    good = {"model": "demo", "prompt": "a", "max_tokens": 1}
    cases = [(text, 400) for text in (b"", b"{", b"[]", b"null", b"1e999", b"{\"prompt\": \"\xff\xfe\"}", b"\x00" * 64,
                                      b"[" * 20000, b"{\"a\":" * 20000, b"{\"prompt\": \"a\"} trailing", b"\"\\ud800\"")]
    wrong_types = [None, True, -1, 1.5, "text", [], {}, [[]], [None], 10 ** 30, -10 ** 30, 1e308]
    for field in ("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "logit_bias", "logprobs",
                  "stop_token_ids", "min_tokens", "repetition_penalty", "presence_penalty", "prompt"):
        for value in wrong_types:
            cases.append((json.dumps({**good, field: value}).encode(), None))
    for change in ({"temperature": 3}, {"top_p": 0}, {"n": 0}, {"n": 100000}, {"max_tokens": 0}, {"prompt": [1 << 30]},
                   {"prompt": "a " * 100000}, {"prompt": [5] * 3000}, {"logprobs": 21},
                   {"stream_options": {"include_usage": True}}):
        cases.append((json.dumps({**good, **change}).encode(), 400))
    cases.append((json.dumps({**good, "model": "other"}).encode(), 404))
    assert len(cases) >= 200, len(cases)
    return cases


class OneServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo", "--generation-config", "vllm")

    @classmethod
    def tearDownClass(cls):
        code, errors = cls.server.stop()
        assert code == 0, errors

    def tearDown(self):
        self.assertEqual(self.server.get("/health"), "")
        self.assertEqual(self.server.wait_idle(), 0)

    def test_two_hundred_wrong_requests_get_their_own_errors(self):
        for body, expected in bad_bodies():
            status, reply = post(self.server, "/v1/completions", body)
            if expected is not None:
                self.assertEqual(status, expected, (body[:80], reply))
            self.assertIn(status, (200, 400, 404, 413), (body[:80], reply))
            if status != 200:
                self.assertEqual(reply["error"]["code"], status)
                self.assertTrue(reply["error"]["message"], body[:80])
        status, reply = post(self.server, "/v1/chat/completions", STORY)
        self.assertEqual(status, 200)

    def test_unknown_fields_are_ignored(self):
        status, _ = post(self.server, "/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 1, "frobnicate": [{}]})
        self.assertEqual(status, 200)

    def test_http_errors(self):
        self.assertEqual(post(self.server, "/v1/nothing", {})[0], 404)
        self.assertEqual(post(self.server, "/v1/models", {})[0], 405)
        self.assertEqual(post(self.server, "/v1/completions", b"a=b", {"Content-Type": "text/plain"})[0], 400)

    def test_sixty_four_clients_of_whom_some_hang_up(self):
        expected = post(self.server, "/v1/chat/completions", {**STORY, "max_tokens": 200})[1]["choices"][0]["message"]["content"]
        numbers = random.Random(1)
        leaves = [numbers.random() < 0.4 for _ in range(64)]

        def client(number):
            stream = Stream(self.server, {**STORY, "max_tokens": 200})
            if leaves[number]:
                stream.close()
                return None
            return Stream.text(stream.read_to_end())

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            texts = list(pool.map(client, range(64)))
        for number, text in enumerate(texts):
            if not leaves[number]:
                self.assertEqual(text, expected, number)

    def test_a_client_that_goes_away_ends_its_request(self):
        before = self.server.metric("vllm:generation_tokens_total")
        stream = Stream(self.server, ENDLESS)
        # The first event comes before the first step: until that is counted, the engine looks idle.
        wait_until(lambda: self.server.metric("vllm:num_requests_running") > 0, "the request to run")
        stream.close()
        self.server.wait_idle()
        self.assertLess(self.server.metric("vllm:generation_tokens_total") - before, ENDLESS["n"] * ENDLESS["max_tokens"])

    def test_an_idle_connection_serves_several_requests(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_S)
        for _ in range(3):
            connection.request("GET", "/v1/models")
            self.assertEqual(json.loads(connection.getresponse().read())["data"][0]["id"], "demo")
        connection.close()


class ManyStreams(unittest.TestCase):
    def test_a_thousand_streams_at_once_end_alike_whatever_the_soft_limit_of_descriptors(self):
        allow_descriptors(1100)
        with Server(prefix=["bash", "-c", 'ulimit -Sn 256; exec "$@"', "-"]) as server:
            streams = asyncio.run(read_streams(server.port, 1000, 4))
            self.assertEqual(len({text for _, _, text in streams}), 1)
            self.assertEqual(server.wait_idle(), 0)
            self.assertNotIn("cannot accept", server.log())


class Ending(unittest.TestCase):
    def test_a_signal_lets_running_requests_finish_and_refuses_new_ones(self):
        with Server("--served-model-name", "demo", "--generation-config", "vllm", "--shutdown-timeout", "600") as server:
            stream = Stream(server, {**STORY, "ignore_eos": True, "max_tokens": 1500})
            ended = threading.Event()
            events = []

            def read():
                events.append(stream.read_to_end())
                ended.set()

            reader = threading.Thread(target=read)
            reader.start()
            server.process.send_signal(signal.SIGINT)

            def refused():
                try:
                    return post(server, "/v1/chat/completions", {**STORY, "max_tokens": 1})[0] == 503
                except (OSError, http.client.HTTPException):
                    return True

            wait_until(lambda: refused() or ended.is_set(), "new requests to be refused")
            self.assertTrue(ended.wait(DEADLINE_S))
            reader.join()
            self.assertEqual(Stream.finish_reasons(events[0]), ["length"])
            self.assertEqual(server.process.wait(DEADLINE_S), 0)

    def test_a_second_signal_ends_a_drain_at_once_and_says_so(self):
        with Server("--served-model-name", "demo", "--generation-config", "vllm", "--shutdown-timeout", "600") as server:
            stream = Stream(server, ENDLESS)
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "shutting down" in server.log(), "the drain to begin")
            code, log = server.stop(signal.SIGTERM)
            stream.close()
            self.assertEqual(code, 128 + signal.SIGTERM)
            self.assertIn('stopping at once, running requests are aborted reason="a second signal"', log)

    def test_a_hangup_ends_nothing_and_changes_the_log_level(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write('[log]\nlog-level="warning"\n')
            file.flush()
            with Server("--config-file", file.name) as server:
                pathlib.Path(file.name).write_text('[log]\nlog-level="info"\n')
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: "settings reloaded log_level=info" in server.log(), "the settings to be read")
                pathlib.Path(file.name).write_text('[log]\nlog-level="loud"\n')
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: "settings not reloaded, the old ones stay in effect" in server.log(), "the settings to be read")
                self.assertEqual(json.loads(server.get("/v1/models"))["data"][0]["id"], "demo")

    def test_a_hangup_reads_the_keys_of_a_configuration_file_again(self):
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            def write(keys):
                pathlib.Path(file.name).write_text(f"[server]\napi-key={json.dumps(keys)}\n")

            def statuses(server, keys=("first", "second", "third")):
                return [post(server, "/tokenize", {"model": "demo", "prompt": "a"}, {"Authorization": f"Bearer {key}"})[0]
                        for key in keys]

            def hang_up(server, times):
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: server.log().count("settings reloaded") == times, "the settings to be read")

            write(["first", "second"])
            with Server("--config-file", file.name) as server:
                self.assertEqual(statuses(server), [200, 200, 401])
                write(["third", "second"])
                hang_up(server, 1)
                self.assertEqual(statuses(server), [401, 200, 200])
                # No key would open the server to everyone.
                write([])
                hang_up(server, 2)
                self.assertEqual(statuses(server), [401, 200, 200])
                self.assertIn('API keys not reloaded, the old ones stay valid reason="no key left"', server.log())

    def test_without_a_timeout_running_requests_are_aborted(self):
        with Server("--served-model-name", "demo", "--generation-config", "vllm") as server:
            stream = Stream(server, ENDLESS)
            code, errors = server.stop(signal.SIGINT)
            self.assertEqual(code, 0, errors)
            self.assertEqual(Stream.finish_reasons(stream.read_to_end()), ["abort"] * ENDLESS["n"])

    def test_a_signal_ends_a_start_that_waits_for_a_host_and_the_nodes_that_it_has_started(self):
        port = reserve_port()
        config = f"""
            [topology]
            ; With nodes on other hosts it may be no loopback address.
            supervisor-host="0.0.0.0"
            supervisor-port={port}
            insecure=true
            [node.front]
            roles=["frontend", "input-processor", "output-processor"]
            [node.core]
            roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
            [node.worker-0]
            host="127.0.0.2"
            workers=[0]
            """
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(config)
            file.flush()
            for sig in (signal.SIGTERM, signal.SIGINT):
                start = subprocess.Popen([BINARY, "serve", "--config-file", file.name, "--port", "0"], text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
                wait_until(lambda: len(nodes_of(start.pid)) == 2 or start.poll() is not None, "the nodes of this host")
                nodes = nodes_of(start.pid).values()
                start.send_signal(sig)
                output, errors = communicate(start)
                self.assertEqual((start.returncode, output), (128 + sig, ""), errors)
                wait_until(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in nodes), "the nodes to end")


class Refusals(unittest.TestCase):
    """What cannot work is refused before the port opens, with the reason."""

    def refused(self, *arguments, code=1, **environment):
        done = subprocess.run([BINARY, "serve", *arguments], capture_output=True, text=True, timeout=DEADLINE_S,
                              env={**ENVIRONMENT, **environment})
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("Serving", done.stdout)
        return done.stderr

    def test_wrong_options(self):
        self.assertIn("--max-sequences", self.refused("--max-sequences", "3", code=2))
        self.assertIn("65535", self.refused("--port", "65536", code=2))
        self.assertIn("no-such-folder", self.refused("no-such-folder"))

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assertIn(str(port), self.refused("--port", str(port)))

    def test_broken_model_folders(self):
        demo = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "model"

        def folder(change):
            broken = pathlib.Path(tempfile.mkdtemp(dir=self.scratch.name))
            for file in demo.iterdir():
                (broken / file.name).symlink_to(file)
            change(broken)
            return str(broken)

        def rewrite(name, text):
            def change(broken):
                (broken / name).unlink()
                (broken / name).write_bytes(text)
            return change

        with tempfile.TemporaryDirectory() as scratch:
            self.scratch = type("Scratch", (), {"name": scratch})
            self.assertIn("config.json", self.refused(folder(lambda broken: (broken / "config.json").unlink())))
            self.assertIn("config.json", self.refused(folder(rewrite("config.json", b"{"))))
            self.assertIn("tokenizer.json", self.refused(folder(rewrite("tokenizer.json", b"[]"))))
            whole = (demo / "model.safetensors").read_bytes()
            self.assertIn("model.safetensors", self.refused(folder(rewrite("model.safetensors", whole[:-1000]))))
            config = json.loads((demo / "config.json").read_text())
            config["architectures"] = ["NoSuchForCausalLM"]
            self.assertIn("NoSuchForCausalLM", self.refused(folder(rewrite("config.json", json.dumps(config).encode()))))
            config = json.loads((demo / "config.json").read_text())
            config["text_config"]["intermediate_size"] = 656
            message = self.refused(folder(rewrite("config.json", json.dumps(config).encode())))
            self.assertIn("656", message)
            self.assertIn("640", message)


class LostFiles(unittest.TestCase):
    def test_packed_weights_that_are_cut_under_a_server_cost_a_worker_and_no_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--packed-weights-dir", folder) as server:  # writes them; the next ones map them
                status, expected = post(server, "/v1/chat/completions", STORY)
                self.assertEqual(status, 200)
            (file,) = pathlib.Path(folder).iterdir()
            size = file.stat().st_size
            for arguments in (), ("--config-file", str(CONFIGS / "multi-process.conf"), *PATIENT):
                with self.subTest(arguments=arguments), Server("--packed-weights-dir", folder, *arguments) as server:
                    with file.open("r+b") as packed:
                        packed.truncate(size // 2)
                    status, answer = post(server, "/v1/chat/completions", STORY)
                    self.assertEqual((status, answer["choices"]), (200, expected["choices"]))
                    self.assertIn(f"{file} was cut short while it was mapped", server.log())
                    wait_until(lambda: server.log().count("engine restarted") == 1, "the restart")
                    self.assertEqual(file.stat().st_size, size)  # repacked
                    self.assertEqual(post(server, "/v1/chat/completions", STORY)[1]["choices"], expected["choices"])


if __name__ == "__main__":
    unittest.main()
