"""A Troupe server as a user would start it, for the tests that talk to it from outside."""
import contextlib
import fcntl
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

BINARY = os.environ["TROUPE_BINARY"]
DEADLINE_S = float(os.environ.get("TROUPE_TEST_DEADLINE_S", "240"))
# What the binary gets: it reads TROUPE_* as options, and refuses those that it does not know.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("TROUPE_", "LMCACHE_"))}
ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tools" / "demo_model" / "samples"
NETWORK = "troupe-test"  # a network namespace with the second host of multi-node.conf
IP = shutil.which("ip", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
# For a topology of which no process may be taken for dead, however slow the machine is.
PATIENT = ("--node-timeout-s", "100")
# Bounds on times hold on a quiet machine alone: `make test-long` checks them.
IS_TIMED = "TROUPE_TEST_TIMES" in os.environ



def stacks(pid):
    """What every thread of a process is at: for the report of a test whose process hangs."""
    done = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all backtrace 30"],
                          capture_output=True, text=True, timeout=120)
    return done.stdout or done.stderr


def communicate(process, text=None, timeout=DEADLINE_S):
    """Popen.communicate; if the process does not end in time, the error shows what it hangs at."""
    try:
        return process.communicate(text, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        where = stacks(process.pid)
        process.kill()
        written = "".join(f"\nwrote: {each[-2000:]}" for each in process.communicate() if each)
        raise AssertionError(f"{late}{written}\n{where}") from None


def run(arguments, text=None, timeout=DEADLINE_S, environment=None):
    """One run of the binary to its end: exit code, standard output, standard error."""
    process = subprocess.Popen([BINARY, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**ENVIRONMENT, **(environment or {})})
    output, errors = communicate(process, text, timeout)
    return process.returncode, output, errors


def processes():
    """(pid, parent's pid, arguments) of every process that runs."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            yield int(entry.name), int(parent), [each.decode(errors="replace") for each in arguments]


def reserve_port():
    """A port that no other test has and that the system gives to no connection, so that it is free again for whoever comes back
    to it."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"troupe-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    first_of_connections = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in range(first_of_connections - 8000, first_of_connections):
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)  # until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("", port)).close()
            return port
        except OSError:
            os.close(lock)
    raise RuntimeError("no port is free")


def is_running(pid):
    return any(pid == each for each, _, _ in processes())


def nodes_of(supervisor):
    """The processes that a `troupe serve` has started: {name: pid}."""
    return {arguments[2]: pid for pid, parent, arguments in processes()
            if parent == supervisor and len(arguments) > 2 and arguments[1] == "node"}


class Server:
    """`troupe serve` on a port that the system chooses, or on a given one; `with Server(...) as server`."""

    def __init__(self, *arguments, port=0, environment=None, prefix=()):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*prefix, BINARY, "serve", "--port", str(port), *arguments], stdout=subprocess.PIPE, stderr=self.errors, text=True,
            env={**ENVIRONMENT, **(environment or {})})
        self.url = None
        deadline = time.monotonic() + DEADLINE_S
        seen = ""
        while self.url is None:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            line = self.process.stdout.readline() if ready else ""
            if not line:
                self.process.kill()
                raise RuntimeError(f"the server did not start: {seen}{self.log()}")
            seen += line
            match = re.search(r" at (https?://\S+)", line)
            if match:
                self.url = match.group(1)
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()
        self.errors.close()

    def stop(self, sig=signal.SIGTERM):
        """Asks it to end; returns (exit code, what it wrote to standard error)."""
        self.process.send_signal(sig)
        communicate(self.process)
        return self.process.returncode, self.log()

    def log(self):
        """What it has written to standard error so far; also its nodes have."""
        # Reopened: the server writes at the position of the file description.
        return pathlib.Path(f"/proc/self/fd/{self.errors.fileno()}").read_text()

    def nodes(self):
        """The processes that it, or a Supervisor before it, has started on this host: {name: pid}."""
        ports = re.findall(r"waiting for nodes .*port=(\d+)", self.log())
        return {arguments[2]: pid for pid, _, arguments in processes()
                if len(arguments) > 2 and arguments[1] == "node" and arguments[-2] == "--secrets-from-stdin"
                and ports and f"--supervisor-port {ports[-1]} " in " ".join(arguments)}

    def supervisor(self):
        """The process of the Supervisor: with --keep-alive a child of this one."""
        return next((pid for pid, parent, arguments in processes()
                     if parent == self.process.pid and arguments[1:2] == ["serve"]), self.process.pid)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=DEADLINE_S) as response:
            return response.read().decode()

    def metrics(self, *names):
        """The sums over all label sets of some metrics, all of one moment."""
        text = self.get("/metrics")
        sums = []
        for name in names:
            values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
            if not values:
                raise KeyError(name)
            sums.append(sum(map(float, values)))
        return sums

    def metric(self, name):
        """The sum over all label sets of one metric."""
        return self.metrics(name)[0]

    def wait_idle(self):
        """Until at one moment nothing runs or waits and no KV block is in use; returns the share in use at another look."""
        gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        wait_until(lambda: not any(self.metrics(*gauges)), "the engine to be idle")
        return self.metric("vllm:kv_cache_usage_perc")


