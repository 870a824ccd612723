#!/usr/bin/env python3
"""What one request may take: no more than 8 times its body, 16 MB and its tokens, and it is given back. What a server
says that has not enough for itself."""
import http.client
import json
import pathlib
import subprocess
import threading
import unittest

from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, memory, reset_peak, wait_until

DEMO = ("--served-model-name", "demo", "--generation-config", "vllm")
MB = 1 << 20
TOKEN_BYTES = 64  # of a sample: in the scheduler, the cache's tables, the journal and the answer
SAMPLED = {"model": "demo", "temperature": 1, "seed": 1, "max_tokens": 1}
TURN = {"role": "user", "content": "Hello"}


def completion(**fields):
    return "/v1/completions", json.dumps({**SAMPLED, "prompt": "Once", **fields}).encode()


def chat(**fields):
    return "/v1/chat/completions", json.dumps({**SAMPLED, "messages": [TURN], **fields}).encode()


def raw_chat(text):
    return "/v1/chat/completions", ('{"model":"demo","max_tokens":1,' + text + "}").encode()


# Name, request, and how many tokens it may bring with it: of the prompt and the answer, in all samples.
REQUESTS = [
    ("many prompts, large n", completion(prompt=["a"] * 1024, n=1024), 0),
    ("as many samples as are allowed", completion(prompt=["a"] * 64, n=16), 1024 * 4),
    ("n alone", completion(n=1024), 1024 * 4),
    ("too large an n", completion(n=16384), 0),
    ("a stream of many samples", completion(n=1024, stream=True), 1024 * 4),
    ("long stop strings", completion(n=1024, stop=["x" * 250_000] * 4), 1024 * 4),
    ("a million stop strings", completion(stop=["x"] * 1_000_000), 0),
    ("long stop strings of a chat", chat(n=512, stop=["x" * 1_000_000]), 512 * 40),
    ("a long request_id", completion(n=1024, request_id="r" * 1_000_000), 0),
    ("allowed tokens", completion(n=1024, allowed_token_ids=[5] * 300_000), 1024 * 4),
    ("stop tokens", completion(n=1024, stop_token_ids=[5, 6] * 150_000), 1024 * 4),
    ("biases", completion(n=1024, logit_bias={str(i % 300): 1 for i in range(300)}), 1024 * 4),
    ("the same bias again and again", ("/v1/completions", b'{"prompt":"a","max_tokens":1,"n":1024,"logit_bias":{'
                                       + b",".join([b'"5":1'] * 300_000) + b"}}"), 1024 * 4),
    ("bad words", completion(n=1024, bad_words=["long word " * 1000] * 100), 1024 * 4),
    ("a bad word of megabytes", completion(bad_words=["x" * 4_000_000]), 0),
    ("an echo of a megabyte", completion(n=1024, echo=True, prompt="x" * 1_000_000), 0),
    ("an echo that fits", completion(n=200, echo=True, prompt="word " * 200), 200 * 400),
    ("an echo that does not", completion(n=1000, echo=True, prompt="word " * 1000), 0),
    ("an echo in a stream", completion(n=200, echo=True, prompt="word " * 200, stream=True), 200 * 400),
    ("an echo of many prompts", completion(prompt=["word " * 100] * 1000, echo=True), 1000 * 200),
    ("prompt_logprobs of many samples", completion(n=512, prompt="word " * 300, prompt_logprobs=20), 0),
    ("log-probabilities of many samples", completion(n=256, logprobs=20, max_tokens=8), 256 * 9 * 24),
    ("token ids of many samples", completion(n=1024, prompt="word " * 1000, return_token_ids=True, stream=True), 0),
    ("an empty message a million times", raw_chat('"messages":[' + ",".join(["{}"] * 1_000_000) + "]"), 0),
    ("many errors", raw_chat('"messages":[' + ",".join(["{}"] * 400_000) + "]"), 0),
    ("many short messages", raw_chat('"messages":[' + ",".join(['{"role":"user","content":""}'] * 300_000) + "]"), 0),
    ("many content parts", raw_chat('"messages":[{"role":"user","content":[' + ",".join(['{"type":"text"}'] * 300_000) + "]}]"), 0),
    ("one long message", chat(messages=[{"role": "user", "content": "x" * 8_000_000}]), 0),
    ("many tools", chat(tools=[{"type": "function", "function": {"name": "f"}}] * 100_000), 0),
    ("template arguments", raw_chat('"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{'
                                    + ",".join(f'"k{i}":{{}}' for i in range(100_000)) + "}"), 0),
    ("as many template arguments as are allowed", raw_chat('"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":['
                                                           + ",".join(["1"] * 60_000) + "]}"), 60),
    ("documents", raw_chat('"messages":[{"role":"user","content":"a"}],"documents":[' + ",".join(["{}"] * 500_000) + "]"), 0),
    ("a field that nobody reads", completion(no_such_field={f"k{i}": [] for i in range(100_000)}), 8),
    ("wide JSON", ("/v1/completions", b'{"prompt":"a","x":[' + b"[],".join([b""] * 3_000_000) + b"1]}"), 0),
    ("deep JSON", ("/v1/completions", b'{"prompt":"a","x":' + b"[" * 3_000_000), 0),
    ("token ids", completion(prompt=[5] * 900_000), 0),
    ("lists of token ids", completion(prompt=[[5] * 1000] * 1000), 1_000_000),
    ("a value of 8 MB in the wrong place", completion(n="x" * 8_000_000), 0),
    ("a long model name", completion(model="m" * 2_000_000), 0),
    ("text to tokenize", ("/tokenize", json.dumps({"prompt": "word " * 100_000}).encode()), 200_000),
    ("ids to detokenize", ("/detokenize", json.dumps({"tokens": [5] * 300_000}).encode()), 300_000),
]


