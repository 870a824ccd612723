#!/usr/bin/env python3
"""Tool calls through the OpenAI Python package: the demo model's own calls, forced ones, streamed and not, and the turn
after a call."""
import json
import pathlib
import shutil
import tempfile
import unittest

import jsonschema
import openai
import pydantic

from support import DEADLINE_S, ROOT, Server

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
           "additionalProperties": False}
SUM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/small"}}, "required": ["a", "b"],
       "additionalProperties": False, "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 99}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "add", "parameters": SUM}}]
SCHEMAS = {"get_weather": WEATHER, "add": SUM}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-model-len", "1024", "--served-model-name", "demo"))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def chat(self, **arguments):
        arguments = {"model": "demo", "messages": QUESTION, "tools": TOOLS, "temperature": 0,
                     "max_tokens": 200, **arguments}
        return self.client.chat.completions.create(**arguments)

    def streamed(self, **arguments):
        """The choices of a stream, joined."""
        choices = {}
        for chunk in self.chat(stream=True, **arguments):
            for part in chunk.choices:
                choice = choices.setdefault(part.index, {"content": "", "calls": [], "finish": None})
                choice["content"] += part.delta.content or ""
                for call in part.delta.tool_calls or []:
                    if call.id:
                        self.assertEqual(call.index, len(choice["calls"]))
                        choice["calls"].append([call.function.name, ""])
                    choice["calls"][call.index][1] += call.function.arguments
                choice["finish"] = part.finish_reason or choice["finish"]
        return choices

    def check_calls(self, calls):
        for call in calls:
            self.assertRegex(call.id, r"^chatcmpl-tool-[0-9a-f]{16}$")
            self.assertEqual(call.type, "function")
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        self.assertEqual(len({call.id for call in calls}), len(calls))

    def test_the_models_own_call(self):
        choice = self.chat().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        self.check_calls(choice.message.tool_calls)
        call = choice.message.tool_calls[0].function
        self.assertEqual((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))
        self.assertEqual(self.streamed()[0], {"content": "", "calls": [[call.name, call.arguments]], "finish": "tool_calls"})

    def test_the_turn_after_a_call(self):
        message = self.chat().choices[0].message
        answer = self.chat(messages=[*QUESTION, message.model_dump(exclude_none=True),
                                     {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is sunny."}])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertTrue(answer.choices[0].message.content)
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_no_calls_without_tools_and_with_none(self):
        text = self.chat(tool_choice="none").choices[0]
        self.assertIn("<tool_call>", text.message.content)
        self.assertEqual((text.finish_reason, text.message.tool_calls), ("stop", None))
        self.assertIsNone(self.chat(tools=openai.NOT_GIVEN).choices[0].message.tool_calls)

    def test_forced_calls_are_the_models_own(self):
        for choice, finish in (("required", "tool_calls"),
                               ({"type": "function", "function": {"name": "get_weather"}}, "stop")):
            answer = self.chat(tool_choice=choice).choices[0]
            call, = answer.message.tool_calls
            self.assertEqual((call.function.name, json.loads(call.function.arguments), answer.finish_reason),
                             ("get_weather", {"city": "Paris"}, finish))
            self.assertEqual(self.streamed(tool_choice=choice)[0],
                             {"content": "", "calls": [["get_weather", call.function.arguments]], "finish": finish})

    def test_calls_of_strict_functions_match_their_schemas_if_they_are_made(self):
        class get_weather(pydantic.BaseModel):
            city: str

        class add(pydantic.BaseModel):
            a: int
            b: int

        tools = [openai.pydantic_function_tool(each) for each in (get_weather, add)]
        for temperature in (0, 1.5):
            choice = self.client.chat.completions.parse(model="demo", messages=QUESTION, tools=tools, max_tokens=200,
                                                        temperature=temperature).choices[0]
            for call in choice.message.tool_calls or []:
                self.assertIsInstance(call.function.parsed_arguments, (get_weather, add))
            if temperature == 0:
                self.assertEqual(choice.message.tool_calls[0].function.parsed_arguments, get_weather(city="Paris"))
        hello = self.client.chat.completions.parse(model="demo", messages=[{"role": "user", "content": "Hello!"}], tools=tools,
                                                   max_tokens=200, temperature=0).choices[0]
        self.assertEqual((hello.finish_reason, hello.message.tool_calls or []), ("stop", []))
        self.assertTrue(hello.message.content)

    def test_an_answer_held_to_a_schema_may_be_calls(self):
        schema = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 40}}, "required": ["text"],
                  "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        for strict in (False, True):
            tools = [{**each, "function": {**each["function"], "strict": strict}} for each in TOOLS]
            call, = self.chat(tools=tools, response_format=form).choices[0].message.tool_calls
            self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
            self.assertEqual(self.streamed(tools=tools, response_format=form)[0],
                             {"content": "", "calls": [[call.function.name, call.function.arguments]], "finish": "tool_calls"})
            told = self.chat(tools=tools, response_format=form, tool_choice="none", messages=[
                *QUESTION, {"role": "assistant", "tool_calls": [call.model_dump()]},
                {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}]).choices[0]
            self.assertEqual((told.finish_reason, told.message.tool_calls), ("stop", None))
            jsonschema.validate(json.loads(told.message.content), schema)
            for choice in self.chat(tools=tools, response_format=form, temperature=2, n=6, seed=3).choices:
                if choice.finish_reason == "length":
                    continue
                if choice.message.tool_calls:
                    self.check_calls(choice.message.tool_calls)
                    self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
                else:
                    jsonschema.validate(json.loads(choice.message.content), schema)
        response = self.client.responses.create(
            model="demo", input=QUESTION, temperature=0, text={"format": {"type": "json_schema", "name": "s", "schema": schema}},
            tools=[{"type": "function", **each["function"], "strict": True} for each in TOOLS])
        self.assertEqual([item.name for item in response.output], ["get_weather"])

    def test_strict_functions_need_a_format_that_can_be_held(self):
        tools = [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}]
        with Server("--served-model-name", "demo", "--tool-call-parser", "functiongemma") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            with self.assertRaises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="demo", messages=QUESTION, tools=tools)
            self.assertEqual((refused.exception.code, refused.exception.param), ("unsupported_parameter", "tools"))

    def test_forced_calls_always_validate(self):
        for temperature in (0, 2):
            for choice in ("required", {"type": "function", "function": {"name": "add"}}):
                for parallel in (True, False):
                    with self.subTest(temperature=temperature, choice=choice, parallel=parallel):
                        arguments = {"tool_choice": choice, "temperature": temperature, "n": 3 if temperature else 1, "seed": 5,
                                     "parallel_tool_calls": parallel, "max_tokens": 400}
                        whole = self.chat(**arguments).choices
                        streamed = self.streamed(**arguments)
                        self.assertEqual(len(whole), arguments["n"])
                        for answer in whole:
                            calls = answer.message.tool_calls
                            joined = streamed[answer.index]
                            self.assertEqual([[call.function.name, call.function.arguments] for call in calls], joined["calls"])
                            self.assertEqual(answer.finish_reason, joined["finish"])
                            self.assertFalse(answer.message.content)
                            if answer.finish_reason == "length":
                                continue  # reported as it stands
                            self.check_calls(calls)
                            if isinstance(choice, dict):
                                self.assertEqual([call.function.name for call in calls], ["add"])
                                self.assertEqual(answer.finish_reason, "stop")
                            else:
                                self.assertEqual(answer.finish_reason, "tool_calls")
                            if not parallel:
                                self.assertEqual(len(calls), 1)

    def test_a_function_without_parameters(self):
        for choice in ("none", "auto", "required"):
            calls = self.chat(tools=[{"type": "function", "function": {"name": "ping"}}], tool_choice=choice).choices[0].message.tool_calls
            if choice != "auto":
                self.assertEqual({call.function.name for call in calls or []}, {"ping"} if choice == "required" else set())

    def test_allowed_tools(self):
        def allow(mode, *names):
            tools = [{"type": "function", "function": {"name": name}} for name in names]
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

        whole = self.chat(tool_choice=allow("auto", "add", "get_weather")).choices[0].message
        self.assertEqual([call.function.name for call in whole.tool_calls], ["get_weather"])
        for temperature, n in ((0, 1), (1.8, 5)):
            for mode in ("auto", "required"):
                arguments = {"tool_choice": allow(mode, "add"), "temperature": temperature, "n": n, "seed": 3}
                streamed = self.streamed(**arguments)
                for choice in self.chat(**arguments).choices:
                    calls = choice.message.tool_calls or []
                    self.assertEqual([call.function.name for call in calls], [name for name, _ in streamed[choice.index]["calls"]])
                    self.assertLessEqual({call.function.name for call in calls}, {"add"})
                    if mode == "required" and choice.finish_reason != "length":
                        self.check_calls(calls)
                        self.assertGreaterEqual(len(calls), 1)
        tools = [{"type": "function", "name": tool["function"]["name"], "parameters": tool["function"]["parameters"]} for tool in TOOLS]
        response = self.client.responses.create(model="demo", input=QUESTION, tools=tools, tool_choice={
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}, max_output_tokens=200)
        self.assertEqual({item.name for item in response.output if item.type == "function_call"}, {"add"})

    def test_what_is_wrong_is_named(self):
        for arguments, name in [
                ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice"),
                ({"tool_choice": "required", "tools": openai.NOT_GIVEN}, "tool_choice"),
                ({"tool_choice": "required", "tools": [{"type": "function", "function": {
                    "name": "f", "parameters": {"type": "object", "not": {"multipleOf": 2}}}}]}, "tools"),
                ({"tools": []}, "tools"),
                ({"messages": [*QUESTION, {"role": "assistant", "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}] * 2}]},
                 "messages.1.tool_calls.1.id"),
                ({"messages": [*QUESTION, {"role": "assistant", "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "add", "arguments": 5}}]}]},
                 "messages.1.tool_calls.0.function.arguments")]:
            with self.subTest(arguments=str(arguments)):
                with self.assertRaises(openai.BadRequestError) as refused:
                    self.chat(**arguments)
                self.assertEqual(refused.exception.body["param"], name)


class StrictLevels(unittest.TestCase):
    """Calls that the model decides to make, held from where they begin, though no function is strict."""

    def check(self, client, **arguments):
        """Every call validates, whole and streamed; returns how many there were."""
        arguments = {"model": "demo", "messages": QUESTION, "tools": TOOLS, "max_tokens": 300, "n": 6, "seed": 7, "logprobs": True,
                     "temperature": 1.8, **arguments}
        whole = client.chat.completions.create(**arguments).choices
        for choice in whole:
            self.assertNotIn("tool_call>", choice.message.content or "")
            if choice.finish_reason == "length":
                continue
            calls = choice.message.tool_calls or []
            self.assertEqual(choice.finish_reason, "tool_calls" if calls else "stop")
            for call in calls:
                jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
        names = {}
        for chunk in client.chat.completions.create(**arguments, stream=True):
            for part in chunk.choices:
                names.setdefault(part.index, []).extend(
                    call.function.name for call in part.delta.tool_calls or [] if call.function.name)
        for choice in whole:
            self.assertEqual([call.function.name for call in choice.message.tool_calls or []], names.get(choice.index, []))
        return sum(len(each) for each in names.values())

    def test_every_call_that_begins_is_held_to_its_schema(self):
        with Server("--served-model-name", "demo", "--max-model-len", "1024", "--tool-strict-level", "parameter") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
            self.check(client)
            self.assertEqual(self.check(client, temperature=0, n=1), 1)
            self.assertEqual(self.check(client, messages=[{"role": "user", "content": "Hello!"}], temperature=0, n=1), 0)

    def test_markers_that_are_special_tokens(self):
        """A copy of the demo model, in whose vocabulary the markers are special tokens."""
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(ROOT / "tools" / "demo_model" / "model", pathlib.Path(folder) / "model")
            for name in ("tokenizer.json", "tokenizer_config.json"):
                content = json.loads((model / name).read_text())
                tokens = content.get("added_tokens") or content.get("added_tokens_decoder", {}).values()
                for token in tokens:
                    token["special"] |= token["content"] in ("<tool_call>", "</tool_call>")
                (model / name).write_text(json.dumps(content))
            # hermes, which is what the template shows, has markers that are plain text in most vocabularies.
            for parser in ("granite", "auto"):
                with self.subTest(parser), Server(str(model), "--served-model-name", "demo", "--max-model-len", "1024",
                                                  "--tool-call-parser", parser, "--tool-strict-level", "parameter") as server:
                    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)
                    self.check(client)
                    self.assertEqual(self.check(client, temperature=0, n=1), 1)
                    for temperature, n in ((0, 1), (1.8, 6)):
                        self.assertGreaterEqual(self.check(client, tool_choice="required", temperature=temperature, n=n), n)


if __name__ == "__main__":
    unittest.main()