def cpu_seconds(pid):
    """What a process has used so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid, field):
    """VmRSS now, or VmHWM since reset_peak."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def reset_peak(pid):
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


def leftover_segments(port):
    """What a server at this port has in /dev/shm. (Caches that the servers of a host share belong to none of them.)"""
    return sorted(name for name in os.listdir("/dev/shm") if name.startswith("troupe") and name.endswith(f"-{port}"))


def wait_until(condition, what):
    """Looks again until the condition holds; fails when the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE_S} s in vain for {what}")
        time.sleep(0.01)


def make_certificates(folder, *names, days=3650):
    """What tools/make_certificates.sh makes; returns the options for the first name."""
    subprocess.run([ROOT / "tools" / "make_certificates.sh", folder, *names], check=True, capture_output=True, text=True,
                   env=os.environ | {"DAYS": str(days)})
    return tls_options(folder, names[0])


def tls_options(folder, name):
    return ["--tls-certificate", f"{folder}/{name}.pem", "--tls-key", f"{folder}/{name}.key", "--tls-ca", f"{folder}/ca.pem"]


@contextlib.contextmanager
def second_host():
    """A network namespace, reached from here as multi-node.conf says; gives what sets its link "up" or "down"."""
    def ip(*arguments):
        subprocess.run([IP, *arguments], check=True, capture_output=True, text=True)
    with open(pathlib.Path(tempfile.gettempdir()) / f"{NETWORK}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # there is one such host for all test processes
        # What a test that was killed has left would keep every later one from making it.
        for left in (("link", "delete", "troupe0"), ("netns", "delete", NETWORK)):
            subprocess.run([IP, *left], stderr=subprocess.DEVNULL)
        try:
            ip("netns", "add", NETWORK)
        except subprocess.CalledProcessError as refused:
            print(f"SKIPPED: no second host, because a network namespace cannot be made here: {refused.stderr}", file=sys.stderr)
            raise unittest.SkipTest(refused.stderr) from None
        try:
            ip("link", "add", "troupe0", "type", "veth", "peer", "name", "troupe1", "netns", NETWORK)
            try:
                ip("address", "add", "10.77.0.1/24", "dev", "troupe0")
                ip("link", "set", "troupe0", "up")
                ip("-n", NETWORK, "address", "add", "10.77.0.2/24", "dev", "troupe1")
                ip("-n", NETWORK, "link", "set", "troupe1", "up")
                yield lambda state: ip("link", "set", "troupe0", state)
            finally:
                ip("link", "delete", "troupe0")  # with the namespace it would go some time later
        finally:
            ip("netns", "delete", NETWORK)


@contextlib.contextmanager
def node_process(name, file, *options, prefix=()):
    """`troupe node` as somebody else than the supervisor starts it."""
    command = [*prefix, BINARY, "node", name, "--config-file", file, *options]
    node = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    try:
        yield node
    finally:
        node.kill()
        node.wait()


def node_of_second_host(name, file, *options):
    return node_process(name, file, *options, prefix=(IP, "netns", "exec", NETWORK))
