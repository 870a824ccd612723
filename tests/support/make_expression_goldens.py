#!/usr/bin/env python3
"""Writes tests/golden/expressions.jsonl: how the `tokenizers` package cuts random texts with expressions of
tokenizer.json files. Half of the characters are newer than Unicode 14.

usage: tests/support/make_expression_goldens.py [TEXTS_PER_EXPRESSION] > tests/golden/expressions.jsonl"""
import json
import random
import sys
import unicodedata

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

EXPRESSIONS = [
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"""[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    r"\p{N}{1,3}",
    r"\d+|\D",
    r"\w+|[^\w\s]+",
    r"\b\w|\B\w",
    r"[^\p{Word}a]+|\p{Word}",
    r"\p{Han}+|\p{Hiragana}+|\p{Katakana}+|\p{Cyrillic}+|\p{Latin}+|\p{Arabic}+",
    r"[\W\d]+|\p{^Han}",
    r"[^\S\n]+|[^\P{L}a-z]+",
    r"[[:alpha:]]+|[[:digit:]]|[[:punct:]]+|[[:space:]]+",
    r"[[:word:]]+|[[:^alnum:]]",
    r"[[:upper:]]+[[:lower:]]*|\p{Punctuation}+|\p{Symbol}",
    r"\p{C}+|\p{Cn}|\P{C}",
    r"[\p{Cn}\p{S}]+|[^\p{C}\p{Z}]+",
    r"[^a-z&&[^\p{L}]]+",
    r"[\u4E00-\u9FA5]+|\pL|\h+",
]
COMMON = list(" \n\r\t'abcABC019_.,!?-/²³¹¼߀é中文、。々ーあア한жعक़\u0301\u200d\u00a0\u3000\u0378\U0001F600") + [" ", " ", "'s", "the"]
# Unicode 14, 15, 15.1, 16 and 17: a sample of what Python's tables, which are older, call unassigned.
NEWER = [chr(c) for c in range(0x323B0) if unicodedata.category(chr(c)) == "Cn"]
BLOCKS = [(0x1C89, 0x1C8B), (0xA7CB, 0xA7DD), (0x0C5D, 0x0C5E), (0x0CDD, 0x0CDE), (0x0CF3, 0x0CF4), (0x10570, 0x105F4),
          (0x10D40, 0x10D90), (0x11380, 0x113E2), (0x11BC0, 0x11BFA), (0x11F00, 0x11F5A), (0x13430, 0x13456),
          (0x13460, 0x13500), (0x16100, 0x1613A), (0x16D40, 0x16D7A), (0x16EA0, 0x16ED4), (0x1CC00, 0x1CEB4),
          (0x1D2C0, 0x1D2D4), (0x1DF25, 0x1DF2B), (0x1E030, 0x1E090), (0x1E4D0, 0x1E4FA), (0x1E5D0, 0x1E600),
          (0x1FA75, 0x1FAFA), (0x1FBCB, 0x1FBFA), (0x2EBF0, 0x2EE5E), (0x2FFC, 0x3000), (0x31350, 0x323B0),
          (0x323B0, 0x33480), (0x088F, 0x0899), (0x1ACF, 0x1AEC), (0x20C1, 0x20C2)]  # fmt: skip


def text(source):
    parts = []
    for _ in range(source.randint(1, 24)):
        kind = source.random()
        if kind < 0.5:
            parts.append(source.choice(COMMON))
        elif kind < 0.95:
            parts.append(chr(source.randrange(*source.choice(BLOCKS))))
        else:
            parts.append(source.choice(NEWER))
    return "".join(parts)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    source = random.Random(20240917)
    for expression in EXPRESSIONS:
        split = Split(Regex(expression), "isolated")
        texts = [text(source) for _ in range(count)]
        cut = [[piece for piece, _ in split.pre_tokenize_str(each)] for each in texts]
        print(json.dumps({"expression": expression, "pieces": cut}))


main()
