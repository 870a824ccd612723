#!/usr/bin/env python3
"""OpenAI's Responses API through its Python package: texts, events, tools, conversations, and what is stored."""
import base64
import contextlib
import itertools
import json
import os
import pathlib
import signal
import tempfile
import time
import unittest
import urllib.request

import httpx
import jsonschema
import openai
import pydantic

from support import DEADLINE_S, ROOT, SAMPLES, Server, reserve_port, run

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
           "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "description": "Weather of a city", "parameters": WEATHER}]
QUESTION = "What is the weather in Paris?"


def client_of(server, key="k"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=DEADLINE_S)


class Responses(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-model-len", "1024", "--served-model-name", "demo", "--api-key", "k",
                                                  "--api-key", "other"))
        cls.client = client_of(cls.server)

    def ask(self, input="Who are you?", **arguments):
        return self.client.responses.create(**{"model": "demo", "input": input, "temperature": 0, "max_output_tokens": 200,
                                               **arguments})

    def refused(self, error, *words, **arguments):
        with self.assertRaises(error) as raised:
            self.ask(**arguments)
        for word in words:
            self.assertIn(word, str(raised.exception.body))
        self.assertEqual(raised.exception.body["type"], "invalid_request_error")

    def test_the_answer_is_that_of_the_chat_api(self):
        response = self.ask(metadata={"a": "b"})
        self.assertRegex(response.id, "^resp_[0-9a-f]{32}$")
        self.assertEqual((response.object, response.status, response.model, response.metadata, response.error),
                         ("response", "completed", "demo", {"a": "b"}, None))
        chat = self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Who are you?"}],
                                                   temperature=0, max_tokens=200)
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        self.assertEqual((response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens),
                         (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.total_tokens))
        messages = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [
            {"type": "input_text", "text": "Who are you?"}]}]
        chat = self.client.chat.completions.create(model="demo", temperature=0, max_tokens=200, messages=[
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who are you?"}])
        self.assertEqual(self.ask(messages).output_text, chat.choices[0].message.content)
        self.assertEqual(self.ask(instructions="Be kind.").output_text, chat.choices[0].message.content)

    def test_events_come_in_order_and_make_the_same_response(self):
        for arguments in ({}, {"max_output_tokens": 3}, {"input": QUESTION, "tools": TOOLS}, {"top_logprobs": 2},
                          {"input": QUESTION, "tools": TOOLS, "max_output_tokens": 12},
                          {"input": QUESTION, "tools": TOOLS, "tool_choice": {"type": "function", "name": "get_weather"}}):
            with self.subTest(arguments):
                whole = self.ask(**arguments)
                events = list(self.ask(stream=True, **arguments))
                self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
                types = [event.type for event in events]
                self.assertEqual(types[:3], ["response.created", "response.in_progress", "response.output_item.added"])
                self.assertEqual(types[-2:], ["response.output_item.done", "response." + whole.status])
                last = events[-1].response

                def facts(response):
                    object = response.model_dump()
                    for name in ("id", "created_at", "completed_at", "usage"):
                        object.pop(name)
                    for item in object["output"]:
                        item.pop("id")
                        item.pop("call_id", None)
                    return object
                self.assertEqual(facts(last), facts(whole))
                for index, item in enumerate(last.output):
                    mine = [event for event in events if getattr(event, "output_index", None) == index]
                    self.assertEqual((mine[0].type, mine[-1].type), ("response.output_item.added", "response.output_item.done"))
                    self.assertEqual(mine[-1].item, item)
                    joined = "".join(event.delta for event in mine if event.type.endswith(".delta"))
                    self.assertEqual(joined, item.arguments if item.type == "function_call" else item.content[0].text)

    def test_why_it_is_incomplete(self):
        response = self.ask(max_output_tokens=2)
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(response.output[-1].status, "incomplete")

    def test_logprobs(self):
        content = self.ask(include=["message.output_text.logprobs"], top_logprobs=3).output[0].content[0]
        self.assertEqual("".join(entry.token for entry in content.logprobs).split("<")[0], content.text)
        self.assertEqual({len(entry.top_logprobs) for entry in content.logprobs}, {3})

    def test_a_tool_and_the_turn_after_it(self):
        response = self.ask(QUESTION, tools=TOOLS)
        call, = response.output
        self.assertEqual((call.type, call.name, json.loads(call.arguments)), ("function_call", "get_weather", {"city": "Paris"}))
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
        by_items = self.ask([{"role": "user", "content": QUESTION}, call.model_dump(), output], tools=TOOLS)
        by_id = self.ask([output], previous_response_id=response.id, tools=TOOLS)
        self.assertIn("sunny", by_items.output_text.lower())
        self.assertEqual(by_id.output_text, by_items.output_text)
        self.assertEqual(by_id.usage.input_tokens, by_items.usage.input_tokens)
        self.assertEqual(by_id.previous_response_id, response.id)

    def test_a_forced_call_validates(self):
        for choice in ("required", {"type": "function", "name": "get_weather"}):
            response = self.ask(QUESTION, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, temperature=1)
            jsonschema.validate(json.loads(response.output[0].arguments), WEATHER)

    def test_an_answer_is_held_to_a_schema(self):
        class Number(pydantic.BaseModel):
            value: int

        response = self.client.responses.parse(model="demo", input="One?", text_format=Number, temperature=0)
        self.assertIsInstance(response.output_parsed, Number)

    def test_a_conversation_by_ids(self):
        messages, previous = [], None
        for text in ("My name is Mia.", "Tell me a story.", "Who are you?"):
            messages.append({"role": "user", "content": text})
            response = self.ask(text, previous_response_id=previous, max_output_tokens=60)
            chat = self.client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=60)
            self.assertEqual(response.output_text, chat.choices[0].message.content)
            messages.append({"role": "assistant", "content": response.output_text})
            previous = response.id

    def test_what_is_stored_is_found_by_its_owner_until_it_is_deleted(self):
        response = self.ask()
        self.assertEqual(self.client.responses.retrieve(response.id), response)
        items = self.client.responses.input_items.list(response.id).data
        self.assertEqual(items[0].content, "Who are you?")
        stranger = client_of(self.server, "other")
        with self.assertRaises(openai.NotFoundError):
            stranger.responses.retrieve(response.id)
        with self.assertRaises(openai.NotFoundError):
            stranger.responses.delete(response.id)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(response.id)
        self.client.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)
        self.refused(openai.NotFoundError, response.id, previous_response_id=response.id)
        not_stored = self.ask(store=False)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(not_stored.id)
        last = list(self.ask(stream=True))[-1].response
        self.assertEqual(self.client.responses.retrieve(last.id), last)

    def test_what_is_refused_is_named(self):
        bad = openai.BadRequestError
        self.refused(bad, "input", input=[])
        self.refused(bad, "input[0].role", input=[{"role": "king", "content": "x"}])
        self.refused(bad, "messages", "image 1", input=[{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:"}]}])
        self.refused(bad, "tools[0].type", "web_search", tools=[{"type": "web_search"}])
        self.refused(bad, "background", "store", background=True, store=False)
        self.refused(bad, "background", "true or false", background=1)
        self.refused(bad, "truncation", "auto", truncation="middle")
        self.refused(bad, "include", "no.such", include=["no.such"])
        self.refused(bad, "max_tool_calls", max_tool_calls="x")
        self.refused(bad, "temperature", "-1", temperature=-1)
        self.refused(bad, "max_output_tokens", max_output_tokens=0)
        self.refused(bad, "text.format", text={"format": {"name": "x"}})
        self.refused(bad, "text.format.type", text={"format": {"type": "x"}})
        self.refused(bad, "text.format", "look-behind", text={"format": {"type": "json_schema", "name": "x", "schema": {
            "type": "string", "pattern": "(?<=a)b"}}})
        self.refused(bad, "reasoning.effort", reasoning={"effort": "some"})
        self.refused(openai.NotFoundError, "resp_none", previous_response_id="resp_none")
        self.refused(openai.NotFoundError, "other", model="other")


class Compliance(unittest.TestCase):
    """The cases of openresponses.org's compliance suite, and what its schema requires of each response, item and event."""
    RESPONSE = {"id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "previous_response_id",
                "instructions", "output", "error", "tools", "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p",
                "presence_penalty", "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
                "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
                "safety_identifier", "prompt_cache_key"}
    ITEM = {"message": {"id", "status", "role", "content"}, "function_call": {"id", "call_id", "name", "arguments", "status"}}
    PART = {"item_id", "output_index", "content_index"}
    EVENT = {"response.output_item.added": {"output_index", "item"}, "response.output_item.done": {"output_index", "item"},
             "response.content_part.added": PART | {"part"}, "response.content_part.done": PART | {"part"},
             "response.output_text.delta": PART | {"delta", "logprobs"}, "response.output_text.done": PART | {"text", "logprobs"},
             "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
             "response.function_call_arguments.done": {"item_id", "output_index", "arguments"}}
    IMAGE = "data:image/png;base64," + base64.b64encode((SAMPLES / "star_over_triangle.png").read_bytes()).decode()
    CASES = {
        "text": [("user", "Say hello in exactly 3 words.")],
        "system prompt": [("system", "You are a pirate. Always respond in pirate speak."), ("user", "Say hello.")],
        "image": [("user", [{"type": "input_text", "text": "What do you see in this image? Answer in one sentence."},
                            {"type": "input_image", "image_url": IMAGE}])],
        "several turns": [("user", "My name is Alice."), ("assistant", "Hello Alice! Nice to meet you. How can I help you today?"),
                          ("user", "What is my name?")],
        "tool": [("user", QUESTION)],
    }

    def check_response(self, response):
        self.assertLessEqual(self.RESPONSE, response.keys())
        self.assertEqual((response["object"], response["status"], response["error"]), ("response", "completed", None))
        self.assertIsInstance(response["completed_at"], int)
        self.assertGreaterEqual(response["completed_at"], response["created_at"])
        self.assertLessEqual({"effort", "summary"}, response["reasoning"].keys())
        self.assertEqual(response["text"]["format"]["type"], "text")
        for tool in response["tools"]:
            self.assertLessEqual({"type", "name", "description", "parameters", "strict"}, tool.keys())
        self.assertTrue(response["output"])
        for item in response["output"]:
            self.assertLessEqual(self.ITEM[item["type"]], item.keys())
            for part in item.get("content", ()):
                self.assertLessEqual({"type", "text", "annotations"}, part.keys())

    def test_each_case_whole_and_streamed(self):
        with Server("--served-model-name", "demo") as server:
            def ask(body, **more):
                request = urllib.request.Request(server.url + "/v1/responses", json.dumps(body | more).encode(),
                                                 {"Content-Type": "application/json"})
                return urllib.request.urlopen(request, timeout=DEADLINE_S)

            for name, turns in self.CASES.items():
                with self.subTest(name):
                    body = {"model": "demo", "temperature": 0,
                            "input": [{"type": "message", "role": role, "content": content} for role, content in turns]}
                    if name == "tool":
                        body["tools"] = TOOLS
                    with ask(body) as answer:
                        whole = json.load(answer)
                    self.check_response(whole)
                    with ask(body, stream=True) as answer:
                        self.assertEqual(answer.headers.get_content_type(), "text/event-stream")
                        blocks = answer.read().decode().strip().split("\n\n")
                    events = []
                    for block in blocks:
                        named, data = block.split("\n")
                        events.append(json.loads(data.removeprefix("data: ")))
                        self.assertEqual(named, "event: " + events[-1]["type"])
                        self.assertLessEqual(self.EVENT.get(events[-1]["type"], {"response"}) | {"sequence_number"},
                                             events[-1].keys())
                    self.check_response(events[-1]["response"])
                    self.assertEqual(events[-1]["type"], "response.completed")
                    types = {item["type"] for item in whole["output"]}
                    if name == "tool":
                        self.assertEqual(types, {"function_call"})
                        self.assertLessEqual({"response.function_call_arguments.delta", "response.function_call_arguments.done"},
                                             {event["type"] for event in events})
                    else:
                        self.assertEqual(types, {"message"})


class Background(unittest.TestCase):
    """Responses that no connection waits for."""
    STORY = {"model": "demo", "input": "Tell me a story about a dragon.", "temperature": 1, "background": True,
             "max_output_tokens": 200}

    def finish(self, client, id):
        while (response := client.responses.retrieve(id)).status in ("queued", "in_progress"):
            time.sleep(0.02)
        return response

    def test_it_is_made_streamed_resumed_cancelled_and_deleted(self):
        with Server("--served-model-name", "demo") as server:
            client = client_of(server)
            begun = client.responses.create(**self.STORY)
            self.assertEqual((begun.status, begun.background, begun.output), ("queued", True, []))
            events = list(client.responses.retrieve(begun.id, stream=True))
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            self.assertEqual([event.type for event in events[:3]],
                             ["response.created", "response.queued", "response.in_progress"])
            done = client.responses.retrieve(begun.id)
            self.assertEqual(events[-1].response, done)
            self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"),
                             done.output_text)
            for after in (0, 1, 7, len(events) - 2, len(events) - 1, len(events) + 5):
                self.assertEqual(list(client.responses.retrieve(begun.id, stream=True, starting_after=after)), events[after + 1:])
            self.assertEqual(client.responses.cancel(begun.id), done)  # too late
            after = client.responses.create(model="demo", input="Who are you?", previous_response_id=begun.id, temperature=0)
            told = [{"role": "user", "content": self.STORY["input"]}, {"role": "assistant", "content": done.output_text},
                    {"role": "user", "content": "Who are you?"}]
            self.assertEqual(after.usage.input_tokens, client.responses.input_tokens.count(model="demo", input=told).input_tokens)
            for call in (lambda: client.responses.retrieve(begun.id, stream=True, extra_query={"starting_after": "x"}),
                         lambda: client.responses.retrieve(after.id, stream=True), lambda: client.responses.cancel(after.id)):
                with self.assertRaises(openai.BadRequestError):
                    list(call())

            endless = {**self.STORY, "max_output_tokens": None, "stream": True, "extra_body": {"ignore_eos": True}}
            status = None
            while status != "cancelled":  # it was at its end before
                stream = client.responses.create(**endless)
                cancelled = client.responses.cancel(next(stream).response.id)
                status = cancelled.status
                self.assertIn(status, ("cancelled", "incomplete"))
            self.assertEqual([event.type for event in stream][-1], "response.cancelled")
            self.assertEqual(client.responses.retrieve(cancelled.id), cancelled)
            id = next(client.responses.create(**endless)).response.id
            client.responses.delete(id)
            with self.assertRaises(openai.NotFoundError):
                client.responses.retrieve(id)

            wrong = client.responses.create(model="demo", input="x " * 9000, background=True)
            failed = self.finish(client, wrong.id)
            self.assertEqual(failed.status, "failed")
            self.assertIn("2048", failed.error.message)

    def test_a_killed_server_goes_on_with_it_and_with_its_stream(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--served-model-name", "demo", "--responses-db", f"{folder}/responses.db")
            with Server(*arguments) as server:
                client = client_of(server)
                stream = client.responses.create(**self.STORY, stream=True, extra_body={"ignore_eos": True})
                known = list(itertools.islice(stream, 10))  # it has more, in whatever pieces its text comes
                id = known[0].response.id
                server.process.kill()
                server.process.wait()
            with Server(*arguments) as server:
                client = client_of(server)
                rest = list(client.responses.retrieve(id, stream=True, starting_after=known[-1].sequence_number))
                events = known + rest
                self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
                done = self.finish(client, id)
                self.assertEqual(done.status, "incomplete")
                self.assertEqual(events[-1].response, done)
                self.assertEqual(done.usage.output_tokens, 200)
                self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"),
                                 done.output_text)
                self.assertEqual(list(client.responses.retrieve(id, stream=True)), events)

    def test_it_and_its_stream_survive_the_end_of_every_process(self):
        """First of all but the Supervisor at once, then of that one, too: another server goes on."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = ("--served-model-name", "demo", "--responses-db", f"{folder}/responses.db", "--config-file",
                         str(ROOT / "configs" / "one-process-per-role.conf"))
            asked = {**self.STORY, "extra_body": {"ignore_eos": True, "seed": 5}}
            events, port = [], reserve_port()

            def kill(pid):
                with contextlib.suppress(ProcessLookupError):  # one that has lost the others ends by itself
                    os.kill(pid, signal.SIGKILL)

            def follow(client, id, count):
                """Reads so many more events; where a connection breaks off it asks again."""
                end = len(events) + count
                deadline = time.monotonic() + DEADLINE_S
                ends = ("response.incomplete", "response.completed", "response.failed")
                while len(events) < end and (not events or events[-1].type not in ends):
                    self.assertLess(time.monotonic(), deadline)
                    try:
                        after = {"starting_after": len(events) - 1} if events else {}
                        stream = client.responses.retrieve(id, stream=True, **after)
                        for event in stream:
                            events.append(event)
                            if len(events) >= end:
                                stream.close()
                                break
                    except (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError):
                        time.sleep(0.05)

            with Server(*arguments, port=port) as server:
                client = client_of(server)
                expected = client.responses.create(**{**asked, "background": False})
                id = client.responses.create(**asked).id
                follow(client, id, 20)
                for pid in server.nodes().values():
                    kill(pid)
                follow(client, id, 20)
                nodes = server.nodes()
                server.process.kill()
                for pid in nodes.values():
                    kill(pid)
                server.process.wait()
            with Server(*arguments, port=port) as server:
                client = client_of(server)
                follow(client, id, 10**6)
                done = self.finish(client, id)
                stored = client.responses.retrieve(expected.id)
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            self.assertEqual(events[-1].response, done)
            self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"),
                             expected.output_text)
            self.assertEqual((done.status, done.output_text), ("incomplete", expected.output_text))
            self.assertEqual(stored, expected)

    def test_a_conversation_that_is_too_long_loses_its_oldest_turns(self):
        with Server("--served-model-name", "demo", "--max-model-len", "256") as server:
            client = client_of(server)
            turns = [{"role": role, "content": f"Number {i}. " + "word " * 12} for i in range(12) for role in ("user", "assistant")]
            asked = {"model": "demo", "instructions": "Be kind.", "input": [*turns, {"role": "user", "content": "Who are you?"}],
                     "max_output_tokens": 40, "temperature": 0}
            with self.assertRaises(openai.BadRequestError):
                client.responses.create(**asked)
            fitted = client.responses.create(**asked, truncation="auto")
            self.assertEqual(fitted.truncation, "auto")
            # As few as possible: with one turn more it would be too long.
            sizes = [client.responses.input_tokens.count(model="demo", instructions="Be kind.", input=[
                *turns[first:], asked["input"][-1]]).input_tokens for first in range(0, len(turns) + 1, 2)]
            self.assertEqual(fitted.usage.input_tokens, max(size for size in sizes if size + 40 <= 256))


class Reasoning(unittest.TestCase):
    def test_its_tokens_are_counted_and_it_is_sent_back(self):
        # The demo model does not reason: with a parser that takes what comes first for reasoning, all of it is.
        with Server("--served-model-name", "demo", "--reasoning-parser", "deepseek_r1") as server:
            client = client_of(server)
            asked = {"model": "demo", "input": "Who are you?", "temperature": 0, "include": ["reasoning.encrypted_content"]}
            whole = client.responses.create(**asked)
            last = list(client.responses.create(**asked, stream=True))[-1].response
            chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Who are you?"}], temperature=0)
            for usage in (whole.usage, last.usage):
                self.assertEqual(usage.output_tokens_details.reasoning_tokens, usage.output_tokens)
            self.assertEqual(chat.usage.completion_tokens_details.reasoning_tokens, chat.usage.completion_tokens)
            item = whole.output[0]
            self.assertEqual(item.type, "reasoning")
            sent = [{"role": "user", "content": "Who are you?"}, {"type": "reasoning", "id": item.id, "summary": [],
                    "encrypted_content": item.encrypted_content}, {"role": "user", "content": "Hello!"}]
            in_full = [sent[0], item.model_dump(exclude_none=True), sent[2]]
            counts = {client.responses.input_tokens.count(model="demo", input=each).input_tokens for each in (sent, in_full)}
            self.assertEqual(len(counts), 1)
            with self.assertRaises(openai.BadRequestError):
                client.responses.create(model="demo", input=[{"type": "reasoning", "summary": [], "encrypted_content": "x"}])


class Store(unittest.TestCase):
    def test_a_restarted_server_still_has_them(self):
        with tempfile.TemporaryDirectory() as folder:
            file = str(pathlib.Path(folder) / "responses.db")
            arguments = ("--served-model-name", "demo", "--responses-db", file)
            with Server(*arguments) as server:
                first = client_of(server).responses.create(model="demo", input="My name is Mia.", temperature=0)
                server.process.kill()
                server.process.wait()
            with Server(*arguments) as server:
                client = client_of(server)
                self.assertEqual(client.responses.retrieve(first.id), first)
                after = client.responses.create(model="demo", input="Who?", previous_response_id=first.id, temperature=0)
                self.assertGreater(after.usage.input_tokens, first.usage.input_tokens)

    def test_the_oldest_make_room(self):
        with Server("--served-model-name", "demo", "--max-stored-responses", "3") as server:
            client = client_of(server)
            ids = [client.responses.create(model="demo", input=str(i), max_output_tokens=1).id for i in range(5)]
            for id in ids[:2]:
                with self.assertRaises(openai.NotFoundError):
                    client.responses.retrieve(id)
            self.assertEqual([client.responses.retrieve(id).id for id in ids[2:]], ids[2:])

    def test_without_a_store(self):
        with Server("--served-model-name", "demo", "--max-stored-responses", "0") as server:
            client = client_of(server)
            response = client.responses.create(model="demo", input="Hi", max_output_tokens=1)
            for call in (lambda: client.responses.retrieve(response.id),
                         lambda: client.responses.create(model="demo", input="Hi", previous_response_id=response.id)):
                with self.assertRaises(openai.BadRequestError) as raised:
                    call()
                self.assertIn("max-stored-responses is 0", raised.exception.message)

    def test_a_file_that_is_no_database_is_named(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"no database at all" * 100)
            file.flush()
            code, _, errors = run(["serve", "--port", "0", "--responses-db", file.name])
        self.assertEqual(code, 1)
        self.assertIn(f"responses-db {file.name}: ", errors)


if __name__ == "__main__":
    unittest.main()
