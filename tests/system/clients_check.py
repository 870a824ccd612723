#!/usr/bin/env python3
"""The clients that people use, against `troupe serve` with the demo model: every feature and every class of error once,
streamed and not. Run by make test-clients, in the environment of clients_requirements.txt."""
import asyncio
import base64
import json
import logging
import os
import pathlib
import tempfile
import unittest
import warnings

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the network otherwise

import anthropic
import jsonschema
import litellm
import openai
import pydantic
import pydantic_ai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI, OpenAI as LangChainOpenAI, OpenAIEmbeddings
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from support import DEADLINE_S, ROOT, SAMPLES, Server

WHO = "I am the Troupe demo model"
QUESTION = "What is the weather in Paris?"
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
           "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}}]
IMAGE = "data:image/png;base64," + base64.b64encode((SAMPLES / "star_over_triangle.png").read_bytes()).decode()
EMBEDDER = ROOT / "tests" / "golden" / "models" / "models" / "bert_embed"


class Answer(pydantic.BaseModel):
    """Is it so?"""
    yes: bool
    number: int = pydantic.Field(ge=0, le=99)


class City(pydantic.BaseModel):
    """Weather of a city"""
    city: str = pydantic.Field(max_length=12)


def user(text):
    return [{"role": "user", "content": text}]


class Clients(unittest.TestCase):
    """One server for all of them."""
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        keys = pathlib.Path(folder) / "keys.json"
        cls.server = cls.enterClassContext(Server(
            "--served-model-name", "demo", "--api-key", "k", "--batch-directory", f"{folder}/batches",
            "--enable-prompt-tokens-details", "--max-model-len", "2048", "--enable-request-id-headers",
            "--allowed-hosts", "127.0.0.1"))
        cls.url = cls.server.url + "/v1"
        cls.openai = openai.OpenAI(base_url=cls.url, api_key="k", max_retries=0, timeout=DEADLINE_S)
        cls.anthropic = anthropic.Anthropic(base_url=cls.server.url, api_key="k", max_retries=0, timeout=DEADLINE_S)


