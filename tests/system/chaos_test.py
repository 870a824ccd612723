#!/usr/bin/env python3
"""Processes are killed and stopped, and a host is cut off, under clients, again and again: every stream ends with the
tokens, texts and log-probabilities of an undisturbed run, bad requests fail alone, and nothing is left over.

TROUPE_CHAOS_FAULTS and TROUPE_CHAOS_SEED: how many faults (20), and which. `chaos --faults N --seed S` sets them, too."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import tempfile
import threading
import time
import types
import unittest

from support import DEADLINE_S, Server, is_running, make_certificates, node_of_second_host, second_host, tls_options, wait_until

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
NUM_STREAMS = 32
NUM_FAULTS = int(os.environ.get("TROUPE_CHAOS_FAULTS", "20"))
SEED = int(os.environ.get("TROUPE_CHAOS_SEED", str(random.randrange(1 << 30))))
NUM_HOST_FAULTS = max(1, NUM_FAULTS // 20)  # each takes as long as ten others
NUM_GROUP_FAULTS = NUM_FAULTS // 4
SHARE_STOPPED = 0.1  # the others are killed
TOTAL = types.SimpleNamespace(requests=0, faults=0, lost=0, different=0)  # of all topologies


def body(number):
    """Greedy and sampled, chat and completions, several samples, stop strings, penalties, log-probabilities."""
    fields = {"model": "demo", "stream": True, "max_tokens": 40 + 7 * number % 160, "ignore_eos": True, "seed": number,
              "temperature": 0.9 if number % 2 else 0.0, "stream_options": {"include_usage": True}}
    if number % 3 == 0:
        fields["messages"] = [{"role": "user", "content": "Tell me a story about a dragon. " * (1 + number % 4)}]
        fields.update(logprobs=True, top_logprobs=2)
    else:
        fields["prompt"] = "Once upon a time " * (1 + number % 5)
        fields["logprobs"] = 1
    if number % 6 == 1:
        fields["n"] = 2
    if number % 7 == 2:
        fields.update(ignore_eos=False, stop=["night", "friend"])
    if number % 4 == 3:
        fields.update(repetition_penalty=1.2, presence_penalty=0.3)
    return fields


class Stream:
    """What a client has of a stream, whatever the pieces in which it came."""

    def __init__(self, port, fields):
        self.port, self.fields = port, fields
        self.stream_id, self.event_id = None, None
        self.texts, self.tokens, self.reasons, self.usage, self.done = {}, {}, {}, None, False

    def ask(self, connection):
        if self.event_id is None:
            path = "/v1/chat/completions" if "messages" in self.fields else "/v1/completions"
            connection.request("POST", path, json.dumps(self.fields), {"Content-Type": "application/json"})
        else:
            connection.request("GET", f"/v1/streams/{self.stream_id}", headers={"Last-Event-ID": self.event_id})
        return connection.getresponse()

    def read(self):
        """Until it ends; returns (status, text) of a refusal."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            response = self.ask(connection)
            if response.status != 200:
                return response.status, response.read().decode()
            event_id = None
            for line in response:
                if not line.endswith(b"\n"):
                    break
                if line.strip() == b"data: [DONE]":
                    self.done = True
                elif line.startswith(b"id: "):
                    event_id = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:], parse_float=str)
                    if "error" in event:
                        return 200, line.decode()
                    self.take(event)
                    self.stream_id, self.event_id = event["id"], event_id
            return None
        finally:
            connection.close()

    def take(self, event):
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            text = choice.get("text", choice.get("delta", {}).get("content")) or ""
            self.texts[index] = self.texts.get(index, "") + text
            scored = choice.get("logprobs") or {}
            pairs = [(each["token"], each["logprob"]) for each in scored["content"]] if "content" in scored else \
                list(zip(scored.get("tokens", []), scored.get("token_logprobs", [])))
            self.tokens.setdefault(index, []).extend(pairs)
            self.reasons[index] = choice["finish_reason"] or self.reasons.get(index)

    def answer(self):
        return 200, self.done, self.texts, self.tokens, self.reasons, self.usage


def stream(port, fields):
    reader = Stream(port, fields)
    return reader.read() or reader.answer()


def resumed_stream(port, fields):
    """The same of a client that comes back when the connection breaks, and goes on where it was."""
    reader = Stream(port, fields)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            refusal = reader.read()
            if refusal or reader.done:
                return refusal or reader.answer()
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE_S} s in vain for the rest of {reader.answer()}")
        time.sleep(0.02)


