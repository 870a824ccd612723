#!/usr/bin/env python3
"""What an operator does to a running engine: pausing it, fitting it into memory, looking at its cache."""
import concurrent.futures
import gzip
import json
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from support import BINARY, DEADLINE_S, Server, wait_until

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"

DEMO = ("--served-model-name", "demo", "--generation-config", "vllm")
LONG = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 600}


def post(server, path, body=None):
    """Status and parsed JSON (None if there is none)."""
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    return status, json.loads(text) if text else None


class Call(threading.Thread):
    """A request in the background."""

    def __init__(self, server, path, body=None):
        super().__init__()
        self.answer = None
        self.call = lambda: post(server, path, body)
        self.start()

    def run(self):
        self.answer = self.call()

    def choice(self):
        self.join(DEADLINE_S)
        status, body = self.answer
        if status != 200:
            raise AssertionError(body)
        return body["choices"][0]


class Pause(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*DEMO, "--server-dev-mode", "--enable-server-load-tracking")
        cls.whole = Call(cls.server, "/v1/completions", LONG).choice()["text"]

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop()[0] == 0

    def running(self):
        """A long completion of which some tokens are there."""
        before = self.server.metric("vllm:generation_tokens_total")
        call = Call(self.server, "/v1/completions", LONG)
        wait_until(lambda: self.server.metric("vllm:generation_tokens_total") > before + 5, "the first tokens")
        return call

    def is_paused(self):
        return json.loads(self.server.get("/is_paused"))["is_paused"]

    def resume(self):
        self.assertEqual(post(self.server, "/resume"), (200, {"status": "resumed"}))
        self.assertFalse(self.is_paused())

    def paused(self, query, is_met):
        """A long completion of which some tokens were there when the engine was paused; another one for as long as the pause
        has come too late for it."""
        while True:
            call = self.running()
            self.assertEqual(post(self.server, "/pause" + query), (200, {"status": "paused"}))
            self.assertTrue(self.is_paused())
            if is_met(call):
                return call
            self.assertEqual(call.choice()["text"], self.whole)
            self.resume()

    def test_kept_requests_continue_with_the_same_text(self):
        self.assertFalse(self.is_paused())
        before = self.server.metric("vllm:generation_tokens_total")

        def is_met(_):
            nonlocal before
            tokens, before = self.server.metric("vllm:generation_tokens_total") - before, before + LONG["max_tokens"]
            return tokens < LONG["max_tokens"] - 4  # two steps may be in flight
        call = self.paused("?mode=keep", is_met)
        late = Call(self.server, "/v1/completions", {**LONG, "max_tokens": 5})
        wait_until(lambda: json.loads(self.server.get("/load"))["server_load"] == 2, "the late request to be there")

        def is_still():
            tokens = self.server.metric("vllm:generation_tokens_total")
            time.sleep(0.2)
            return self.server.metric("vllm:generation_tokens_total") == tokens
        wait_until(is_still, "the last outputs to be counted")
        self.assertTrue(call.is_alive() and late.is_alive())
        self.resume()
        self.assertEqual(call.choice()["text"], self.whole)
        self.assertEqual(late.choice()["finish_reason"], "length")

    def test_a_pause_waits_for_running_requests(self):
        call = self.running()
        self.assertEqual(post(self.server, "/pause?mode=wait&clear_cache=false"), (200, {"status": "paused"}))
        self.assertEqual(call.choice()["text"], self.whole)
        late = Call(self.server, "/v1/completions", LONG)
        wait_until(lambda: json.loads(self.server.get("/load"))["server_load"] == 1, "the late request to be there")
        self.assertTrue(self.is_paused())
        self.assertTrue(late.is_alive())
        self.resume()
        self.assertEqual(late.choice()["text"], self.whole)

    def test_a_pause_ends_running_requests_and_clears_the_caches(self):
        choice = self.paused("", lambda call: call.choice()["finish_reason"] == "abort").choice()
        self.assertTrue(self.whole.startswith(choice["text"]))
        self.assertEqual(self.server.wait_idle(), 0)
        self.resume()
        hits = self.server.metric("vllm:prefix_cache_hits_total")
        self.assertEqual(Call(self.server, "/v1/completions", LONG).choice()["text"], self.whole)
        self.assertEqual(self.server.metric("vllm:prefix_cache_hits_total"), hits)

    def test_a_server_that_is_paused_stops(self):
        with Server(*DEMO, "--server-dev-mode", "--enable-server-load-tracking") as server:
            self.assertEqual(post(server, "/pause")[0], 200)
            late = Call(server, "/v1/completions", LONG)
            wait_until(lambda: json.loads(server.get("/load"))["server_load"] == 1, "the late request to be there")
            self.assertEqual(server.stop()[0], 0)
            late.join(DEADLINE_S)

    def test_a_wrong_mode_is_refused(self):
        status, body = post(self.server, "/pause?mode=nap")
        self.assertEqual(status, 400)
        self.assertIn("nap", body["error"]["message"])
        self.assertFalse(self.is_paused())

    def test_the_cache_of_images_may_be_reset_when_it_is_empty(self):
        self.assertEqual(post(self.server, "/reset_mm_cache")[0], 200)

    def test_without_development_mode_there_is_none_of_it(self):
        with Server(*DEMO) as server:
            for path in ("/pause", "/resume", "/reset_mm_cache"):
                self.assertEqual(post(server, path)[0], 404)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                server.get("/is_paused")
            self.assertEqual(refused.exception.code, 404)


