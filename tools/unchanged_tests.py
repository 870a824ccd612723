#!/usr/bin/env python3
"""Which tests of a build folder need not run again: those that passed without leaving a part out, and whose inputs are the same.

unchanged_tests.py FOLDER list             prints a regular expression of their names for `ctest -E`
unchanged_tests.py FOLDER record RESULTS   adds what passed since then, by ctest's JUnit file RESULTS, and
                                           prints the parts that tests have skipped

The inputs of a test that is a program of the build folder are that program, the folder's shared objects and the data
files of the source tree; those of any other test (a script) are all programs of the build folder and all files of the
source tree. For each, the test's command and properties, variables named TROUPE_*, the installed packages and the CPU
count as well. Files are compared by size and time of change, as build tools compare them.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What is compiled into the programs, which tell of it.
COMPILED = (".c", ".cpp", ".cu", ".cuh", ".hpp", ".inc")


def files_below(folder, *skipped):
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in sorted(folders)
                      if os.path.join(path, name) not in skipped and name not in (".git", "__pycache__")]
        yield from (os.path.join(path, name) for name in sorted(names))


def digest(*parts):
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def state(paths):
    result = []
    for path in paths:
        status = os.stat(path)
        result.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return digest(*result)


def machine():
    with open("/proc/cpuinfo") as file:
        cpu = sorted({line for line in file if line.startswith(("model name", "flags"))})
    variables = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("TROUPE_"))
    return digest(state(["/var/lib/dpkg/status"]), *cpu, *variables)


def inputs_of_tests(folder):
    """The inputs of each test, by its name, as one hash."""
    built = [path for path in files_below(folder, os.path.join(folder, "Testing"))
             if ".so" in os.path.basename(path) or os.access(path, os.X_OK)]
    source = list(files_below(SOURCE, os.path.join(SOURCE, "build")))
    packages = [p for p in files_below(os.path.join(SOURCE, "build", "venv")) if p.endswith("dist-info/RECORD")]
    common = machine()
    own = digest(common, state(p for p in source if not p.endswith(COMPILED)),
                 state(p for p in built if ".so" in os.path.basename(p)))
    everything = digest(common, state(source), state(built), state(packages))
    listed = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True, capture_output=True)
    result = {}
    for test in json.loads(listed.stdout)["tests"]:
        command = test.get("command", [])
        inputs = digest(own, state(command[:1])) if command and command[0] in built else everything
        result[test["name"]] = digest(inputs, json.dumps([command, test.get("properties", [])], sort_keys=True))
    return result


def read(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w") as file:
        json.dump(value, file, indent=1)
    os.replace(path + ".new", path)


def main():
    folder = os.path.abspath(sys.argv[1])
    inputs_file = os.path.join(folder, "Testing", "inputs.json")
    passed_file = os.path.join(folder, "Testing", "passed.json")
    passed = read(passed_file)
    if sys.argv[2] == "list":
        inputs = inputs_of_tests(folder)
        write(inputs_file, inputs)  # as they are before the tests run
        names = [re.escape(name) for name, hash in inputs.items() if passed.get(name) == hash]
        print("^(" + "|".join(names or [" "]) + ")$")
        return
    inputs = read(inputs_file)
    for case in xml.etree.ElementTree.parse(sys.argv[3]).iter("testcase"):
        name = case.get("name")
        passed.pop(name, None)
        skipped = re.findall("SKIPPED: .*", case.findtext("system-out") or "")
        for part in dict.fromkeys(skipped):
            print(f"{name}: {part}")
        if case.get("status") == "run" and name in inputs and not skipped:
            passed[name] = inputs[name]
    write(passed_file, passed)


main()
