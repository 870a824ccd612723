#!/usr/bin/env python3
"""Whoever can connect to the ports between nodes sends what he likes to them, 10,000 times, while streams run: his
connection ends, and nothing else."""
import contextlib
import os
import pathlib
import random
import re
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import unittest

from streams import body, stream
from support import BINARY, DEADLINE_S, PATIENT, Server, make_certificates, tls_options, wait_until

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "configs" / "multi-process.conf"
NUM_STRANGERS, NUM_CERTIFIED = 9000, 1000
NUM_STREAMS = 12
EMPTY_HANDSHAKE = bytes.fromhex("0000000000000000" "ffffffffffffffff" "0000000000000000" "8000000000000000")
HELLO = b"TROUPE/1"


def atom(text):
    """CAF's words: six bits for each letter."""
    letters = " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
    number = 0xF
    for letter in text:
        number = number << 6 | letters.index(letter)
    return struct.pack(">Q", number)


def frame(operation, payload=b"", flags=0, data=0, source=0, destination=0, size=None):
    return struct.pack(">BHBIQQQ", operation, 0, flags, len(payload) if size is None else size, data, source,
                       destination) + payload


def node_id(random):
    return atom("default") + struct.pack(">I", random.randrange(1, 1 << 22)) + random.randbytes(20)


def message(types, values):
    return b"\0\0\0" + bytes([len(types)]) + types + values


def forged(random, server):
    """What a peer that is let in may try; `server`: the id of the node that it talks to."""
    own, actor = node_id(random), random.randrange(1, 60)
    handle = struct.pack(">Q", actor) + server
    error = b"\1" + atom("system") + b"\0\0\3@<>"
    hello = frame(1, own)
    return random.choice([
        EMPTY_HANDSHAKE,
        frame(0, data=3),
        frame(1),
        frame(1, server),
        frame(1, bytes(32)),
        frame(6),
        frame(2, message(b"@<>+@exit", handle + error), destination=actor),
        hello + hello + frame(1, node_id(random)),
        hello + frame(2, destination=actor, size=2**31 - 1),
        hello + frame(2, destination=actor, size=2**32 - 1),
        hello + frame(0, own, data=3),
        hello + frame(random.randrange(7, 256), random.randbytes(20)),
        # An actor of this node where CAF expects one of another, which it then takes for something else.
        hello + frame(2, message(b"@<>+@atom+@strong_actor_ptr", atom("link") + handle), source=1, destination=actor),
        hello + frame(2, message(b"@<>+@atom+@strong_actor_ptr", atom("unlink") + handle), destination=actor),
        hello + frame(2, message(b"@<>+float", struct.pack(">f", float("inf"))), destination=actor),
        hello + frame(2, message(b"@<>+@strvec", b"\xff\xff\xff\xff\x0f"), destination=actor),
        hello + frame(2, message(b"@<>+@charbuf", b"\xff\xff\xff\xff\x07"), destination=actor),
        hello + frame(2, message(b"@<>+troupe::SchedulerOutput", b"\xff\xff\xff\xff"), destination=actor),
        hello + frame(2, message(b"@<>+@atom+@str+@message", atom("spawn") + b"\1x\0\0\3@<>"), flags=1,
                      destination=struct.unpack(">Q", atom("SpawnServ"))[0]),
        hello + frame(2, message(b"@<>+@atom+@str", atom("get") + b"\1x"), flags=1,
                      destination=struct.unpack(">Q", atom("ConfigServ"))[0]),
        hello + frame(3, own + server + message(b"@<>", b""), destination=actor),
        hello + frame(3, own + node_id(random) + message(b"@<>", b""), destination=actor),
        hello + frame(4, server + own, destination=actor),
        hello + frame(4, own + node_id(random), destination=actor),
        hello + frame(5, server + server + error, source=actor),
        hello + frame(random.randrange(256), random.randbytes(random.randrange(200)), random.randrange(256),
                      random.getrandbits(64), random.getrandbits(64), random.getrandbits(64)),
        hello + random.randbytes(random.randrange(32, 300)),
    ])


