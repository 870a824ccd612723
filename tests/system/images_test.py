#!/usr/bin/env python3
"""Images in requests, through the clients of OpenAI, Anthropic and Ollama: captions of the demo model, where an image may come
from, what is cached, and what a bad image gets."""
import base64
import concurrent.futures
import contextlib
import http.server
import io
import json
import pathlib
import random
import struct
import sys
import tempfile
import threading
import unittest
import zlib

import anthropic
import ollama
import openai
from PIL import Image

from support import DEADLINE_S, ROOT, SAMPLES, Server, memory, reset_peak, run, wait_until

sys.path.insert(0, str(ROOT / "tools" / "demo_model" / "train"))
import data as demo_data  # noqa: E402

EXPECTED = json.loads((SAMPLES / "expected.json").read_text())
QUESTION = "What is in the picture?"
RED_CIRCLE = "The picture shows a red circle in the centre."
TWO_STARS = EXPECTED["two_stars.png"]["caption"]


def data_url(content, kind="png"):
    return f"data:image/{kind};base64," + base64.b64encode(content).decode()


def sample(name):
    return (SAMPLES / name).read_bytes()


def image_part(url, **more):
    return {"type": "image_url", "image_url": {"url": url}, **more}


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_header(width, height, rows=b""):
    """A PNG that says that it has this size."""
    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


