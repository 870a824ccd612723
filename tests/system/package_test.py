#!/usr/bin/env python3
"""What `cmake --install` puts into a prefix is enough for an application of its own: tests/example is configured and
built in an empty folder against it, runs, and loses nothing when a worker is killed. Python's standard library only.

TROUPE_BUILD_DIR: the build folder to install from."""
import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from support import DEADLINE_S, ENVIRONMENT, ROOT, nodes_of

BUILD = os.environ["TROUPE_BUILD_DIR"]
EXAMPLE = ROOT / "tests" / "example"
NUM_TOKENS = 1900  # more than a pipe takes, so that the program waits for its reader


def run(*command, cwd=None):
    """Its standard output; what it wrote elsewhere is the report of its failure."""
    done = subprocess.run([str(each) for each in command], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True,
                          timeout=2 * DEADLINE_S)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        # The example lies alone: nothing of the tree is near it.
        shutil.copytree(EXAMPLE, cls.folder / "example")
        build = cls.folder / "build"
        run("cmake", "-S", cls.folder / "example", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={cls.prefix}")
        run("cmake", "--build", build)
        cls.program = build / "storyteller"

    def config(self, *lines):
        path = self.folder / f"{self.id()}-{len(lines)}.ini"
        path.write_text("\n".join(["[troupe]", f'model="{self.prefix}/share/troupe/demo_model"', 'log-level="error"',
                                   'kv-cache-memory-bytes="16M"', *lines]) + "\n")
        return f"--config-file={path}"

    def several_processes(self):
        return self.config(f'config-file="{self.prefix}/share/troupe/configs/multi-process.conf"',
                           f'node-program="{self.prefix}/bin/troupe"')

    def test_an_application_streams_and_loses_nothing_to_a_killed_worker(self):
        whole = run(self.program, self.config(), f"--num-tokens={NUM_TOKENS}")
        self.assertGreater(len(whole), 100)
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen([self.program, self.several_processes(), f"--num-tokens={NUM_TOKENS}"],
                                       env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors, text=True)
            self.addCleanup(process.kill)
            deadline = threading.Timer(2 * DEADLINE_S, process.kill)
            self.addCleanup(deadline.cancel)
            deadline.start()
            with process:
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
                text = process.stdout.read(20)
                os.kill(nodes_of(process.pid)["worker-0"], signal.SIGKILL)
                text += process.stdout.read()
            errors.seek(0)
            report = errors.read()
        self.assertEqual(process.returncode, 0, report)
        self.assertIn("node worker-0 ended: killed by signal 9", report)
        self.assertEqual(text, whole)

    def test_a_failed_start_reports_the_reason(self):
        for lines, message in ((("max-num-seqs=0",), "max-num-seqs"), (('dtype="int3"',), "int3")):
            done = subprocess.run([self.program, self.config(*lines)], env=ENVIRONMENT, capture_output=True, text=True,
                                  timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)

    def test_installed_headers_define_no_macro_without_the_prefix(self):
        headers = list((self.prefix / "include").rglob("*.hpp"))
        self.assertGreater(len(headers), 10)
        for header in headers:
            text = header.read_text()
            for name in re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE):
                self.assertTrue(name.startswith("TROUPE_"), f"{header}: {name}")
            for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
                self.assertTrue((self.prefix / "include" / name).is_file(), f"{header}: {name}")
        self.assertFalse((self.prefix / "include" / "troupe" / "kernels").exists())

    def test_pkg_config_knows_the_library(self):
        environment = {**ENVIRONMENT, "PKG_CONFIG_PATH": str(next(self.prefix.rglob("pkgconfig")))}
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "troupe"], env=environment, capture_output=True,
                               text=True, check=True).stdout.split()
        includes = [pathlib.Path(flag[2:]).resolve() for flag in flags if flag.startswith("-I")]
        self.assertIn((self.prefix / "include").resolve(), includes)
        # The example's own object, linked by the flags alone.
        program = self.folder / "by-pkg-config"
        run("c++", *(self.folder / "build").rglob("storyteller.cpp.o"), *flags, "-o", program)
        self.assertNotIn("not found", run("ldd", program))


if __name__ == "__main__":
    unittest.main(verbosity=2)
