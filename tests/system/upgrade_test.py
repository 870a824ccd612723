#!/usr/bin/env python3
"""A running server is replaced under clients, by another binary and by other topologies, again and again: every stream
has the tokens, texts and log-probabilities of an undisturbed run. What cannot replace it is refused, and changes nothing.

TROUPE_UPGRADES, TROUPE_UPGRADE_STREAMS and TROUPE_UPGRADE_SEED: how many upgrades (7) under how many streams (8), and at
which moments (1). `upgrade --upgrades N --streams S` sets them, too."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import types
import unittest

from streams import Clients, Stream, body, resumed_stream, stream, undisturbed
from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, is_running, leftover_segments, nodes_of, wait_until

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
NUM_UPGRADES = int(os.environ.get("TROUPE_UPGRADES", "7"))
NUM_STREAMS = int(os.environ.get("TROUPE_UPGRADE_STREAMS", "8"))
SEED = int(os.environ.get("TROUPE_UPGRADE_SEED", "1"))
TOTAL = types.SimpleNamespace(requests=0, upgrades=0, lost=0, different=0)
# One process; tensor parallelism over two; two groups; a process for each role: and so on from the start.
TOPOLOGIES = [None, "multi-process.conf", "mixed.conf", "data-parallel.conf", "one-process-per-role.conf"]


def serve_arguments(config, *more):
    return ["--port", "0", "--keep-alive", "--log-stats-interval-s", "0",
            *(["--config-file", str(CONFIGS / config)] if config else []), *more]


class Upgrade:
    """A run of `troupe upgrade`; `lines` has what it has printed so far."""

    def __init__(self, server, *options, arguments=None, program=BINARY):
        command = [program, "upgrade", "--pid", str(server.process.pid), *options]
        if arguments is not None:
            command += ["--", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")))
        self.reader.start()

    def says(self, text):
        return any(text in line for line in self.lines)

    def end(self):
        """Its exit code and what it has written to standard error."""
        errors = self.process.stderr.read()
        self.process.wait(DEADLINE_S)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return self.process.returncode, errors

    def supervisors(self):
        """The old one's process id and the new one's."""
        return next((int(found[1]), int(found[2])) for line in self.lines
                    if (found := re.match(r"supervisor: (\d+) -> (\d+)", line)))


@contextlib.contextmanager
def copied_binary():
    """The same program under another path, with the demo model beside it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "troupe"
        shutil.copy(BINARY, copy)
        (copy.parent / "demo_model").symlink_to((pathlib.Path(BINARY).parent / "demo_model").resolve())
        yield str(copy)


def program_of(pid):
    return os.readlink(f"/proc/{pid}/exe")


