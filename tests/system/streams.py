"""Streaming clients that know what every answer has to be, for the tests that disturb a server under load."""
import asyncio
import base64
import contextlib
import http.client
import json
import re
import resource
import sys
import threading
import time

from support import DEADLINE_S, SAMPLES, wait_until

RECORDS = {"type": "array", "minItems": 3, "maxItems": 30,
           "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
                     "required": ["name", "size"], "additionalProperties": False}}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 40}}, "required": ["city"],
                   "additionalProperties": False}}}


def images(number):
    """Some that other requests have too, in another order."""
    names = sorted(SAMPLES.glob("*.png"))
    chosen = [names[(number + i) % len(names)] for i in range(1 + number % 3)]
    return [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(name.read_bytes()).decode()}}
            for name in chosen]


def body(number, models=("demo",)):
    """Greedy and sampled, chat and completions, several samples, stop strings, penalties, log-probabilities, JSON
    schemas, tool calls, images; the models in turn."""
    fields = {"model": models[number % len(models)], "stream": True, "max_tokens": 40 + 7 * number % 160, "ignore_eos": True,
              "seed": number, "temperature": 0.9 if number % 2 else 0.0, "stream_options": {"include_usage": True}}
    if number % 5 == 4:
        fields["messages"] = [{"role": "user", "content": [*images(number), {"type": "text", "text": "What do you see? " * 3}]}]
        fields.update(logprobs=True, top_logprobs=2)
    elif number % 3 == 0:
        fields["messages"] = [{"role": "user", "content": "Tell me a story about a dragon. " * (1 + number % 4)}]
        fields.update(logprobs=True, top_logprobs=2)
    else:
        fields["prompt"] = "Once upon a time " * (1 + number % 5)
        fields["logprobs"] = 1
    if number % 6 == 1:
        fields["n"] = 2
    if number % 7 == 2:
        fields.update(ignore_eos=False, stop=["night", "friend"])
    if number % 4 == 3:
        fields.update(repetition_penalty=1.2, presence_penalty=0.3)
    if number % 5 == 3:
        fields["structured_outputs"] = {"json": RECORDS}
    elif number % 9 == 0:
        fields.update(messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER],
                      tool_choice="required", stop=None)
    return fields


