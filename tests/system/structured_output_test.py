#!/usr/bin/env python3
"""Structured output through the OpenAI Python package: what is generated always parses and validates, in every way to ask
for it, and is the same in every topology, batch and after a crash. What cannot be held is refused by name."""
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import unittest

import jsonschema
import openai
import pydantic

from support import Server, is_running, wait_until

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "milk", "juice"]}, "maxItems": 3},
        "home": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "likes", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"}},
                        "required": ["city"], "additionalProperties": False}},
}
GRAMMAR = 'root ::= "[" (number (", " number){1,3}) "]"\nnumber ::= "-"? [0-9]{1,4}'
QUESTION = [{"role": "user", "content": "Who are you?"}]


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def is_person(text):
    jsonschema.validate(json.loads(text), PERSON)


def is_match(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text
    return check


def is_one_of(*choices):
    def check(text):
        assert text in choices, text
    return check


# Every way to ask, and what holds for the answer.
WAYS = {
    "json_schema": ({"response_format": schema_format(PERSON)}, is_person),
    "json": ({"extra_body": {"structured_outputs": {"json": PERSON}}}, is_person),
    "json text, no white space": (
        {"extra_body": {"structured_outputs": {"json": json.dumps(PERSON), "disable_any_whitespace": True}}},
        lambda text: (is_person(text), is_match(r"[^\n\t]*")(text))),
    "guided_json": ({"extra_body": {"guided_json": PERSON}}, is_person),
    "regex": ({"extra_body": {"structured_outputs": {"regex": r"(\d{1,3}\.){3}\d{1,3}"}}}, is_match(r"(\d{1,3}\.){3}\d{1,3}")),
    "choice": ({"extra_body": {"structured_outputs": {"choice": ["yes", "no", "może"]}}}, is_one_of("yes", "no", "może")),
    "grammar": ({"extra_body": {"structured_outputs": {"grammar": GRAMMAR}}}, is_match(r"\[-?\d{1,4}(, -?\d{1,4}){1,3}\]")),
    "guided_regex": ({"extra_body": {"guided_regex": "[ab]{4}"}}, is_match("[ab]{4}")),
    "guided_choice": ({"extra_body": {"guided_choice": ["a b", "c"]}}, is_one_of("a b", "c")),
    "guided_grammar": ({"extra_body": {"guided_grammar": 'root ::= "x"{2}'}}, is_one_of("xx")),
}


class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=10)


class Person(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=120)
    places: list[Place] = pydantic.Field(min_length=1, max_length=2)


class Client:
    """The OpenAI package's client of a server."""

    def __init__(self, server):
        self.api = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.api.close()

    def chat(self, **arguments):
        return self.api.chat.completions.create(model="demo", messages=QUESTION, **{"max_tokens": 300, **arguments})

    def complete(self, **arguments):
        """Also response_format, which the package's completions have not."""
        extra = dict(arguments.pop("extra_body", {}))
        if "response_format" in arguments:
            extra["response_format"] = arguments.pop("response_format")
        return self.api.completions.create(model="demo", prompt="Once upon a time", extra_body=extra,
                                           **{"max_tokens": 300, **arguments})