def post(server, path, body):
    """Status, size of the answer and its beginning, which is read piece by piece."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        size, beginning = 0, b""
        while part := response.read(65536):
            size += len(part)
            beginning = (beginning + part)[:4096]
        return response.status, size, beginning
    finally:
        connection.close()


class Memory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*DEMO, "--num-gpu-blocks-override", "512")  # or the cache grows by blocks that were never used
        cls.pid = cls.server.process.pid
        for _ in range(2):  # what is made once and kept
            assert post(cls.server, *completion(n=16, logprobs=2))[0] == 200
            assert post(cls.server, *chat(n=16))[0] == 200
            assert post(cls.server, *completion(n=256))[0] == 200

    @classmethod
    def tearDownClass(cls):
        code, errors = cls.server.stop()
        assert code == 0, errors

    def test_no_request_exceeds_its_memory_limit(self):
        first = memory(self.pid, "VmRSS")
        for name, (path, body), num_tokens in REQUESTS:
            with self.subTest(name):
                limit = 8 * len(body) + 16 * MB + TOKEN_BYTES * num_tokens
                # The least of some: what the allocator has just given back to the system is taken anew.
                for _ in range(6):
                    reset_peak(self.pid)
                    before = memory(self.pid, "VmRSS")
                    status, size, beginning = post(self.server, path, body)
                    self.server.wait_idle()
                    peak = memory(self.pid, "VmHWM")
                    after = memory(self.pid, "VmRSS")
                    print(f"{name:45} body {len(body) / MB:6.2f} MB, {status}, answer {size / MB:6.2f} MB, "
                          f"taken {(peak - before) / MB:7.1f} MB, kept {(after - before) / MB:6.1f} MB", flush=True)
                    if peak - before < limit:
                        break
                self.assertIn(status, (200, 400, 404), beginning)
                self.assertLess(size, limit)
                self.assertLess(peak - before, limit)
        self.assertEqual(post(self.server, *completion())[0], 200)
        wait_until(lambda: memory(self.pid, "VmRSS") - first < 48 * MB, "memory to be given back")

    def test_a_refusal_names_the_limit(self):
        for request, limit in ((completion(prompt=["a"] * 64, n=64), b"max_request_samples"),
                               (completion(n=1024, max_tokens=1800), b"max_request_tokens"),
                               (completion(n=100, echo=True, logprobs=5, prompt="word " * 200), b"max_echo_bytes")):
            status, _, beginning = post(self.server, *request)
            self.assertEqual(status, 400, beginning)
            self.assertIn(limit, beginning)

    def test_an_answer_that_grows_too_large_ends_with_an_error(self):
        with Server(*DEMO, "--max-answer-bytes", str(1 << 16)) as server:
            status, _, beginning = post(server, *completion(n=16, logprobs=20, max_tokens=200, ignore_eos=True))
            self.assertEqual(status, 400, beginning)
            self.assertIn(b"max_answer_bytes", beginning)
            server.wait_idle()
            self.assertEqual(post(server, *completion(n=2, logprobs=20, max_tokens=4))[0], 200)

    def test_samples_share_their_prompt(self):
        n, num_tokens = 4096, 1900
        with Server(*DEMO, "--max-request-tokens", "20000000", "--max-request-samples", str(n), "--max-num-seqs", "16") as server:
            taken = {}
            for size in (num_tokens, 8, num_tokens, 8):
                reset_peak(server.process.pid)
                before = memory(server.process.pid, "VmRSS")
                self.assertEqual(post(server, *completion(n=n, prompt=[size % 50 + 7] * size))[0], 200)
                server.wait_idle()
                taken[size] = memory(server.process.pid, "VmHWM") - before  # of the second time
                wait_until(lambda: memory(server.process.pid, "VmRSS") - before < 64 * MB, "memory to be given back")
            per_token = (taken[num_tokens] - taken[8]) / (n * num_tokens)
            print(f"{per_token:.1f} bytes for each token of the prompt in each sample")
            self.assertLess(per_token, 14)  # 9: hashes of its blocks, and blocks of the running; 18 with copies of its own

    def test_others_are_served_meanwhile(self):
        statuses = []
        large = threading.Thread(target=lambda: statuses.append(post(self.server, *completion(n=1024, stop=["x" * 1_000_000]))[0]))
        large.start()
        while large.is_alive():
            self.assertEqual(post(self.server, *completion())[0], 200)
        large.join()
        self.assertEqual(statuses, [200])


class AddressSpace(unittest.TestCase):
    def test_a_memory_limit_is_reported_in_a_sentence(self):
        configs = pathlib.Path(__file__).resolve().parents[2] / "configs"
        for options in ([], ["--config-file", str(configs / "multi-process.conf")]):
            # What is too little for the threads alone, and what is enough for them, but not for the cache.
            for limit in (300000, 700000, 1200000, 2500000, 4000000):
                with self.subTest(options=options, limit=limit):
                    done = subprocess.run(["bash", "-c", f'ulimit -v {limit}; exec "$@"', "-", BINARY, "serve", "--port", "0",
                                           "--kv-cache-memory-bytes", "6G", *options], capture_output=True, text=True,
                                          timeout=DEADLINE_S, env=ENVIRONMENT)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertNotIn("unhandled exception", done.stderr)
                    self.assertNotIn("bad_alloc", done.stderr)
                    self.assertRegex(done.stderr, r"out of memory: \d+ bytes|cannot start a thread|Cannot allocate memory")


if __name__ == "__main__":
    unittest.main(verbosity=2)