class Upgrades(unittest.TestCase):
    def test_no_stream_is_lost_whatever_replaces_the_server(self):
        numbers = random.Random(SEED)
        with copied_binary() as copy, Server(*serve_arguments(None)[2:]) as server:
            clients = Clients(server.port, undisturbed(server.port, NUM_STREAMS))
            try:
                for number in range(1, NUM_UPGRADES + 1):
                    time.sleep(numbers.uniform(0.05, 0.6))  # not to wait for anything: it comes when it comes
                    self.upgrade(server, copy if number % 2 else BINARY, TOPOLOGIES[number % len(TOPOLOGIES)])
            finally:
                clients.end()
            print(f"seed {SEED}: {clients.num_requests} requests, {NUM_UPGRADES} upgrades, {len(clients.lost)} lost, "
                  f"{len(clients.different)} different", flush=True)
            TOTAL.requests, TOTAL.upgrades = clients.num_requests, NUM_UPGRADES
            TOTAL.lost, TOTAL.different = len(clients.lost), len(clients.different)
            self.assertEqual((clients.lost, clients.different, clients.bad_answers), ([], [], []))
            self.assertGreaterEqual(clients.num_requests, NUM_STREAMS)
            self.assertEqual(server.wait_idle(), 0)
            code, log = server.stop()
            self.assertEqual(code, 0, log[-2000:])
            wait_until(lambda: not leftover_segments(server.port), "all files in /dev/shm to be gone")

    def upgrade(self, server, program, config):
        before = server.supervisor()
        old = [before, *nodes_of(before).values()]
        upgrade = Upgrade(server, arguments=serve_arguments(config), program=program)
        self.assertEqual(upgrade.end(), (0, ""), upgrade.lines)
        self.assertEqual(upgrade.lines[-1], "done\n")
        self.assertEqual(upgrade.supervisors(), (before, server.supervisor()))
        new = nodes_of(server.supervisor())
        for name, pid in new.items():
            self.assertTrue(any(re.match(rf"node {name}: \w+ -> {pid}$", line) for line in upgrade.lines), upgrade.lines)
        self.assertEqual(set(map(program_of, [server.supervisor(), *new.values()])), {program})
        wait_until(lambda: program_of(server.process.pid) == program, "the keeper to execute the new program")
        wait_until(lambda: not any(map(is_running, old)), "the old processes to end")

    def test_a_changed_configuration_file_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "server.conf"
            file.write_text('[engine]\ntensor-parallel-size=1\n[server]\nidle-timeout-s=30\n')
            with Server("--keep-alive", "--config-file", str(file)) as server:
                expected = stream(server.port, body(1))
                file.write_text((CONFIGS / "mixed.conf").read_text())
                upgrade = Upgrade(server)
                self.assertEqual(upgrade.end(), (0, ""), upgrade.lines)
                self.assertIn("worker-1", nodes_of(server.supervisor()))
                self.assertEqual(stream(server.port, body(1)), expected)

    def test_what_cannot_replace_the_server_is_refused_and_changes_nothing(self):
        with Server(*serve_arguments("multi-process.conf")[2:]) as server:
            expected = undisturbed(server.port, 2)
            clients = Clients(server.port, expected)
            try:
                processes = server.supervisor(), nodes_of(server.supervisor())
                for options, arguments, reason in (
                        ((), ["--max-model-len", "1000000"], "max_model_len is 1000000"),
                        ((), ["--tensor-paralel-size", "2"], "tensor-paralel-size"),
                        ((), ["--config-file", "/nowhere.conf"], "/nowhere.conf"),
                        ((), ["no-such-model"], "no folder or GGUF file 'no-such-model'"),
                        ((), serve_arguments("mixed.conf", "--tensor-parallel-size", "1"), "worker"),
                        (("--program", "/bin/true"), None, "ended with exit code 0 before it was ready"),
                        (("--deadline-s", "0.01"), None, "not ready within 0"),
                        (("--program", "/nowhere"), None, "/nowhere is not a program")):
                    with self.subTest(reason=reason):
                        upgrade = Upgrade(server, *options, arguments=arguments)
                        code, errors = upgrade.end()
                        self.assertNotEqual(code, 0)
                        self.assertIn(reason, errors)
                self.assertEqual((server.supervisor(), nodes_of(server.supervisor())), processes)
            finally:
                clients.end()
            self.assertEqual((clients.lost, clients.different, clients.bad_answers), ([], [], []))

    def test_one_that_is_not_kept_is_named(self):
        with Server() as server:
            code, errors = Upgrade(server).end()
            self.assertEqual((code, errors), (1, f"troupe: process {server.process.pid} is not a `troupe serve --keep-alive` of "
                                                 "this user\n"))

    def test_a_stream_of_the_old_server_goes_on_though_its_supervisor_is_killed(self):
        fields = {**body(1), "max_tokens": 3000}
        with Server(*serve_arguments("multi-process.conf", "--generation-config", "vllm")[2:]) as server:  # no cap of max_tokens
            expected = stream(server.port, fields)
            is_met = False
            while not is_met:  # another one, when the stream was faster than the new server
                answers, before = [], server.metric("vllm:generation_tokens_total")
                reader = threading.Thread(target=lambda: answers.append(stream(server.port, fields)))
                reader.start()
                wait_until(lambda: server.metric("vllm:generation_tokens_total") > before, "the stream to run")
                upgrade = Upgrade(server)
                wait_until(lambda: upgrade.says("finishes its connections"), "the new server")
                old, new = upgrade.supervisors()
                is_met = not answers
                with contextlib.suppress(ProcessLookupError):
                    os.kill(old, signal.SIGKILL)
                reader.join()
                self.assertEqual(answers, [expected])
                self.assertEqual(upgrade.end(), (0, ""))
                self.assertEqual(server.supervisor(), new)

    def test_streams_of_the_old_server_are_resumed_by_the_new_one(self):
        fields = {**body(1), "max_tokens": 3000}
        with Server(*serve_arguments(None, "--resume", "--generation-config", "vllm")[2:]) as server:
            expected = stream(server.port, fields)
            reader = Stream(server.port, fields)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
            response = reader.ask(connection)
            event_id = None
            while reader.event_id is None:
                line = response.readline()
                if line.startswith(b"id: "):
                    event_id = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:], parse_float=str)
                    reader.take(event)
                    reader.stream_id, reader.event_id = event["id"], event_id
            upgrade = Upgrade(server)
            wait_until(lambda: upgrade.says("finishes its connections"), "the new server")
            response.close()
            connection.close()
            self.assertEqual(upgrade.end(), (0, ""))
            self.assertIsNone(reader.read())
            self.assertEqual(reader.answer(), expected)


if __name__ == "__main__":
    unittest.main()