def text(value):
    return bytes([len(value)]) + value.encode()


def ours(*messages):
    """Messages of ours, each a name and its bytes; ActorHandles as CAF writes them."""
    types = "".join("+" + (name if name == "ActorHandles" else "troupe::" + name) for name, _ in messages)
    values = b"".join(body if name == "ActorHandles" else struct.pack(">I", len(body)) + body for name, body in messages)
    return message(b"@<>" + types.encode(), values)


def harmful(supervisor, server, own, pid):
    """Frames whose form is right, and that would end the Supervisor, or make it end the system."""
    handle = struct.pack(">Q", 7) + own
    nobody, itself = bytes(8) + atom(""), struct.pack(">Q", supervisor) + server
    killed = b"\3" + atom("exit") + b"\0\0\3@<>"
    version = subprocess.run([BINARY, "version"], capture_output=True, text=True, check=True).stdout.split()[1]

    header = (pathlib.Path(__file__).parents[2] / "messages/node.hpp").read_text()
    protocol = int(re.search(r"kProtocolVersion = (\d+)", header).group(1))

    def join(handles):
        body = struct.pack("<I", protocol) + text(version) + text("front") + struct.pack("<qH", pid, 1)
        return ours(("JoinNode", body), ("ActorHandles", bytes([len(handles)]) + b"".join(handles)))

    bodies = [ours(("NodeExited", struct.pack("<IQ", 0xffffff, 1) + b"\0\0")),
              ours(("NodeExited", struct.pack("<IQ", 0, 1) + b"\0\0")),
              ours(("ConfirmLoss", struct.pack("<II", 99, 1) + b"\0")), ours(("ConfirmLoss", struct.pack("<II", 0, 1) + b"\0")),
              ours(("Start", b"")), ours(("Stop", bytes(8))), ours(("CheckNodes", b"")),
              message(b"@<>+@exit", handle + killed), message(b"@<>+@error", killed), message(b"@<>", b""),
              join([nobody, nobody]), join([itself, itself]), join([]), ours(("JoinNode", b"")),
              ours(("JoinNode", b"\xff" * 200)), ours(("LoadProgress", struct.pack("<d", float("nan")))),
              ours(("EndGroup", struct.pack("<I", 99))), ours(("NodeConnected", b"\1")), ours(("Heartbeat", b""))]
    return [frame(2, body, data=7, source=7, destination=supervisor) for body in bodies]


