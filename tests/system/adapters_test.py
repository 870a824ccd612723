#!/usr/bin/env python3
"""LoRA adapters in a running server: loaded at the start, live and from a watched folder; many at once; unloaded under
load; and back again whatever process is killed, with the tokens that PEFT gives."""
import concurrent.futures
import functools
import http.client
import json
import os
import pathlib
import shutil
import signal
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

from support import DEADLINE_S, PATIENT, ROOT, Server, reserve_port, run, wait_until

GOLDEN = ROOT / "tests" / "golden"
BASE = str(GOLDEN / "models" / "models" / "llama")
NAMES = ("llama_qv", "llama_all", "llama_head")
FOLDERS = {name: GOLDEN / "adapters" / name for name in NAMES}
GOLDENS = {name: json.loads((folder / "golden.json").read_text()) for name, folder in FOLDERS.items()}
OPTIONS = (BASE, "--served-model-name", "base", "--dtype", "float32", "--generation-config", "vllm", "--enable-lora",
           "--max-loras", "4", "--max-cpu-loras", "4", "--allow-runtime-lora-updating", "--max-model-len", "512")


def post(server, path, body):
    """Status, and the text of the answer."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def tokens(server, model, prompt, count=24):
    """Greedy tokens of a prompt of token ids."""
    status, text = post(server, "/v1/completions", {
        "model": model, "prompt": prompt, "temperature": 0, "max_tokens": count, "ignore_eos": True, "return_token_ids": True})
    if status != 200:
        raise AssertionError(text)
    return json.loads(text)["choices"][0]["token_ids"]


def stream(server, model, prompt, count, started):
    """The same as a stream; calls started() with each piece."""
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": count, "ignore_eos": True,
            "return_token_ids": True, "stream": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    found = []
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise AssertionError(event)
                found += event["choices"][0].get("token_ids") or []
                started()
    return found


def cards(server):
    return {card["id"]: card for card in json.loads(server.get("/v1/models"))["data"]}


def settle(server, path, body, settled):
    """Asks until it is done. While processes are killed a request may be answered with an error and take effect all the
    same: then the next answer is `settled`."""
    answers = []

    def is_done():
        answers.append(post(server, path, body))
        return answers[-1][0] in (200, settled)
    wait_until(is_done, f"{path}: {answers[-1:]}")


class Adapters(unittest.TestCase):
    def check(self, server, names=NAMES):
        for name in names:
            for prompt, expected in zip(GOLDENS[name]["prompts"], GOLDENS[name]["greedy"]):
                self.assertEqual(tokens(server, name, prompt), expected, name)

    def test_a_line_of_generate_names_its_adapter(self):
        name = NAMES[1]
        prompt, expected = GOLDENS[name]["prompts"][0], GOLDENS[name]["greedy"][0]
        line = {"prompt": prompt, "temperature": 0, "max_tokens": len(expected), "ignore_eos": True}
        code, out, _ = run(["generate", *OPTIONS[:-3], "--lora-modules", f"{name}={FOLDERS[name]}"],
                           "".join(json.dumps(line | model) + "\n"
                                   for model in ({"model": name}, {"model": "base"}, {}, {"model": "x"})))
        answers = [json.loads(each) for each in out.splitlines()]
        self.assertEqual(code, 1)
        self.assertEqual(answers[0]["choices"][0]["token_ids"], expected)
        self.assertNotEqual(answers[1]["choices"][0]["token_ids"], expected)
        self.assertEqual(answers[2]["choices"], answers[1]["choices"])
        self.assertEqual((answers[3]["error"]["code"], answers[3]["error"]["param"]), (404, "model"))
        self.assertIn(f"Served: base, {name}", answers[3]["error"]["message"])

    def test_a_snapshot_knows_weights_that_were_loaded_live_apart(self):
        prompt = [3 + (i * i * 7 + i) % 80 for i in range(70)]
        hits = "vllm:external_prefix_cache_hits_total"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "adapter"
            options = (*OPTIONS, "--prefix-cache-snapshot", str(pathlib.Path(folder) / "snapshot"))
            found = []
            # The second one has other weights at the same place, the third one the first ones again.
            for name in ("llama_qv", "llama_all", "llama_qv"):
                shutil.rmtree(path, ignore_errors=True)
                shutil.copytree(FOLDERS[name], path)
                with Server(*options) as server:
                    self.assertEqual(post(server, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": str(path)})[0], 200)
                    found.append((tokens(server, "a", prompt), server.metric(hits)))
                    status, text = post(server, "/v1/completions", {
                        "model": "a", "prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True,
                        "return_token_ids": True, "cache_salt": name})
                    self.assertEqual((status, json.loads(text)["choices"][0]["token_ids"]), (200, found[-1][0]))
            self.assertEqual((found[0][1], found[1][1]), (0, 0))
            self.assertNotEqual(found[0][0], found[1][0])
            self.assertEqual(found[2][0], found[0][0])
            self.assertGreaterEqual(found[2][1], 48)

    def test_adapters_are_loaded_served_and_unloaded_while_others_run(self):
        with tempfile.TemporaryDirectory() as folder, Server(
                *OPTIONS, "--lora-modules", f"llama_qv={FOLDERS['llama_qv']}",
                json.dumps({"name": "llama_all", "path": str(FOLDERS["llama_all"])}), "--lora-directory", folder) as server:
            self.assertEqual(cards(server)["llama_qv"]["parent"], "base")
            self.assertEqual(cards(server)["llama_qv"]["root"], str(FOLDERS["llama_qv"]))
            self.assertIsNone(cards(server)["base"]["parent"])
            self.check(server, NAMES[:2])
            self.assertEqual(tokens(server, "base", GOLDENS["llama_qv"]["prompts"][2]),
                             GOLDENS["llama_qv"]["base_greedy"][2])

            # vLLM's answers.
            head = {"lora_name": "llama_head", "lora_path": str(FOLDERS["llama_head"])}
            self.assertEqual(post(server, "/v1/completions", {"model": "llama_head", "prompt": "a"})[0], 404)
            self.assertEqual(post(server, "/v1/load_lora_adapter", head),
                             (200, "Success: LoRA adapter 'llama_head' added successfully."))
            self.check(server)
            for body, status, kind in (
                    (head, 400, "InvalidUserInput"), ({"lora_name": "x", "lora_path": ""}, 400, "InvalidUserInput"),
                    ({"lora_name": "base", "lora_path": head["lora_path"]}, 400, "InvalidUserInput"),
                    ({"lora_name": "x", "lora_path": folder + "/none"}, 404, "NotFoundError"),
                    ({"lora_name": "x", "lora_path": str(GOLDEN / "adapters" / "qwen2_all")}, 400, "BadRequestError")):
                found, text = post(server, "/v1/load_lora_adapter", body)
                self.assertEqual((found, json.loads(text)["error"]["type"]), (status, kind), text)
            self.assertIn("expected [8, 128]", text)
            self.assertEqual(post(server, "/v1/load_lora_adapter", {**head, "load_inplace": True})[0], 200)

            # In place, other weights: nothing of the old ones is left in the prefix cache.
            prompt = GOLDENS["llama_all"]["prompts"][3]
            copy = shutil.copytree(FOLDERS["llama_all"], pathlib.Path(folder) / ".." / (pathlib.Path(folder).name + "-copy"))
            try:
                self.assertEqual(post(server, "/v1/load_lora_adapter", {"lora_name": "copy", "lora_path": str(copy)})[0], 200)
                self.assertEqual(tokens(server, "copy", prompt), GOLDENS["llama_all"]["greedy"][3])
                for file in FOLDERS["llama_qv"].iterdir():
                    shutil.copyfile(file, copy / file.name)
                self.assertEqual(post(server, "/v1/load_lora_adapter", {
                    "lora_name": "copy", "lora_path": str(copy), "load_inplace": True})[0], 200)
                changed = tokens(server, "copy", prompt)
                self.assertEqual(changed, tokens(server, "llama_qv", prompt))
            finally:
                shutil.rmtree(copy)

            # Requests of an adapter that is unloaded under load continue.
            long = GOLDENS["llama_head"]["prompts"][2]
            expected = tokens(server, "llama_head", long, 300)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                running = set()
                streams = [pool.submit(stream, server, "llama_head", long, 300, functools.partial(running.add, index))
                           for index in range(8)]
                wait_until(lambda: len(running) == 8, "the streams to begin")
                self.assertEqual(post(server, "/v1/unload_lora_adapter", {"lora_name": "llama_head"}),
                                 (200, "Success: LoRA adapter 'llama_head' removed successfully."))
                self.assertEqual(post(server, "/v1/completions", {"model": "llama_head", "prompt": "a"})[0], 404)
                info = [line for line in server.get("/metrics").splitlines() if line.startswith("vllm:lora_requests_info{")]
                self.assertEqual(len(info), 1)
                self.assertIn('max_lora="4"', info[0])
                self.assertEqual([each.result() for each in streams], [expected] * 8)
            self.assertEqual(post(server, "/v1/unload_lora_adapter", {"lora_name": "llama_head"})[0], 404)

            # The watched folder.
            shutil.copytree(FOLDERS["llama_head"], pathlib.Path(folder) / "dropped")
            wait_until(lambda: "dropped" in cards(server), "the adapter to be found")
            self.assertEqual(tokens(server, "dropped", long, 300), expected)
            shutil.rmtree(pathlib.Path(folder) / "dropped")
            wait_until(lambda: "dropped" not in cards(server), "the adapter to be gone")
            self.assertEqual(server.stop()[0], 0)

    def test_a_third_adapter_is_served_while_two_keep_both_slots_busy(self):
        third = NAMES[2]
        answered = threading.Event()
        running = set()

        def keep_busy(name, place):
            while not answered.is_set():
                stream(server, name, GOLDENS[name]["prompts"][place], 300 - 70 * place,
                       functools.partial(running.add, (name, place)))
        with Server(*OPTIONS, "--max-loras", "2", "--max-lora-bypasses", "4", "--lora-modules",
                    *(f"{name}={folder}" for name, folder in FOLDERS.items())) as server:
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                load = [pool.submit(keep_busy, name, place) for name in NAMES[:2] for place in range(3)]
                try:
                    wait_until(lambda: len(running) == len(load), "the streams to begin")
                    self.assertEqual(tokens(server, third, GOLDENS[third]["prompts"][0]), GOLDENS[third]["greedy"][0])
                finally:
                    answered.set()
                for each in load:
                    each.result()

    def load_and_unload(self, server, name, killed):
        """An adapter comes and goes, with PEFT's tokens each time, until after the kill."""
        prompt, expected = (GOLDENS["llama_head"][key][2] for key in ("prompts", "greedy"))
        is_last = False
        while not is_last:
            is_last = killed.is_set()
            settle(server, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(FOLDERS["llama_head"])}, 400)
            self.assertEqual(tokens(server, name, prompt), expected)
            settle(server, "/v1/unload_lora_adapter", {"lora_name": name}, 404)
            self.assertEqual(post(server, "/v1/completions", {"model": name, "prompt": prompt})[0], 404)

    def test_killed_processes_come_back_with_their_adapters_and_streams_go_on(self):
        jobs = [(name, prompt) for name in NAMES for prompt in GOLDENS[name]["prompts"][2:]]
        with Server(*OPTIONS, "--config-file", str(ROOT / "configs" / "multi-process.conf"), *PATIENT, "--keep-alive",
                    "--server-dev-mode", "--lora-modules", f"llama_qv={FOLDERS['llama_qv']}", port=reserve_port()) as server:
            for name in NAMES[1:]:
                self.assertEqual(post(server, "/v1/load_lora_adapter", {
                    "lora_name": name, "lora_path": str(FOLDERS[name])})[0], 200)
            status, text = post(server, "/collective_rpc", {"method": "list_adapters"})
            self.assertEqual(status, 200, text)
            self.assertEqual([{each["lora_name"] for each in rank} for rank in json.loads(text)["results"]], [set(NAMES)])
            status, text = post(server, "/collective_rpc", {"method": "get_model"})
            self.assertEqual(status, 400)
            self.assertIn("get_model", text)
            expected = [tokens(server, name, prompt, 120) for name, prompt in jobs]
            for victim in ("worker-0", "core", "supervisor"):
                with concurrent.futures.ThreadPoolExecutor(len(jobs) + 1) as pool:
                    running = []
                    streams = [pool.submit(stream, server, name, prompt, 120, lambda: running.append(1)) for name, prompt in jobs]
                    killed = threading.Event()
                    churn = pool.submit(self.load_and_unload, server, f"comes-and-goes-{victim}", killed)
                    wait_until(lambda: running, "a stream")
                    back = "engine ready" if victim == "supervisor" else "engine restarted"
                    ready = server.log().count(back)
                    os.kill(server.supervisor() if victim == "supervisor" else server.nodes()[victim], signal.SIGKILL)
                    killed.set()
                    self.assertEqual([each.result() for each in streams], expected, victim)
                    churn.result()
                wait_until(lambda: server.log().count(back) > ready, "the engine")
            front = server.nodes()["front"]
            os.kill(front, signal.SIGKILL)
            wait_until(lambda: server.nodes().get("front", front) != front, "the frontend")

            def knows_all():
                try:
                    return set(NAMES) <= set(cards(server))
                except (OSError, http.client.HTTPException):
                    return False
            wait_until(knows_all, "the adapters")
            self.check(server)
            self.assertEqual(server.stop()[0], 0)

    def test_what_does_not_fit_together_is_an_error_before_anything_runs(self):
        for options, expected in (
                (("--enable-lora", "--max-lora-rank", "7"), "max-lora-rank is 7"),
                (("--enable-lora", "--max-loras", "4", "--max-cpu-loras", "2"), "max-cpu-loras is 2"),
                (("--lora-modules", "a=/b"), "need enable-lora"),
                (("--enable-lora", "--lora-modules", "nothing"), "is neither name=path"),
                (("--enable-lora", "--lora-modules", f"a={GOLDEN / 'adapters' / 'qwen2_all'}"), "expected [8, 128]"),
                (("--enable-lora", "--max-lora-rank", "8", "--lora-modules", "a=/nowhere/at/all"), "no folder /nowhere/at/all")):
            code, _, errors = run(["serve", BASE, "--port", "0", *options])
            self.assertNotEqual(code, 0)
            self.assertIn(expected, errors)


if __name__ == "__main__":
    unittest.main()
