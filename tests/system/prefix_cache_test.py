#!/usr/bin/env python3
"""The prefix cache as its users want it: kept over a restart, warmed, exported, imported, pinned. Counted by the usage."""
import http.client
import json
import pathlib
import signal
import tempfile
import unittest
import urllib.error
import urllib.request

from support import DEADLINE_S, Server, reserve_port, wait_until

COMMON = ("--block-size", "16", "--log-stats-interval-s", "0", "--enable-prompt-tokens-details", "--served-model-name", "demo")
LONG = " ".join(f"Sentence {number} says that the tower has {number * 7 % 101} steps." for number in range(40))


def send(server, path, body=None, method="POST"):
    """Status and answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as refused:
        return refused.code, json.loads(refused.read())


def clear(server, path):
    """It is refused while blocks are in use, as those of a request that has just ended may be."""
    wait_until(lambda: send(server, path, method="DELETE") == (200, {"success": True}), "the cache to be cleared")


def complete(server, text, **more):
    """Text, cached tokens of the prompt, all its tokens, and where the cached ones were."""
    status, answer = send(server, "/v1/completions", {"model": "demo", "prompt": text, "max_tokens": 8, "temperature": 0, **more})
    if status != 200:
        raise AssertionError(answer)
    details = answer["usage"]["prompt_tokens_details"]
    return (answer["choices"][0]["text"], details["cached_tokens"], answer["usage"]["prompt_tokens"],
            details.get("cached_tokens_by_source"))


def message(server, system, question, control=None):
    """Input tokens by what the cache had to do with them."""
    block = {"type": "text", "text": system, **({"cache_control": control} if control else {})}
    status, answer = send(server, "/v1/messages", {"model": "demo", "max_tokens": 4, "temperature": 0, "system": [block],
                                                   "messages": [{"role": "user", "content": question}]})
    if status != 200:
        raise AssertionError(answer)
    return answer["usage"]


class PrefixCache(unittest.TestCase):
    def test_a_killed_server_has_its_cache_again(self):
        for ranks in ("1", "2"):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                options = (*COMMON, "--max-model-len", "1024", "--tensor-parallel-size", ranks, "--prefix-cache-snapshot", folder)
                with Server(*options) as server:
                    text, cached, total, _ = complete(server, LONG)
                    self.assertEqual(cached, 0)
                    self.assertGreater(total, 512)  # beyond the windows of the model
                    # A file of each rank for each block of the model's three groups of layers.
                    num_files = 3 * (total // 16) * int(ranks)
                    wait_until(lambda: len(list(pathlib.Path(folder).rglob("*.bin"))) >= num_files, "the blocks to be written")
                    server.stop(signal.SIGKILL)
                with Server(*options) as server:
                    again, cached, _, source = complete(server, LONG)
                    self.assertEqual(again, text)
                    self.assertGreaterEqual(cached, total - 2 * 16 * 4)
                    self.assertEqual(source, {"device": 0, "host": 0, "disk": cached, "remote": 0, "peer": 0})
                    self.assertEqual(complete(server, LONG)[3], None)  # now it is in the device's own

    def test_a_snapshot_has_a_limit_and_goes_with_other_connectors(self):
        with tempfile.TemporaryDirectory() as folder:
            config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
            options = (*COMMON, "--max-model-len", "1024", "--prefix-cache-snapshot", folder, "--prefix-cache-snapshot-bytes",
                       str(4 << 20), "--kv-transfer-config", json.dumps(config))
            with Server(*options) as server:
                complete(server, LONG)
                complete(server, "Other. " + LONG)
            files = list(pathlib.Path(folder).rglob("*.bin"))
            self.assertTrue(files)
            self.assertLessEqual(sum(file.stat().st_size for file in files), 4 << 20)

    def test_prompts_are_warmed_and_the_cache_is_exported_and_imported(self):
        with tempfile.TemporaryDirectory() as folder:
            config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
            replay_port = reserve_port()
            events = {"enable_kv_cache_events": True, "endpoint": f"tcp://127.0.0.1:{reserve_port()}",
                      "replay_endpoint": f"tcp://127.0.0.1:{replay_port}"}
            options = (*COMMON, "--max-model-len", "1024", "--kv-transfer-config", json.dumps(config), "--admin-cache-directory",
                       folder, "--max-warm-prompts", "4", "--kv-events-config", json.dumps(events))
            chat = {"messages": [{"role": "system", "content": LONG[:600]}, {"role": "user", "content": "Who are you?"}]}
            with Server(*options) as server:
                status, warm = send(server, "/admin/cache/warm", {"prompts": [LONG], "conversations": [chat]})
                self.assertEqual((status, warm["num_prompts"], warm["num_computed"], warm["errors"]), (200, 2, 2, []), warm)
                # A look-up says so, and computes nothing of what is not there.
                for _ in range(2):
                    status, found = send(server, "/admin/cache/lookup", {"prompts": [LONG, "Nobody has asked this. " * 9],
                                                                         "conversations": [chat]})
                    self.assertEqual((status, found["errors"], [each["index"] for each in found["prompts"]]), (200, [], [0, 1, 2]))
                    first, second, third = [(each["num_tokens"], *each["groups"]) for each in found["prompts"]]
                    self.assertGreaterEqual(first[1]["device"], first[0] - 2 * 16 * 4)
                    self.assertGreaterEqual(third[1]["device"], third[0] - 2 * 16 * 4)
                    self.assertEqual(second[1], {"group": 0, "device": 0, "host": 0, "disk": 0, "remote": 0, "peer": 0})
                status, found = send(server, "/admin/cache/lookup", {"prompts": [LONG], "cache_salt": "another tenant"})
                self.assertEqual(found["prompts"][0]["groups"][0]["device"], 0)
                self.assertEqual(send(server, "/admin/cache/lookup", {"events": {"replay_endpoint": "tcp://a:1"}})[0], 400)
                status, moved = send(server, "/admin/cache/move", {"prompts": [LONG], "from": 0, "to": 1})
                self.assertEqual(status, 400, moved)
                text, cached, total, source = complete(server, LONG)
                self.assertGreaterEqual(cached, total - 2 * 16 * 4)
                self.assertEqual(source, None)
                _, answer = send(server, "/v1/chat/completions", {**chat, "max_tokens": 4})
                usage = answer["usage"]
                self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"] - 2 * 16 * 4)
                # One that is wrong does not keep others from being warmed.
                status, warm = send(server, "/admin/cache/warm", {"prompts": ["a", LONG * 9]})
                self.assertEqual((status, warm["num_computed"], warm["errors"][0]["index"]), (200, 1, 1), warm)
                self.assertEqual(send(server, "/admin/cache/warm", {"prompts": ["a"] * 5})[0], 400)
                self.assertEqual(send(server, "/admin/cache/warm", {})[0], 400)
                # Another server takes its prompts from this one's events.
                with Server(*COMMON, "--max-model-len", "1024") as other:
                    source = {"replay_endpoint": f"tcp://127.0.0.1:{replay_port}", "max_prompts": 8}
                    wait_until(lambda: send(other, "/admin/cache/warm", {"events": source})[1].get("num_computed", 0) >= 2,
                               "prompts of this server's cache")
                    other_text, cached, total, _ = complete(other, LONG)
                    self.assertEqual(other_text, text)
                    self.assertGreaterEqual(cached, total - 2 * 16 * 4)
                    status, answer = send(other, "/admin/cache/warm", {"events": {"replay_endpoint": "http://here"}})
                    self.assertEqual((status, "tcp://host:port" in answer["error"]["message"]), (400, True), answer)
                status, moved = send(server, "/admin/cache/export", {"name": "monday"})
                self.assertEqual((status, moved["status"]), (200, "exported"))
                self.assertGreaterEqual(moved["num_blocks"], total // 16)
                self.assertEqual(send(server, "/admin/cache/import", {"name": "tuesday"})[0], 404)
                self.assertEqual(send(server, "/admin/cache/import", {"name": "../monday"})[0], 400)
                # What a reset has left is in the connector's memory.
                clear(server, "/admin/cache")
                wait_until(lambda: send(server, "/admin/cache/lookup", {"prompts": [LONG]})[1]["prompts"][0]["groups"][0]["host"]
                           >= total - 2 * 16 * 4, "all blocks to be in the connector's memory")
                # Blocks that a reset has cleared, the connector's memory included, are recomputed.
                clear(server, "/admin/cache?reset_external=true")
                self.assertEqual(complete(server, LONG)[1], 0)
            with Server(*options) as server:
                status, moved = send(server, "/admin/cache/import", {"name": "monday"})
                self.assertEqual((status, moved["status"]), (200, "imported"), moved)
                again, cached, _, source = complete(server, LONG)
                self.assertEqual(again, text)
                self.assertGreaterEqual(cached, total - 2 * 16 * 4)
                self.assertEqual(source["host"], cached)

    def test_a_list_of_prompts_is_answered_once(self):
        with Server(*COMMON) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
            for _ in range(20):
                for path in ("warm", "lookup", "pin"):
                    connection.request("POST", f"/admin/cache/{path}", json.dumps({"prompts": ["a", "b", "c", "d"]}),
                                       {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    answer = json.loads(response.read())
                    self.assertEqual((response.status, answer["errors"]), (200, []), answer)
                    connection.request("GET", "/version")
                    response = connection.getresponse()
                    self.assertIn("version", json.loads(response.read()))
            connection.close()

    def test_what_could_not_be_loaded_has_no_source(self):
        settings = {"lmcache.chunk_size": 16, "lmcache.local_cpu": False, "lmcache.remote_url": f"lm://127.0.0.1:{reserve_port()}"}
        config = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both", "kv_connector_extra_config": settings}
        with Server(*COMMON, "--kv-transfer-config", json.dumps(config)) as server:
            text, *_ = complete(server, LONG)
            clear(server, "/admin/cache")
            again, cached, _, source = complete(server, LONG)
            self.assertEqual((again, cached, source), (text, 0, None))
            # A store that has failed is asked from then on: nothing is promised that it does not have.
            promised = server.metric("vllm:external_prefix_cache_hits_total")
            self.assertGreater(promised, 0)
            clear(server, "/admin/cache")
            self.assertEqual(complete(server, LONG)[0], text)
            self.assertEqual(server.metric("vllm:external_prefix_cache_hits_total"), promised)

    def test_a_marked_prefix_stays_in_a_cache_that_others_fill(self):
        # Room for one long request and little more; a pin may have half of it.
        options = (*COMMON, "--max-model-len", "512", "--num-gpu-blocks-override", "400", "--max-pinned-cache-share", "0.6")
        fillers = [" ".join(f"Filler {number} of {batch}." for number in range(30)) for batch in range(30)]
        system = LONG[:400]
        with Server(*options) as server:
            def after_others(control):
                first = message(server, system, "Who are you?", control)
                for filler in fillers:
                    complete(server, filler)
                return first, message(server, system, "What is the weather in Paris?", control)
            first, second = after_others(None)
            self.assertEqual((first["cache_read_input_tokens"], second["cache_read_input_tokens"]), (0, 0))
            self.assertEqual(server.metric("troupe:pinned_cache_blocks"), 0)
            first, second = after_others({"type": "ephemeral", "ttl": "1h"})
            self.assertGreater(first["cache_read_input_tokens"] + first["cache_creation_input_tokens"], 150)
            self.assertGreaterEqual(second["cache_read_input_tokens"], 160)
            self.assertGreater(server.metric("troupe:pinned_cache_blocks"), 0)
            # Whole prompts and conversations are pinned by the administrator.
            question = [{"role": "system", "content": system[::-1]}, {"role": "user", "content": "Who?"}]
            status, pinned = send(server, "/admin/cache/pin", {"prompts": [system[9:]], "conversations": [{"messages": question}],
                                                               "ttl": "1h"})
            self.assertEqual((status, pinned["status"], pinned["num_computed"]), (200, "pinned", 2), pinned)
            for filler in fillers:
                complete(server, filler)
            _, found = send(server, "/admin/cache/lookup", {"prompts": [system[9:]], "conversations": [{"messages": question}]})
            for each in found["prompts"]:
                self.assertGreaterEqual(each["groups"][0]["device"], each["num_tokens"] - 2 * 16 * 4, found)
            status, answer = send(server, "/admin/cache/pin", {"prompts": ["a"], "ttl": "2h"})
            self.assertEqual((status, answer["error"]["message"]), (400, "ttl: must be 5m or 1h, not '2h'"), answer)
            # It gives way to a reset.
            clear(server, "/admin/cache")
            self.assertEqual(message(server, system, "Who are you?")["cache_read_input_tokens"], 0)
            self.assertEqual(server.metric("troupe:pinned_cache_blocks"), 0)
            for control, text in (({"type": "lasting"}, "ephemeral"), ({"type": "ephemeral", "ttl": "2h"}, "5m or 1h")):
                status, answer = send(server, "/v1/messages", {
                    "model": "demo", "max_tokens": 4, "cache_control": control,
                    "messages": [{"role": "user", "content": "Who are you?"}]})
                self.assertEqual(status, 400)
                self.assertIn(text, answer["error"]["message"])


if __name__ == "__main__":
    unittest.main()
