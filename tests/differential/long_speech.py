#!/usr/bin/env python3
"""A minute of synthetic speech (espeak-ng): what Troupe says against transformers' long form, in float32.

  long_speech.py [MODEL]

MODEL is a Whisper checkpoint; default: the small one of tests/golden. transformers' `generate` with timestamps,
greedy and without the thresholds that repeat a window at another temperature, must give the same windows, times and
tokens as build/release/troupe (or $TROUPE_BINARY); once with the checkpoint's generation_config.json, once with
tokens suppressed and a limit for the first timestamp.
"""
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import wave

import numpy
import torch
import transformers

transformers.logging.set_verbosity_error()
ROOT = pathlib.Path(__file__).resolve().parents[2]
RATE, SECONDS, MAX_TOKENS = 16000, 60, 60
TEXT = ("The harbour lay still in the early light. A boat with a red sail came around the point, and nobody had seen it "
        "before. Seven gulls sat on the wall and looked at it. Where does it come from, asked the boy, and what does it "
        "bring? His mother did not know. It may bring salt, or letters, or nothing at all, she said. By noon the whole "
        "town stood on the quay. The sail came down, a rope was thrown, and an old man stepped ashore with a box under "
        "his arm. He asked for the way to the library. In the box were nineteen books, which he had borrowed fifty "
        "years ago, and he had come to bring them back. ")


def speech():
    """Samples as 16-bit numbers."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-v", "en", "-s", "140", "-w", file.name, TEXT * 3], check=True)
        with wave.open(file.name) as source:
            rate = source.getframerate()
            samples = numpy.frombuffer(source.readframes(source.getnframes()), numpy.int16).astype(numpy.float64)
    times = numpy.arange(SECONDS * RATE) / RATE
    if len(samples) < SECONDS * rate:
        raise SystemExit(f"espeak-ng spoke for {len(samples) / rate:.1f} s only")
    return numpy.interp(times, numpy.arange(len(samples)) / rate, samples).astype(numpy.int16)


def reference(folder, samples):
    """Segments: their times and tokens."""
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    sound = extractor(samples, sampling_rate=RATE, return_tensors="pt", truncation=False, padding="longest",
                      return_attention_mask=True)
    with torch.inference_mode():
        output = model.generate(sound.input_features, attention_mask=sound.attention_mask, return_timestamps=True,
                                condition_on_prev_tokens=False, temperature=0.0, language="en", task="transcribe",
                                max_new_tokens=MAX_TOKENS, return_segments=True)
    return [(round(float(segment["start"]), 2), round(float(segment["end"]), 2), segment["tokens"].tolist())
            for segment in output["segments"][0]]


def answer(folder, samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(RATE)
        target.writeframes(samples.tobytes())
    boundary = "a-boundary"
    fields = {"language": "en", "temperature": "0", "max_completion_tokens": str(MAX_TOKENS), "response_format": "verbose_json"}
    body = b"".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
                    for name, value in fields.items())
    body += (f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="speech.wav"\r\n\r\n'.encode()
             + out.getvalue() + f"\r\n--{boundary}--\r\n".encode())
    binary = os.environ.get("TROUPE_BINARY", ROOT / "build/release/troupe")
    with subprocess.Popen([binary, "serve", str(folder), "--port", "0", "--dtype", "float32"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as server:
        try:
            for line in server.stdout:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                raise SystemExit("the server did not start")
            request = urllib.request.Request(found[0] + "/v1/audio/transcriptions", body,
                                             {"Content-Type": f"multipart/form-data; boundary={boundary}"})
            with urllib.request.urlopen(request, timeout=600) as response:
                return json.load(response)["segments"]
        finally:
            server.terminate()
            server.stdout.read()


def compare(name, folder, spoken):
    expected = reference(folder, spoken.astype(numpy.float32) / 32768)
    segments = answer(folder, spoken)
    found = [(segment["start"], segment["end"], segment["tokens"]) for segment in segments]
    windows = len({segment["seek"] for segment in segments})
    same = found == expected
    print(f"{SECONDS} s of speech, {name}: {len(expected)} segments, {sum(len(tokens) for *_, tokens in expected)} tokens, "
          f"{windows} windows: {'equal' if same else 'different'}")
    if not same:
        at = next((i for i, pair in enumerate(zip(expected, found)) if pair[0] != pair[1]), min(len(expected), len(found)))
        print(f"segment {at}: expected {expected[at:at + 1]}, found {found[at:at + 1]}")
    return same


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/golden/models/models/whisper")
    spoken = speech()
    same = compare("as published", folder, spoken)
    with tempfile.TemporaryDirectory() as copy:
        copy = pathlib.Path(copy)
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        config = json.loads((copy / "generation_config.json").read_text())
        end = config["eos_token_id"]
        config |= {"suppress_tokens": [token for token in range(end) if token % 12], "begin_suppress_tokens": [220, end],
                   "max_initial_timestamp_index": 10}
        (copy / "generation_config.json").write_text(json.dumps(config))
        same &= compare("with tokens suppressed", copy, spoken)
    sys.exit(not same)


if __name__ == "__main__":
    main()
