#!/usr/bin/env python3
"""KV events as a subscriber sees them: ZeroMQ and msgspec as vLLM's own consumers use them, hashes computed anew."""
import collections
import concurrent.futures
import hashlib
import http.client
import json
import random
import socket
import struct
import subprocess
import time
import unittest
from typing import Any, Optional, Union

import msgspec
import zmq

from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, reserve_port, wait_until

END = b"\xff" * 8


# ---- the structs of vLLM's kv_events: what is decoded has these types or is an error --------------------------------
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    pass


Hash = Union[bytes, int]


class BlockStored(KVCacheEvent, forbid_unknown_fields=True):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[list[Optional[list[Any]]]] = None
    group_idx: Optional[int] = None
    kv_cache_spec_kind: Optional[str] = None
    kv_cache_spec_sliding_window: Optional[int] = None


class BlockRemoved(KVCacheEvent, forbid_unknown_fields=True):
    block_hashes: list[Hash]
    medium: Optional[str]
    group_idx: Optional[int] = None


class AllBlocksCleared(KVCacheEvent, forbid_unknown_fields=True):
    pass


class KVEventBatch(EventBatch):
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


DECODER = msgspec.msgpack.Decoder(type=KVEventBatch)


# ---- the rule of sha256_cbor, from its description: SHA-256 of canonical CBOR of (parent, tokens, extra keys) -------
def cbor(value):
    def head(major, n):
        if n < 24:
            return bytes([major << 5 | n])
        for code, form, limit in ((24, ">B", 1 << 8), (25, ">H", 1 << 16), (26, ">I", 1 << 32)):
            if n < limit:
                return bytes([major << 5 | code]) + struct.pack(form, n)
        return bytes([major << 5 | 27]) + struct.pack(">Q", n)
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))


NONE_HASH = hashlib.sha256(cbor("vllm-none-hash")).digest()


def block_hash(parent, tokens, extra=None):
    return hashlib.sha256(cbor((parent or NONE_HASH, tuple(tokens), extra))).digest()


def chain(tokens, block_size, salt=None):
    """The full hashes of all full blocks of these tokens."""
    hashes = []
    for begin in range(0, len(tokens) - block_size + 1, block_size):
        extra = (("cache_salt", salt),) if salt and begin == 0 else None
        hashes.append(block_hash(hashes[-1] if hashes else None, tokens[begin:begin + block_size], extra))
    return hashes


def short(digest):
    return int.from_bytes(digest[-8:], "big")