class OpenAIPackage(Clients):
    def chat(self, text=QUESTION, **arguments):
        return self.openai.chat.completions.create(**{"model": "demo", "messages": user(text), "temperature": 0,
                                                      "max_completion_tokens": 100, **arguments})

    def test_models_are_listed_and_retrieved(self):
        listed = self.openai.models.list().data
        self.assertEqual([model.id for model in listed], ["demo"])
        self.assertEqual(self.openai.models.retrieve("demo").id, "demo")
        with self.assertRaises(openai.NotFoundError):
            self.openai.models.retrieve("other")

    def test_the_stream_helper_accumulates_what_create_returns(self):
        for arguments in ({}, {"tools": TOOLS}, {"logprobs": True, "top_logprobs": 2}, {"max_completion_tokens": 3},
                          {"stream_options": {"include_usage": True}}, {"tools": TOOLS, "tool_choice": "required"}):
            with self.subTest(arguments):
                whole = self.chat(**{k: v for k, v in arguments.items() if k != "stream_options"}).choices[0]
                with self.openai.chat.completions.stream(model="demo", messages=user(QUESTION), temperature=0,
                                                         **{"max_completion_tokens": 100, **arguments}) as stream:
                    types = {event.type for event in stream}
                    try:
                        last = stream.get_final_completion()
                    except openai.LengthFinishReasonError as cut:
                        last = cut.completion
                        self.assertEqual(arguments["max_completion_tokens"], 3)
                choice = last.choices[0]
                self.assertIn("chunk", types)
                self.assertEqual(choice.message.content or None, whole.message.content)
                self.assertEqual(choice.finish_reason, whole.finish_reason)
                self.assertEqual([(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []],
                                 [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []])
                if "logprobs" in arguments:
                    self.assertEqual(choice.logprobs.content, whole.logprobs.content)
                if "stream_options" in arguments:
                    self.assertGreater(last.usage.completion_tokens, 0)

    def test_parse_makes_objects_of_answers_and_calls(self):
        parsed = self.openai.chat.completions.parse(model="demo", messages=user("Is Paris in France?"), response_format=Answer,
                                                    temperature=1, max_completion_tokens=200).choices[0].message.parsed
        self.assertIsInstance(parsed, Answer)
        message = self.openai.chat.completions.parse(
            model="demo", messages=user(QUESTION), tools=[openai.pydantic_function_tool(City)], tool_choice="required",
            parallel_tool_calls=False, temperature=0, max_completion_tokens=200).choices[0].message
        self.assertIsInstance(message.tool_calls[0].function.parsed_arguments, City)

    def test_raw_and_streaming_responses_have_headers(self):
        raw = self.openai.chat.completions.with_raw_response.create(model="demo", messages=user("Hello!"), max_tokens=2,
                                                                    extra_headers={"X-Request-Id": "abc"})
        self.assertEqual(raw.headers["x-request-id"], "abc")
        self.assertEqual(raw.parse()._request_id, "abc")
        with self.openai.chat.completions.with_streaming_response.create(model="demo", messages=user("Hello!"),
                                                                         max_tokens=2) as response:
            self.assertEqual(json.loads(response.read())["object"], "chat.completion")

    def test_parameters_of_openai(self):
        """Those that a model of OpenAI's takes: none of them may be an error."""
        answer = self.chat("Hello!", n=2, temperature=1, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, seed=3,
                           stop=["zzz"], logit_bias={"5": -100}, logprobs=True, top_logprobs=1, user="u",
                           metadata={"a": "b"}, store=False, service_tier="auto", parallel_tool_calls=True,
                           response_format={"type": "text"}, safety_identifier="s", prompt_cache_key="p",
                           reasoning_effort="low", modalities=["text"], verbosity="medium")
        self.assertEqual(len(answer.choices), 2)

    def test_content_parts_images_and_roles(self):
        messages = [{"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
                    {"role": "user", "name": "Ann", "content": [
                        {"type": "text", "text": "What is in the picture?"},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}]}]
        self.assertIn("star", self.chat(messages=messages).choices[0].message.content)

    def test_a_tool_turn(self):
        call = self.chat(tools=TOOLS).choices[0].message
        self.assertEqual(json.loads(call.tool_calls[0].function.arguments), {"city": "Paris"})
        answer = self.chat(tools=TOOLS, messages=[*user(QUESTION), call,
                                                  {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"}])
        self.assertIn("sunny", answer.choices[0].message.content)

    def test_completions(self):
        arguments = {"model": "demo", "prompt": "The capital of Spain is", "max_tokens": 4, "temperature": 0, "logprobs": 1}
        whole = self.openai.completions.create(**arguments)
        chunks = list(self.openai.completions.create(stream=True, **arguments))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)
        self.openai.completions.create(**arguments, best_of=1, echo=True, n=1, user="u", suffix="")

    def test_async_clients_in_parallel(self):
        async def ask(client, number):
            stream = await client.chat.completions.create(model="demo", messages=user(f"What is {number} + 2?"), stream=True,
                                                          max_tokens=20)
            return [chunk async for chunk in stream]

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="k") as client:
                return await asyncio.gather(*(ask(client, i) for i in range(16)))
        for chunks in asyncio.run(all_of_them()):
            self.assertIsNotNone(chunks[-1].choices[0].finish_reason)

    def test_a_stream_that_is_closed_early_ends_its_request(self):
        stream = self.chat("Tell me a story about a dragon.", stream=True, max_completion_tokens=1900,
                           extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.server.wait_idle()

    def test_responses_streamed_and_whole(self):
        for arguments in ({}, {"tools": [{"type": "function", "strict": None, **TOOLS[0]["function"]}]},
                          {"max_output_tokens": 16}, {"include": ["message.output_text.logprobs"], "top_logprobs": 1},
                          {"instructions": "Be kind.", "metadata": {"a": "b"}, "user": "u", "truncation": "auto",
                           "reasoning": {"effort": "low"}, "service_tier": "auto", "prompt_cache_key": "x"}):
            with self.subTest(arguments):
                arguments = {"model": "demo", "input": QUESTION, "temperature": 0, **arguments}
                whole = self.openai.responses.create(**arguments)
                with self.openai.responses.stream(**arguments) as stream:
                    list(stream)
                    last = stream.get_final_response() if whole.status == "completed" else None
                if last is not None:
                    self.assertEqual(last.output_text, whole.output_text)
                    self.assertEqual([item.type for item in last.output], [item.type for item in whole.output])
                self.assertEqual(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)

    def test_responses_parse_store_and_input_items(self):
        parsed = self.openai.responses.parse(model="demo", input="Is it?", text_format=Answer, max_output_tokens=200)
        self.assertIsInstance(parsed.output_parsed, Answer)
        self.assertEqual(self.openai.responses.retrieve(parsed.id).id, parsed.id)
        self.assertEqual(len(self.openai.responses.input_items.list(parsed.id).data), 1)
        self.assertEqual(self.openai.responses.input_tokens.count(model="demo", input="Is it?").object,
                         "response.input_tokens")
        self.openai.responses.delete(parsed.id)

    def test_a_response_in_the_background(self):
        begun = self.openai.responses.create(model="demo", input="Who are you?", background=True, temperature=0)
        self.assertIn(begun.status, ("queued", "in_progress", "completed"))
        with self.openai.responses.retrieve(begun.id, stream=True) as stream:
            last = list(stream)[-1]
        self.assertEqual(last.type, "response.completed")
        self.assertIn(WHO, self.openai.responses.retrieve(begun.id).output_text)

    def test_files_and_batches(self):
        lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions",
                  "body": {"model": "demo", "messages": user("Hello!"), "max_tokens": 4}} for i in range(3)]
        file = self.openai.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
        batch = self.openai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        while batch.status not in ("completed", "failed", "expired", "cancelled"):
            batch = self.openai.batches.retrieve(batch.id)
        self.assertEqual((batch.status, batch.request_counts.completed), ("completed", 3))
        self.assertEqual(len(self.openai.files.content(batch.output_file_id).text.splitlines()), 3)

    def test_errors(self):
        def refused(error, call, *words):
            with self.assertRaises(error) as raised:
                call()
            for word in words:
                self.assertIn(word, str(raised.exception))
            return raised.exception
        error = refused(openai.BadRequestError, lambda: self.chat(temperature=3), "temperature", "3")
        self.assertEqual(error.param, "temperature")
        refused(openai.BadRequestError, lambda: self.chat(temperature=3, stream=True), "temperature")
        refused(openai.BadRequestError, lambda: self.chat("x " * 5000), "2048")
        refused(openai.BadRequestError, lambda: self.chat(tool_choice="required"), "tools")
        refused(openai.BadRequestError, lambda: self.chat(messages=[]), "messages")
        refused(openai.BadRequestError, lambda: self.chat(response_format={"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "string", "pattern": "(?<=a)b"}}}), "look-behind")
        refused(openai.NotFoundError, lambda: self.chat(model="other"), "other", "demo")
        refused(openai.NotFoundError, lambda: self.openai.embeddings.create(model="demo", input="a"))
        refused(openai.NotFoundError, lambda: self.openai.images.generate(prompt="a"))
        wrong = openai.OpenAI(base_url=self.url, api_key="wrong", max_retries=0)
        refused(openai.AuthenticationError, lambda: wrong.models.list())
        refused(openai.PermissionDeniedError, lambda: self.openai.with_options(
            default_headers={"Host": "evil.example"}).models.list(), "evil.example")
        refused(openai.NotFoundError, lambda: self.openai.responses.retrieve("resp_1"))
        refused(openai.NotFoundError, lambda: self.openai.files.retrieve("file-1"))
        refused(openai.APITimeoutError, lambda: self.openai.with_options(timeout=0.05).chat.completions.create(
            model="demo", messages=user("Tell me a story."), max_tokens=1900, extra_body={"ignore_eos": True}))
        self.server.wait_idle()

    def test_limits_of_keys_are_rate_limit_errors(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("limited name=a requests-per-minute=1\n")
            file.flush()
            with Server("--served-model-name", "demo", "--api-key-file", file.name) as server:
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="limited", max_retries=0)
                client.completions.create(model="demo", prompt="a", max_tokens=1)
                with self.assertRaises(openai.RateLimitError) as raised:
                    client.completions.create(model="demo", prompt="a", max_tokens=1)
                self.assertGreater(int(raised.exception.response.headers["retry-after"]), 0)
                other = anthropic.Anthropic(base_url=server.url, api_key="limited", max_retries=0)
                with self.assertRaises(anthropic.RateLimitError):
                    other.messages.create(model="demo", max_tokens=1, messages=user("a"))


class AnthropicPackage(Clients):
    def ask(self, **arguments):
        return self.anthropic.messages.create(**{"model": "demo", "max_tokens": 100, "messages": user(QUESTION), **arguments})

    def test_models(self):
        models = list(self.anthropic.models.list())
        self.assertEqual([(model.id, model.type) for model in models], [("demo", "model")])
        self.assertEqual(self.anthropic.models.retrieve("demo").display_name, "demo")
        with self.assertRaises(anthropic.NotFoundError):
            self.anthropic.models.retrieve("other")

    def test_everything_of_a_request_at_once(self):
        message = self.ask(
            system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
            messages=[{"role": "user", "content": [
                {"type": "text", "text": "What is in the picture?", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE.split(",")[1]}}]}],
            metadata={"user_id": "u"}, stop_sequences=["zzz"], service_tier="auto", thinking={"type": "disabled"},
            extra_headers={"anthropic-beta": "prompt-caching-2024-07-31"}, tool_choice={"type": "auto"},
            tools=[{"name": "get_weather", "input_schema": WEATHER, "cache_control": {"type": "ephemeral"}}])
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertIn("star", message.content[0].text)

    def test_streams_of_text_and_of_calls(self):
        tools = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}]
        with self.anthropic.messages.stream(model="demo", max_tokens=100, messages=user("Who are you?")) as stream:
            text = "".join(stream.text_stream)
        self.assertIn(WHO, text)
        with self.anthropic.messages.stream(model="demo", max_tokens=100, messages=user(QUESTION), tools=tools) as stream:
            kinds = {event.type for event in stream}
            message = stream.get_final_message()
        self.assertIn("input_json", kinds)
        self.assertEqual(message.content[-1].input, {"city": "Paris"})
        raw = [event.type for event in self.ask(stream=True)]
        self.assertEqual((raw[0], raw[-1]), ("message_start", "message_stop"))

    def test_a_tool_result_with_an_image_and_an_error(self):
        tools = [{"name": "get_weather", "description": "Weather of a city", "input_schema": WEATHER}]
        call = self.ask(tools=tools)
        self.assertEqual(call.stop_reason, "tool_use")
        use = call.content[-1]
        for content, is_error in (([{"type": "text", "text": "It is sunny."},
                                    {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                                                 "data": IMAGE.split(",")[1]}}], False),
                                  ("no such city", True), (None, False)):
            result = {"type": "tool_result", "tool_use_id": use.id, "is_error": is_error}
            if content is not None:
                result["content"] = content
            answer = self.ask(tools=tools, messages=[*user(QUESTION), {"role": "assistant", "content": call.content},
                                                     {"role": "user", "content": [result]}])
            self.assertTrue(answer.content)

    def test_parse_holds_to_a_schema(self):
        parsed = self.anthropic.messages.parse(model="demo", max_tokens=200, messages=user("Is it?"), output_format=Answer)
        self.assertIsInstance(parsed.parsed_output, Answer)

    def test_count_and_async(self):
        self.assertGreater(self.anthropic.messages.count_tokens(model="demo", messages=user(QUESTION)).input_tokens, 5)

        async def ask():
            async with anthropic.AsyncAnthropic(base_url=self.server.url, api_key="k") as client:
                async with client.messages.stream(model="demo", max_tokens=20, messages=user("Who are you?")) as stream:
                    return await stream.get_final_message()
        self.assertTrue(asyncio.run(ask()).content[0].text)

    def test_errors(self):
        for error, arguments in ((anthropic.BadRequestError, {"max_tokens": 0}),
                                 (anthropic.BadRequestError, {"max_tokens": 0, "stream": True}),
                                 (anthropic.BadRequestError, {"messages": user("x " * 5000)}),
                                 (anthropic.NotFoundError, {"model": "other"})):
            with self.assertRaises(error) as raised:
                self.ask(**arguments)
            self.assertEqual(raised.exception.body["type"], "error")
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0).models.list()