class Stream:
    """What a client has of a stream, whatever the pieces in which it came."""

    def __init__(self, port, fields):
        self.port, self.fields = port, fields
        self.stream_id, self.event_id = None, None
        self.texts, self.tokens, self.reasons, self.usage, self.done = {}, {}, {}, None, False

    def ask(self, connection):
        if self.event_id is None:
            path = "/v1/chat/completions" if "messages" in self.fields else "/v1/completions"
            connection.request("POST", path, json.dumps(self.fields), {"Content-Type": "application/json"})
        else:
            connection.request("GET", f"/v1/streams/{self.stream_id}", headers={"Last-Event-ID": self.event_id})
        return connection.getresponse()

    def read(self):
        """Until it ends; returns (status, text) of a refusal."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            response = self.ask(connection)
            if response.status != 200:
                return response.status, response.read().decode()
            event_id = None
            for line in response:
                if not line.endswith(b"\n"):
                    break
                if line.strip() == b"data: [DONE]":
                    self.done = True
                elif line.startswith(b"id: "):
                    event_id = line[4:].strip().decode()
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:], parse_float=str)
                    if "error" in event:
                        return 200, line.decode()
                    self.take(event)
                    self.stream_id, self.event_id = event["id"], event_id
            return None
        finally:
            connection.close()

    def take(self, event):
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            text = choice.get("text", choice.get("delta", {}).get("content")) or ""
            self.texts[index] = self.texts.get(index, "") + text
            for call in choice.get("delta", {}).get("tool_calls") or []:  # their ids are random
                function, place = call["function"], (index, call["index"])
                name, arguments = self.texts.get(place, ("", ""))
                self.texts[place] = (name + function.get("name", ""), arguments + function.get("arguments", ""))
            scored = choice.get("logprobs") or {}
            pairs = [(each["token"], each["logprob"]) for each in scored["content"]] if "content" in scored else \
                list(zip(scored.get("tokens", []), scored.get("token_logprobs", [])))
            self.tokens.setdefault(index, []).extend(pairs)
            self.reasons[index] = choice["finish_reason"] or self.reasons.get(index)

    def answer(self):
        return 200, self.done, self.texts, self.tokens, self.reasons, self.usage


def stream(port, fields):
    reader = Stream(port, fields)
    return reader.read() or reader.answer()


def resumed_stream(port, fields):
    """The same of a client that comes back when the connection breaks, and goes on where it was."""
    reader = Stream(port, fields)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            refusal = reader.read()
            if refusal or reader.done:
                return refusal or reader.answer()
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {DEADLINE_S} s in vain for the rest of {reader.answer()}")
        time.sleep(0.02)


def undisturbed(port, num_streams, models=("demo",)):
    """The answers that are expected."""
    answers = [stream(port, body(number, models)) for number in range(num_streams)]
    assert all(answer[:2] == (200, True) for answer in answers), answers
    return answers


class Clients:
    """Threads that send one request after another until told to end, and compare each answer."""

    def __init__(self, port, expected, ask=stream, models=("demo",)):
        self.port, self.expected, self.ask, self.models = port, expected, ask, models
        self.num_streams = len(expected)
        self.ending = threading.Event()
        self.num_requests, self.lost, self.different, self.bad_answers = 0, [], [], []
        self.lock = threading.Lock()
        # Daemons: a test that fails does not end them.
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(self.num_streams)]
        self.threads.append(threading.Thread(target=self.send_bad_requests, daemon=True))
        for thread in self.threads:
            thread.start()

    def check(self, number, ask):
        begin = time.monotonic()
        try:
            answer = ask()
        except Exception as error:  # whatever it is, the request is lost
            answer = repr(error)
        with self.lock:
            self.num_requests += 1
            if not isinstance(answer, tuple) or answer[0] != 200 or answer[1] is not True:
                self.lost.append((number, answer))
                print(f"request {number} is lost after {time.monotonic() - begin:.1f} s: {answer}", file=sys.stderr, flush=True)
            elif answer != self.expected[number]:
                self.different.append((number, answer, self.expected[number]))

    def work(self, number):
        while not self.ending.is_set():
            self.check(number, lambda fields=body(number, self.models): self.ask(self.port, fields))
            number = (number + self.num_streams // 2 + 1) % self.num_streams

    def send_bad_requests(self):
        bad = [{"model": "demo", "prompt": "x", "temperature": -1}, {"model": "demo", "prompt": [1 << 30]},
               {"model": "demo", "prompt": "word " * 5000}, {"model": "demo", "messages": []},
               {"model": "demo", "prompt": "x", "structured_outputs": {"json": {"$ref": "#/nowhere"}}}]
        number = 0
        while not self.ending.wait(0.05):
            fields = bad[number % len(bad)]
            number += 1
            try:
                status, *_ = self.ask(self.port, fields)
            except Exception as error:
                status = repr(error)
            if status != 400:
                self.bad_answers.append((fields, status))

    def wait_for_answers(self, count):
        """Until so many more requests have ended."""
        enough = self.num_requests + count
        wait_until(lambda: self.num_requests >= enough, f"{count} answers")

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join()


async def read_stream(port, tokens):
    """One stream: when its first event and its end came, and its text; all is read as the client is given it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps({"model": "demo", "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True,
                           "temperature": 0, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        received, first = b"", None
        while part := await reader.read(65536):
            received += part
            if first is None and b"data: " in received:
                first = time.monotonic()
        if b"data: [DONE]\n\n" not in received:
            raise AssertionError(f"a stream has not ended: {received[:500]}")
        text = "".join(json.loads(event)["choices"][0]["text"] for event in re.findall(rb"data: (\{.*\})", received))
        return first, time.monotonic(), text
    finally:
        writer.close()


async def read_streams(port, count, tokens):
    """So many of them at once."""
    return await asyncio.wait_for(asyncio.gather(*(read_stream(port, tokens) for _ in range(count))), DEADLINE_S)


def allow_descriptors(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
