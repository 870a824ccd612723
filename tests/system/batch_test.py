#!/usr/bin/env python3
"""troupe run-batch: a file of OpenAI's batch format, with errors, resumed after kill -9, and beside a running server."""
import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

from support import BINARY, DEADLINE_S, ENVIRONMENT, Server, wait_until

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"], "additionalProperties": False}


def line(custom_id, url="/v1/completions", **body):
    fields = {"model": "demo", "max_tokens": 12, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": fields}


class RunBatch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.input, self.output = self.folder / "in.jsonl", self.folder / "out.jsonl"
        self.errors = self.folder / "out.jsonl.errors"

    def write(self, *lines):
        self.input.write_text("".join(json.dumps(each) + "\n" for each in lines))

    def command(self, *options):
        return [BINARY, "run-batch", "-i", str(self.input), "-o", str(self.output), *options]

    def run_batch(self, *options):
        return subprocess.run(self.command(*options), env=ENVIRONMENT, text=True, capture_output=True, timeout=DEADLINE_S)

    def results(self, file):
        lines = [json.loads(each) for each in file.read_text().splitlines()]
        ids = [each["custom_id"] for each in lines]
        self.assertEqual(len(ids), len(set(ids)))
        return {each["custom_id"]: each for each in lines}

    def test_every_kind_of_request_and_errors_by_themselves(self):
        ask = [{"role": "user", "content": "Who are you?"}]
        self.write(line("text", prompt="Once"), line("chat", "/v1/chat/completions", messages=ask),
                   line("json", "/v1/chat/completions", messages=ask, max_tokens=40,
                        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
                   line("responses", "/v1/responses", input="Who are you?", max_tokens=None, max_output_tokens=16),
                   line("bad", prompt="x", temperature=-1), line("unknown", prompt="x", model="other"))
        done = self.run_batch()
        self.assertEqual(done.returncode, 1, done.stderr)
        good, bad = self.results(self.output), self.results(self.errors)
        self.assertEqual((sorted(good), sorted(bad)), (["chat", "json", "responses", "text"], ["bad", "unknown"]))
        for each in good.values():
            self.assertEqual((each["response"]["status_code"], each["error"]), (200, None))
            self.assertRegex(each["id"], "^batch_req_[0-9a-f]{32}$")
        self.assertLess(json.loads(good["json"]["response"]["body"]["choices"][0]["message"]["content"])["a"], 10)
        self.assertEqual(good["text"]["response"]["body"]["usage"]["completion_tokens"], 12)
        self.assertEqual([bad[each]["response"]["status_code"] for each in ("bad", "unknown")], [400, 404])
        self.assertIn("temperature", bad["bad"]["response"]["body"]["error"]["message"])

        # Nothing is left to do.
        before = self.output.read_bytes(), self.errors.read_bytes()
        self.assertEqual(self.run_batch().returncode, 1)
        self.assertEqual((self.output.read_bytes(), self.errors.read_bytes()), before)

    def test_a_batch_that_was_killed_goes_on_where_it_was(self):
        self.write(*(line(f"r{i}", prompt=f"Once {i}", max_tokens=64, ignore_eos=True) for i in range(300)))
        early = b""
        while not 20 <= early.count(b"\n") < 300:  # again, when it was at its end before it was killed
            self.output.unlink(missing_ok=True)
            process = subprocess.Popen(self.command("--max-in-flight", "8"), env=ENVIRONMENT, stderr=subprocess.DEVNULL)
            wait_until(lambda: self.output.exists() and self.output.read_bytes().count(b"\n") >= 20, "some results")
            process.send_signal(signal.SIGKILL)
            process.wait()
            early = self.output.read_bytes()
        done = self.run_batch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(self.output.read_bytes().startswith(early[:early.rindex(b"\n") + 1]))
        results = self.results(self.output)
        self.assertEqual(len(results), 300)
        with Server() as server:  # the same texts as alone
            again = self.folder / "again.jsonl"
            self.output, self.errors = again, self.folder / "again.errors"
            self.assertEqual(self.run_batch("--url", server.url, "--error-file", str(self.errors)).returncode, 0)
            texts = [{key: each["response"]["body"]["choices"][0]["text"] for key, each in got.items()}
                     for got in (results, self.results(again))]
        self.assertEqual(texts[0], texts[1])

    def test_files_that_do_not_fit_are_refused_before_anything_runs(self):
        for lines, said in (([line("a", prompt="x"), line("a", prompt="y")], "custom_id \"a\" is also in an earlier line"),
                            ([{"custom_id": "a"}], "line 1: method must be a string"),
                            ([line("a", "/health")], "line 1: url is \"/health\"")):
            self.write(*lines)
            done = self.run_batch()
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr)
            self.assertFalse(self.output.exists())
        self.write(line("a", prompt="x"))
        self.output.write_text("precious\n")
        self.assertIn("line 1 is not a result of a batch", self.run_batch().stderr)
        self.assertEqual(self.output.read_text(), "precious\n")
        self.output.unlink()
        topology = pathlib.Path(__file__).resolve().parents[2] / "configs/multi-process.conf"
        self.assertIn("start `troupe serve` with the topology", self.run_batch("--config-file", str(topology)).stderr)
        missing = subprocess.run([BINARY, "run-batch", "-i", "nowhere.jsonl", "-o", str(self.folder / "o")], env=ENVIRONMENT,
                                 text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertIn("cannot read nowhere.jsonl", missing.stderr)


if __name__ == "__main__":
    unittest.main()