class LangChain(Clients):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.arguments = {"base_url": cls.url, "api_key": "k", "model": "demo", "temperature": 0, "max_retries": 0}
        cls.models = [ChatOpenAI(**cls.arguments, stream_usage=True), ChatOpenAI(**cls.arguments, use_responses_api=True)]

    def test_invoke_stream_and_batch(self):
        for model in self.models:
            with self.subTest(responses=model.use_responses_api):
                messages = [SystemMessage("Be kind."), HumanMessage("Who are you?")]
                whole = model.invoke(messages)
                self.assertGreater(whole.usage_metadata["output_tokens"], 0)
                chunks = list(model.stream(messages))
                total = chunks[0]
                for chunk in chunks[1:]:
                    total += chunk
                self.assertEqual(total.text, whole.text)
                self.assertGreater(total.usage_metadata["output_tokens"], 0)
                self.assertEqual(len(model.batch(["Hello!"] * 3)), 3)


    def test_async_streams(self):
        async def streamed():
            for more in ({}, {"use_responses_api": True}):
                model = ChatOpenAI(**self.arguments, **more)
                yield "".join([chunk.text async for chunk in model.astream("Who are you?")])

        async def collected():
            return [text async for text in streamed()]
        for text in asyncio.run(collected()):
            self.assertIn(WHO, text)

    def test_tools(self):
        @langchain_tool
        def get_weather(city: str) -> str:
            """Weather of a city"""
            return "It is sunny."
        for model in self.models:
            with self.subTest(responses=model.use_responses_api):
                bound = model.bind_tools([get_weather])
                call = bound.invoke(QUESTION)
                self.assertEqual(call.tool_calls[0]["args"], {"city": "Paris"})
                chunks = list(bound.stream(QUESTION))
                total = chunks[0]
                for chunk in chunks[1:]:
                    total += chunk
                self.assertEqual(total.tool_calls[0]["args"], {"city": "Paris"})
                answer = bound.invoke([HumanMessage(QUESTION), call,
                                       ToolMessage("It is sunny.", tool_call_id=call.tool_calls[0]["id"])])
                self.assertIn("sunny", answer.text)
                self.assertTrue(model.bind_tools([get_weather], tool_choice="get_weather").invoke("Hello!").tool_calls)
                self.assertTrue(model.bind_tools([get_weather], tool_choice="any").invoke("Hello!").tool_calls)

    def test_structured_output_by_each_method(self):
        for model in self.models:
            for method in ("json_schema", "function_calling"):
                with self.subTest(responses=model.use_responses_api, method=method):
                    self.assertIsInstance(model.with_structured_output(Answer, method=method).invoke("Is it?"), Answer)
        parsed = self.models[0].bind(response_format={"type": "json_object"}, max_tokens=200).invoke("Is it?")
        self.assertIsInstance(parsed.content, str)

    def test_completions(self):
        model = LangChainOpenAI(**self.arguments, max_tokens=4)
        self.assertEqual("".join(model.stream("The capital of Spain is")), model.invoke("The capital of Spain is"))

    def test_an_image_and_a_conversation(self):
        message = HumanMessage([{"type": "text", "text": "What is in the picture?"},
                                {"type": "image_url", "image_url": {"url": IMAGE}}])
        for model in self.models:
            with self.subTest(responses=model.use_responses_api):
                first = model.invoke([message])
                self.assertIn("star", first.text)
                self.assertTrue(model.invoke([message, first, HumanMessage("Who are you?")]).text)

    def test_errors(self):
        for model in self.models:
            with self.assertRaises(openai.BadRequestError):
                model.bind(temperature=5).invoke("a")
            with self.assertRaises(openai.NotFoundError):
                list(model.bind(model="other").stream("a"))


