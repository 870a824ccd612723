"""Models of the Hugging Face Hub: names, cache and downloads, against a server that speaks the Hub's protocol and the
huggingface_hub package, with which Troupe shares its cache."""
import hashlib
import http.server
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest
import urllib.parse

import huggingface_hub

from support import BINARY, DEADLINE_S, ENVIRONMENT, ROOT, Server, run, wait_until

DEMO = ROOT / "tools" / "demo_model" / "model"
LARGE = 100_000  # files above this are stored by their SHA-256
TOKEN = "hf_of_the_test"


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repository:
    """Files under a name, with a commit that changes when they do."""

    def __init__(self, files, private=False, gated=False):
        self.files, self.private, self.gated = dict(files), private, gated
        self.branches = {}
        self.commit()

    def commit(self, branch="main"):
        text = "".join(f"{name} {git_hash(content)}\n" for name, content in sorted(self.files.items()))
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.branches[branch] = self.branches[sha] = (sha, dict(self.files))
        return sha

    def describe(self, sha, files):
        siblings = []
        for name, content in files.items():
            sibling = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            if len(content) > LARGE:
                sibling["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
            siblings.append(sibling)
        return {"id": "test", "sha": sha, "private": self.private, "siblings": siblings}


class Hub:
    """The Hub's API and, on a second port, the servers to which it redirects large files."""

    def __init__(self):
        self.repositories = {}
        self.requests = []  # (port's name, method, path, headers)
        self.interfere = lambda handler, content: content  # may change or break what a download sends
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer()

            def do_GET(self):
                self.answer()

            def answer(self):
                is_storage = self.server is hub.storage
                hub.requests.append(("storage" if is_storage else "hub", self.command, self.path, dict(self.headers)))
                hub.storage_answer(self) if is_storage else hub.answer(self)

            def reply(self, status, body=b"", headers=()):
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        self.server, self.storage = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
        for server in (self.server, self.storage):
            server.daemon_threads = True
            server.handle_error = lambda *_: None  # a client that has finished, or was killed
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url, self.storage_url = (f"http://127.0.0.1:{each.server_address[1]}" for each in (self.server, self.storage))

    def close(self):
        for server in (self.server, self.storage):
            server.shutdown()
            server.server_close()

    def answer(self, handler):
        path = urllib.parse.urlsplit(handler.path).path
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/([^/]+))?", path)
        download = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not (api or download):
            return handler.reply(404)
        repository = self.repositories.get((api or download)[1])
        is_known = handler.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository is None or (repository.private and not is_known):
            return handler.reply(401, b'{"error": "Repository not found"}',
                                 {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        found = repository.branches.get(urllib.parse.unquote((api or download)[2] or "main"))
        if found is None:
            return handler.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        sha, files = found
        if api and "/tree/" in path:
            return handler.reply(200, json.dumps([
                {"type": "file", "path": each["rfilename"], "size": each["size"], "oid": each["blobId"],
                 **({"lfs": {"oid": each["lfs"]["sha256"], **each["lfs"]}} if "lfs" in each else {})}
                for each in repository.describe(sha, files)["siblings"]]).encode())
        if api:
            return handler.reply(200, json.dumps(repository.describe(sha, files)).encode(), {"X-Repo-Commit": sha})
        if repository.gated and not is_known:
            return handler.reply(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        name = urllib.parse.unquote(download[3])
        if name not in files:
            return handler.reply(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        content = files[name]
        if len(content) <= LARGE:
            return self.send(handler, content, {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": sha})
        etag = hashlib.sha256(content).hexdigest()
        handler.reply(302, b"", {"Location": f"{self.storage_url}/{etag}", "X-Linked-Etag": f'"{etag}"',
                                 "X-Linked-Size": str(len(content)), "X-Repo-Commit": sha, "ETag": f'"{git_hash(content)}"'})

    def storage_answer(self, handler):
        etag = handler.path.strip("/")
        for repository in self.repositories.values():
            for _, files in repository.branches.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == etag:
                        return self.send(handler, content, {"ETag": f'"{etag}"'})
        handler.reply(404)

    def send(self, handler, content, headers):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        changed = self.interfere(handler, content) if handler.command == "GET" else content
        if changed is None:  # it has answered itself
            return
        if asked:
            start = int(asked[1])
            end = int(asked[2]) + 1 if asked[2] else len(changed)
            headers = {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(changed)}"}
            return handler.reply(206, changed[start:end], headers)
        handler.reply(200, changed, headers)

    def downloads(self):
        """(path, Range) of each request for a file's bytes."""
        return [(path, headers.get("Range")) for name, method, path, headers in self.requests
                if method == "GET" and (name == "storage" or "/resolve/" in path)]


def cut_after(num_bytes):
    """Sends the beginning of each large file, and closes the connection, once for each file."""
    seen = set()

    def interfere(handler, content):
        if len(content) <= LARGE or handler.path in seen:
            return content
        seen.add(handler.path)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:num_bytes])
        handler.wfile.flush()
        handler.connection.shutdown(2)
        handler.close_connection = True
        return None
    return interfere


class HubTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "home" / "hub"
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.demo = {each.name: each.read_bytes() for each in DEMO.iterdir()}
        self.hub.repositories["troupe/demo"] = Repository(
            {**self.demo, "README.md": b"# Demo\n", ".gitattributes": b"*\n", "pytorch_model.bin": b"0" * 200_000,
             "onnx/config.json": b"{}", "original/params.json": b"{}"})
        self.environment = {"HF_HOME": str(self.folder / "home"), "HF_ENDPOINT": self.hub.url}

    def troupe(self, *arguments, text=None, **environment):
        return run(arguments, text, environment={**self.environment, **environment})

    def pull(self, name, *arguments, **environment):
        code, output, errors = self.troupe("pull", name, *arguments, **environment)
        self.assertEqual(code, 0, errors)
        return pathlib.Path(output.strip()), errors

    def generate(self, model, *arguments, **environment):
        code, output, errors = self.troupe("generate", model, *arguments, text='{"prompt": "Hello", "max_tokens": 4}\n',
                                           **environment)
        self.assertEqual(code, 0, errors)
        return json.loads(output.splitlines()[0])["choices"][0]["text"]

    # ---- Names and places

    def test_a_model_is_served_by_its_name(self):
        with Server("troupe/demo", environment=self.environment) as server:
            model, = json.loads(server.get("/v1/models"))["data"]
            self.assertEqual(model["id"], "troupe/demo")
            self.assertIn("downloading 100% 8.3 MB of 8.3 MB", server.log())
        names = sorted(path.rsplit("/", 1)[-1] for path, _ in self.hub.downloads())
        self.assertEqual(len(names), len(self.demo) + 2)  # the weights and the tokenizer by way of the storage
        before = len(self.hub.requests)
        with Server("hf://troupe/demo", environment=self.environment):  # a second time nothing is asked
            self.assertEqual(len(self.hub.requests), before)

    def test_the_nodes_of_a_topology_load_the_same_commit(self):
        config = ROOT / "configs" / "multi-process.conf"
        self.pull("troupe/demo")
        with Server("--config-file", str(config), "troupe/demo", environment=self.environment) as server:
            commit, _ = self.hub.repositories["troupe/demo"].branches["main"]
            for pid in server.nodes().values():
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                self.assertEqual(arguments[arguments.index("--revision") + 1], commit)

    def test_revisions(self):
        repository = self.hub.repositories["troupe/demo"]
        first = repository.commit()
        repository.files["generation_config.json"] = b'{"do_sample": false}'
        second = repository.commit("v2/beta")
        self.assertEqual(self.pull("troupe/demo")[0].name, first)
        self.assertEqual(self.pull("troupe/demo@v2/beta")[0].name, second)
        self.assertEqual(self.pull("troupe/demo", "--revision", "v2/beta")[0].name, second)
        self.assertEqual(self.pull(f"troupe/demo@{first}")[0].name, first)
        self.assertEqual(len([path for path, _ in self.hub.downloads() if "model.safetensors" in path]), 1)
        code, output, _ = self.troupe("list")
        self.assertEqual((code, [line.split()[0] for line in output.splitlines()]),
                         (0, ["NAME", "troupe/demo", "troupe/demo@v2/beta"]))
        code, _, errors = self.troupe("pull", "troupe/demo@none")
        self.assertEqual(code, 1)
        self.assertIn("troupe/demo@none does not exist", errors)
        repository.commit()
        self.assertEqual(self.pull("troupe/demo")[0].name, second)  # pull asks what main is now

    def test_gguf_files(self):
        def part(name):
            return b"GGUF" + name.encode() + b"0" * 10

        names = ["demo-Q8_0.gguf", "demo-Q4_K_M-00001-of-00002.gguf", "demo-Q4_K_M-00002-of-00002.gguf", "demo-IQ4_K_M.gguf",
                 "mmproj-demo-Q8_0.gguf", "sub/demo-F16.gguf"]
        self.hub.repositories["troupe/gguf"] = Repository({name: part(name) for name in names})
        self.assertEqual(self.pull("troupe/gguf:demo-Q8_0.gguf")[0].name, "demo-Q8_0.gguf")
        self.assertEqual(self.pull("troupe/gguf:q8_0")[0].name, "demo-Q8_0.gguf")
        self.assertEqual(self.pull("troupe/gguf:F16")[0].read_bytes(), part("sub/demo-F16.gguf"))
        first = self.pull("troupe/gguf:Q4_K_M")[0]
        self.assertEqual(first.name, "demo-Q4_K_M-00001-of-00002.gguf")
        self.assertEqual((first.parent / "demo-Q4_K_M-00002-of-00002.gguf").read_bytes(), part(names[2]))
        for wanted, word in ((":Q2_K", "no GGUF file 'Q2_K'; it has demo-IQ4_K_M.gguf"), ("", "name one of its GGUF files")):
            code, _, errors = self.troupe("serve", "troupe/gguf" + wanted, "--port", "0")
            self.assertEqual(code, 1)
            self.assertIn(word, errors)
            self.assertIn("demo-Q8_0.gguf", errors)

    def test_a_draft_model_is_found_as_well(self):
        speculative = json.dumps({"model": "troupe/demo", "num_speculative_tokens": 2})
        alone = self.generate(str(DEMO))
        self.assertEqual(self.generate(str(DEMO), "--speculative-config", speculative), alone)
        self.assertEqual(self.generate(str(DEMO), "--speculative-config", speculative, HF_HUB_OFFLINE="1"), alone)

    # ---- The cache that is shared with the Python package

    def test_the_python_package_finds_what_troupe_has_downloaded(self):
        place, _ = self.pull("troupe/demo")
        found = huggingface_hub.snapshot_download("troupe/demo", cache_dir=self.cache, local_files_only=True)
        self.assertEqual(pathlib.Path(found), place)
        self.assertEqual({each.name: each.read_bytes() for each in place.iterdir()}, self.demo)
        repository, = huggingface_hub.scan_cache_dir(self.cache).repos
        revision, = repository.revisions
        self.assertEqual((repository.repo_id, revision.refs), ("troupe/demo", {"main"}))
        self.assertEqual(revision.size_on_disk, sum(map(len, self.demo.values())))
        before = len(self.hub.downloads())
        again = huggingface_hub.snapshot_download("troupe/demo", cache_dir=self.cache, endpoint=self.hub.url,
                                                  allow_patterns=["*.json", "*.safetensors"], ignore_patterns=["*/*"])
        self.assertEqual((pathlib.Path(again), len(self.hub.downloads())), (place, before))

    def test_troupe_finds_what_the_python_package_has_downloaded(self):
        place = huggingface_hub.snapshot_download("troupe/demo", cache_dir=self.cache, endpoint=self.hub.url)
        before = len(self.hub.requests)
        self.assertTrue(self.generate("troupe/demo", HF_HUB_OFFLINE="1"))
        self.assertTrue(self.generate("troupe/demo"))
        self.assertEqual(len(self.hub.requests), before)
        self.assertEqual(str(self.pull("troupe/demo")[0]), place)
        self.assertEqual(len(self.hub.requests), before + 1)  # what main is

    def test_a_snapshot_that_is_not_whole_is_completed(self):
        huggingface_hub.snapshot_download("troupe/demo", cache_dir=self.cache, endpoint=self.hub.url,
                                          allow_patterns=["*.json"])
        code, _, errors = self.troupe("generate", "troupe/demo", HF_HUB_OFFLINE="1")
        self.assertEqual(code, 1)
        self.assertIn("HF_HUB_OFFLINE", errors)
        before = len(self.hub.downloads())
        self.assertTrue(self.generate("troupe/demo"))
        self.assertEqual(len(self.hub.downloads()), before + 2)  # the weights alone, redirected

    def test_another_folder(self):
        place, _ = self.pull("troupe/demo", "--download-dir", str(self.folder / "here"))
        self.assertTrue(place.is_relative_to(self.folder / "here"))
        self.assertFalse(self.cache.exists())
        self.assertTrue(self.generate("troupe/demo", "--download-dir", str(self.folder / "here"), HF_HUB_OFFLINE="1"))

    # ---- What goes wrong

    def test_an_interrupted_download_goes_on_where_it_stopped(self):
        self.hub.interfere = cut_after(3_000_000)
        place, errors = self.pull("troupe/demo")
        self.assertEqual((place / "model.safetensors").read_bytes(), self.demo["model.safetensors"])
        self.assertIn("download interrupted file=model.safetensors", errors)
        ranges = [asked for path, asked in self.hub.downloads() if asked]
        self.assertEqual(len(ranges), 2)  # through the redirection
        self.assertGreater(int(ranges[0][6:-1]), 0)

    def test_a_download_that_was_killed_goes_on_where_it_stopped(self):
        held, begun = threading.Event(), threading.Event()

        def hold(handler, content):
            if len(content) < 1_000_000 or held.is_set():
                return content
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content[:3_000_000])
            handler.wfile.flush()
            begun.set()
            held.wait(DEADLINE_S)
            handler.close_connection = True
            return None
        self.hub.interfere = hold
        process = subprocess.Popen([BINARY, "pull", "troupe/demo"], stderr=subprocess.DEVNULL,
                                   env={**ENVIRONMENT, **self.environment})
        self.assertTrue(begun.wait(DEADLINE_S))
        blobs = self.cache / "models--troupe--demo" / "blobs"
        wait_until(lambda: sum(each.stat().st_size for each in blobs.glob("*.incomplete")) > 1_000_000, "bytes on the disk")
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.assertFalse((self.cache / "models--troupe--demo" / "refs").exists())
        held.set()
        place, _ = self.pull("troupe/demo")
        self.assertEqual((place / "model.safetensors").read_bytes(), self.demo["model.safetensors"])
        self.assertTrue(any(asked for _, asked in self.hub.downloads()))
        self.assertEqual(list(blobs.glob("*.incomplete")), [])

    def test_two_downloads_of_the_same_model_share_the_work(self):
        processes = [subprocess.Popen([BINARY, "pull", "troupe/demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, env={**ENVIRONMENT, **self.environment}) for _ in range(3)]
        outputs = {process.communicate(timeout=DEADLINE_S)[0] for process in processes}
        self.assertEqual(([process.returncode for process in processes], len(outputs)), ([0, 0, 0], 1))
        self.assertEqual(len([path for path, _ in self.hub.downloads() if "/resolve/" not in path]), 2)

    def test_wrong_bytes_are_not_taken(self):
        count = []

        def change(handler, content):
            count.append(1)
            return bytes(reversed(content)) if len(content) > 1_000_000 else content
        self.hub.interfere = change
        code, _, errors = self.troupe("pull", "troupe/demo")
        self.assertEqual(code, 1)
        self.assertIn("model.safetensors: downloaded twice with a wrong hash", errors)
        self.hub.interfere = lambda handler, content: content + b"0" if len(content) > 1_000_000 else content
        code, _, errors = self.troupe("pull", "troupe/demo")
        self.assertEqual(code, 1)
        self.assertIn("more than the 8176392 bytes", errors)
        self.hub.interfere = lambda handler, content: content
        self.assertTrue(self.generate("troupe/demo"))

    def test_what_the_hub_refuses(self):
        self.hub.repositories["troupe/private"] = Repository(self.demo, private=True)
        self.hub.repositories["troupe/gated"] = Repository(self.demo, gated=True)
        for name, word in (("troupe/none", "troupe/none does not exist"), ("troupe/private", "set HF_TOKEN"),
                           ("troupe/gated", "gated: accept its conditions")):
            code, _, errors = self.troupe("serve", name, "--port", "0")
            self.assertEqual(code, 1, errors)
            self.assertIn(word, errors)
        for name in ("troupe/private", "troupe/gated"):
            self.pull(name, HF_TOKEN=TOKEN)
        self.assertFalse([1 for name, _, _, headers in self.hub.requests if name == "storage" and "Authorization" in headers])
        token = self.folder / "home" / "token"
        shutil.rmtree(self.cache)
        token.write_text(TOKEN + "\n")
        self.pull("troupe/private")

    def test_a_hub_that_is_busy_is_asked_again(self):
        left = [2]

        def busy(handler, content):
            if left[0] <= 0:  # several threads count
                return content
            left[0] -= 1
            return handler.reply(429, b"", {"Retry-After": "0"})
        self.hub.interfere = busy
        self.pull("troupe/demo")

    def test_without_a_network_an_error_says_what_to_do(self):
        nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1"}
        code, _, errors = self.troupe("serve", "troupe/demo", "--port", "0", **nowhere)
        self.assertEqual(code, 1)
        self.assertIn("http://127.0.0.1:1 cannot be reached", errors)
        self.assertIn("`troupe pull troupe/demo` where there is a network", errors)
        code, _, errors = self.troupe("pull", "troupe/demo", **nowhere)
        self.assertEqual(code, 1)
        self.assertIn("http://127.0.0.1:1 cannot be reached", errors)
        self.assertIn("HF_ENDPOINT names a mirror", errors)
        code, _, errors = self.troupe("serve", "troupe/demo", "--port", "0", HF_HUB_OFFLINE="1")
        self.assertEqual(code, 1)
        self.assertIn("HF_HUB_OFFLINE forbids", errors)

    def test_paths_that_leave_the_cache_are_refused(self):
        for name in ("../../evil.json", "/etc/evil.json", "a/../../evil.json"):
            self.hub.repositories["troupe/evil"] = Repository({**self.demo, name: b"{}"})
            code, _, errors = self.troupe("pull", "troupe/evil")
            self.assertEqual(code, 1)
            self.assertIn("no valid file name", errors)
        self.assertFalse(list(self.folder.rglob("evil.json")))

    def test_too_little_space_is_found_before_the_download(self):
        repository = self.hub.repositories["troupe/demo"]
        describe = repository.describe

        def huge(sha, files):
            text = describe(sha, files)
            for sibling in text["siblings"]:
                if sibling["rfilename"] == "model.safetensors":
                    sibling["lfs"]["size"] = 10 ** 18
            return text
        repository.describe = huge
        code, _, errors = self.troupe("pull", "troupe/demo")
        self.assertEqual(code, 1)
        self.assertRegex(errors, r"has \S+ \S+ free, the download needs 1000000 TB")
        self.assertEqual(self.hub.downloads(), [])


if __name__ == "__main__":
    unittest.main()
