#!/usr/bin/env python3
"""instructor against `troupe serve` with the demo model, in each of its modes. Run by make test-clients, in an environment
of its own: it needs an older package of OpenAI's than the other clients do."""
import asyncio
import unittest

import anthropic
import instructor
import openai
import pydantic

from support import DEADLINE_S, Server


class Answer(pydantic.BaseModel):
    """Is it so?"""
    model_config = pydantic.ConfigDict(extra="forbid")
    yes: bool
    number: int = pydantic.Field(ge=0, le=99)


MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA,
         instructor.Mode.RESPONSES_TOOLS)


class Instructor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--served-model-name", "demo"))

    def client(self, make=openai.OpenAI):
        return make(base_url=self.server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def arguments(self, mode, **more):
        limit = "max_output_tokens" if "RESPONSES" in mode.name else "max_tokens"
        return {"model": "demo", "messages": [{"role": "user", "content": "Is Paris in France?"}], "temperature": 1,
                limit: 300, "max_retries": 0, **more}

    def test_every_mode_gives_an_object(self):
        for mode in MODES:
            with self.subTest(mode.name):
                client = instructor.from_openai(self.client(), mode=mode)
                self.assertIsInstance(client.chat.completions.create(response_model=Answer, **self.arguments(mode)), Answer)

    def test_partial_objects_of_a_stream(self):
        for mode in MODES[:3]:
            with self.subTest(mode.name):
                client = instructor.from_openai(self.client(), mode=mode)
                parts = list(client.chat.completions.create_partial(response_model=Answer, **self.arguments(mode)))
                Answer.model_validate(parts[-1].model_dump())

    def test_async(self):
        async def ask():
            client = instructor.from_openai(self.client(openai.AsyncOpenAI), mode=instructor.Mode.TOOLS)
            return await client.chat.completions.create(response_model=Answer, **self.arguments(instructor.Mode.TOOLS))
        self.assertIsInstance(asyncio.run(ask()), Answer)

    def test_anthropic(self):
        client = instructor.from_anthropic(anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0),
                                           mode=instructor.Mode.ANTHROPIC_TOOLS)
        arguments = self.arguments(instructor.Mode.ANTHROPIC_TOOLS)
        del arguments["temperature"]  # which the package of Anthropic's has no more
        self.assertIsInstance(client.chat.completions.create(response_model=Answer, **arguments), Answer)

    def test_errors_come_through(self):
        client = instructor.from_openai(self.client(), mode=instructor.Mode.TOOLS)
        with self.assertRaises(Exception) as raised:
            client.chat.completions.create(response_model=Answer, **self.arguments(instructor.Mode.TOOLS, temperature=9))
        self.assertIn("temperature", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