class Follower:
    """A subscriber that sums up the events. The same content in several blocks counts several times."""

    def __init__(self, context, endpoint, replay, topic=b""):
        self.sub = context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic)
        self.sub.connect(endpoint)
        self.dealer = context.socket(zmq.DEALER)
        self.dealer.connect(replay)
        self.topic = topic
        self.next = 0
        self.blocks = collections.Counter()  # (hash, group)
        self.batches = []

    def close(self):
        self.sub.close(0)
        self.dealer.close(0)

    def apply(self, batch):
        self.batches.append(batch)
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockStored):
                self.blocks.update((h, event.group_idx) for h in event.block_hashes)
            else:
                for h in event.block_hashes:
                    key = (h, event.group_idx)
                    assert self.blocks[key] > 0, f"{key} was never stored"
                    self.blocks[key] -= 1
                    if self.blocks[key] == 0:
                        del self.blocks[key]

    def ask(self, what):
        """[(sequence, payload)] of a replay or a snapshot."""
        self.dealer.send_multipart([b"", what])
        answer = []
        while True:
            assert self.dealer.poll(DEADLINE_S * 1000), f"no answer to {what!r} after {len(answer)}"
            empty, topic, sequence, payload = self.dealer.recv_multipart()
            assert empty == b""
            if sequence == END:
                assert topic == payload == b""
                return answer
            assert topic == self.topic, topic
            answer.append((int.from_bytes(sequence, "big"), payload))

    def catch_up(self, last):
        """Applies everything up to the batch `last`: live ones, and replayed ones for those that were missed."""
        while self.next <= last:
            if not self.sub.poll(10):
                self.take(self.ask(self.next.to_bytes(8, "big")))
                continue
            topic, sequence, payload = self.sub.recv_multipart()
            assert topic == self.topic
            sequence = int.from_bytes(sequence, "big")
            if sequence > self.next:
                self.take(self.ask(self.next.to_bytes(8, "big")))
            self.take([(sequence, payload)])

    def take(self, batches):
        for sequence, payload in batches:
            if sequence == self.next:
                self.apply(DECODER.decode(payload))
                self.next += 1

    def snapshot(self):
        """The sequence that it stands for (None before the first batch), and its batches."""
        answer = self.ask(b"snapshot")
        sequences = {sequence for sequence, _ in answer}
        assert len(sequences) <= 1, sequences
        return (sequences.pop() if sequences else None), [DECODER.decode(payload) for _, payload in answer]

    def start_from_snapshot(self):
        sequence, batches = self.snapshot()
        for batch in batches:
            self.apply(batch)
        self.next = 0 if sequence is None else sequence + 1

    def follow(self):
        """Catches up with the present; the content is then what a snapshot says."""
        sequence, batches = self.snapshot()
        if sequence is None:
            return
        self.catch_up(sequence)
        if self.next != sequence + 1:
            return self.follow()  # more has come in between
        content = collections.Counter((h, event.group_idx) for batch in batches for event in batch.events
                                      if isinstance(event, BlockStored) for h in event.block_hashes)
        assert set(content) == set(self.blocks), (len(content), len(self.blocks))
        assert isinstance(batches[0].events[0], AllBlocksCleared)

    def stored(self, kind="full_attention"):
        return [event for batch in self.batches for event in batch.events
                if isinstance(event, BlockStored) and event.kv_cache_spec_kind == kind]

    def has(self, digest):
        """Stored in the group of full attention, which keeps every block."""
        groups = {event.group_idx for event in self.stored()}
        return any((short(digest), group) in self.blocks for group in groups)



