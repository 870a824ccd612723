#!/usr/bin/env python3
"""Anthropic's Messages API through its Python package: texts, streams, tools, schemas, token counts and errors."""
import json
import unittest
import urllib.error
import urllib.request

import anthropic
import jsonschema

from support import DEADLINE_S, Server

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
           "additionalProperties": False}
TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}]
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
HELLO = [{"role": "user", "content": "Who are you?"}]


def body_of(arguments):
    """With what this version of the package has no arguments for."""
    extra = {"temperature": 0, **arguments.pop("extra_body", {})}
    if "temperature" in arguments:
        extra["temperature"] = arguments.pop("temperature")
    return {"model": "demo", "messages": HELLO, "max_tokens": 200, "extra_body": extra, **arguments}


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-model-len", "1024", "--served-model-name", "demo", "--api-key", "k"))
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="k", max_retries=0, timeout=DEADLINE_S)

    def ask(self, **arguments):
        return self.client.messages.create(**body_of(arguments))

    def streamed(self, **arguments):
        """The message that the package's own accumulator makes of a stream, and the types of its events."""
        with self.client.messages.stream(**body_of(arguments)) as stream:
            types = [event.type for event in stream]
            return stream.get_final_message(), types

    def test_streamed_answers_are_whole_answers(self):
        for arguments in ({}, {"system": "You are a pirate."}, {"messages": QUESTION, "tools": TOOLS}, {"max_tokens": 3},
                          {"stop_sequences": ["a"]}, {"messages": QUESTION, "tools": TOOLS, "max_tokens": 12},
                          {"messages": QUESTION, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}):
            with self.subTest(arguments):
                whole, (streamed, types) = self.ask(**arguments), self.streamed(**arguments)

                def facts(message):
                    blocks = [block.model_dump(exclude_none=True) for block in message.content]
                    for block in blocks:
                        block.pop("id", None)
                        if block.get("input") == {} or "INVALID_JSON" in block.get("input", {}):
                            block.pop("input")  # cut off: the package makes another object of it than the server
                    return blocks, message.stop_reason, message.stop_sequence, message.usage.output_tokens
                self.assertEqual(facts(streamed), facts(whole))
                self.assertEqual((types[0], types[-1]), ("message_start", "message_stop"))
                self.assertEqual(whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
                                 streamed.usage.input_tokens + streamed.usage.cache_read_input_tokens)

    def test_the_answer_is_that_of_the_chat_api(self):
        message = self.ask()
        self.assertRegex(message.id, "^msg_[0-9a-f]{32}$")
        self.assertEqual((message.type, message.role, message.model, message.stop_reason),
                         ("message", "assistant", "demo", "end_turn"))
        chat = json.loads(self.post("/v1/chat/completions", {"model": "demo", "messages": HELLO, "max_tokens": 200,
                                                             "temperature": 0}).read())
        self.assertEqual(message.content[0].text, chat["choices"][0]["message"]["content"])
        self.assertEqual(message.usage.output_tokens, chat["usage"]["completion_tokens"])

    def post(self, path, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": "application/json", "x-api-key": "k",
                                                                        **headers})
        return urllib.request.urlopen(request, timeout=DEADLINE_S)

    def test_why_it_stopped(self):
        self.assertEqual(self.ask(max_tokens=2).stop_reason, "max_tokens")
        stopped = self.ask(stop_sequences=["zzz", "a"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "a"))
        self.assertNotIn("a", stopped.content[0].text)

    def test_a_tool_and_the_turn_after_it(self):
        message = self.ask(messages=QUESTION, tools=TOOLS)
        self.assertEqual(message.stop_reason, "tool_use")
        call = message.content[-1]
        self.assertEqual((call.type, call.name, call.input), ("tool_use", "get_weather", {"city": "Paris"}))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "It is sunny."}]}
        answer = self.ask(messages=[*QUESTION, {"role": "assistant", "content": message.content},
                                    {"role": "user", "content": [result]}], tools=TOOLS)
        self.assertEqual(answer.stop_reason, "end_turn")
        self.assertIn("sunny", answer.content[0].text.lower())

    def test_forced_tools_validate(self):
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
            message = self.ask(messages=QUESTION, tools=TOOLS, tool_choice=choice, temperature=1, max_tokens=400)
            self.assertEqual(message.stop_reason, "tool_use")
            for block in message.content:
                self.assertEqual(block.type, "tool_use")
                jsonschema.validate(block.input, WEATHER)
        self.assertEqual(self.ask(messages=QUESTION, tools=TOOLS, tool_choice={"type": "none"}).stop_reason, "end_turn")

    def test_an_answer_that_has_begun_is_continued(self):
        whole = self.ask().content[0].text
        begun = self.ask(messages=[*HELLO, {"role": "assistant", "content": whole[:8]}]).content[0].text
        self.assertEqual(whole[:8] + begun, whole)

    def test_an_answer_is_held_to_a_schema(self):
        schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
        message = self.ask(extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
        jsonschema.validate(json.loads(message.content[0].text), schema)

    def test_tokens_are_counted_without_an_answer(self):
        ask = {"model": "demo", "messages": QUESTION, "tools": TOOLS, "system": [{"type": "text", "text": "Be brief."}]}
        usage = self.ask(**ask, max_tokens=1).usage
        self.assertEqual(self.client.messages.count_tokens(**ask).input_tokens,
                         usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors_have_the_form_of_the_api(self):
        def refused(arguments, error, *words):
            with self.assertRaises(error) as raised:
                self.ask(**arguments)
            body = raised.exception.body
            self.assertEqual((body["type"], set(body["error"])), ("error", {"type", "message"}))
            for word in words:
                self.assertIn(word, body["error"]["message"])
        bad = anthropic.BadRequestError
        refused({"messages": []}, bad, "messages")
        refused({"messages": [{"role": "system", "content": "x"}]}, bad, "messages.0.role", "system")
        refused({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, bad,
                "messages.0.content.0.type", "document")
        refused({"max_tokens": 0}, bad, "max_tokens")
        refused({"stop_sequences": list("abcde")}, bad, "stop_sequences", "5", "4")
        refused({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, bad, "tools.0.type", "web_search")
        refused({"thinking": {"type": "enabled", "budget_tokens": 10}}, bad, "thinking.budget_tokens", "1024")
        refused({"temperature": -1}, bad, "temperature", "-1")
        refused({"model": "other"}, anthropic.NotFoundError, "other", "demo")
        with self.assertRaises(anthropic.AuthenticationError) as raised:
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0).messages.create(
                model="demo", messages=HELLO, max_tokens=1)
        self.assertEqual(raised.exception.body["error"]["type"], "authentication_error")
        for body in (b"{", b"[]", b'{"max_tokens":1}', b"\xff", b"[" * 100_000):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                self.post("/v1/messages", body)
            self.assertEqual(raised.exception.code, 400)
            self.assertEqual(json.loads(raised.exception.read())["error"]["type"], "invalid_request_error")
        with self.assertRaises(urllib.error.HTTPError) as raised:
            self.post("/v1/messages", b"{}", **{"Content-Type": "text/plain"})
        self.assertEqual(json.loads(raised.exception.read())["type"], "error")


class Thinking(unittest.TestCase):
    def test_reasoning_is_thinking(self):
        # The demo model does not reason: with a parser that takes what comes first for reasoning, all of it is.
        with Server("--served-model-name", "demo", "--reasoning-parser", "deepseek_r1") as server:
            client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
            ask = body_of({"max_tokens": 100})
            whole = client.messages.create(**ask)
            self.assertEqual([block.type for block in whole.content], ["thinking"])
            self.assertTrue(whole.content[0].signature)
            with client.messages.stream(**ask) as stream:
                streamed = stream.get_final_message()
            self.assertEqual(streamed.content[0].thinking, whole.content[0].thinking)
            self.assertTrue(streamed.content[0].signature)
            # The budget of `thinking` is at least 1024 tokens; this is the same with fewer.
            short = client.messages.create(**ask, extra_body={"thinking_token_budget": 4})
            self.assertEqual([block.type for block in short.content], ["thinking", "text"])
            self.assertTrue(whole.content[0].thinking.startswith(short.content[0].thinking))
            client.messages.create(**{**ask, "max_tokens": 1100, "thinking": {"type": "enabled", "budget_tokens": 1024}})
            client.messages.create(**{**ask, "messages": [*HELLO, {"role": "assistant", "content": [
                *whole.content, {"type": "text", "text": "I am."}]}, *HELLO]})


if __name__ == "__main__":
    unittest.main()