class StructuredOutput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo")
        cls.client = Client(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.client.api.close()
        code, errors = cls.server.stop()
        assert code == 0, errors

    def test_every_answer_fits_at_any_temperature(self):
        for way, (arguments, check) in WAYS.items():
            for temperature in 0, 2:
                for seed in range(1 if temperature == 0 else 4):
                    with self.subTest(way=way, temperature=temperature, seed=seed):
                        chat = self.client.chat(temperature=temperature, seed=seed, **arguments)
                        self.assertEqual(chat.choices[0].finish_reason, "stop")
                        check(chat.choices[0].message.content)
                        completion = self.client.complete(temperature=temperature, seed=seed, **arguments)
                        self.assertEqual(completion.choices[0].finish_reason, "stop")
                        check(completion.choices[0].text)

    def test_json_object(self):
        for seed in range(4):
            answer = self.client.chat(temperature=1.5, seed=seed, max_tokens=2000, response_format={"type": "json_object"})
            if answer.choices[0].finish_reason == "stop":
                self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)
            self.assertEqual(answer.choices[0].message.content.strip()[:1], "{")

    def test_a_pydantic_model_is_parsed(self):
        for temperature in 0, 2:
            answer = self.client.api.chat.completions.parse(model="demo", messages=QUESTION, response_format=Person, seed=3,
                                                            temperature=temperature, max_tokens=300)
            self.assertIsInstance(answer.choices[0].message.parsed, Person)

    def test_a_stream_is_the_whole_answer(self):
        arguments = {"temperature": 2, "seed": 5, **WAYS["json_schema"][0]}
        whole = self.client.chat(**arguments).choices[0].message.content
        chunks = list(self.client.chat(stream=True, **arguments))
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), whole)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")

    def test_other_parameters_keep_their_meaning(self):
        regex = WAYS["regex"][0]
        several = self.client.chat(n=3, temperature=2, seed=1, logprobs=True, top_logprobs=3, **regex)
        self.assertEqual(len({choice.message.content for choice in several.choices}), 3)
        for choice in several.choices:
            WAYS["regex"][1](choice.message.content)
            tokens = [each.token for each in choice.logprobs.content]
            self.assertTrue("".join(tokens).startswith(choice.message.content))
            for each in choice.logprobs.content:  # tokens that the grammar rules out have no probability
                likely = sum(2.718281828 ** other.logprob for other in each.top_logprobs)
                self.assertLess(likely, 1.0001)
        alone = self.client.chat(temperature=2, seed=1, **regex).choices[0].message.content
        self.assertEqual(several.choices[0].message.content, alone)
        choices = {"structured_outputs": {"choice": ["aaaa", "aaaab"]}}
        # A complete text ends in spite of min_tokens; until then it continues where the grammar allows it.
        self.assertEqual(self.client.complete(temperature=0, extra_body={**choices, "min_tokens": 200}).choices[0].text, "aaaab")
        # Where nothing can follow, it ends also without the end of a text.
        ended = self.client.complete(temperature=0, extra_body={**choices, "ignore_eos": True, "return_token_ids": True})
        self.assertEqual((ended.choices[0].text, ended.choices[0].finish_reason), ("aaaab", "stop"))
        self.assertEqual(len(ended.choices[0].token_ids), ended.usage.completion_tokens)
        stopped = self.client.complete(temperature=0, stop="aa", extra_body=choices)
        self.assertEqual((stopped.choices[0].text, stopped.choices[0].finish_reason), ("", "stop"))
        cut = self.client.complete(temperature=0, max_tokens=1, extra_body={"structured_outputs": {"regex": "a{200}"}})
        self.assertEqual(cut.choices[0].finish_reason, "length")

    def test_what_cannot_be_held_is_refused_by_name(self):
        deep = {"type": "string"}
        for _ in range(70):
            deep = {"items": deep}
        cases = [
            ({"response_format": schema_format({"not": {"format": "date"}})}, "response_format", "'not'"),
            ({"response_format": schema_format({"uniqueItems": True})}, "response_format", "'uniqueItems'"),
            ({"response_format": schema_format({"type": "strin"})}, "response_format", "strin"),
            ({"response_format": schema_format({"$ref": "#/nowhere"})}, "response_format", "#/nowhere"),
            ({"response_format": schema_format({"enum": []})}, "response_format", "no text"),
            ({"response_format": schema_format(deep)}, None, "64"),
            ({"response_format": schema_format({"pattern": "(?=a)"})}, "response_format", "look-ahead"),
            ({"extra_body": {"structured_outputs": {"regex": "(a"}}}, "structured_outputs", "regex"),
            ({"extra_body": {"structured_outputs": {"regex": "((a{1,9999}){1,9999}){1,9999}b{60000}c{70000}"}}},
             "structured_outputs", "65536"),
            ({"extra_body": {"structured_outputs": {"grammar": "root ::= missing"}}}, "structured_outputs", "missing"),
            ({"extra_body": {"structured_outputs": {"grammar": "start: other"}}}, "structured_outputs", "'other'"),
            ({"extra_body": {"structured_outputs": {"json": "{"}}}, "structured_outputs", "no JSON"),
            ({"extra_body": {"guided_regex": "\\bword"}}, "guided_regex", "regex"),
        ]
        for arguments, param, part in cases:
            with self.subTest(arguments=str(arguments)[:90]), self.assertRaises(openai.BadRequestError) as refused:
                self.client.chat(**arguments)
            self.assertIn(part, refused.exception.message)
            if param:
                self.assertEqual(refused.exception.param, param)
        self.assertEqual(self.server.wait_idle(), 0)


def fields(number):
    """Requests of every kind, greedy and sampled."""
    ways = list(WAYS.values())
    return {"temperature": 1.5 if number % 3 else 0, "seed": number, "logprobs": True, **ways[number % len(ways)][0]}


def answers(server, numbers, concurrently=True):
    with Client(server) as client, concurrent.futures.ThreadPoolExecutor(16 if concurrently else 1) as pool:
        def ask(number):
            choice = client.chat(**fields(number)).choices[0]
            return choice.message.content, choice.finish_reason, [each.logprob for each in choice.logprobs.content]
        return list(pool.map(ask, numbers))


class Invariance(unittest.TestCase):
    NUMBERS = range(20)

    def test_batch_drafts_topology_and_crashes_change_nothing(self):
        with Server("--served-model-name", "demo") as server:
            expected = answers(server, self.NUMBERS, concurrently=False)
            self.assertEqual(answers(server, self.NUMBERS), expected)
        ngram = json.dumps({"method": "ngram", "num_speculative_tokens": 4})
        for options in (["--speculative-config", ngram], ["-tp", "2"], ["-pp", "2"], ["--no-async-scheduling"],
                        ["--num-gpu-blocks-override", "61", "--max-model-len", "400", "--max-num-seqs", "16",
                         "--max-num-batched-tokens", "64"]):
            with self.subTest(options=options), Server("--served-model-name", "demo", *options) as server:
                self.assertEqual(answers(server, self.NUMBERS), expected)
        self.check_crashes(expected, "worker", "core")

    def test_text_without_a_choice_has_the_same_tokens_in_every_topology_and_after_a_crash(self):
        jump = "--enable-jump-forward"
        with Server("--served-model-name", "demo", jump) as server:
            expected = answers(server, self.NUMBERS, concurrently=False)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 0)
            self.assertEqual(answers(server, self.NUMBERS), expected)
        with Server("--served-model-name", "demo", jump, "-tp", "2") as server:
            self.assertEqual(answers(server, self.NUMBERS), expected)
        self.check_crashes(expected, "worker", "core", options=[jump])

    def check_crashes(self, expected, *victims, options=()):
        with Server("--served-model-name", "demo", "--config-file", str(CONFIGS / "multi-process.conf"), *options) as server:
            for victim in victims:
                with self.subTest(victim=victim), concurrent.futures.ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(answers, server, list(self.NUMBERS) * 3)
                    wait_until(lambda: asked.done() or server.metric("vllm:num_requests_running") > 4, "running requests")
                    pid = next(pid for name, pid in server.nodes().items() if name.startswith(victim))
                    os.kill(pid, signal.SIGKILL)
                    wait_until(lambda: not is_running(pid), "the end of a process")
                    self.assertEqual(asked.result(), expected * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