class LiteLLM(Clients):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        litellm.suppress_debug_info = True
        cls.ways = {"hosted_vllm/demo": cls.url, "openai/demo": cls.url, "anthropic/demo": cls.server.url}

    def ask(self, model, **arguments):
        return litellm.completion(**{"model": model, "api_base": self.ways[model], "api_key": "k", "temperature": 0,
                                     "max_tokens": 100, "messages": user("Who are you?"), **arguments})

    def test_every_way_to_the_server(self):
        for model in self.ways:
            with self.subTest(model):
                whole = self.ask(model)
                self.assertTrue(whole.choices[0].message.content)
                self.assertGreater(whole.usage.completion_tokens, 0)
                chunks = list(self.ask(model, stream=True))
                self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks),
                                 whole.choices[0].message.content)

    def test_tools_and_schemas(self):
        for model in self.ways:
            with self.subTest(model):
                whole = self.ask(model, messages=user(QUESTION), tools=TOOLS)
                call = whole.choices[0].message.tool_calls[0]
                self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
                streamed = litellm.stream_chunk_builder(list(self.ask(model, messages=user(QUESTION), tools=TOOLS,
                                                                      stream=True)))
                self.assertEqual(json.loads(streamed.choices[0].message.tool_calls[0].function.arguments), {"city": "Paris"})
                after = self.ask(model, tools=TOOLS, messages=[
                    *user(QUESTION), whole.choices[0].message,
                    {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}])
                self.assertIn("sunny", after.choices[0].message.content)
                forced = self.ask(model, tools=TOOLS, tool_choice="required")
                jsonschema.validate(json.loads(forced.choices[0].message.tool_calls[0].function.arguments), WEATHER)
        for model in list(self.ways)[:2]:
            answer = self.ask(model, response_format=Answer, max_tokens=200)
            Answer.model_validate_json(answer.choices[0].message.content)

    def test_completions(self):
        arguments = {"model": "text-completion-openai/demo", "api_base": self.url, "api_key": "k", "temperature": 0,
                     "prompt": "The capital of Spain is", "max_tokens": 4}
        whole = litellm.text_completion(**arguments).choices[0].text
        chunks = litellm.text_completion(**arguments, stream=True)
        self.assertEqual("".join(chunk.choices[0].text or "" for chunk in chunks), whole)

    def test_responses_and_messages(self):
        response = litellm.responses(model="openai/demo", api_base=self.url, api_key="k", input="Who are you?", temperature=0)
        self.assertIn(WHO, response.output[0].content[0].text)
        events = list(litellm.responses(model="openai/demo", api_base=self.url, api_key="k", input="Who?", stream=True))
        self.assertEqual(events[-1].type, "response.completed")
        message = asyncio.run(litellm.anthropic.messages.acreate(
            model="hosted_vllm/demo", api_base=self.url, api_key="k", max_tokens=50, messages=user("Who are you?")))
        self.assertTrue(message["content"])

    def test_errors(self):
        for model in self.ways:
            with self.subTest(model):
                with self.assertRaises((litellm.BadRequestError, litellm.UnprocessableEntityError)):
                    self.ask(model, temperature=5)
                with self.assertRaises(litellm.AuthenticationError):
                    self.ask(model, api_key="wrong")
                with self.assertRaises(litellm.BadRequestError):
                    self.ask(model, messages=user("x " * 5000))


