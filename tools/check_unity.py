#!/usr/bin/env python3
"""Checks the folders that sanitizer builds compile several files at a time (CMake's unity builds): there a name may be
defined in an unnamed namespace of one file only. Files with names in common are excluded in the CMakeLists.txt: one by
one (SKIP_UNITY_BUILD_INCLUSION), or with all of their target (UNITY_BUILD OFF).

Usage: tools/check_unity.py [ROOT]. Prints each violation as file:line; exits 1 if there is any.
"""
import collections
import pathlib
import re
import sys

OPENS_NAMESPACE = re.compile(r"^(?:inline )?namespace(?: ([\w:]+))? \{")
SUITE = re.compile(r"^BOOST_(?:AUTO|FIXTURE)_TEST_SUITE\((\w+)")
TEST_CASE = re.compile(r"^BOOST_(?:AUTO_TEST_CASE|FIXTURE_TEST_CASE|DATA_TEST_CASE|DATA_TEST_CASE_F|"
                       r"AUTO_TEST_CASE_TEMPLATE)\((\w+)")
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?)\s+(?:\[\[\w+\]\]\s+|alignas\(\w+\)\s+)?(\w+)\b(?!.*;$)")
ALIAS = re.compile(r"^using (\w+) =(.*)")
CONCEPT = re.compile(r"^concept (\w+) =")
FUNCTION = re.compile(r"^[\w\[][^=;(]*?[\s*&](\w+)\((.*)")
VARIABLE = re.compile(r"^[\w\[][^=;(]*?[\s*&](\w+)(?:\[[^\]]*\])*\s*(?:=|\{|;)")
NOT_DEFINITIONS = ("using namespace", "extern", "return", "static_assert", "namespace", "template", "friend", "typedef")


def split_arguments(text):
    """Splits at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def parameter_types(text):
    """The parameters of a function without names and default values: overloads differ in them."""
    types = []
    for parameter in split_arguments(text):
        parameter = re.sub(r"\s*=.*", "", parameter)
        named = re.match(r"(.*[\w>&*\]])[\s&*]+\w+$", parameter)
        if named and not re.fullmatch(r"const|unsigned|signed|long|struct", named.group(1)):
            parameter = parameter[: len(parameter) - len(re.search(r"\w+$", parameter).group(0))]
        types.append(re.sub(r"\s+", "", parameter))
    return ",".join(types)


def parameters(lines, at):
    """The text between the parentheses of the function that starts in this line, and whether a body follows."""
    text = " ".join(lines[at:at + 12])
    start = text.index("(")
    depth = 0
    for end in range(start, len(text)):
        depth += (text[end] == "(") - (text[end] == ")")
        if depth == 0:
            rest = re.sub(r"^(?:\s|const|noexcept|->[^{;]*|requires[^{;]*)*", "", text[end + 1:])
            return text[start + 1:end], rest.startswith("{")
    return "", False


def names_defined(path):
    """What a file defines in its unnamed namespaces: (name, what must differ for the name to be used again, line)."""
    lines = path.read_text(errors="replace").splitlines()
    namespaces = []
    for at, line in enumerate(lines):
        opened = OPENS_NAMESPACE.match(line) or SUITE.match(line)
        if opened:
            namespaces.append(opened.group(1))  # None: unnamed
            continue
        if line.startswith(("}  // namespace", "BOOST_AUTO_TEST_SUITE_END")):
            if namespaces:
                namespaces.pop()
            continue
        if None not in namespaces or not line or line[0] in " }#/" or line.startswith(NOT_DEFINITIONS):
            continue
        scope = "::".join(name or "" for name in namespaces)
        for pattern in (TEST_CASE, TYPE, CONCEPT):
            match = pattern.match(line)
            if match:
                yield f"{scope}::{match.group(1)}", None, at + 1
                break
        else:
            alias, function, variable = (pattern.match(line) for pattern in (ALIAS, FUNCTION, VARIABLE))
            if alias:
                yield f"{scope}::{alias.group(1)}", "=" + alias.group(2), at + 1
            elif function and not line.startswith("BOOST_"):
                text, has_body = parameters(lines, at)
                if has_body:
                    yield f"{scope}::{function.group(1)}", "(" + parameter_types(text), at + 1
            elif variable:
                yield f"{scope}::{variable.group(1)}", None, at + 1


def clashes(one, other):
    """Whether two definitions of a name exclude each other: overloads do not, nor do equal aliases."""
    if one is None or other is None or one[0] != other[0]:
        return True
    return one == other if one[0] == "(" else one != other


def excluded(root):
    """Names of files (without .cpp) and of targets that CMakeLists.txt excludes."""
    files, targets = set(), set()
    for path in ("CMakeLists.txt", "tests/CMakeLists.txt"):
        text = re.sub(r"#.*", "", (root / path).read_text())
        loop = re.compile(r"foreach\(file([^)]*)\)\s*set_source_files_properties\((\S*)\$\{file\}(\S*)\.cpp PROPERTIES "
                          r"SKIP_UNITY_BUILD_INCLUSION ON")
        for names, prefix, suffix in loop.findall(text):
            folder = "tests/" if path.startswith("tests") else ""
            files |= {f"{folder}{prefix}{name}{suffix}" for name in names.split()}
        for names in re.findall(r"set_target_properties\(([\w ]+?) PROPERTIES [^)]*UNITY_BUILD OFF", text):
            targets |= set(names.split())
    return files, targets


def check(root):
    files, targets = excluded(root)
    problems = [f"{name}.cpp: excluded from unity builds, but there is no such file"
                for name in sorted(files) if not (root / f"{name}.cpp").is_file()]
    for folder in sorted({path.parent for top in ("runtime", "actors", "tools", "tests")
                          for path in (root / top).rglob("*.cpp")}):
        name = folder.relative_to(root).as_posix()
        target = name[len("tests/"):] + "_test" if name.startswith("tests/") else name
        if target.replace("/", "_") in targets or name in ("tools", "tests/support", "tests/fuzz"):
            continue  # (the last three are programs of one file, or excluded where they are declared)
        users = collections.defaultdict(dict)  # name -> {file: (difference, place)}
        for path in sorted(folder.glob("*.cpp")):
            relative = path.relative_to(root).as_posix()
            if relative[:-len(".cpp")] in files:
                continue
            for defined, difference, number in names_defined(path):
                for other, known in users[defined].items():
                    clash = next((place for known_difference, place in known if clashes(difference, known_difference)),
                                 None)
                    if other != relative and clash:
                        problems.append(f"{relative}:{number}: {defined.split('::')[-1]} is also defined at {clash}, "
                                        f"and {name} is a unity build")
                        break
                users[defined].setdefault(relative, []).append((difference, f"{relative}:{number}"))
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    problems = check(root)
    print("\n".join(problems) if problems else "unity builds: no name is defined twice")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