class Memory(unittest.TestCase):
    def test_requests_may_be_as_long_as_the_memory_allows(self):
        for length in ("auto", "-1"):
            with Server(*DEMO, "--max-model-len", length, "--num-gpu-blocks-override", "64",
                        "--max-num-batched-tokens", "128", "--kv-cache-metrics", "--kv-cache-metrics-sample", "1") as server:
                longest = json.loads(server.get("/v1/models"))["data"][0]["max_model_len"]
                self.assertGreater(longest, 16)
                self.assertLess(longest, 1000)
                prompt = [5] * (longest - 4)
                status, body = post(server, "/v1/completions",
                                    {"model": "demo", "prompt": prompt, "max_tokens": 4, "ignore_eos": True})
                self.assertEqual(status, 200, body)
                self.assertEqual(body["usage"]["total_tokens"], longest)
                status, body = post(server, "/v1/completions", {"model": "demo", "prompt": [5] * (longest + 1)})
                self.assertEqual(status, 400)
                self.assertIn(str(longest), body["error"]["message"])

    def test_block_residency_metrics_are_exported_if_enabled(self):
        prompts = ([token] * 200 for token in range(5, 25))
        arguments = (*DEMO, "--max-model-len", "512", "--kv-cache-memory-bytes", "2M", "--max-num-batched-tokens", "128")
        for flags in ((), ("--kv-cache-metrics", "--kv-cache-metrics-sample", "1")):
            with Server(*arguments, *flags) as server:
                for prompt in prompts if flags else ():
                    self.assertEqual(post(server, "/v1/completions",
                                          {"model": "demo", "prompt": prompt, "max_tokens": 2})[0], 200)
                text = server.get("/metrics")
                for name in ("lifetime_seconds", "idle_before_evict_seconds", "reuse_gap_seconds"):
                    self.assertEqual(f"vllm:kv_block_{name}_count" in text, bool(flags))
                if flags:
                    self.assertGreater(server.metric("vllm:kv_block_lifetime_seconds_count"), 10)