class PydanticAI(Clients):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.makers = (
            lambda: OpenAIChatModel("demo", provider=OpenAIProvider(base_url=cls.url, api_key="k")),
            lambda: OpenAIResponsesModel("demo", provider=OpenAIProvider(base_url=cls.url, api_key="k")),
            lambda: AnthropicModel("demo", provider=AnthropicProvider(base_url=cls.server.url, api_key="k")))

    def agents(self, **arguments):
        for make in self.makers:
            model = make()
            with self.subTest(type(model).__name__):
                yield pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": 300}, **arguments)

    def test_texts_and_streams(self):
        async def streamed(agent):
            async with agent.run_stream("Who are you?") as result:
                return [text async for text in result.stream_text(delta=True)]
        for agent in self.agents(system_prompt="Be kind."):
            whole = agent.run_sync("Who are you?")
            self.assertGreater(whole.usage.output_tokens if not callable(whole.usage) else whole.usage().output_tokens, 0)
            self.assertEqual("".join(asyncio.run(streamed(agent))), whole.output)

    def test_tools_are_run(self):
        def get_weather(city: str) -> str:
            """Weather of a city"""
            cities.append(city)
            return "It is sunny."
        for agent in self.agents(tools=[get_weather]):
            cities = []
            self.assertIn("sunny", agent.run_sync(QUESTION).output)
            self.assertEqual(cities, ["Paris"])

    def test_outputs_are_objects(self):
        for agent in self.agents(output_type=Answer):
            self.assertIsInstance(agent.run_sync("Is it?").output, Answer)
        for agent in self.agents(output_type=pydantic_ai.NativeOutput(Answer)):
            if isinstance(agent.model, AnthropicModel):
                continue  # the package knows the models of Anthropic that have it
            self.assertIsInstance(agent.run_sync("Is it?").output, Answer)

    def test_errors(self):
        for make in self.makers:
            agent = pydantic_ai.Agent(make(), model_settings={"temperature": 5, "max_tokens": 5})
            with self.assertRaises(pydantic_ai.exceptions.ModelHTTPError) as raised:
                agent.run_sync("a")
            self.assertEqual(raised.exception.status_code, 400)


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(str(EMBEDDER), "--served-model-name", "embedder"))
        cls.url = cls.server.url + "/v1"

    def test_every_client(self):
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)
        texts = ["How fast is it?", "It is fast."]
        by_base64 = [item.embedding for item in client.embeddings.create(model="embedder", input=texts).data]
        as_floats = [item.embedding for item in client.embeddings.create(model="embedder", input=texts,
                                                                         encoding_format="float").data]
        self.assertEqual(len(by_base64), 2)
        for one, other in zip(by_base64, as_floats):
            self.assertLess(max(abs(a - b) for a, b in zip(one, other)), 1e-6)
        chain = OpenAIEmbeddings(base_url=self.url, api_key="none", model="embedder", check_embedding_ctx_length=False)
        self.assertEqual(len(chain.embed_documents(texts)), 2)
        for model in ("hosted_vllm/embedder", "openai/embedder"):
            self.assertEqual(len(litellm.embedding(model=model, api_base=self.url, api_key="none", input=texts).data), 2)
        ranked = litellm.rerank(model="hosted_vllm/embedder", api_base=self.server.url, api_key="none", query=texts[0],
                                documents=texts, top_n=1)
        self.assertEqual(ranked.results[0]["index"], 0)

    def test_errors(self):
        client = openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)
        for arguments in ({"input": []}, {"input": "x " * 9000}, {"input": "x", "dimensions": 100_000},
                          {"input": "x", "encoding_format": "hex"}):
            with self.assertRaises(openai.BadRequestError):
                client.embeddings.create(**{"model": "embedder", **arguments})
        with self.assertRaises(openai.NotFoundError):
            client.chat.completions.create(model="embedder", messages=user("a"))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    unittest.main(warnings="ignore")