def peak_mib(pid):
    """The most memory that a process has had."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) >> 10


def listening_ports(pid):
    """Those of a process that are no HTTP server's."""
    own = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            own.add(entry.readlink().name)
    rows = [line.split() for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


class ForgedFrames(unittest.TestCase):
    @contextlib.contextmanager
    def streams(self, server):
        """Streams, one after another on four threads, which are compared at the end."""
        expected = [stream(server.port, body(number)) for number in range(NUM_STREAMS)]
        ending, wrong, done = threading.Event(), [], []

        def work(number):
            while not ending.is_set():
                answer = stream(server.port, body(number))
                done.append(number)
                if answer != expected[number]:
                    wrong.append((number, answer))
                number = (number + 5) % NUM_STREAMS

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ending.set()
            for thread in threads:
                thread.join()
        self.assertEqual(wrong, [])
        self.assertGreater(len(done), 0)

    @contextlib.contextmanager
    def unharmed(self, *options):
        """A server of several processes, of which none ends or takes memory; gives it and their ports between nodes."""
        # A sanitizer keeps what is freed, as far as it may.
        sanitizer = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=8"}
        # A KV cache that the streams do not fill for longer than this takes.
        small = ("--num-gpu-blocks-override", "512")
        with Server("--config-file", str(CONFIG), *PATIENT, *small, *options, environment=sanitizer) as server:
            nodes = server.nodes()
            processes = [server.process.pid, *nodes.values()]
            with self.streams(server):
                before = {pid: peak_mib(pid) for pid in processes}
                yield server, [port for pid in processes for port in listening_ports(pid) if port != server.port]
                self.assertEqual(server.nodes(), nodes, server.log()[-2000:])
                for pid in processes:
                    self.assertLess(peak_mib(pid), before[pid] + 64)
            self.assertNotIn("incident", server.log())
            self.assertEqual(server.stop()[0], 0)

    def closed(self, connection):
        """Reads until the other side ends the connection; fails when it does not."""
        connection.settimeout(DEADLINE_S)
        try:
            while connection.recv(4096):
                pass
        except TimeoutError:
            self.fail("the connection is still open")
        except OSError:
            pass

    def test_strangers(self):
        rng = random.Random(7)
        with self.unharmed() as (_, ports):
            self.assertGreaterEqual(len(ports), 4)
            for number in range(NUM_STRANGERS):
                with socket.create_connection(("127.0.0.1", ports[number % len(ports)])) as connection:
                    start = rng.choice([b"", b"", HELLO + rng.randbytes(64), HELLO, b"GET / HTTP/1.1\r\n\r\n"])
                    with contextlib.suppress(OSError):  # the connection may be over by now
                        connection.sendall(start + forged(rng, node_id(rng)))
                        connection.shutdown(socket.SHUT_WR)
                        self.closed(connection)

    def test_peers_with_a_good_certificate(self):
        rng = random.Random(8)
        with tempfile.TemporaryDirectory() as folder:
            make_certificates(folder, "front", "peer")
            context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
            context.check_hostname = False
            context.load_cert_chain(f"{folder}/peer.pem", f"{folder}/peer.key")
            with self.unharmed(*tls_options(folder, "front")) as (_, ports):
                for number in range(NUM_CERTIFIED):
                    with socket.create_connection(("127.0.0.1", ports[number % len(ports)])) as plain:
                        with context.wrap_socket(plain) as connection:
                            connection.settimeout(DEADLINE_S)
                            greeting = connection.recv(64)  # the server's handshake: its id is behind the header
                            while len(greeting) < 64:
                                greeting += connection.recv(64)
                            with contextlib.suppress(ConnectionError, ssl.SSLError):
                                connection.sendall(forged(rng, greeting[32:64]))
                                connection.sendall(frame(255))  # whatever it was, this ends it
                                self.closed(connection)

    def test_messages_of_the_supervisor_to_itself_are_rejected_from_others(self):
        with tempfile.TemporaryDirectory() as folder:
            make_certificates(folder, "front", "peer")
            context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
            context.check_hostname = False
            context.load_cert_chain(f"{folder}/peer.pem", f"{folder}/peer.key")
            rng = random.Random(9)
            with self.unharmed(*tls_options(folder, "front")) as (server, _):
                port = int(re.search(r"waiting for nodes .*port=(\d+)", server.log()).group(1))
                number, count = 0, 1
                while number < count:
                    with socket.create_connection(("127.0.0.1", port)) as plain:
                        with context.wrap_socket(plain) as connection:
                            connection.settimeout(DEADLINE_S)
                            greeting = b""
                            while len(greeting) < 32 or len(greeting) < 32 + struct.unpack(">I", greeting[4:8])[0]:
                                greeting += connection.recv(4096)
                            at = 65  # behind the header, the id, and the names of the application
                            for _ in range(greeting[64]):
                                at += 1 + greeting[at]
                            supervisor = struct.unpack(">Q", greeting[at:at + 8])[0]
                            own = node_id(rng)
                            frames = harmful(supervisor, greeting[32:64], own, server.nodes()["front"])
                            count = len(frames)
                            with contextlib.suppress(ConnectionError, ssl.SSLError):
                                connection.sendall(frame(1, own) + frames[number])
                                connection.sendall(frame(255))
                                self.closed(connection)
                    number += 1
                for line in ("node 'front' has no actors", "a message with an invalid 'troupe::NodeExited'",
                             "an unsolicited message '+@exit'"):
                    wait_until(lambda: line in server.log(), line)


if __name__ == "__main__":
    unittest.main()