def traces(family):
    """Each trace of a family: its configuration, and the requests that are added."""
    found = []
    with gzip.open(GOLDEN / f"oracle/scheduler/{family}.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if "trace" in line:
                found.append((line["cfg"], []))
            elif line["op"]["op"] == "add" and not line["op"]["req"].get("resumable"):
                found[-1][1].append(line["op"]["req"])
    return found


class Decisions(unittest.TestCase):
    """The log of a running engine's decisions replays: the Scheduler and the caches, fed with what the engine was told and
    what its workers sampled, decide the same. The requests are those of the reference's traces."""

    def check(self, model, serve, ask):
        """Serves the model, has `ask` send requests to the server; returns the operations that were logged."""
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder) / "decisions.jsonl"
            with Server(str(GOLDEN / "models/models" / model), "--served-model-name", "m", "--dtype", "float32",
                        "--server-dev-mode", "--dev-scheduler-log", str(log), *serve) as server:
                ask(server)
                self.assertEqual(server.stop()[0], 0, server.log())
            result = subprocess.run([pathlib.Path(BINARY).parent / "tests/replay_traces", log], capture_output=True, text=True)
            self.assertRegex(result.stdout, r"^1 traces, [1-9]\d* operations, 0 mismatches\n$")
            return [json.loads(line) for line in log.read_text().splitlines()[1:]]

    def check_trace(self, model, family, config, requests):
        """As a trace has them, beside each other, on as small a cache."""
        longest = max(len(request["prompt"]) + request["max_tokens"] for request in requests)
        serve = ["--max-model-len", str(longest), "--max-num-seqs", str(config["max_num_seqs"]),
                 "--max-num-batched-tokens", str(max(config["max_num_batched_tokens"], config["max_num_seqs"])),
                 "--num-gpu-blocks-override", str(max(config["num_blocks"], 3 * longest // 16 + 8))]
        if not config["async_scheduling"]:
            serve.append("--no-async-scheduling")

        def ask(server):
            def complete(request):
                return post(server, "/v1/completions", {
                    "model": "m", "prompt": request["prompt"], "max_tokens": request["max_tokens"], "temperature": 0,
                    "ignore_eos": True})
            with concurrent.futures.ThreadPoolExecutor(len(requests)) as threads:
                for (status, body), request in zip(threads.map(complete, requests), requests):
                    self.assertEqual(status, 200, body)
                    self.assertEqual(body["usage"]["completion_tokens"], request["max_tokens"])
        operations = self.check(model, serve, ask)
        self.assertEqual(sum(line["op"]["op"] == "add" for line in operations), len(requests), family)
        sampled = sum(len(tokens) for line in operations if line["op"]["op"] == "update" for _, tokens in line["op"]["toks"])
        self.assertEqual(sampled, sum(request["max_tokens"] for request in requests))

    def test_of_states_chunked_attention_and_sinks(self):
        for model, family in (("bamba", "mamba"), ("mamba2", "mamba"), ("llama4_text", "chunked_local"), ("gpt_oss", "hybrid")):
            with self.subTest(model=model):
                config, requests = next((config, requests) for config, requests in traces(family) if len(requests) > 4)
                self.check_trace(model, family, config, requests[:12])

    def test_of_cross_attention(self):
        sounds = GOLDEN / "models/goldens/whisper/audio"

        def ask(server):
            def transcribe(sound):
                return subprocess.run(["curl", "-sf", server.url + "/v1/audio/transcriptions", "-F", f"file=@{sound}",
                                       "-F", "max_completion_tokens=20"], capture_output=True).returncode
            with concurrent.futures.ThreadPoolExecutor(3) as threads:
                self.assertEqual(list(threads.map(transcribe, sounds.iterdir())), [0] * 3)
        operations = self.check("whisper", ["--max-num-seqs", "2"], ask)
        self.assertTrue(any(line["out"].get("enc") for line in operations))

    def test_what_cannot_be_replayed_is_refused(self):
        for options, reason in ((("--session-ttl-s", "5"), "session-ttl-s"), (("--scheduling-policy", "fair"), "fair")):
            result = subprocess.run(
                [BINARY, "serve", str(GOLDEN / "models/models/llama"), "--port", "0", "--server-dev-mode",
                 "--dev-scheduler-log", "/dev/full", *options], capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(f"decisions cannot be replayed with", result.stdout + result.stderr)
            self.assertIn(reason, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
