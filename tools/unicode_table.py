#!/usr/bin/env python3
"""Writes the tables of runtime/tokenizer for characters of newer Unicode versions than the libraries' here: what the
regular expressions of the `tokenizers` package count to a class and these do not, and what its Lowercase changes.

newer_categories.inc: general categories that utf8proc has not. newer_properties.inc: members of classes that PCRE2 has
not. newer_lowercase.inc: letters whose lower case utf8proc has not. Needs `pip install tokenizers`, libutf8proc.so.2 and libpcre2-8.so.0.

usage: tools/unicode_table.py categories > runtime/tokenizer/newer_categories.inc
       tools/unicode_table.py properties > runtime/tokenizer/newer_properties.inc
       tools/unicode_table.py lowercase > runtime/tokenizer/newer_lowercase.inc"""
import ctypes
import sys

from tokenizers import Regex
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Split

# In the order of utf8proc_category_t.
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()
# Classes whose members PCRE2 may lack: general categories (but those of what is unassigned), properties, scripts.
PROPERTIES = "L LC M N P S Z Cf".split() + CATEGORIES[1:26] + "Alphabetic Lowercase Uppercase Emoji".split()
SCRIPTS = """Adlam Arabic Armenian Balinese Bamum Bengali Bopomofo Braille Buginese Canadian_Aboriginal Cham Cherokee
 Chorasmian Common Coptic Cuneiform Cyrillic Devanagari Dogra Egyptian_Hieroglyphs Ethiopic Georgian Glagolitic Gothic
 Grantha Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Inherited Javanese Kaithi Kannada Katakana Khmer
 Khojki Khudawadi Lao Latin Limbu Lisu Malayalam Mandaic Manichaean Marchen Meetei_Mayek Miao Modi Mongolian Myanmar
 Newa New_Tai_Lue Nko Nushu Ogham Ol_Chiki Old_Permic Oriya Osage Pahawh_Hmong Phoenician Rejang Runic Samaritan
 Saurashtra Sharada Siddham SignWriting Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham
 Tai_Viet Takri Tamil Tangut Telugu Thaana Thai Tibetan Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi
 Yezidi Yi""".split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def members(category):
    """Code points that the package's regular expressions count to a class."""
    split = Split(Regex(r"\p{%s}" % category), "removed")
    found = []
    for begin in range(0, len(POINTS), 20000):
        part = POINTS[begin : begin + 20000]
        others = set()
        for _, (first, last) in split.pre_tokenize_str("".join(map(chr, part))):
            others.update(range(first, last))
        found += [c for i, c in enumerate(part) if i not in others]
    return found


class Pcre2:
    UTF_AND_UCP = 0x000A0000
    NO_UTF_CHECK = 0x40000000

    def __init__(self):
        self.library = ctypes.CDLL("libpcre2-8.so.0")
        self.library.pcre2_compile_8.restype = ctypes.c_void_p
        self.library.pcre2_match_data_create_8.restype = ctypes.c_void_p
        self.library.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)
        self.data = ctypes.c_void_p(self.library.pcre2_match_data_create_8(1, None))
        self.text = "".join(map(chr, POINTS)).encode()
        self.place = {}
        at = 0
        for c in POINTS + [0x110000]:
            self.place[at] = c
            at += 1 if c < 0x80 else 2 if c < 0x800 else 3 if c < 0x10000 else 4

    def members(self, name):
        expression = (r"\p{%s}+" % name).encode()
        error, offset = ctypes.c_int(), ctypes.c_size_t()
        code = self.library.pcre2_compile_8(
            expression, ctypes.c_size_t(len(expression)), self.UTF_AND_UCP, ctypes.byref(error), ctypes.byref(offset), None
        )
        if not code:
            raise ValueError(f"PCRE2 has no class {name}")
        found, at, size = set(), 0, ctypes.c_size_t(len(self.text))
        while (
            self.library.pcre2_match_8(
                ctypes.c_void_p(code), self.text, size, ctypes.c_size_t(at), self.NO_UTF_CHECK, self.data, None
            )
            >= 0
        ):
            bounds = self.library.pcre2_get_ovector_pointer_8(self.data)
            found.update(range(self.place[bounds[0]], self.place[bounds[1]]))
            at = bounds[1]
        return found


def ranges(points):
    """(first, last) of each run of neighbours."""
    found = []
    for c in sorted(points):
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def categories():
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    rows = []
    for name in CATEGORIES:
        if name not in ("Cs", "Cn"):
            newer = [c for c in members(name) if CATEGORIES[utf8proc.utf8proc_category(c)] != name]
            rows += [(first, last, name) for first, last in ranges(newer)]
    print("// Made by tools/unicode_table.py categories: first, last, category.")
    for first, last, name in sorted(rows):
        print("{0x%X, 0x%X, UTF8PROC_CATEGORY_%s}," % (first, last, name.upper()))


def properties():
    pcre2 = Pcre2()
    print("// Made by tools/unicode_table.py properties: class, first, last.")
    for name in PROPERTIES + SCRIPTS:
        known = pcre2.members(name if name in PROPERTIES else "sc:" + name)
        for first, last in ranges(set(members(name)) - known):
            print('{"%s", 0x%X, 0x%X},' % (name.replace("_", "").lower(), first, last))


def lowercase():
    utf8proc = ctypes.CDLL("libutf8proc.so.2")
    normalizer = Lowercase()
    rows = []
    for c in POINTS:
        lower = normalizer.normalize_str(chr(c))
        if len(lower) != 1 or ord(lower) == utf8proc.utf8proc_tolower(c):
            continue
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == ord(lower) - c:
            rows[-1][1] = c
        else:
            rows.append([c, c, ord(lower) - c])
    print("// Made by tools/unicode_table.py lowercase: first, last, what is added.")
    for first, last, added in rows:
        print("{0x%X, 0x%X, %d}," % (first, last, added))


{"categories": categories, "properties": properties, "lowercase": lowercase}[sys.argv[1]]()