class Media(http.server.BaseHTTPRequestHandler):
    """A host with images."""
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/slow":  # until the client has had enough
            self.connection.settimeout(DEADLINE_S)
            with contextlib.suppress(OSError):
                self.connection.recv(1)
            self.close_connection = True
            return
        if self.path.startswith("/meet/"):  # answered when all that were asked for are waited for
            self.server.visits.append(self.path)
            with contextlib.suppress(threading.BrokenBarrierError):
                self.server.meeting.wait(DEADLINE_S)
            self.path = "/" + self.path.rsplit("/", 1)[1]
        if self.path.startswith("/to?"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        found = SAMPLES / self.path[1:]
        content = found.read_bytes() if found.is_file() else b"not here"
        self.send_response(200 if found.is_file() else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_):
        pass


class MediaHost(http.server.ThreadingHTTPServer):
    request_queue_size = 128


class Images(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.media = MediaHost(("127.0.0.1", 0), Media)
        cls.media.visits, cls.media.meeting = [], None
        threading.Thread(target=cls.media.serve_forever, daemon=True).start()
        cls.addClassCleanup(cls.media.shutdown)
        options = ("--served-model-name", "demo", "--allowed-local-media-path", str(SAMPLES), "--allowed-media-domains", "127.0.0.1",
                   "--allowed-media-domains", "localhost.localdomain", "--limit-mm-per-prompt", '{"image": 5}',
                   "--enable-prompt-tokens-details", "--ec-manager-config", '{"encoder_cache_manager_cls": "LfuEncoderCacheManager"}')
        cls.server, cls.impatient_server = (cls.enterClassContext(Server(*options, environment={"VLLM_IMAGE_FETCH_TIMEOUT": limit}))
                                            for limit in (str(int(DEADLINE_S)), "2"))
        cls.client, cls.impatient_client = (
            openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=DEADLINE_S, max_retries=0)
            for server in (cls.server, cls.impatient_server))

    def ask(self, *parts, client=None, **options):
        content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        return (client or self.client).chat.completions.create(
            model="demo", messages=[{"role": "user", "content": content}], temperature=0, **{"max_tokens": 80, **options})

    def caption(self, *parts, **options):
        return self.ask(*parts, **options).choices[0].message.content

    def refused(self, *parts, code=400, **options):
        with self.assertRaises(openai.APIStatusError, msg=str(parts)[:200]) as raised:
            self.ask(*parts, **options)
        self.assertEqual(raised.exception.status_code, code, raised.exception.message[:300])
        return raised.exception.body["message"]

    def test_the_samples(self):
        for name, expected in EXPECTED.items():
            self.assertEqual(self.caption(image_part(data_url(sample(name))), expected["prompt"]), expected["caption"])
            self.assertEqual(self.caption(expected["prompt"], image_part(data_url(sample(name)))), expected["caption"])

    def test_images_that_the_model_has_not_seen(self):
        """In every format; several requests at once."""
        maker = random.Random(20261125)
        scenes = [demo_data.scene(maker) for _ in range(100)]
        formats = [("PNG", {}), ("WEBP", {"lossless": True}), ("BMP", {}), ("JPEG", {"quality": 95, "subsampling": 0}), ("GIF", {})]

        def right(index):
            kind, options = formats[index % len(formats)]
            image = demo_data.render(scenes[index], size=384, scale=1)
            question, answer = demo_data.q_caption(random.Random(index), scenes[index])
            return self.caption(image_part(data_url(encoded(image, kind, **options), kind.lower())), question) == answer

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertGreaterEqual(sum(pool.map(right, range(len(scenes)))), 90)

    def test_where_an_image_may_come_from(self):
        port = self.media.server_port
        for url in (data_url(sample("red_circle.png")), (SAMPLES / "red_circle.png").as_uri(),
                    f"http://127.0.0.1:{port}/red_circle.png", f"http://127.0.0.1:{port}/to?/red_circle.png"):
            self.assertEqual(self.caption(image_part(url), QUESTION), RED_CIRCLE, url[:60])
        for url, word in (("file:///etc/hostname", "allowed-local-media-path"),
                          ((SAMPLES / ".." / "model" / "config.json").as_uri().replace("model", "samples/../model"), "allowed-local"),
                          ((SAMPLES / "none.png").as_uri(), "none.png"), ("file:red_circle.png", "file"),
                          (f"http://localhost:{port}/red_circle.png", "localhost"), ("https://example.com/a.png", "example.com"),
                          (f"http://127.0.0.1:{port}/to?http://169.254.169.254/latest", "169.254.169.254"),
                          ("ftp://127.0.0.1/a.png", "ftp"), ("http:///a.png", "may not be asked"),
                          ("data:image/png,abc", "base64"), ("data:image/png;base64,a*c=", "base64")):
            self.assertIn(word, self.refused(image_part(url), QUESTION), url)
        self.assertIn("404", self.refused(image_part(f"http://127.0.0.1:{port}/none.png"), QUESTION))
        self.assertIn("2 s, the limit (image-fetch-timeout-s)", self.refused(image_part(f"http://127.0.0.1:{port}/slow"), QUESTION, client=self.impatient_client))
        with self.assertRaisesRegex(RuntimeError, "VLLM_IMAGE_FETCH_TIMEOUT: image-fetch-timeout-s = 'soon'"):
            Server(environment={"VLLM_IMAGE_FETCH_TIMEOUT": "soon"})
        self.assertIn("cannot be asked", self.refused(image_part("http://127.0.0.1:1/a.png"), QUESTION))

    def test_images_of_a_request_are_fetched_side_by_side_and_each_once(self):
        urls = [f"http://127.0.0.1:{self.media.server_port}/meet/{i}/red_circle.png" for i in range(4)]
        self.media.meeting = threading.Barrier(len(urls))
        for _ in range(2):  # what one request has fetched, another one does not have
            self.media.visits.clear()
            self.ask(*[image_part(url) for url in [*urls, urls[0]]], QUESTION)
            self.assertEqual(sorted(self.media.visits), [url[url.index("/meet"):] for url in urls])

    def test_other_apis(self):
        base64_text = base64.b64encode(sample("two_stars.png")).decode()
        client = anthropic.Anthropic(base_url=self.server.url, api_key="k", max_retries=0, timeout=DEADLINE_S)
        for source in ({"type": "base64", "media_type": "image/png", "data": base64_text},
                       {"type": "url", "url": (SAMPLES / "two_stars.png").as_uri()}):
            answer = client.messages.create(model="demo", max_tokens=80, extra_body={"temperature": 0}, messages=[
                {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}])
            self.assertEqual(answer.content[0].text, TWO_STARS)
        answer = self.client.responses.create(model="demo", temperature=0, max_output_tokens=80, input=[
            {"role": "user", "content": [{"type": "input_image", "image_url": data_url(sample("two_stars.png")), "detail": "auto"},
                                         {"type": "input_text", "text": QUESTION}]}])
        self.assertEqual(answer.output_text, TWO_STARS)
        client = ollama.Client(host=self.server.url)
        options = {"temperature": 0, "num_predict": 80}
        self.assertEqual(client.chat("demo", [{"role": "user", "content": QUESTION, "images": [sample("two_stars.png")]}],
                                     options=options).message.content, TWO_STARS)
        self.assertEqual(client.generate("demo", QUESTION, images=[sample("two_stars.png")], options=options).response, TWO_STARS)

    def test_a_file_of_requests(self):
        body = {"model": "demo", "temperature": 0, "max_tokens": 80, "messages": [
            {"role": "user", "content": [image_part(data_url(sample("red_circle.png"))), {"type": "text", "text": QUESTION}]}]}
        with tempfile.TemporaryDirectory() as folder:
            given, made = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
            given.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n")
            code, _, errors = run(["run-batch", "-i", str(given), "-o", str(made)])
            self.assertEqual(code, 0, errors)
            answer = json.loads(made.read_text())["response"]["body"]
        self.assertEqual(answer["choices"][0]["message"]["content"], RED_CIRCLE)

    def test_several_turns_and_images(self):
        messages = [{"role": "user", "content": [image_part(data_url(sample("red_circle.png"))), {"type": "text", "text": QUESTION}]},
                    {"role": "assistant", "content": RED_CIRCLE},
                    {"role": "user", "content": [image_part(data_url(sample("two_stars.png"))), {"type": "text", "text": QUESTION}]}]
        streamed = self.client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=80, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
        self.assertEqual(text, TWO_STARS)

    def test_prefixes_are_shared_with_the_same_image_only(self):
        """The prompt is longer than a block before, in and behind the image."""
        long_question = QUESTION * 3
        first, other = (data_url(encoded(Image.new("RGB", (96, 96), colour), "PNG")) for colour in ("red", "green"))
        answers = [self.ask(image_part(url), long_question, logprobs=True) for url in (first, other, first)]
        cached = [answer.usage.prompt_tokens_details.cached_tokens for answer in answers]
        # Without the image's own tokens there is no full block that the two could share.
        self.assertEqual(cached[:2], [0, 0])
        self.assertGreater(cached[2], 16)
        self.assertEqual(answers[0].choices[0].logprobs, answers[2].choices[0].logprobs)
        self.assertNotEqual(answers[0].choices[0].logprobs, answers[1].choices[0].logprobs)

    def test_each_cache_skips_its_work(self):
        names = ("vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total", "troupe:encoder_cache_queries_total",
                 "troupe:encoder_cache_hits_total")
        before = [self.server.metric(name) for name in names]
        url = data_url(encoded(Image.new("RGB", (30, 40), (1, 2, 3)), "PNG"))
        for text in ("One?", "Two?", "Three?"):  # before the image, so the blocks differ
            self.ask("Look: " + text, image_part(url))
        self.assertEqual([self.server.metric(name) - earlier for name, earlier in zip(names, before)], [3, 2, 3, 2])

    def test_a_uuid_names_an_image_that_was_sent(self):
        self.assertIn("star-1", self.refused({"type": "image_url", "image_url": None, "uuid": "star-1"}, QUESTION))
        self.assertEqual(self.caption(image_part(data_url(sample("two_stars.png")), uuid="star-1"), QUESTION), TWO_STARS)
        self.assertEqual(self.caption({"type": "image_url", "image_url": None, "uuid": "star-1"}, QUESTION), TWO_STARS)

    def test_pan_and_scan(self):
        wide = encoded(Image.new("RGB", (1200, 400), "white"), "PNG")
        plain = self.ask(image_part(data_url(wide)), QUESTION).usage.prompt_tokens
        crops = self.ask(image_part(data_url(wide)), QUESTION, extra_body={"mm_processor_kwargs": {"do_pan_and_scan": True}})
        # Three crops of 16 tokens, each with four tokens around it, and the words for them.
        self.assertGreaterEqual(crops.usage.prompt_tokens, plain + 3 * 18)
        self.assertIn("no_such_field", self.refused(image_part(data_url(wide)), QUESTION,
                                                    extra_body={"mm_processor_kwargs": {"no_such_field": 1}}))
        for kwargs, word in (({"size": {"height": 16000, "width": 16000}}, "16000"), ({"do_resize": False}, "as they are"),
                             ({"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 1000}, "max_model_len")):
            self.assertIn(word, self.refused(image_part(data_url(wide)), QUESTION, extra_body={"mm_processor_kwargs": kwargs}))

    def test_bad_images_fail_alone_and_say_why(self):
        good = sample("red_circle.png")
        cases = {
            "empty": b"", "text": b"hello", "svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
            "truncated": good[:len(good) // 2], "header": good[:20], "no pixels": png_header(0, 5),
            "bomb": png_header(20000, 20000, b"\0" * 100000), "wide bomb": png_header(2_000_000_000, 3),
            "damaged": good[:60] + bytes(64) + good[124:],
            "tiff of floats": encoded(Image.new("F", (8, 8)), "TIFF"),
        }
        for name, content in cases.items():
            message = self.refused(image_part(data_url(good)), image_part(data_url(content)), QUESTION)
            self.assertIn("image 2", message, name)
        self.assertIn("89478485", self.refused(image_part(data_url(cases["bomb"])), QUESTION))
        self.assertIn("limit is 5", self.refused(*[image_part(data_url(good))] * 6, QUESTION))
        self.assertIn("<start_of_image>", self.refused(image_part(data_url(good)), "<start_of_image> " + QUESTION))
        self.assertIn("<image_soft_token>", self.refused(image_part(data_url(good)), "<image_soft_token> " + QUESTION))
        self.assertIn("audio", self.refused({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, QUESTION))
        self.assertIn("cuts an image", self.refused(image_part(data_url(good)), QUESTION,
                                                     extra_body={"truncate_prompt_tokens": 20}))
        self.assertTrue(self.caption(image_part(data_url(encoded(Image.new("RGB", (2, 400), "red"), "PNG"))), QUESTION))
        self.assertEqual(self.caption(image_part(data_url(good)), QUESTION), RED_CIRCLE)

    def test_transparent_pixels_lie_on_the_colour_of_media_io_kwargs(self):
        content = image_part(data_url(encoded(Image.new("RGBA", (60, 60), (9, 9, 9, 0)), "PNG")))
        plain = {colour: image_part(data_url(encoded(Image.new("RGB", (60, 60), colour), "PNG"))) for colour in ("white", "red")}

        def logprobs(part, **extra):
            return self.ask(part, QUESTION, logprobs=True, extra_body=extra).choices[0].logprobs
        red = {"media_io_kwargs": {"image": {"rgba_background_color": [255, 0, 0]}}}
        self.assertEqual(logprobs(content), logprobs(plain["white"]))
        self.assertEqual(logprobs(content, **red), logprobs(plain["red"]))
        self.assertNotEqual(logprobs(content), logprobs(content, **red))
        for kwargs, word in (({"image": {"gamma": 1}}, "image.gamma"), ({"images": {}}, "images"),
                             ({"image": {"rgba_background_color": [1, 2]}}, "rgba_background_color")):
            self.assertIn(word, self.refused(content, QUESTION, extra_body={"media_io_kwargs": kwargs}))
            self.assertIn(word, self.refused("text alone", extra_body={"media_io_kwargs": kwargs}))

    def test_64_bad_requests_at_once_take_no_memory_and_hold_up_nobody(self):
        """Of each kind; and of hosts that never answer, while other requests go on."""
        good = sample("red_circle.png")
        cases = {
            # What a decoder that trusts the header would take: 1.2 GB each, 1 GB of 1 kB.
            "bomb": (png_header(20000, 20000, b"\0" * 1000), ["20000x20000 = 400000000 pixels", "89478485"]),
            "1 GB of 1 kB": (png_header(18500, 18500, b"\0" * (1 << 20)), ["18500x18500 = 342250000 pixels", "89478485"]),
            "truncated": (good[:len(good) // 2], ["PNG"]), "empty": (b"", ["0 bytes"]),
            "svg": (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", ["SVG", "supported are"]),
            "no pixels": (png_header(0, 5), ["0x5"]), "ribbon": (png_header(1, 10000), ["1x10000", "is 10000", "limit is 200"]),
            "wrong type": (b"%PDF-1.7", ["PDF", "supported are"]),
        }
        requests = {name: ([image_part(data_url(content))], {}, 400, ["image 1: ", *words]) for name, (content, words) in cases.items()}
        requests["too many"] = ([image_part(data_url(good))] * 6, {}, 400, ["6 images", "limit is 5"])
        requests["too many tokens"] = (
            [image_part(data_url(good))], {"mm_processor_kwargs": {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 1000}}, 400,
            ["16000 tokens", "max_model_len is"])
        url = f"http://127.0.0.1:{self.media.server_port}/"
        requests["slow"] = ([image_part(url + "slow")], {}, 400, ["image 1: ", "127.0.0.1", "2 s"])

        def refused(name):
            parts, extra, code, words = requests[name]
            message = self.refused(*parts, QUESTION, code=code, extra_body=extra, client=self.impatient_client)
            for word in words:
                self.assertIn(word, message, name)

        pid = self.impatient_server.process.pid
        self.caption(image_part(data_url(good)), QUESTION, client=self.impatient_client)
        for name in cases:
            refused(name)
        before = memory(pid, "VmRSS")
        reset_peak(pid)
        with concurrent.futures.ThreadPoolExecutor(72) as pool:
            slow = [pool.submit(refused, "slow") for _ in range(64)]
            for _ in range(3):
                self.assertEqual(self.caption(image_part(data_url(good)), QUESTION, client=self.impatient_client), RED_CIRCLE)
                self.assertTrue(self.caption("Who are you?", client=self.impatient_client))
            for each in slow:
                each.result()
            for name in requests.keys() - {"slow"}:
                list(pool.map(refused, [name] * 64))
        self.assertLess(memory(pid, "VmHWM") - before, 256 << 20)

    def test_more_requests_wait_for_hosts_than_there_are_threads_that_prepare_prompts(self):
        count = 40
        self.media.meeting = threading.Barrier(count + 1)
        url = f"http://127.0.0.1:{self.media.server_port}/meet/{{}}/red_circle.png"
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            captions = [pool.submit(self.caption, image_part(url.format(i)), QUESTION) for i in range(count)]
            wait_until(lambda: self.media.meeting.n_waiting == count, "all to be fetched at once")
            self.assertTrue(self.caption("Who are you?"))  # and they hold up no other
            self.media.meeting.wait(DEADLINE_S)
            self.assertEqual({each.result() for each in captions}, {RED_CIRCLE})

    def test_more_tokens_than_the_model_takes(self):
        with Server("--max-model-len", "64") as small:
            client = openai.OpenAI(base_url=small.url + "/v1", api_key="none", max_retries=0)
            content = [image_part(data_url(sample("red_circle.png")))] * 5 + [{"type": "text", "text": QUESTION}]
            with self.assertRaises(openai.BadRequestError) as raised:
                client.chat.completions.create(model="demo", messages=[{"role": "user", "content": content}])
            self.assertIn("max_model_len is 64", raised.exception.body["message"])

    def test_a_model_for_text(self):
        with Server(str(ROOT / "tests" / "golden" / "models" / "models" / "gemma3_text")) as text:
            client = openai.OpenAI(base_url=text.url + "/v1", api_key="none", max_retries=0)
            name = client.models.list().data[0].id
            with self.assertRaises(openai.BadRequestError) as raised:
                client.chat.completions.create(model=name, messages=[
                    {"role": "user", "content": [image_part(data_url(sample("red_circle.png")))]}])
            self.assertIn("text alone", raised.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