class Clients:
    """Threads that send one request after another until told to end, and compare each answer."""

    def __init__(self, port, expected, ask=stream):
        self.port, self.expected, self.ask = port, expected, ask
        self.ending = threading.Event()
        self.num_requests, self.lost, self.different, self.bad_answers = 0, [], [], []
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(NUM_STREAMS)]
        self.threads.append(threading.Thread(target=self.send_bad_requests))
        for thread in self.threads:
            thread.start()

    def work(self, number):
        while not self.ending.is_set():
            try:
                answer = self.ask(self.port, body(number))
            except Exception as error:  # whatever it is, the request is lost
                answer = repr(error)
            with self.lock:
                self.num_requests += 1
                if not isinstance(answer, tuple) or answer[0] != 200 or answer[1] is not True:
                    self.lost.append((number, answer))
                elif answer != self.expected[number]:
                    self.different.append((number, answer, self.expected[number]))
            number = (number + NUM_STREAMS // 2 + 1) % NUM_STREAMS

    def send_bad_requests(self):
        bad = [{"model": "demo", "prompt": "x", "temperature": -1}, {"model": "demo", "prompt": [1 << 30]},
               {"model": "demo", "prompt": "word " * 5000}, {"model": "demo", "messages": []}]
        number = 0
        while not self.ending.wait(0.05):
            fields = bad[number % len(bad)]
            number += 1
            try:
                status, *_ = self.ask(self.port, fields)
            except Exception as error:
                status = repr(error)
            if status != 400:
                self.bad_answers.append((fields, status))

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


class Chaos(unittest.TestCase):
    def test_no_request_is_lost_whatever_is_killed(self):
        self.check("one-process-per-role.conf", NUM_FAULTS - 3 * NUM_GROUP_FAULTS - NUM_HOST_FAULTS)

    def test_no_request_is_lost_when_workers_of_a_group_are_killed(self):
        self.check("mixed.conf", NUM_GROUP_FAULTS)

    def test_no_request_is_lost_when_groups_are_killed(self):
        self.check("data-parallel.conf", NUM_GROUP_FAULTS)

    def test_streams_are_resumed_when_the_frontend_is_killed_too(self):
        self.check("multi-process.conf", NUM_GROUP_FAULTS, "--resume", front=True)

    def test_no_request_is_lost_when_a_host_is_cut_off(self):
        config, num_faults = "multi-node.conf", NUM_HOST_FAULTS
        numbers = random.Random(SEED)
        with tempfile.TemporaryDirectory() as folder, second_host() as link:
            front, worker = make_certificates(folder, "front", "worker"), tls_options(folder, "worker")
            file = str(CONFIGS / config)
            with node_of_second_host("worker-0", file, *worker), Server("--config-file", file, *front) as server:
                clients = Clients(server.port, self.undisturbed(server))
                for _ in range(num_faults):
                    time.sleep(numbers.uniform(0.05, 0.6))  # as below
                    silences, restarts = (server.log().count(what) for what in ("has been silent", "engine restarted"))
                    link("down")
                    wait_until(lambda: server.log().count("has been silent") > silences, "the silence to be noticed")
                    link("up")
                    wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
                self.finish(server, clients, config, num_faults)

    def undisturbed(self, server):
        """The answers that are expected."""
        answers = [stream(server.port, body(number)) for number in range(NUM_STREAMS)]
        self.assertEqual([answer for answer in answers if answer[:2] != (200, True)], [])
        return answers

    def finish(self, server, clients, config, num_faults, num_incidents=None):
        clients.end()
        print(f"{config}, seed {SEED}: {clients.num_requests} requests, {num_faults} faults, {len(clients.lost)} lost, "
              f"{len(clients.different)} different", flush=True)
        TOTAL.requests += clients.num_requests
        TOTAL.faults += num_faults
        TOTAL.lost += len(clients.lost)
        TOTAL.different += len(clients.different)
        self.assertEqual((clients.lost, clients.different, clients.bad_answers), ([], [], []))
        self.assertEqual(server.wait_idle(), 0)
        self.assertGreaterEqual(server.log().count("incident cause="), num_faults if num_incidents is None else num_incidents)
        pids = list(server.nodes().values())
        code, log = server.stop()
        self.assertEqual(code, 0, log[-2000:])
        wait_until(lambda: not any(map(is_running, pids)), "all processes to end")
        self.assertEqual([each for each in os.listdir("/dev/shm") if "troupe" in each], [])

    def check(self, config, num_faults, *options, front=False):
        """With `front`, the Frontend is killed too, and first: clients resume their streams."""
        numbers = random.Random(SEED)
        num_incidents = 0
        with Server("--config-file", str(CONFIGS / config), "--keep-alive", "--log-stats-interval-s", "0", *options) as server:
            clients = Clients(server.port, self.undisturbed(server), resumed_stream if front else stream)
            names = sorted(name for name in [*server.nodes(), "supervisor"] if front or name != "front")
            self.assertGreater(len(names), 1)
            for fault in range(num_faults):
                time.sleep(numbers.uniform(0.05, 0.6))  # not to wait for anything: a fault comes when it comes
                name = "front" if front and fault == 0 else numbers.choice(names)
                if name == "supervisor":
                    ready = server.log().count("engine ready")
                    os.kill(server.supervisor(), signal.SIGKILL)
                    wait_until(lambda: server.log().count("engine ready") > ready, "the next supervisor")
                    continue
                num_incidents += 1
                victim, restarts = server.nodes()[name], server.log().count("engine restarted")
                stopped = numbers.random() < SHARE_STOPPED or fault == num_faults // 2
                os.kill(victim, signal.SIGSTOP if stopped else signal.SIGKILL)
                wait_until(lambda: server.nodes().get(name, victim) != victim, f"another process for {name}")
                wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
            self.finish(server, clients, config, num_faults, num_incidents)


if __name__ == "__main__":
    unittest.main()
