"""What keeps blocks of the KV cache beside an engine, and what may befall it, for the tests that disturb a server."""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

from cache_server_test import CacheServer
from support import reserve_port, wait_until


class Stores:
    """A cache server, a Redis server where there is one, and a folder, which is as small as a disk that fills up where a
    file system can be mounted."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.disk, self.kept, self.redis_folder = (self.folder / name for name in ("disk", "kept", "redis"))
        for each in (self.disk, self.kept, self.redis_folder):
            each.mkdir()
        self.is_mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.disk)],
                                         capture_output=True, check=False).returncode == 0
        if not self.is_mounted:
            print("SKIPPED: a disk that is full, because no file system can be mounted here", file=sys.stderr)
        self.cache_port = reserve_port()
        self.cache_server = CacheServer("--directory", str(self.kept), port=self.cache_port)
        self.redis_port = reserve_port() if shutil.which("redis-server") else None
        self.redis = None
        if self.redis_port is None:
            print("SKIPPED: faults of Redis, because there is no redis-server here", file=sys.stderr)
        else:
            self.start_redis()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cache_server.__exit__()
        if self.redis:
            self.redis.kill()
            self.redis.wait()
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def start_redis(self):
        self.redis = subprocess.Popen(["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "",
                                       "--dir", str(self.redis_folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.redis_port), timeout=1) as client:
                client.sendall(b"PING\r\n")
                return client.recv(16).startswith(b"+PONG")
            return False
        wait_until(answers, "Redis")

    def connectors(self):
        """Of kv-transfer-config: each request is saved in all of them, and loaded from the first one that has it."""
        def both(name, **extra):
            return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
        remotes = [f"lm://127.0.0.1:{self.cache_port}"]
        if self.redis:
            remotes.insert(0, f"redis://127.0.0.1:{self.redis_port}")
        return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"connectors": [
            *(both("LMCacheConnectorV1", **{"lmcache.chunk_size": 16, "lmcache.local_cpu": False, "lmcache.remote_url": remote,
                                            "lmcache.save_decode_cache": True, "lmcache.blocking_timeout_secs": 1,
                                            "lmcache.lookup_timeout_ms": 200})
              for remote in remotes),
            both("OffloadingConnector", num_cpu_blocks=64, secondary_tiers=[{"type": "fs", "root_dir": str(self.disk)}])]}}

    # ---- faults ----

    def kill_cache_server(self):
        self.cache_server.stop(signal.SIGKILL)
        self.cache_server.__exit__()
        self.cache_server = CacheServer("--directory", str(self.kept), port=self.cache_port)

    def kill_redis(self):
        self.redis.kill()
        self.redis.wait()
        self.start_redis()

    def stop_for_a_while(self, process):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)  # longer than its clients wait
        process.send_signal(signal.SIGCONT)

    def fill_disk(self):
        filler = self.disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb") as file:
            while True:
                file.write(bytes(1 << 20))
        time.sleep(0.5)
        filler.unlink()

    def damage_files(self, numbers):
        """Some are cut, in some a bit is flipped."""
        for file in sorted([*self.disk.rglob("*.bin"), *self.kept.rglob("*")]):
            with contextlib.suppress(OSError):  # it is being replaced
                size = file.stat().st_size
                if not file.is_file() or size == 0 or numbers.random() < 0.5:
                    continue
                if numbers.random() < 0.3:
                    os.truncate(file, numbers.randrange(size))
                    continue
                with open(file, "r+b") as opened:
                    place = numbers.randrange(size)
                    opened.seek(place)
                    byte = opened.read(1)
                    opened.seek(place)
                    opened.write(bytes([byte[0] ^ (1 << numbers.randrange(8))]))

    def strike(self, numbers):
        """One of the faults; returns its name."""
        faults = [("cache server killed", self.kill_cache_server),
                  ("cache server stopped", lambda: self.stop_for_a_while(self.cache_server.process)),
                  ("files damaged", lambda: self.damage_files(numbers))]
        if self.redis:
            faults += [("Redis killed", self.kill_redis), ("Redis stopped", lambda: self.stop_for_a_while(self.redis))]
        if self.is_mounted:
            faults.append(("disk full", self.fill_disk))
        name, blow = numbers.choice(faults)
        blow()
        return name
