#!/usr/bin/env python3
"""The questions and calls of the Berkeley Function Calling Leaderboard (bfcl-eval, its data come with it): each set of tools
is rendered by the demo model's chat template; each call, written as each family of models writes it, is parsed into itself,
whole and cut at every place. Run by make test-clients. Usage: bfcl_check.py [CASES per file and format] (default: 40)."""
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys

from support import BINARY, ROOT

CASES = int(sys.argv[1]) if len(sys.argv) > 1 else 40
PARSE = os.environ.get("TROUPE_PARSE_ANSWERS", str(pathlib.Path(BINARY).parent / "tests" / "parse_answers"))
# Without those of Java and JavaScript, whose schemas have the types of these languages.
FILES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple",
         "live_multiple", "live_parallel", "live_parallel_multiple")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None, "integer": "integer", "string": "string",
         "boolean": "boolean", "array": "array"}


def compact(value):
    return json.dumps(value, ensure_ascii=False)


def plain(value):
    return value if isinstance(value, str) else compact(value)


def python(value):
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python(k)}: {python(v)}" for k, v in value.items()) + "}"
    return repr(value)


def escaped(value):
    if isinstance(value, str):
        return f"<escape>{value}<escape>"
    if isinstance(value, list):
        return "[" + ",".join(map(escaped, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{escaped(v)}" for k, v in value.items()) + "}"
    return compact(value)


def parameters(arguments, form):
    return "".join(form.format(key=key, value=plain(value)) for key, value in arguments.items())


def objects(calls, key="arguments"):
    return compact([{"name": name, key: arguments} for name, arguments in calls])


def each(form):
    """Calls one after the other."""
    return lambda calls: "\n".join(form(name, arguments) for name, arguments in calls)


# As the models' own templates write them.
FORMATS = {
    "hermes": each(lambda name, arguments: f'<tool_call>\n{compact({"name": name, "arguments": arguments})}\n</tool_call>'),
    "llama3_json": lambda calls: "; ".join(compact({"name": name, "parameters": arguments}) for name, arguments in calls),
    "pythonic": lambda calls: "[" + ", ".join(
        f"{name}({', '.join(f'{k}={python(v)}' for k, v in arguments.items())})" for name, arguments in calls) + "]",
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{compact(arguments)}" for name, arguments in calls),
    "qwen3_coder": each(lambda name, arguments: f"<tool_call>\n<function={name}>\n" + parameters(
        arguments, "<parameter={key}>\n{value}\n</parameter>\n") + "</function>\n</tool_call>"),
    "deepseek_v3": lambda calls: "<｜tool▁calls▁begin｜>" + "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{compact(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in calls) + "<｜tool▁calls▁end｜>",
    "deepseek_v31": lambda calls: "<｜tool▁calls▁begin｜>" + "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{compact(arguments)}<｜tool▁call▁end｜>" for name, arguments in calls)
        + "<｜tool▁calls▁end｜>",
    "granite": lambda calls: f"<|tool_call|>{objects(calls)}",
    "glm45": each(lambda name, arguments: f"<tool_call>{name}\n" + parameters(
        arguments, "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n") + "</tool_call>"),
    "kimi_k2": lambda calls: "<|tool_calls_section_begin|>" + "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{compact(arguments)}<|tool_call_end|>"
        for i, (name, arguments) in enumerate(calls)) + "<|tool_calls_section_end|>",
    "phi4_mini_json": lambda calls: f"functools{objects(calls)}",
    "functiongemma": lambda calls: "".join(
        f"<start_function_call>call:{name}{escaped(arguments)}<end_function_call>" for name, arguments in calls),
    "openai": lambda calls: "".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{compact(arguments)}<|call|>"
        for name, arguments in calls[:1]),
}


TEXTS = ("qwen3_coder", "glm45")  # formats that write values without their types


def schema(given):
    """JSON Schema of what the leaderboard writes with Python's names of types."""
    made = {key: value for key, value in given.items() if key not in ("type", "properties", "items", "optional")}
    if TYPES.get(given.get("type"), given.get("type")):
        made["type"] = TYPES.get(given["type"], "string")
    if isinstance(given.get("properties"), dict):
        made["properties"] = {key: schema(value) for key, value in given["properties"].items()}
    if isinstance(given.get("items"), dict):
        made["items"] = schema(given["items"])
    return made


def value_of(choices):
    """A right value: the lists of the answers hold all of them, those of objects for each member."""
    value = next((choice for choice in choices if choice != ""), None)
    if isinstance(value, dict):
        return {key: value_of(each) for key, each in value.items() if isinstance(each, list) and any(c != "" for c in each)}
    return value


def read(name):
    data = pathlib.Path(importlib.util.find_spec("bfcl_eval").submodule_search_locations[0]) / "data"
    questions = (data / f"BFCL_v4_{name}.json").read_text().splitlines()
    answers = (data / "possible_answer" / f"BFCL_v4_{name}.json").read_text().splitlines()
    for question, answer in zip(map(json.loads, questions), map(json.loads, answers), strict=True):
        assert question["id"] == answer["id"]
        tools = [{"type": "function", "function": {"name": each["name"], "description": each["description"],
                                                   "parameters": schema(each["parameters"])}} for each in question["function"]]
        calls = [(name, {key: value_of(values) for key, values in arguments.items() if any(v != "" for v in values)})
                 for call in answer["ground_truth"] for name, arguments in call.items()]
        yield question["id"], question["question"][0], tools, calls


def run(command, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_prompts(cases):
    """The template takes all of them, and the prompt names every tool and says what the user does."""
    rows = run([BINARY, "render", str(ROOT / "tools" / "demo_model" / "model")],
               [{"messages": messages, "tools": tools, "add_generation_prompt": True} for _, messages, tools, _ in cases])
    wrong = [id for (id, messages, tools, _), row in zip(cases, rows, strict=True)
             if messages[-1]["content"].strip() not in row.get("prompt", "")
             or any(tool["function"]["name"] not in row["prompt"] for tool in tools)]
    print(f"prompts: {len(rows)}, wrong: {len(wrong)} {wrong[:5]}")
    return not wrong


def check_answers(cases):
    good = True
    for name, write in FORMATS.items():
        mine = [(id, tools, calls[:1] if name == "openai" else calls) for id, _, tools, calls in cases]
        rows = run([PARSE], [{"format": name, "tools": tools, "text": write(calls)} for _, tools, calls in mine])
        wrong = []
        for (id, tools, calls), row in zip(mine, rows, strict=True):
            if "error" in row:
                wrong.append((id, row["error"]))
                continue
            try:
                parsed = [(call["name"], json.loads(call["arguments"])) for call in row["calls"]]
            except ValueError:
                parsed = row["calls"]
            if name in TEXTS:  # of a value that is no text a schema of texts makes one
                parsed, calls = ([(called, {key: plain(value) for key, value in arguments.items()})
                                  for called, arguments in each_call] for each_call in (parsed, calls))
            if parsed != calls or row["content"].strip():
                wrong.append((id, parsed, calls, row["content"]))
        print(f"{name}: {len(rows)} answers, wrong: {len(wrong)}")
        for each_wrong in wrong[:3]:
            print("  ", *each_wrong, sep="\n     ")
        good &= not wrong
    return good


if __name__ == "__main__":
    chosen = []
    for file in FILES:
        cases = list(read(file))
        chosen += random.Random(19).sample(cases, min(CASES, len(cases)))
    sys.exit(0 if check_prompts(chosen) & check_answers(chosen) else 1)
