#!/usr/bin/env python3
"""What is said in sounds, by OpenAI's client: the reference's text, every form of answer, streams, windows of long sounds,
alone and beside others, on two ranks; what is refused."""
import concurrent.futures
import io
import json
import pathlib
import unittest
import wave

from openai import BadRequestError, OpenAI

from support import Server

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/models"
CLIPS = [(GOLDEN / "goldens/whisper" / clip["audio"], clip)
         for clip in json.loads((GOLDEN / "goldens/whisper/golden.json").read_text())["clips"]]
LONG = {"max_completion_tokens": 48}


def sound(path, repeat=1):
    """The file, said so many times."""
    with wave.open(str(path)) as source:
        parameters, frames = source.getparams(), source.readframes(source.getnframes())
    out = io.BytesIO()
    with wave.open(out, "wb") as target:
        target.setparams(parameters)
        target.writeframes(frames * repeat)
    return ("clip.wav", out.getvalue())


class Speech(unittest.TestCase):
    def serve(self, *options):
        return Server(str(GOLDEN / "models/whisper"), "--served-model-name", "whisper", "--dtype", "float32", *options)

    def transcribe(self, server, file, **fields):
        client = OpenAI(base_url=server.url + "/v1", api_key="none")
        return client.audio.transcriptions.create(model="whisper", file=file, **fields)

    def test_the_reference_text_and_every_form(self):
        path, clip = CLIPS[0]
        texts = {}
        for options in ((), ("--tensor-parallel-size", "2"), ("--max-num-seqs", "1")):
            with self.serve(*options) as server:
                def ask(number):
                    return self.transcribe(server, sound(path, 1 + number % 3), extra_body=LONG).text
                with concurrent.futures.ThreadPoolExecutor(6) as threads:
                    texts[options] = list(threads.map(ask, range(6)))
                self.assertEqual(texts[options][0], clip["text"])
                self.assertEqual(texts[options], texts[()])
                if options:
                    continue
                answer = self.transcribe(server, sound(path), response_format="verbose_json",
                                         extra_body={"max_completion_tokens": 48})
                self.assertAlmostEqual(answer.duration, 1.3, places=2)
                self.assertEqual(answer.language, "en")
                long = self.transcribe(server, sound(path, 3), response_format="verbose_json", extra_body=LONG)
                self.assertEqual([segment.id for segment in long.segments], list(range(len(long.segments))))
                self.assertEqual(long.segments[0].seek, 0)
                self.assertGreater(long.segments[-1].seek, 0)  # of 390 frames the model takes 200 at a time
                self.assertEqual("".join(segment.text for segment in long.segments), long.text)
                for form, begin in (("text", ""), ("srt", "1\n00:00:"), ("vtt", "WEBVTT\n\n00:00:")):
                    text = self.transcribe(server, sound(path), response_format=form, extra_body={"max_completion_tokens": 48})
                    self.assertTrue(text.startswith(begin), text[:40])
                chunks = self.transcribe(server, sound(path, 3), stream=True, extra_body=LONG)
                streamed = "".join(chunk.choices[0]["delta"]["content"] for chunk in chunks)
                self.assertEqual(streamed, self.transcribe(server, sound(path, 3), extra_body=LONG).text)
                for file, fields, reason in (
                        (("a.wav", b"no sound"), {}, "cannot be read"),
                        (sound(path), {"language": "xx"}, "no token for"),
                        (sound(path), {"response_format": "xml"}, "response_format")):
                    with self.assertRaisesRegex(BadRequestError, reason):
                        self.transcribe(server, file, **fields)
                with self.assertRaisesRegex(BadRequestError, "writes down sounds"):
                    OpenAI(base_url=server.url + "/v1", api_key="none").completions.create(model="whisper", prompt="Hello")


if __name__ == "__main__":
    unittest.main()
