#!/usr/bin/env python3
"""Kinds of the processor cache: what is processed and sent again, and what happens when processes come and go."""
import contextlib
import ctypes
import mmap
import os
import pathlib
import random
import re
import signal
import unittest

from dev_mode_test import post
from encoder_transfer_test import OPTIONS, ask
from support import ROOT, Server

CONFIG = str(ROOT / "configs" / "multi-process.conf")
NUM_IMAGES = 6
# An image of the model's size: 56 x 56 pixels, and the values of their levels.
IMAGE_BYTES = 3 * (56 * 56 + 1024) + 32


def kind(name, gigabytes=0.1):
    return ("--mm-processor-cache-type", name, "--mm-processor-cache-gb", str(gigabytes), "--server-dev-mode")


def counts(server):
    """Queries and hits."""
    return tuple(map(int, server.metrics("vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total")))


def segment_of(pid):
    """The file that a process has mapped."""
    files = set(re.findall(r"/dev/shm/troupe-mm-\S+", pathlib.Path(f"/proc/{pid}/maps").read_text()))
    assert len(files) == 1, files
    return files.pop()


@contextlib.contextmanager
def locked(segment):
    """Its mutex is held, as by a process that was stopped: it follows five numbers of the header."""
    with open(segment, "r+b") as file, mmap.mmap(file.fileno(), 4096) as memory:
        library = ctypes.CDLL(None)
        mutex = (ctypes.c_char * 40).from_buffer(memory, 5 * 8)
        assert library.pthread_mutex_lock(mutex) == 0
        yield
        library.pthread_mutex_unlock(mutex)
        del mutex


class ProcessorCache(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*OPTIONS, *kind("lru", 0)) as server:
            cls.expected = [ask(server, seed) for seed in range(NUM_IMAGES)]
            for seed in range(2):
                ask(server, seed)
            assert counts(server)[1] == 0

    def check(self, server, seeds=range(NUM_IMAGES)):
        for seed in seeds:
            self.assertEqual(ask(server, seed), self.expected[seed])

    def test_images_that_were_seen_are_not_processed_again_until_a_reset(self):
        for name, config in (("lru", ("--config-file", CONFIG)), ("shm", ("--config-file", CONFIG)), ("processor_only", ())):
            with self.subTest(kind=name), Server(*OPTIONS, *kind(name), *config) as server:
                self.check(server)
                self.check(server)
                self.assertEqual(counts(server), (2 * NUM_IMAGES, NUM_IMAGES))
                self.assertEqual(post(server, "/reset_mm_cache")[0], 200)
                self.check(server, [0, 0])
                self.assertEqual(counts(server), (2 * NUM_IMAGES + 2, NUM_IMAGES + 1))
                self.assertEqual(server.stop()[0], 0)

    def test_an_engine_that_has_lost_its_cache_or_has_room_for_two_gets_images_again(self):
        seeds = random.Random(5).choices(range(NUM_IMAGES), k=20)
        with Server(*OPTIONS, *kind("lru", 2.5 * IMAGE_BYTES / 2 ** 30), "--config-file", CONFIG) as server:
            self.check(server, seeds)
            queries, hits = counts(server)
            self.assertEqual(queries, len(seeds))
            self.assertTrue(0 < hits < len(seeds) - NUM_IMAGES, hits)
            for name in ("core", "worker-0"):
                os.kill(server.nodes()[name], signal.SIGKILL)
                self.check(server, [0, 1, 0])

    def test_servers_of_a_host_share_a_segment_and_killed_ones_leave_it_usable(self):
        with Server(*OPTIONS, *kind("shm"), "--config-file", CONFIG) as first:
            self.check(first)
            segment = segment_of(first.nodes()["front"])
            self.assertEqual(segment_of(first.nodes()["core"]), segment)
            with Server(*OPTIONS, *kind("shm")) as second:
                self.check(second)
                self.assertEqual(counts(second), (NUM_IMAGES, NUM_IMAGES))
                self.assertEqual(segment_of(second.process.pid), segment)
                with locked(segment):
                    self.check(first, [0, 1])
                    self.check(second, [0])
                self.assertEqual((counts(second), counts(first)[1]), ((NUM_IMAGES + 1, NUM_IMAGES), 0))
                for name in ("core", "front"):
                    os.kill(first.nodes()[name], signal.SIGKILL)
                self.check(second)
                second.process.kill()
                second.process.wait()
        # The next server starts with an empty cache, whatever was left.
        with Server(*OPTIONS, *kind("shm")) as last:
            self.check(last)
            self.assertEqual(counts(last), (NUM_IMAGES, 0))
            self.assertEqual(segment_of(last.process.pid), segment)
            self.assertEqual(last.stop()[0], 0)
        self.assertFalse(os.path.exists(segment))


if __name__ == "__main__":
    unittest.main()
