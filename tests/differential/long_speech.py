#!/usr/bin/env python3
"""A minute of synthetic speech (espeak-ng) in windows: what Troupe says against what transformers says, in float32.

  long_speech.py [MODEL]

MODEL is a Whisper checkpoint; default: the small one of tests/golden. The sound is cut as vLLM cuts it: where it is
quietest in the last second of a window, or half of one. transformers continues the prompt of each window greedily; the
texts, one after the other, must be the answer of build/release/troupe (or $TROUPE_BINARY).
"""
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request
import wave

import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
RATE, SECONDS, MAX_TOKENS = 16000, 60, 40
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


def windows(samples, max_samples):
    """vLLM's split (entrypoints/openai/speech_to_text.py), with the overlap that short windows have."""
    overlap, step = min(RATE, max_samples // 2), 1600
    begin = 0
    while len(samples) - begin > max_samples:
        limit = begin + max_samples
        quietest, least = limit, numpy.inf
        for at in range(limit - overlap, limit - step, step):
            energy = numpy.sqrt(numpy.mean(samples[at:at + step] ** 2))
            if energy < least:
                quietest, least = at, energy
        yield samples[begin:quietest]
        begin = quietest
    yield samples[begin:]


def reference(folder, samples):
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"])
    features = torch.cat([extractor(window, sampling_rate=RATE, return_tensors="pt").input_features
                          for window in windows(samples, extractor.n_samples)])
    tokens = torch.tensor([prompt] * len(features))
    with torch.inference_mode():
        encoded, cache, fresh = model.model.encoder(features), None, tokens
        for _ in range(MAX_TOKENS):
            output = model(encoder_outputs=encoded, decoder_input_ids=fresh, past_key_values=cache, use_cache=True)
            cache, fresh = output.past_key_values, output.logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, fresh], 1)
    texts = []
    for row in tokens[:, len(prompt):].tolist():
        end = row.index(model.config.eos_token_id) if model.config.eos_token_id in row else len(row)
        # As in streams, bytes at the end that are no whole character are not shown.
        texts.append(tokenizer.decode(row[:end], skip_special_tokens=True).rstrip("\ufffd"))
    return texts


def answer(folder, samples):
    out = io.BytesIO()
    with wave.open(out, "wb") as target:
        target.setnchannels(1)
        target.setsampwidth(2)
        target.setframerate(RATE)
        target.writeframes(samples.tobytes())
    boundary = "a-boundary"
    fields = {"language": "en", "temperature": "0", "max_completion_tokens": str(MAX_TOKENS), "response_format": "json"}
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
                return json.load(response)["text"]
        finally:
            server.terminate()
            server.stdout.read()


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "tests/golden/models/models/whisper")
    spoken = speech()
    expected = reference(folder, spoken.astype(numpy.float32) / 32768)
    found = answer(folder, spoken)
    same = found == "".join(expected)
    print(f"{SECONDS} s of speech in {len(expected)} windows: {len(found)} characters, {'equal' if same else 'different'}")
    if not same:
        print(f"expected {''.join(expected)!r}\nfound    {found!r}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
