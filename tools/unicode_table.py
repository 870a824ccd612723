#!/usr/bin/env python3
"""Writes runtime/tokenizer/newer_categories.inc: the general categories that the `tokenizers` package has and utf8proc
has not, for characters of newer Unicode versions. Needs `pip install tokenizers` and libutf8proc.so.2.

usage: tools/unicode_table.py > runtime/tokenizer/newer_categories.inc"""
import ctypes

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

# In the order of utf8proc_category_t.
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()


def members(category):
    """Code points that the package's regular expressions count to a category."""
    split = Split(Regex(r"\p{%s}" % category), "removed")
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    found = []
    for begin in range(0, len(points), 20000):
        part = points[begin : begin + 20000]
        others = set()
        for _, (first, last) in split.pre_tokenize_str("".join(map(chr, part))):
            others.update(range(first, last))
        found += [c for i, c in enumerate(part) if i not in others]
    return found


def main():
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    theirs = {c: name for name in CATEGORIES if name not in ("Cs", "Cn") for c in members(name)}
    rows = []
    for c, name in sorted(theirs.items()):
        if CATEGORIES[utf8proc.utf8proc_category(c)] == name:
            continue
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == name:
            rows[-1][1] = c
        else:
            rows.append([c, c, name])
    print("// Made by tools/unicode_table.py: first, last, category.")
    for first, last, name in rows:
        print("{0x%X, 0x%X, UTF8PROC_CATEGORY_%s}," % (first, last, name.upper()))


main()
