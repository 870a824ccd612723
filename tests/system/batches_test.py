#!/usr/bin/env python3
"""/v1/files and /v1/batches with the OpenAI Python package, through kill -9 in the middle."""
import json
import pathlib
import shutil
import tempfile
import unittest

import openai

from support import Server, wait_until


def line(custom_id, url="/v1/completions", **body):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "demo", "temperature": 0, **body}}


class Batches(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, *options):
        return self.enterContext(Server("--served-model-name", "demo", "--batch-directory", self.folder, *options))

    def client(self, server, key="ada"):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)
        self.addCleanup(client.close)
        return client

    def create(self, client, lines, endpoint="/v1/completions", **arguments):
        content = "".join(json.dumps(each) + "\n" for each in lines).encode()
        file = client.files.create(file=("requests.jsonl", content), purpose="batch")
        self.assertEqual((file.bytes, file.filename, file.purpose), (len(content), "requests.jsonl", "batch"))
        self.assertEqual(client.files.content(file.id).read(), content)
        return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **arguments)

    def wait(self, client, batch, *statuses):
        wait_until(lambda: client.batches.retrieve(batch.id).status in statuses, f"a batch that is {statuses}")
        return client.batches.retrieve(batch.id)

    def wait_completed(self, client, batch, count):
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= count, f"{count} answers")

    def results(self, client, file_id):
        lines = [json.loads(each) for each in client.files.content(file_id).text.splitlines()]
        results = {each["custom_id"]: each for each in lines}
        self.assertEqual(len(results), len(lines))
        return results

    def test_chats_are_answered_as_by_a_request_of_their_own(self):
        server = self.start()
        client = self.client(server)
        ask = [{"role": "user", "content": "Who are you?"}]
        batch = self.create(client, [line("a", "/v1/chat/completions", messages=ask),
                                     line("b", "/v1/chat/completions", messages=ask, temperature=9),
                                     line("c", "/v1/chat/completions", messages=ask, max_tokens=3)],
                            "/v1/chat/completions", metadata={"job": "nightly"})
        self.assertEqual((batch.object, batch.status, batch.metadata), ("batch", "validating", {"job": "nightly"}))
        batch = self.wait(client, batch, "completed", "failed")
        self.assertEqual((batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed), (3, 2, 1))
        good = self.results(client, batch.output_file_id)
        bad = self.results(client, batch.error_file_id)
        alone = client.chat.completions.create(model="demo", messages=ask, temperature=0)
        self.assertEqual(good["a"]["response"]["body"]["choices"][0]["message"]["content"], alone.choices[0].message.content)
        self.assertEqual(good["c"]["response"]["body"]["usage"]["completion_tokens"], 3)
        self.assertEqual(bad["b"]["response"]["status_code"], 400)
        self.assertIn("temperature", bad["b"]["response"]["body"]["error"]["message"])
        names = {each.id: each.filename for each in client.files.list()}
        self.assertEqual(names[batch.output_file_id], f"{batch.id}_output.jsonl")
        self.assertEqual([each.id for each in client.batches.list(limit=5)], [batch.id])
        self.assertTrue(client.files.delete(batch.output_file_id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.retrieve(batch.output_file_id)

    def test_a_killed_server_goes_on_where_it_was(self):
        early = b""
        while not 10 <= early.count(b"\n") < 120:  # another one, when it was at its end before the server was killed
            shutil.rmtree(self.folder)
            pathlib.Path(self.folder).mkdir()
            server = self.start("--max-batch-in-flight", "4")
            client = self.client(server)
            batch = self.create(client, [line(f"r{i}", prompt=f"Once {i}", max_tokens=48, ignore_eos=True) for i in range(120)])
            self.wait_completed(client, batch, 10)
            server.process.kill()
            server.process.wait()
            outputs = [each for each in pathlib.Path(self.folder, "files").iterdir() if b"status_code" in each.read_bytes()[:500]]
            self.assertEqual(len(outputs), 1)
            early = outputs[0].read_bytes()
        server = self.start("--max-batch-in-flight", "16")
        client = self.client(server)
        batch = self.wait(client, batch, "completed", "failed")
        self.assertEqual((batch.request_counts.completed, batch.request_counts.failed), (120, 0))
        content = client.files.content(batch.output_file_id).read()
        self.assertTrue(content.startswith(early[:early.rindex(b"\n") + 1]))
        results = self.results(client, batch.output_file_id)
        self.assertEqual(sorted(results), sorted(f"r{i}" for i in range(120)))
        self.assertTrue(all(each["response"]["body"]["usage"]["completion_tokens"] == 48 for each in results.values()))

    def test_a_batch_is_cancelled_and_keeps_what_is_done(self):
        client = self.client(self.start("--max-batch-in-flight", "2"))
        # Minutes of work, so that it is not at its end before it is cancelled.
        batch = self.create(client, [line(f"r{i}", prompt="Once", max_tokens=64, ignore_eos=True) for i in range(10_000)])
        self.wait_completed(client, batch, 3)
        self.assertEqual(client.batches.cancel(batch.id).status, "cancelling")
        batch = self.wait(client, batch, "cancelled")
        self.assertLess(batch.request_counts.completed, 10_000)
        self.assertEqual(len(self.results(client, batch.output_file_id)), batch.request_counts.completed)
        with self.assertRaisesRegex(openai.BadRequestError, "Cannot cancel a batch with status 'cancelled'"):
            client.batches.cancel(batch.id)

    def test_each_key_sees_its_own(self):
        server = self.start("--api-key", "ada", "--api-key", "bob")
        ada, bob = self.client(server), self.client(server, "bob")
        batch = self.create(ada, [line("a", prompt="Once", max_tokens=2)])
        self.assertEqual((list(bob.files.list()), list(bob.batches.list())), ([], []))
        for call in (lambda: bob.batches.retrieve(batch.id), lambda: bob.batches.cancel(batch.id),
                     lambda: bob.files.content(batch.input_file_id)):
            with self.assertRaises(openai.NotFoundError):
                call()
        batch = self.wait(ada, batch, "completed")
        self.assertEqual(len(self.results(ada, batch.output_file_id)), 1)
        wait_until(lambda: "client=batch key=1" in server.log(), "the line in the log")
        with self.assertRaises(openai.AuthenticationError):
            self.client(server, "eve").files.list()


if __name__ == "__main__":
    unittest.main()