class Engine:
    """A server that publishes on two ports of its own, and a ZeroMQ context to follow it."""

    def __init__(self, *arguments, **config):
        self.ports = [reserve_port() for _ in range(2)]
        self.config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{self.ports[0]}",
                       "replay_endpoint": f"tcp://*:{self.ports[1]}", **config}
        self.server = Server("--served-model-name", "demo", "--block-size", "16",
                             "--kv-events-config", json.dumps(self.config), *arguments)
        self.context = zmq.Context()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.__exit__()
        self.context.destroy(0)

    def follower(self):
        return Follower(self.context, f"tcp://127.0.0.1:{self.ports[0]}", f"tcp://127.0.0.1:{self.ports[1]}",
                        self.config.get("topic", "").encode())

    def post(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=DEADLINE_S)
        try:
            connection.request("POST", path, json.dumps(body or {}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            assert response.status == 200, (response.status, text)
            return json.loads(text)
        finally:
            connection.close()

    def complete(self, tokens, max_tokens=2, **more):
        return self.post("/v1/completions", {"model": "demo", "prompt": tokens, "max_tokens": max_tokens,
                                             "temperature": 0, "ignore_eos": True, **more})

    def wait_stored(self, follower, digest):
        wait_until(lambda: follower.follow() or follower.has(digest), "a block to be stored")


def tokens(count, seed):
    numbers = random.Random(seed)
    return [numbers.randrange(20, 200) for _ in range(count)]


class KVEvents(unittest.TestCase):
    def check_full_attention(self, follower, known):
        """Recomputes every hash from the tokens beside it. `known`: full digests by their short form."""
        for event in follower.stored():
            self.assertEqual(event.block_size, 16)
            self.assertEqual(event.medium, "GPU")
            self.assertEqual(len(event.token_ids), 16 * len(event.block_hashes))
            self.assertEqual(event.extra_keys, [None] * len(event.block_hashes))
            parent = known[event.parent_block_hash] if event.parent_block_hash is not None else None
            for i, value in enumerate(event.block_hashes):
                parent = block_hash(parent, event.token_ids[16 * i:16 * i + 16])
                self.assertEqual(short(parent), value)
                known[value] = parent

    def test_a_shared_prefix_is_stored_once_under_the_reference_s_hashes(self):
        with Engine() as engine:
            follower = engine.follower()
            self.assertEqual(follower.snapshot(), (None, []))
            prefix = tokens(64, 1)
            engine.complete(prefix + tokens(20, 2), max_tokens=40)
            expected = chain(prefix + tokens(20, 2), 16)
            self.assertEqual(len(expected), 5)
            engine.wait_stored(follower, expected[-1])
            first = follower.stored()[0]
            self.assertEqual(first.block_hashes, [short(h) for h in expected])
            self.assertIsNone(first.parent_block_hash)
            self.assertEqual(first.token_ids, (prefix + tokens(20, 2))[:80])
            self.assertAlmostEqual(follower.batches[0].ts, time.time(), delta=DEADLINE_S)
            self.assertEqual(follower.batches[0].data_parallel_rank, 0)
            # Blocks that generated tokens fill follow, one by one: 84 + 39 tokens are seven blocks.
            wait_until(lambda: follower.follow() or len(follower.stored()) == 3, "the generated blocks")
            known = {}
            self.check_full_attention(follower, known)

            num_before = len(follower.stored())
            engine.complete(prefix + tokens(20, 3))
            shared = chain(prefix + tokens(20, 3), 16)
            engine.wait_stored(follower, shared[-1])
            new = [h for event in follower.stored()[num_before:] for h in event.block_hashes]
            self.assertEqual(new, [short(h) for h in shared[4:]])
            self.check_full_attention(follower, known)
            self.assertEqual(engine.server.metric("vllm:prefix_cache_hits_total"), 64)
            # The other groups are sliding windows; their hashes are of the same chain.
            windows = follower.stored("sliding_window")
            self.assertTrue(windows)
            for event in windows:
                self.assertEqual(event.kv_cache_spec_sliding_window, 128)
                for value in event.block_hashes:
                    self.assertIn(value, known)

    def test_salts_and_byte_hashes(self):
        with Engine(use_int_block_hashes=False, topic="kv@engine") as engine:
            follower = engine.follower()
            prompt = tokens(40, 4)
            engine.complete(prompt, cache_salt="tenant-A")
            expected = chain(prompt, 16, "tenant-A")
            wait_until(lambda: follower.follow() or follower.stored(), "the first event")
            self.assertEqual(follower.stored()[0].block_hashes, expected)
            self.assertEqual(follower.stored()[0].extra_keys, [["tenant-A"], None])

    def test_under_pressure_blocks_are_removed_and_all_accounts_agree(self):
        with Engine("--num-gpu-blocks-override", "200", "--max-model-len", "512", buffer_steps=5) as engine:
            follower = engine.follower()
            for i in range(30):
                engine.complete(tokens(200 + i, i % 7 * 10 + i // 20), max_tokens=8)
                follower.follow()
            removed = [event for batch in follower.batches for event in batch.events if isinstance(event, BlockRemoved)]
            self.assertTrue(removed)
            self.assertTrue(all(len(event.block_hashes) == 1 for event in removed))
            self.check_full_attention(follower, {})
            # A late subscriber cannot replay evicted events, but can request the snapshot.
            late = engine.follower()
            replayed = [sequence for sequence, _ in late.ask((0).to_bytes(8, "big"))]
            self.assertEqual(len(replayed), 5)
            self.assertEqual(replayed, list(range(replayed[0], replayed[0] + 5)))
            late.start_from_snapshot()
            engine.complete(tokens(250, 99))
            for one in (follower, late):
                engine.wait_stored(one, chain(tokens(250, 99), 16)[-1])
            follower.follow()
            late.follow()
            self.assertEqual(set(late.blocks), set(follower.blocks))
            known = {}
            self.check_full_attention(late, known)

    def test_replay_gives_the_same_bytes_again(self):
        with Engine() as engine:
            follower = engine.follower()
            for i in range(4):
                engine.complete(tokens(50, i))
                engine.wait_stored(follower, chain(tokens(50, i), 16)[-1])
            everything = follower.ask((0).to_bytes(8, "big"))
            self.assertEqual([sequence for sequence, _ in everything], list(range(len(everything))))
            self.assertEqual(follower.ask((2).to_bytes(8, "big")), everything[2:])
            self.assertEqual(follower.ask(len(everything).to_bytes(8, "big")), [])
            second = engine.follower()
            self.assertEqual(second.ask((0).to_bytes(8, "big")), everything)

    def test_garbage_on_the_sockets_has_no_effect(self):
        with Engine() as engine:
            engine.complete(tokens(50, 1))
            numbers = random.Random(5)
            for port in engine.ports:
                for size in (1, 10, 64, 100_000):
                    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as raw:
                        try:
                            raw.sendall(numbers.randbytes(size))
                        except OSError:
                            pass  # it has hung up on us
            with engine.context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(f"tcp://127.0.0.1:{engine.ports[1]}")
                for _ in range(200):
                    dealer.send_multipart([numbers.randbytes(numbers.randrange(12))
                                           for _ in range(numbers.randrange(1, 6))])
                for _ in range(200):
                    dealer.send_multipart([b"", b"snapshot"])  # and leaves without reading
            follower = engine.follower()
            engine.complete(tokens(50, 2))
            engine.wait_stored(follower, chain(tokens(50, 2), 16)[-1])
            self.assertEqual(engine.server.get("/health"), "")
            code, errors = engine.server.stop()
            self.assertEqual(code, 0, errors)

    def test_a_reset_clears_all(self):
        with Engine("--server-dev-mode") as engine:
            follower = engine.follower()
            engine.complete(tokens(50, 1))
            engine.wait_stored(follower, chain(tokens(50, 1), 16)[-1])
            engine.server.wait_idle()
            self.assertEqual(engine.post("/reset_prefix_cache"), {"success": True})
            wait_until(lambda: follower.follow() or not follower.blocks, "the cache to be cleared")
            self.assertIsInstance(follower.batches[-1].events[-1], AllBlocksCleared)
            engine.complete(tokens(50, 1))
            engine.wait_stored(follower, chain(tokens(50, 1), 16)[-1])
            self.assertEqual(engine.server.metric("vllm:prefix_cache_hits_total"), 0)

    def test_a_reset_while_a_request_runs(self):
        with Engine("--server-dev-mode") as engine:
            answer = engine.complete(tokens(50, 1), max_tokens=1500)
            expected, num_tokens = answer["choices"][0]["text"], answer["usage"]["completion_tokens"]
            count, generated = num_tokens, "vllm:generation_tokens_total"
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                while True:
                    running = pool.submit(engine.complete, tokens(50, 1), max_tokens=1500)
                    wait_until(lambda: engine.server.metric(generated) > count, "the request to run")
                    # So that it is not at its end before the reset; another one, if it was before the pause.
                    self.assertEqual(engine.post("/pause?mode=keep"), {"status": "paused"})
                    count += num_tokens
                    if engine.server.metric(generated) < count - 4:  # two steps may be in flight
                        break
                    engine.post("/resume")
                    running.result()
                self.assertEqual(engine.post("/reset_prefix_cache"), {"success": False})
                self.assertEqual(engine.post("/reset_prefix_cache?reset_running_requests=true"), {"success": True})
                engine.post("/resume")
                self.assertEqual(running.result()["choices"][0]["text"], expected)
            self.assertEqual(engine.server.metric("vllm:num_preemptions_total"), 1)
            wait_until(lambda: 'http_requests_total{handler="/reset_prefix_cache",method="POST",status="2xx"} 2.0' in
                       engine.server.get("/metrics"), "both resets to be counted")
            self.assertRegex(engine.server.get("/metrics"),
                             r'(?m)^vllm:cache_config_info{block_size="16",.*num_gpu_blocks="\d+",.*} 1.0$')

    def test_a_taken_port_is_a_reason_not_to_start(self):
        with socket.create_server(("0.0.0.0", 0)) as taken:
            endpoint = f"tcp://*:{taken.getsockname()[1]}"
            config = json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint})
            run = subprocess.run([BINARY, "serve", "--port", "0", "--kv-events-config", config], capture_output=True,
                                 text=True, timeout=DEADLINE_S, env=ENVIRONMENT)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(f"cannot open the KV events endpoint {endpoint}: Address already in use", run.stderr)


if __name__ == "__main__":
    unittest.main()
