#!/usr/bin/env python3
"""The same answers from every topology of configs/, and what happens when its parts come and go."""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import yaml

from streams import body, stream
from support import (BINARY, DEADLINE_S, ENVIRONMENT, PATIENT, Server, cpu_seconds, is_running, make_certificates, node_of_second_host,
                     node_process, reserve_port, run, second_host, tls_options, wait_until)

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
NUM_REQUESTS = 12


def answers(server):
    return [stream(server.port, body(number)) for number in range(NUM_REQUESTS)]


def answers_beside(server, poison):
    """Status and text of a prompt with this token, and the answers to the usual requests, all asked at once."""
    results = {}

    def ask(name, fields):
        results[name] = stream(server.port, fields)

    threads = [threading.Thread(target=ask, args=(number, body(number))) for number in range(NUM_REQUESTS)]
    threads.append(threading.Thread(target=ask, args=("poison", {"model": "demo", "prompt": [2, poison, 100]})))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status, text = results.pop("poison")
    return status, text, [results[number] for number in range(NUM_REQUESTS)]


def post(server, path, fields, headers=()):
    """Status and JSON."""
    request = urllib.request.Request(server.url + path, json.dumps(fields).encode(),
                                     {"Content-Type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def group_states(server):
    return [group["state"] for group in json.loads(server.get("/admin/topology"))["groups"]]


def tokens_of_engine(server, number):
    """How many tokens one group has generated."""
    found = re.search(rf'^vllm:generation_tokens_total{{engine="{number}",[^}}]*}} (\S+)$', server.get("/metrics"), re.MULTILINE)
    return float(found.group(1))


class Load:
    """Streams, one after another on each of several threads; compares the answers."""

    def __init__(self, server, expected, num_threads=8):
        self.server, self.expected = server, expected
        self.ending, self.wrong, self.num_requests = threading.Event(), [], 0
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(num_threads)]
        for thread in self.threads:
            thread.start()

    def work(self, number):
        while not self.ending.is_set():
            try:
                answer = stream(self.server.port, body(number))
            except Exception as error:  # whatever it is, the request is lost
                answer = repr(error)
            self.num_requests += 1
            if answer != self.expected[number]:
                self.wrong.append((number, answer))
            number = (number + 5) % NUM_REQUESTS

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()
        return self.wrong


def tcp_sockets(pid):
    """{(own port, peer's port): descriptor} of the connections that a process has over IPv4."""
    ports = {}
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports[f"socket:[{fields[9]}]"] = tuple(int(fields[i].rsplit(":", 1)[1], 16) for i in (1, 2))
    return {ports[link]: int(entry.name) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()
            if (link := os.readlink(entry)) in ports}


def cut_connection(pid, other):
    """Shuts down, from outside, the connection that two processes have with each other."""
    theirs = tcp_sockets(other)
    descriptor = next(each for (own, peer), each in tcp_sockets(pid).items() if (peer, own) in theirs)
    process = os.pidfd_open(pid)
    copy = ctypes.CDLL(None, use_errno=True).syscall(438, process, descriptor, 0)  # pidfd_getfd
    os.close(process)
    if copy < 0:
        raise unittest.SkipTest(f"no descriptor of another process can be had here: {os.strerror(ctypes.get_errno())}")
    with socket.socket(fileno=copy) as connection:
        connection.shutdown(socket.SHUT_RDWR)


class Topologies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificates = folder.name
        make_certificates(folder.name, "front", "worker")
        make_certificates(folder.name, "expired", days=-1)
        make_certificates(folder.name + "/other", "stranger")
        with Server() as server:
            cls.expected = answers(server)
        assert all(answer[:2] == (200, True) for answer in cls.expected), cls.expected

    def test_every_file_of_one_host_gives_the_same_answers(self):
        for file in sorted(CONFIGS.glob("*.conf")):
            if "\nhost=\"10." in file.read_text():
                continue  # see below
            with self.subTest(file=file.name), Server("--config-file", str(file)) as server:
                self.assertEqual(answers(server), self.expected)
                self.assertEqual(server.stop()[0], 0)

    def second_node(self, file):
        return node_of_second_host("worker-0", file, *tls_options(self.certificates, "worker"))

    def check_under(self, server, incident):
        """The incident comes while requests run; they go on until the engine has come up again."""
        restarts, load = server.log().count("engine restarted"), Load(server, self.expected)
        wait_until(lambda: load.num_requests > 0, "an answer")
        incident()
        wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
        self.assertEqual(load.end(), [])

    def test_several_hosts_give_the_same_answers_and_survive_a_partition(self):
        file = str(CONFIGS / "multi-node.conf")
        with second_host() as link, self.second_node(file):
            with Server("--config-file", file, *tls_options(self.certificates, "front")) as server:
                self.assertIn("tls=true", server.log())
                self.assertEqual(answers(server), self.expected)
                late = {}
                threads = [threading.Thread(target=lambda n=n: late.update({n: stream(server.port, body(n))}))
                           for n in range(NUM_REQUESTS)]
                link("down")
                for thread in threads:
                    thread.start()
                wait_until(lambda: "has been silent" in server.log(), "the silence to be noticed")
                link("up")
                for thread in threads:
                    thread.join()
                self.assertEqual([late[n] for n in range(NUM_REQUESTS)], self.expected)
                server.stop()

    def test_workers_of_two_hosts_share_each_layer_and_either_may_end(self):
        with second_host(), tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            # Rank 0 is on the second host, and the other one meets it there.
            file.write((CONFIGS / "multi-node.conf").read_text())
            file.write("\n[node.worker-1]\nworkers=[1]\n\n[engine]\ntensor-parallel-size=2\n")
            file.flush()
            with contextlib.ExitStack() as nodes:
                remote = nodes.enter_context(self.second_node(file.name))
                server = nodes.enter_context(Server("--config-file", file.name, *tls_options(self.certificates, "front")))
                self.assertIn("workers=2", server.log())
                self.assertEqual(answers(server), self.expected)

                def end_remote():
                    remote.kill()
                    remote.wait()
                    nodes.enter_context(self.second_node(file.name))

                for incident in (lambda: os.kill(server.nodes()["worker-1"], signal.SIGKILL), end_remote):
                    self.check_under(server, incident)
                self.assertEqual(server.wait_idle(), 0)
                self.assertEqual(server.stop()[0], 0)

    def test_peers_without_a_certificate_are_rejected_and_others_continue(self):
        file = str(CONFIGS / "multi-process.conf")
        began = time.monotonic()
        with Server("--config-file", file, *PATIENT, *tls_options(self.certificates, "front")) as server:
            port = int(re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1))
            self.assertNotIn("connection refused", server.log())  # its own nodes have not been

            def connect(folder=None, name=None, speak=None):
                """What comes of a connection: its first bytes, or why there are none."""
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as plain:
                    if speak is not None:
                        plain.sendall(speak)
                        with contextlib.suppress(ConnectionResetError):
                            plain.recv(100)
                        return "sent away"
                    context = ssl.create_default_context(cafile=f"{self.certificates}/ca.pem")
                    context.check_hostname = False
                    if name:
                        context.load_cert_chain(f"{folder}/{name}.pem", f"{folder}/{name}.key")
                    try:
                        with context.wrap_socket(plain) as secure:
                            return secure.recv(100)
                    except ssl.SSLError as refused:
                        return str(refused)

            self.assertIsInstance(connect(self.certificates, "worker"), bytes)
            strangers = {
                "peer did not return a certificate": lambda: connect(),
                "unable to get local issuer certificate": lambda: connect(self.certificates + "/other", "stranger"),
                "certificate has expired": lambda: connect(self.certificates, "expired"),
                "http request": lambda: connect(speak=b"GET / HTTP/1.1\r\n\r\n"),
            }
            results = []
            client = threading.Thread(target=lambda: results.append(answers(server)))
            client.start()
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
            self.addCleanup(lambda: [each.close() for each in silent])
            for _ in range(10):
                for stranger in strangers.values():
                    self.assertIsInstance(stranger(), str)
            client.join()
            self.assertEqual(results, [self.expected])
            for reason in strangers:
                def refusals():
                    return len(re.findall(f"connection refused peer=127.0.0.1 reason=.*{reason}", server.log()))
                wait_until(refusals, reason)
                self.assertLessEqual(refusals(), 1 + (time.monotonic() - began) // 60, (reason, server.log()))  # one in a minute
            server.wait_idle()

            def is_quiet():
                before = cpu_seconds(server.process.pid)
                time.sleep(0.5)
                return cpu_seconds(server.process.pid) - before < 0.2
            wait_until(is_quiet, "silent connections to cost nothing")
            self.assertNotIn("engine restarted", server.log())
            self.assertNotIn("connection failed", server.log())
            # The other side says why as well.
            for folder, name, reason in [(self.certificates + "/other", "stranger", "certificate verify failed"),
                                         (self.certificates, "expired", "certificate has expired"),
                                         (self.certificates, "nobody", "No such file")]:
                code, _, errors = run(["node", "worker-0", "--config-file", file, "--supervisor-port", str(port),
                                       *tls_options(folder, name)])
                self.assertNotEqual(code, 0)
                self.assertIn(reason, errors)
            self.assertEqual(answers(server), self.expected)

    def test_a_frontend_that_is_killed_comes_back_at_its_port(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), port=reserve_port()) as server:
            broken = threading.Event()

            def read():
                """One after another, until one breaks off."""
                try:
                    while stream(server.port, body(1) | {"max_tokens": 2000})[1] is True:
                        pass
                except Exception:
                    pass
                broken.set()
            client = threading.Thread(target=read)
            client.start()
            wait_until(lambda: server.metric("vllm:generation_tokens_total") > 0, "the stream to begin")
            self.assertFalse(broken.is_set())
            os.kill(server.nodes()["front"], signal.SIGKILL)
            client.join()
            wait_until(lambda: "engine restarted" in server.log(), "the engine to come up again")
            self.assertEqual(server.wait_idle(), 0)
            self.assertEqual(answers(server), self.expected)

    def test_a_request_router_in_a_process_of_its_own_may_be_killed_and_so_may_the_frontend(self):
        with Server("--config-file", str(CONFIGS / "one-process-per-role.conf"), *PATIENT, port=reserve_port()) as server:
            load = Load(server, self.expected)
            for _ in range(3):
                wait_until(lambda: server.metric("vllm:num_requests_running") > 0, "a stream to run")
                router, restarts = server.nodes()["router"], server.log().count("engine restarted")
                os.kill(router, signal.SIGKILL)
                wait_until(lambda: server.log().count("engine restarted") > restarts, "the engine to come up again")
            self.assertEqual(load.end(), [])
            self.assertGreater(load.num_requests, 0)

            def incarnations():
                return [group["incarnation"] for group in json.loads(server.get("/admin/topology"))["groups"]]
            before = incarnations()
            front, restarts = server.nodes()["front"], server.log().count("engine restarted")
            os.kill(front, signal.SIGKILL)
            wait_until(lambda: server.log().count("engine restarted") > restarts, "the frontend to come back")
            self.assertEqual(incarnations(), before)  # the engine has not noticed
            self.assertEqual(server.wait_idle(), 0)
            self.assertEqual(answers(server), self.expected)

    def test_nothing_outlives_the_supervisor_for_longer_than_it_may(self):
        for timeout_s in ("0", "0.5"):
            with self.subTest(timeout_s=timeout_s):
                server = Server("--config-file", str(CONFIGS / "multi-process.conf"), "--supervisor-timeout-s", timeout_s)
                pids = list(server.nodes().values())
                self.assertEqual(len(pids), 3)
                server.process.kill()
                server.process.communicate()
                wait_until(lambda: not any(map(is_running, pids)), "all processes to end")
                server.errors.close()

    def test_a_supervisor_that_is_started_again_takes_over_what_runs_and_mends_the_rest(self):
        options = ("--config-file", str(CONFIGS / "one-process-per-role.conf"), *PATIENT, "--supervisor-timeout-s", "600")
        with Server(*options) as first:
            load = Load(first, self.expected)
            wait_until(lambda: load.num_requests > NUM_REQUESTS, "some answers")
            nodes = first.nodes()
            first.process.kill()
            first.process.wait()
            before = load.num_requests
            wait_until(lambda: load.num_requests > before + NUM_REQUESTS, "answers without a supervisor")
            with Server(*options) as second:
                self.assertEqual((second.port, second.nodes()), (first.port, nodes))
                self.assertIn("engine adopted group=0 incarnation=1", second.log())
                # This time something else ends meanwhile.
                second.process.kill()
                second.process.wait()
                os.kill(nodes["worker-0"], signal.SIGKILL)
                with Server(*options) as third:
                    self.assertEqual(third.port, first.port)
                    mended = third.nodes()
                    self.assertEqual({name for name in nodes if mended[name] != nodes[name]}, {"worker-0"}, third.log())
                    self.assertEqual(load.end(), [])
                    os.kill(mended["worker-0"], signal.SIGKILL)
                    wait_until(lambda: "engine restarted" in third.log(), "the engine to come up again")
                    self.assertEqual(answers(third), self.expected)
                    self.assertEqual(third.stop()[0], 0)
                    wait_until(lambda: not any(map(is_running, mended.values())), "all processes to end")

    def test_a_supervisor_that_is_kept_alive_comes_back_by_itself(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), "--keep-alive") as server:
            load, nodes = Load(server, self.expected), server.nodes()
            for blow in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
                supervisor, ready = server.supervisor(), server.log().count("engine ready")
                self.assertNotEqual(supervisor, server.process.pid, server.log()[-3000:])
                os.kill(supervisor, blow)
                wait_until(lambda: server.log().count("engine ready") > ready, "the next supervisor")
                self.assertNotEqual(server.supervisor(), supervisor)
            self.assertEqual(load.end(), [])
            if "has been silent" not in server.log():  # a machine too slow for their heartbeats
                self.assertEqual(server.nodes(), nodes)
            wait_until(lambda: group_states(server) == ["serving"], "the group to serve")
            self.assertEqual(server.stop()[0], 0)
            wait_until(lambda: not any(map(is_running, nodes.values())), "all processes to end")

    def test_a_request_that_crashes_every_worker_fails_alone(self):
        poison = 3  # <unk>
        file = str(CONFIGS / "multi-process.conf")
        code, _, errors = run(["serve", "--config-file", file, "--dev-crash-token", str(poison)])
        self.assertEqual((code, "dev-crash-token needs server-dev-mode" in errors), (2, True), errors)
        with Server("--config-file", file, *PATIENT, "--server-dev-mode", "--dev-crash-token", str(poison)) as server:
            status, text, others = answers_beside(server, poison)
            self.assertEqual(status, 500)
            self.assertIn("the engine crashed 3 times while it ran this request, the last time with nothing else", text)
            self.assertEqual(others, self.expected)
            # If it was the last of those that were tried alone, its end came before the restart.
            wait_until(lambda: server.log().count("engine restarted") == 3, "the third restart")
            self.assertEqual(server.wait_idle(), 0)

    def test_a_request_of_which_the_kernel_kills_every_worker_fails_alone(self):
        poison = 3  # <unk>
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), *PATIENT, "--server-dev-mode", "--dev-crash-token",
                    str(poison), "--dev-crash-signal", str(int(signal.SIGKILL))) as server:
            status, text, others = answers_beside(server, poison)
            self.assertEqual(status, 500)
            self.assertIn("the engine was killed 17 times in a row as soon as it ran this request", text)
            self.assertEqual(others, self.expected)
            wait_until(lambda: server.log().count("engine restarted") == 17, "the last restart")
            self.assertEqual(server.wait_idle(), 0)

    def test_a_model_behind_the_end_of_options_reaches_the_nodes(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), "--served-model-name", "demo", "--",
                    str(ROOT / "tools/demo_model/model")) as server:
            self.assertEqual(post(server, "/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 1})[0], 200)

    def test_no_key_is_in_a_command_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("# of the team\nthird-key\n")
            keys.flush()
            with Server("--config-file", str(CONFIGS / "multi-process.conf"), *PATIENT, "--api-key", "first-key",
                        "--api_key=second-key", "--api-key-file", keys.name, "--max-num-seqs", "7") as server:
                for pid in server.nodes().values():
                    for file in ("cmdline", "environ"):
                        text = pathlib.Path(f"/proc/{pid}/{file}").read_text()
                        self.assertNotIn("-key", text.replace("--api-key-file", ""))
                    self.assertIn("--max-num-seqs", pathlib.Path(f"/proc/{pid}/cmdline").read_text())

                def status(key):
                    return post(server, "/v1/completions", {"model": "demo", "prompt": "a", "max_tokens": 1},
                                {"Authorization": f"Bearer {key}"})[0]

                self.assertEqual([status(key) for key in ("first-key", "second-key", "third-key", "fourth-key")],
                                 [200, 200, 200, 401])
                # Keys and the log level are read again, in every process, and nothing ends.
                keys.write("fourth-key\n")
                keys.flush()
                processes = server.nodes()
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: server.log().count("settings reloaded") == 4, "all processes to read their settings")
                self.assertEqual([status(key) for key in ("first-key", "third-key", "fourth-key", "fifth-key")],
                                 [200, 200, 200, 401])
                pathlib.Path(keys.name).write_text("\n")
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: server.log().count("settings reloaded") == 8, "all processes to read their settings")
                self.assertEqual([status(key) for key in ("first-key", "fourth-key")], [200, 200])
                self.assertIn("has no key", server.log())
                self.assertEqual(server.nodes(), processes)

    def test_incomplete_handshakes_do_not_lock_others_out(self):
        file = str(CONFIGS / "multi-process.conf")
        with Server("--config-file", file, *tls_options(self.certificates, "front"), port=reserve_port()) as server:
            port = int(re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1))
            silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(600)]
            self.addCleanup(lambda: [each.close() for each in silent])
            os.kill(server.nodes()["front"], signal.SIGKILL)
            wait_until(lambda: "engine restarted" in server.log(), "the frontend to come back")
            self.assertEqual(stream(server.port, body(0)), self.expected[0])

            def is_open(connection):
                connection.setblocking(False)
                try:
                    return connection.recv(1) != b""
                except BlockingIOError:
                    return True

            wait_until(lambda: not any(map(is_open, silent)), "the silent to be shut out")

    def test_a_node_of_the_same_user_finds_the_secret_and_others_do_not(self):
        file = str(CONFIGS / "data-parallel.conf")
        with Server("--config-file", file) as server:
            port = re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1)
            with tempfile.TemporaryDirectory() as elsewhere:
                code, _, errors = run(["node", "group-1", "--config-file", file, "--supervisor-port", port],
                                      environment={"XDG_RUNTIME_DIR": elsewhere})
            self.assertEqual((code, "does it have another secret?" in errors), (1, True), errors)
            self.assertIn("the peer does not know the secret", server.log())

    def test_workers_that_are_killed_twice_lose_no_request(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf")) as server:
            for _ in range(2):
                worker = server.nodes()["worker-0"]
                count = server.log().count("engine restarted")
                os.kill(worker, signal.SIGSEGV)
                wait_until(lambda: server.log().count("engine restarted") > count, "the engine to come up again")
            self.assertEqual(answers(server), self.expected)

    def test_a_process_that_never_comes_is_replaced(self):
        with Server("--config-file", str(CONFIGS / "multi-process.conf"), "--node-timeout-s", "1") as server:
            while "node worker-0 did not join within 5000 ms" not in server.log():  # unless it was faster than this
                worker = server.nodes()["worker-0"]
                count = server.log().count("engine restarted")
                os.kill(worker, signal.SIGKILL)
                wait_until(lambda: server.nodes().get("worker-0", worker) != worker, "the next process")
                os.kill(server.nodes()["worker-0"], signal.SIGSTOP)
                wait_until(lambda: server.log().count("engine restarted") > count, "the engine to come up again")
            self.assertEqual(answers(server), self.expected)

    def test_processes_that_lose_their_connection_are_restarted(self):
        for file, other in {"multi-process.conf": "core", "data-parallel.conf": "group-1"}.items():
            with self.subTest(file=file), Server("--config-file", str(CONFIGS / file), *PATIENT) as server:
                # A group that is still on its way up would come up for the first time, not again.
                wait_until(lambda: set(group_states(server)) == {"serving"}, "all groups to serve")
                front = server.nodes()["front"]
                count = server.log().count("engine restarted")
                cut_connection(front, server.nodes()[other])
                self.assertEqual(answers(server), self.expected)
                wait_until(lambda: server.log().count("engine restarted") > count, "the engine to come up again")
                self.assertIn(f'the node leaves node={other} cause="the connection with another node is lost"', server.log())
                self.assertEqual(server.nodes()["front"], front)

    def test_the_slurm_job_starts_the_nodes_where_the_configuration_says(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for part in ("configs", "tools"):
                (folder / part).symlink_to(ROOT / part)
            (folder / "build" / "release").mkdir(parents=True)
            (folder / "build" / "release" / "troupe").symlink_to(BINARY)
            commands = {"scontrol": "printf 'alpha\nbeta\n'", "srun": 'echo srun "$@"',
                        "getent": 'case $2 in alpha) echo "10.9.0.1 STREAM alpha";; beta) echo "10.9.0.2 STREAM beta";; esac'}
            for command, does in commands.items():
                (folder / command).write_text(f"#!/bin/bash\n{does}\n")
                (folder / command).chmod(0o755)
            done = subprocess.run([CONFIGS / "slurm.sh", "/a/model"], capture_output=True, text=True, env=ENVIRONMENT | {
                "PATH": f"{folder}:{ENVIRONMENT['PATH']}", "SLURM_SUBMIT_DIR": name, "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "alpha,beta"})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("┌─ 10.9.0.1 ", done.stdout)
            self.assertIn("┌─ 10.9.0.2 ", done.stdout)
            runs = sorted(line for line in done.stdout.splitlines() if line.startswith("srun"))
            self.assertEqual(len(runs), 2)
            self.assertRegex(runs[1], "--nodelist=beta .* node worker-0 /a/model .*/beta.key")
            self.assertRegex(runs[0], "--nodelist=alpha .* serve /a/model .*/alpha.key")

    def test_the_kubernetes_example_has_a_configuration_that_works(self):
        parts = list(yaml.safe_load_all((CONFIGS / "kubernetes.yaml").read_text()))
        config = next(part for part in parts if part["kind"] == "ConfigMap")["data"]["troupe.conf"]

        def nodes(text):
            return re.findall(r"^(?:\[node.*|roles.*|workers.*)$", text, re.MULTILINE)
        self.assertEqual(nodes(config), nodes((CONFIGS / "multi-node.conf").read_text()))
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(config)
            file.flush()
            code, drawing, errors = run(["topology", "--config-file", file.name])
            self.assertEqual((code, errors), (0, ""))
        services = {part["metadata"]["name"] for part in parts if part["kind"] == "Service"}
        for part in parts:
            if part["kind"] != "StatefulSet":
                continue
            pod = part["spec"]["template"]["spec"]
            self.assertIn(f"┌─ {part['metadata']['name']}-0.{part['spec']['serviceName']} ", drawing)
            self.assertIn(part["spec"]["serviceName"], services)
            container = pod["containers"][0]
            self.assertEqual({mount["name"] for mount in container["volumeMounts"]}, {each["name"] for each in pod["volumes"]})
            command = container["command"]
            self.assertIn(command[1], ("serve", "node"))
            self.assertIn(command[2], ("/model", "worker-0"))

    def test_groups_of_one_process_share_the_requests(self):
        with Server("-dp", "2") as server:
            load = Load(server, self.expected)
            wait_until(lambda: min(tokens_of_engine(server, 0), tokens_of_engine(server, 1)) > 0, "both groups to have work")
            self.assertEqual(load.end(), [])
            fields = {"model": "demo", "prompt": "Once", "max_tokens": 3}
            for rank in (0, 1, 1, 0):
                before = tokens_of_engine(server, rank)
                status, _ = post(server, "/v1/completions", fields, {"X-data-parallel-rank": str(rank)})
                self.assertEqual((status, tokens_of_engine(server, rank)), (200, before + 3))
            status, answer = post(server, "/v1/completions", fields | {"data_parallel_rank": 2})
            self.assertEqual((status, answer["error"]["param"]), (400, "data_parallel_rank"), answer)

    def test_a_group_that_is_killed_does_not_stop_the_others(self):
        with Server("--config-file", str(CONFIGS / "data-parallel.conf"), *PATIENT) as server:
            load = Load(server, self.expected)
            wait_until(lambda: tokens_of_engine(server, 1) > 0, "the group to have work")
            restarts = server.log().count("engine restarted")
            os.kill(server.nodes()["group-1"], signal.SIGKILL)
            # It is healthy at every moment.
            wait_until(lambda: server.get("/health") == "" and server.log().count("engine restarted") > restarts,
                       "the group to come up again")
            wait_until(lambda: group_states(server) == ["serving", "serving"], "both groups to serve")
            self.assertEqual(load.end(), [])

    def test_a_group_is_drained_and_added_under_load_and_no_request_is_lost(self):
        file = str(CONFIGS / "data-parallel.conf")
        with Server("--config-file", file, *PATIENT) as server:
            self.assertEqual(post(server, "/admin/drain", {"group": 2})[0], 400)
            load = Load(server, self.expected)
            wait_until(lambda: tokens_of_engine(server, 1) > 0, "the group to have work")
            self.assertEqual(post(server, "/admin/drain", {"group": 1, "timeout_s": DEADLINE_S}), (200, {"status": "drained"}))
            wait_until(lambda: group_states(server) == ["serving", "absent"], "the group to be absent")
            wait_until(lambda: "group-1" not in server.nodes(), "its process to leave")
            status, answer = post(server, "/admin/drain", {"group": 0})
            self.assertEqual(status, 400, answer)
            port = re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1)
            with node_process("group-1", file, *PATIENT, "--supervisor-port", port) as node:
                wait_until(lambda: group_states(server) == ["serving", "serving"], "the group to serve again")
                before = tokens_of_engine(server, 1)
                wait_until(lambda: tokens_of_engine(server, 1) > before, "the group to have work again")
                self.assertEqual(post(server, "/admin/drain", {"group": 0, "timeout_s": DEADLINE_S})[0], 200)
                wait_until(lambda: group_states(server) == ["absent", "serving"], "the group to be absent")
                self.assertEqual(load.end(), [])
                self.assertEqual(server.stop()[0], 0)
                self.assertEqual(node.wait(timeout=DEADLINE_S), 0)

    def test_an_optional_group_joins_while_the_others_serve(self):
        text = (CONFIGS / "data-parallel.conf").read_text()
        self.assertIn("\n;optional=true", text)
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
            file.write(text.replace("\n;optional=true", "\noptional=true"))
            file.flush()
            with Server("--config-file", file.name, *PATIENT) as server:
                self.assertEqual(group_states(server), ["serving", "absent"])
                load = Load(server, self.expected)
                port = re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1)
                with node_process("group-1", file.name, *PATIENT, "--supervisor-port", port) as node:
                    wait_until(lambda: group_states(server) == ["serving", "serving"], "the group to serve")
                    wait_until(lambda: tokens_of_engine(server, 1) > 0, "the group to have work")
                    self.assertEqual(load.end(), [])
                    self.assertEqual(server.stop()[0], 0)
                    self.assertEqual(node.wait(timeout=DEADLINE_S), 0)

    def test_what_cannot_work_is_refused_with_the_reason(self):
        code, drawing, _ = run(["topology", "--config-file", str(CONFIGS / "multi-node.conf")])
        self.assertEqual(code, 0)
        self.assertIn("┌─ 10.77.0.2 ", drawing)
        self.assertIn("worker-0: worker 0", drawing)
        code, _, errors = run(["topology", "--config-file", str(CONFIGS / "multi-node.conf"), "--supervisor-port", "0"])
        self.assertEqual((code, "supervisor-port is 0" in errors), (2, True), errors)
        options = tls_options(self.certificates, "front")
        bare = pathlib.Path(self.certificates) / "bare.conf"
        bare.write_text(re.sub("tls-.*\n", "", (CONFIGS / "multi-node.conf").read_text()))
        code, _, errors = run(["topology", "--config-file", str(bare)])
        self.assertEqual((code, "controls the engine" in errors), (2, True), errors)
        self.assertEqual(run(["topology", "--config-file", str(bare), "--insecure"])[0], 0)
        self.assertEqual(run(["topology", "--config-file", str(bare), *options])[0], 0)
        code, _, errors = run(["topology", "--config-file", str(bare), *options[:4]])
        self.assertEqual((code, "tls-ca is not set" in errors), (2, True), errors)
        code, _, errors = run(["serve", "--config-file", str(CONFIGS / "multi-process.conf"), *options[:2], "--tls-key",
                               self.certificates + "/worker.key", *options[4:]])
        self.assertEqual((code, "key values mismatch" in errors), (2, True), errors)
        code, _, errors = run(["node", "core", "--config-file", str(CONFIGS / "multi-process.conf")])
        self.assertEqual((code, "supervisor-port is 0" in errors), (2, True), errors)
        code, _, errors = run(["node", "nobody", "--config-file", str(CONFIGS / "multi-process.conf")])
        self.assertEqual((code, "no node 'nobody'" in errors), (2, True), errors)


if __name__ == "__main__":
    unittest.main()
