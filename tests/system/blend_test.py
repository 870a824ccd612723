#!/usr/bin/env python3
"""CacheBlend from outside: paragraphs that come again in another order are not computed again, but for a share."""
import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import tempfile
import unittest

from support import DEADLINE_S, ROOT, Server, run, wait_until

GOLDEN = ROOT / "tests" / "golden" / "models" / "models"
MODEL = ("--model", str(GOLDEN / "llama"), "--served-model-name", "demo", "--dtype", "float32", "--max-model-len", "1024",
         "--log-stats-interval-s", "0")
SEPARATOR = " # # "


def blending(**extra):
    return ("--kv-transfer-config", json.dumps({
        "kv_connector": "BlendConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"blend_special_str": SEPARATOR, "blend_min_tokens": 16, **extra}}))


def paragraph(seed):
    source = random.Random(seed)
    return " ".join(source.choice(("the river", "of old", "stones", "and a king", "walks over", "many", "green", "hills"))
                    for _ in range(24)) + "."


PARAGRAPHS = [paragraph(seed) for seed in range(8)]


def prompt(order, question="So who was it?"):
    return SEPARATOR.join(["Read this.", *(PARAGRAPHS[i] for i in order), question])


FIRST, OTHER, THIRD = prompt(range(6)), prompt((3, 5, 0, 1, 4, 2)), prompt((5, 4, 3, 2, 1, 0))


def post(server, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def ask(server, text, **more):
    """Tokens with their log-probabilities, and how many tokens of the prompt were blended."""
    status, answer = post(server, "/v1/completions", {
        "model": "demo", "prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 2, "ignore_eos": True, **more})
    if status != 200:
        raise AssertionError(answer)
    details = answer["usage"]["prompt_tokens_details"] or {}
    return (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), details.get("blended_tokens", 0)


def stream(server, text, num_tokens, on_token, **more):
    """Token ids, and why it ended."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("POST", "/v1/completions", json.dumps({
        "model": "demo", "prompt": text, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "return_token_ids": True, **more}).encode(), {"Content-Type": "application/json"})
    response = connection.getresponse()
    ids, reason = [], None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise AssertionError(event)
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
            reason = choice["finish_reason"] or reason
            on_token()
    connection.close()
    return ids, reason


def exact(server, text, **more):
    return ask(server, text, kv_transfer_params={"enable_blending": False}, **more)[0]


class Blend(unittest.TestCase):
    def check(self, *options):
        """On any topology a share of 1 gives the bits of a full prefill."""
        with Server(*MODEL, *blending(blend_recompute_ratios=[1]), *options) as server:
            self.assertEqual(ask(server, FIRST)[1], 0)
            blended = [ask(server, text) for text in (OTHER, THIRD)]
            for text, (answer, count) in zip((OTHER, THIRD), blended):
                self.assertGreater(count, 300)
                self.assertEqual(answer, exact(server, text))
                # What was computed exactly is a prefix for others, and takes precedence.
                self.assertEqual(ask(server, text), (answer, 0))
            # Nearly nothing computed, and no trace of it left.
            near, count = ask(server, prompt((2, 0, 5)), kv_transfer_params={"blend_recompute_ratios": 0})
            self.assertGreater(count, 150)
            answer = exact(server, prompt((2, 0, 5)))
            self.assertNotEqual(near[1], answer[1])
            self.assertEqual(ask(server, prompt((2, 0, 5))), (answer, 0))

    def test_a_share_of_1_gives_the_bits_of_a_full_prefill(self):
        self.check()

    def test_so_it_does_on_two_ranks(self):
        self.check("--tensor-parallel-size", "2")

    def test_so_it_does_in_two_stages(self):
        self.check("--pipeline-parallel-size", "2")

    def test_texts_without_separators_are_cut_by_their_content(self):
        config = json.dumps({"kv_connector": "BlendConnector", "kv_role": "kv_both",
                             "kv_connector_extra_config": {"blend_min_tokens": 16, "blend_recompute_ratios": [1]}})
        first, other = (text.replace(SEPARATOR, "\n") for text in (FIRST, OTHER))
        with Server(*MODEL, "--kv-transfer-config", config) as server:
            self.assertEqual(ask(server, first)[1], 0)
            answer, count = ask(server, other)
            self.assertGreater(count, 100)
            self.assertEqual(answer, exact(server, other))

    def test_pieces_on_disk_survive_kill_9(self):
        with tempfile.TemporaryDirectory() as folder:
            options = (*MODEL, *blending(blend_recompute_ratios=[1], local_disk="file://" + folder, max_local_disk_size=1))
            files = pathlib.Path(folder)
            with Server(*options) as server:
                self.assertEqual(ask(server, FIRST)[1], 0)
                # The paragraphs, and what stands before and behind them.
                wait_until(lambda: len(list(files.rglob("*.bin"))) >= 8, "the pieces to be written")
                server.stop(signal.SIGKILL)
            with Server(*options) as server:
                answer, count = ask(server, OTHER)
                self.assertGreater(count, 300)
                self.assertEqual(answer, exact(server, OTHER))
                server.stop(signal.SIGKILL)
            for file in list(files.rglob("*.bin"))[::2]:
                os.truncate(file, file.stat().st_size // 2)
            with Server(*options) as server:
                answer, fewer = ask(server, THIRD)
                self.assertLess(fewer, count)
                self.assertEqual(answer, exact(server, THIRD))

    def test_a_killed_engine_loses_no_stream(self):
        with Server(*MODEL, *blending(), "--config-file", str(ROOT / "configs" / "multi-process.conf"),
                    "--keep-alive") as server:
            ask(server, FIRST)
            for victim in ("worker-0", "core"):
                running = []
                restarts = server.log().count("engine restarted")
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    streams = [pool.submit(stream, server, text, 150, lambda: running.append(1)) for text in (OTHER, THIRD)]
                    wait_until(lambda: running, "a token")
                    os.kill(server.nodes()[victim], signal.SIGKILL)
                    for each in streams:
                        tokens, reason = each.result()
                        self.assertEqual((len(tokens), reason), (150, "length"), victim)
                wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine")
                ask(server, FIRST)

    def test_what_is_wrong_is_told(self):
        with Server(*MODEL, *blending(enable_blending=False)) as server:
            ask(server, FIRST)
            self.assertEqual(ask(server, OTHER)[1], 0)
            self.assertGreater(ask(server, THIRD, kv_transfer_params={"enable_blending": True})[1], 300)
            for params, text in (({"enable_blending": 1}, "enable_blending must be true or false, it is 1"),
                                 ({"blend_recompute_ratios": 2}, "blend_recompute_ratios must be numbers from 0 to 1, it is 2")):
                status, answer = post(server, "/v1/completions", {"model": "demo", "prompt": "x", "kv_transfer_params": params})
                self.assertEqual(status, 400)
                self.assertIn(text, answer["error"]["message"])
        for model, options, text in (
                (GOLDEN / "gemma3_text", blending(), "is of the kind sliding_window"),
                (GOLDEN / "smollm3", blending(), "it has no rotary embedding"),
                (GOLDEN / "llama", blending(blend_check_layers=[4]), "blend_check_layers has 4, the model's last layer is 3"),
                (GOLDEN / "llama", blending(blend_ratio=1), "blend_ratio is unknown")):
            code, _, errors = run(["serve", "--port", "0", "--model", str(model), *options])
            self.assertNotEqual(code, 0)
            self.assertIn(text, errors)


if __name__ == "__main__":
    unittest.main()
