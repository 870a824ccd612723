#!/usr/bin/env python3
"""Checks the allowed includes (see the README), that type names are unique in the program (the linker merges classes of
the same name), and that committed files contain no path of one machine.

Usage: tools/check_includes.py [ROOT]. Prints each violation as file:line; exits 1 if there is any.
"""
import pathlib
import re
import sys

# Folder of the including file (longest match) -> folders of ours that it may include.
ALLOWED = {
    "messages": ["messages"],
    "kernels": ["kernels"],
    "runtime": ["runtime", "messages", "kernels"],
    "runtime/base": ["runtime/base", "messages"],
    "actors": ["actors", "runtime", "messages"],
    "tools": ["tools", "actors", "runtime", "messages", "kernels"],
    "tests": ["tests", "tools", "actors", "runtime", "messages", "kernels"],
}
KERNEL_USERS = ["runtime/models", "runtime/worker"]
CAF_USERS = ["actors", "tools", "tests", "messages/type_ids.hpp", "messages/actor_interfaces.hpp",
             "messages/caf_compat.hpp"]
CAF_MESSAGES = {"messages/type_ids.hpp", "messages/actor_interfaces.hpp", "messages/caf_compat.hpp"}
# Slow to compile: they stay out of our headers.
HEAVY = re.compile(r"^(nlohmann/(?!json_fwd)|boost/beast|boost/asio|spdlog/|pcre2|simdjson|curl/|sqlite3)")
# These wrap one of them: few files include them.
WRAPPERS = ["tests", "runtime/base/json.hpp", "runtime/http/client_stream.hpp"]
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home)/\w")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
OPENS_NAMESPACE = re.compile(r"^(?:inline )?namespace(?: ([\w:]+))? \{")
DEFINES_TYPE = re.compile(
    r"^(?:struct|class|union|enum(?: class)?)\s+(?:\[\[\w+\]\]\s+|alignas\(\w+\)\s+)?([\w:]+)\b[^;<]*$")


def within(name, folders):
    return any(name == folder or name.startswith(folder + "/") for folder in folders)


def check(root):
    problems = []
    for folder in ("messages", "kernels", "runtime", "actors", "tools", "tests"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".hpp", ".cpp", ".cu", ".cuh", ".h", ".py", ".sh") or not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            rule = max((key for key in ALLOWED if within(name, [key])), key=len)
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                where = f"{name}:{number}"
                if name != "tools/check_includes.py" and MACHINE_PATH.search(line):
                    problems.append(f"{where}: contains a path of one machine")
                match = INCLUDE.match(line)
                if not match:
                    continue
                quote, target = match.groups()
                if quote == '"':
                    if not within(target, ALLOWED[rule]):
                        problems.append(f"{where}: {rule} may not include {target}")
                    if target.startswith("kernels/") and rule.startswith("runtime") and not within(name, KERNEL_USERS):
                        problems.append(f"{where}: only {' and '.join(KERNEL_USERS)} may include kernels")
                    if (target in ("runtime/base/json.hpp", "runtime/base/ordered_json.hpp") and path.suffix == ".hpp"
                            and not within(name, ["tests", "runtime/base/ordered_json.hpp"])):
                        problems.append(f"{where}: {target} must not be included in headers")
                    if target in CAF_MESSAGES and not within(name, CAF_USERS):
                        problems.append(f"{where}: {target} includes CAF, which is not allowed here")
                    if name.startswith("actors/") and target.endswith(".cpp"):
                        problems.append(f"{where}: includes another actor's source")
                elif target.startswith("caf/") and not within(name, CAF_USERS):
                    problems.append(f"{where}: CAF is not allowed here")
                elif target == "nlohmann/json.hpp" and name != "runtime/base/json.hpp":
                    problems.append(f"{where}: {target} is included through runtime/base/json.hpp")
                elif HEAVY.match(target) and path.suffix == ".hpp" and not within(name, WRAPPERS):
                    problems.append(f"{where}: {target} must not be included in headers")
    return problems


def types_defined(path):
    """The qualified names of the types that a file defines for all of the program, with their lines."""
    namespaces = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        opened = OPENS_NAMESPACE.match(line)
        if opened:
            namespaces.append(opened.group(1))  # None: unnamed
        elif line.startswith("}  // namespace"):
            namespaces.pop()
        elif namespaces and None not in namespaces:
            defined = DEFINES_TYPE.match(line)
            if defined:
                yield "::".join([*namespaces, defined.group(1)]), number


def check_type_names(root):
    problems = []
    first = {}
    # A file of kernels/cpu is compiled once per instruction set, in a namespace of its own.
    for folder in ("messages", "runtime", "actors", "tools", "tests/support"):
        for path in sorted((root / folder).rglob("*.[hc]pp")):
            for name, number in types_defined(path):
                where = f"{path.relative_to(root).as_posix()}:{number}"
                if name in first:
                    problems.append(f"{where}: {name} is another type at {first[name]}")
                first.setdefault(name, where)
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    problems = check(root) + check_type_names(root)
    print("\n".join(problems) if problems else "includes, type names, paths: no violation")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
