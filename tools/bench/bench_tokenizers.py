#!/usr/bin/env python3
"""bench_tokenizers.py FOLDER TEXT_FILE [SECONDS]: what bench_tokenizer measures, by Hugging Face's `tokenizers` on one
thread, with the same documents: encoding without offsets, its fastest way."""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (it reads the variable when it is imported)

DOCUMENT_BYTES = 8192


def documents_of(text):
    documents = []
    while text:
        line_end = text.find(b"\n", min(DOCUMENT_BYTES, len(text)))
        size = len(text) if line_end < 0 else line_end + 1
        documents.append(text[:size].decode())
        text = text[size:]
    return documents


def main():
    folder, file = sys.argv[1:3]
    min_seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 3.0
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(file, "rb") as stream:
        text = stream.read()
    documents = documents_of(text)
    best, rounds, start = 0.0, 0, time.monotonic()
    while rounds < 3 or time.monotonic() - start < min_seconds:
        round_start = time.monotonic()
        encoded = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
        best = max(best, len(text) / 1e6 / (time.monotonic() - round_start))
        rounds += 1
    num_tokens = sum(len(encoding.ids) for encoding in encoded)
    print(f"{len(text)} bytes, {num_tokens} tokens, encode {best:.2f} MB/s")


if __name__ == "__main__":
    main()
