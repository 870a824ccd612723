#!/usr/bin/env python3
"""Ollama's API through its Python package: chat and generate, streamed and not, tools, formats, and what is refused."""
import json
import unittest
import urllib.error
import urllib.request

import jsonschema
import ollama
import openai

from support import DEADLINE_S, Server

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
HELLO = [{"role": "user", "content": "Who are you?"}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


class Ollama(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--served-model-name", "demo"))
        cls.client = ollama.Client(host=cls.server.url)
        cls.greedy = {"temperature": 0, "num_predict": 200, "num_ctx": 8192}

    def test_bodies_are_json_whatever_curl_says_of_them_but_not_those_of_pages(self):
        def post(**headers):
            body = json.dumps({"model": "demo", "prompt": "Once", "stream": False, "options": {"num_predict": 1}}).encode()
            request = urllib.request.Request(self.server.url + "/api/generate", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        form = {"Content-Type": "application/x-www-form-urlencoded"}
        self.assertEqual([post(**form), post(**form, Origin="http://page.example"), post(**{"Content-Type": "application/json"})],
                         [200, 400, 200])

    def test_chat(self):
        whole = self.client.chat("demo", HELLO, options=self.greedy)
        chat = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none").chat.completions.create(
            model="demo", messages=HELLO, temperature=0, max_tokens=200)
        self.assertEqual(whole.message.content, chat.choices[0].message.content)
        self.assertEqual((whole.done, whole.done_reason, whole.eval_count, whole.prompt_eval_count),
                         (True, "stop", chat.usage.completion_tokens, chat.usage.prompt_tokens))
        self.assertGreater(whole.total_duration, 0)
        parts = list(self.client.chat("demo:latest", HELLO, options=self.greedy, stream=True))
        self.assertEqual("".join(part.message.content for part in parts), whole.message.content)
        self.assertEqual([part.done for part in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1].eval_count, whole.eval_count)
        self.assertEqual(self.client.chat("demo", HELLO, options={**self.greedy, "num_predict": 2}).done_reason, "length")

    def test_generate(self):
        whole = self.client.generate("demo", "Who are you?", options=self.greedy)
        self.assertEqual(whole.response, self.client.chat("demo", HELLO, options=self.greedy).message.content)
        parts = list(self.client.generate("demo", "Who are you?", options=self.greedy, stream=True))
        self.assertEqual("".join(part.response for part in parts), whole.response)

    def test_a_tool_and_the_turn_after_it(self):
        message = self.client.chat("demo", QUESTION, tools=TOOLS, options=self.greedy).message
        call, = message.tool_calls
        self.assertEqual((call.function.name, call.function.arguments), ("get_weather", {"city": "Paris"}))
        parts = list(self.client.chat("demo", QUESTION, tools=TOOLS, options=self.greedy, stream=True))
        self.assertEqual([each.function.arguments for part in parts for each in part.message.tool_calls or []],
                         [{"city": "Paris"}])
        answer = self.client.chat("demo", [*QUESTION, message, {"role": "tool", "tool_name": "get_weather",
                                                                "content": "It is sunny."}],
                                  tools=TOOLS, options=self.greedy)
        self.assertIn("sunny", answer.message.content.lower())

    def test_formats(self):
        jsonschema.validate(json.loads(self.client.chat("demo", HELLO, format=SCHEMA, options=self.greedy).message.content),
                            SCHEMA)
        answer = self.client.generate("demo", "One?", format="json", options={"temperature": 0, "num_predict": 1000})
        if answer.done_reason == "stop":
            self.assertIsInstance(json.loads(answer.response), dict)

    def test_models(self):
        self.assertEqual([model.model for model in self.client.list().models], ["demo"])
        shown = self.client.show("demo:latest")
        self.assertEqual(shown.capabilities, ["completion", "tools", "vision"])
        architecture = shown.modelinfo["general.architecture"]
        self.assertEqual((architecture, shown.details.family), ("Gemma3ForConditionalGeneration",) * 2)
        self.assertEqual(shown.modelinfo[f"{architecture}.context_length"], 2048)

    def test_what_is_refused_is_named(self):
        for arguments, word in (({"model": "other"}, "other"), ({"messages": []}, "messages"),
                                ({"options": {"mirostat": 2}}, "options.mirostat"), ({"options": {"nonsense": 1}}, "nonsense"),
                                ({"options": {"temperature": -1}}, "temperature"), ({"format": {"type": "string", "pattern": "(?<=a)b"}}, "look-behind"),
                                ({"messages": [{"role": "user", "content": "x", "images": [b"abc"]}]}, "image 1")):
            with self.assertRaises(ollama.ResponseError, msg=arguments) as refused:
                self.client.chat(**{"model": "demo", "messages": HELLO, **arguments})
            self.assertIn(word, refused.exception.error)
            self.assertIn(refused.exception.status_code, (400, 404))
        with self.assertRaises(ollama.ResponseError) as refused:
            self.client.generate("demo", "x", raw=True)
        self.assertIn("raw", refused.exception.error)


if __name__ == "__main__":
    unittest.main()
