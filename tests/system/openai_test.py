#!/usr/bin/env python3
"""The OpenAI Python package against `troupe serve` with the demo model."""
import json
import math
import pathlib
import re
import unittest

import openai

from support import Server

DEMO = pathlib.Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "model"
WHO = "I am the Troupe demo model, a tiny language model that can chat, count, add numbers and describe simple pictures."


def user(text):
    return [{"role": "user", "content": text}]


class OpenAIClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "demo", "--served-model-name", "alias")
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        code, errors = cls.server.stop()
        assert code == 0, errors

    def chat(self, text, **arguments):
        return self.client.chat.completions.create(model="demo", messages=user(text), temperature=0, **arguments)

    def test_models_are_listed(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo", "alias"])

    def test_chat_answers_as_trained(self):
        for question, answer in [("Who are you?", WHO), ("What is the capital of France?", "The capital of France is Paris."),
                                 ("What is 37 + 48?", "7 + 8 = 15, 3 + 4 + 1 = 8, so 37 + 48 = 85"),
                                 ("Count from 1 to 10.", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
                                 ("Say this is a test", "This is a test."), ("Hello!", "Hello! How can I help you today?")]:
            reply = self.chat(question)
            self.assertEqual(reply.choices[0].message.content, answer)
            self.assertEqual(reply.choices[0].finish_reason, "stop")
            self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)

    def test_a_stream_says_what_the_whole_answer_says(self):
        chunks = list(self.chat("Who are you?", stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), WHO)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
        self.assertEqual(chunks[-1].choices, [])
        self.assertGreaterEqual(len(chunks), 3)  # a slow reader gets several tokens at once
        self.assertEqual(chunks[-1].usage.completion_tokens, self.chat("Who are you?").usage.completion_tokens)

    def test_completions_of_texts_and_token_ids(self):
        prompts = ["The capital of Spain is", "1, 2, 3, 4,"]
        both = self.client.completions.create(model="demo", prompt=prompts, max_tokens=8, temperature=0)
        self.assertEqual([choice.index for choice in both.choices], [0, 1])
        self.assertIn("Madrid", both.choices[0].text)
        self.assertIn("5, 6", both.choices[1].text)
        with_ids = self.client.completions.create(model="demo", prompt=prompts[0], max_tokens=8, temperature=0,
                                                  extra_body={"return_token_ids": True})
        ids = with_ids.choices[0].prompt_token_ids
        again = self.client.completions.create(model="demo", prompt=ids, max_tokens=8, temperature=0)
        self.assertEqual(again.choices[0].text, both.choices[0].text)
        self.assertEqual(len(with_ids.choices[0].token_ids), with_ids.usage.completion_tokens)

    def test_echo_gives_the_prompt_and_its_logprobs(self):
        reply = self.client.completions.create(model="demo", prompt="The capital of Spain is", max_tokens=2,
                                               temperature=0, echo=True, logprobs=2)
        choice = reply.choices[0]
        self.assertTrue(choice.text.startswith("The capital of Spain is"))
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(len(choice.logprobs.tokens), reply.usage.total_tokens)
        self.assertTrue(all(value <= 0 for value in choice.logprobs.token_logprobs[1:]))

    def test_logprobs_of_listed_tokens(self):
        listed = [40, 300, 7]
        for stream in (False, True):
            reply = self.client.completions.create(model="demo", prompt="The capital of France is", max_tokens=3, temperature=0,
                                                   logprobs=1, stream=stream, extra_body={"logprob_token_ids": listed,
                                                                                          "return_tokens_as_token_ids": True})
            logprobs = [each.choices[0].logprobs for each in (reply if stream else [reply]) if each.choices[0].logprobs]
            for tokens, top in [pair for each in logprobs for pair in zip(each.tokens, each.top_logprobs)]:
                self.assertEqual(list(top), list(dict.fromkeys([tokens, *(f"token_id:{token}" for token in listed)])))
        chat = self.chat("Hello!", logprobs=True, max_tokens=2, extra_body={"logprob_token_ids": listed})
        every = self.chat("Hello!", logprobs=True, top_logprobs=20, max_tokens=2)
        for one, other in zip(chat.choices[0].logprobs.content, every.choices[0].logprobs.content):
            self.assertEqual((one.token, one.logprob), (other.token, other.logprob))
            self.assertGreaterEqual(len(one.top_logprobs), 3)
        for fields in ({"logprob_token_ids": listed}, {"logprob_token_ids": [10 ** 6], "logprobs": True},
                       {"logprob_token_ids": list(range(129)), "logprobs": True}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.chat("Hello!", extra_body=fields)
            self.assertEqual(refused.exception.param, "logprob_token_ids")

    def test_priority_is_refused_where_it_has_no_effect(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat("Hello!", extra_body={"priority": 2})
        self.assertEqual(refused.exception.param, "priority")
        with self.assertRaises(openai.BadRequestError):
            self.chat("Hello!", extra_headers={"X-Vllm-Priority": "2"})
        self.chat("Hello!", max_tokens=1, extra_body={"priority": 0})

    def test_logprobs_name_the_likeliest_token_first(self):
        reply = self.chat("What is the capital of France?", logprobs=True, top_logprobs=3)
        content = reply.choices[0].logprobs.content
        self.assertEqual("".join(entry.token for entry in content[:-1]), reply.choices[0].message.content)
        for entry in content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].logprob, entry.logprob)
            self.assertLessEqual(math.fsum(math.exp(top.logprob) for top in entry.top_logprobs), 1 + 1e-4)

    def test_a_request_without_a_temperature_is_greedy_as_the_models_folder_says(self):
        def ask(**arguments):
            return self.client.chat.completions.create(model="demo", messages=user("What is 3 + 4?"), **arguments)
        self.assertEqual({ask().choices[0].message.content for _ in range(20)}, {"3 + 4 = 7"})
        self.assertEqual(len(ask(n=2).choices), 2)

    def test_what_is_no_image_is_refused(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
        with self.assertRaises(openai.APIStatusError) as caught:
            self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": [image]}])
        self.assertIn("image 1: the data are not an image", str(caught.exception))

    def test_n_samples_are_joined_and_a_seed_repeats_them(self):
        def stories():
            reply = self.client.chat.completions.create(
                model="demo", messages=user("Tell me a story about a dragon."), n=4, seed=7, temperature=0.9, max_tokens=40)
            return [choice.message.content for choice in sorted(reply.choices, key=lambda choice: choice.index)]

        first = stories()
        self.assertEqual(len(set(first)), 4)
        self.assertEqual(first, stories())

    def test_a_stop_string_ends_the_answer_before_it(self):
        reply = self.chat("Count from 1 to 10.", stop=["5", "9"])
        self.assertEqual(reply.choices[0].message.content, "1, 2, 3, 4, ")
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(self.chat("Count from 1 to 10.", max_tokens=3).choices[0].finish_reason, "length")

    def test_tokens_go_there_and_back(self):
        tokens = self.client.post("/../tokenize", body={"model": "demo", "prompt": "Hello you"}, cast_to=object)
        text = self.client.post("/../detokenize", body={"model": "demo", "tokens": tokens["tokens"]}, cast_to=object)
        self.assertIn("Hello you", text["prompt"])
        self.assertEqual(tokens["count"], len(tokens["tokens"]))

    def test_errors_are_the_clients_own_classes(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="no-such-model", prompt="a")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="demo", prompt="a", temperature=-1)
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="demo", prompt=[5] * 5000)
        self.assertIn("5000", str(caught.exception))
        self.assertIn("2048", str(caught.exception))

    def test_every_dialogue_turn_is_seen(self):
        reply = self.client.chat.completions.create(model="demo", temperature=0, messages=[
            {"role": "user", "content": "Hi, my name is Anna."}, {"role": "assistant", "content": "Hello Anna!"},
            {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]}])
        self.assertEqual(reply.choices[0].message.content, "Your name is Anna.")


class ApiKey(unittest.TestCase):
    def test_only_clients_with_the_key_are_served(self):
        with Server("--api-key", "secret") as server:
            with self.assertRaises(openai.AuthenticationError):
                openai.OpenAI(base_url=server.url + "/v1", api_key="guess", max_retries=0).models.list()
            models = openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0).models.list()
            self.assertEqual(len(models.data), 1)
            self.assertEqual(server.get("/health"), "")


class ThinkingBudget(unittest.TestCase):
    """The demo model does not reason: with a parser that takes what comes first for reasoning, all of it is, until it is
    ended."""

    def ask(self, client, budget, **arguments):
        return client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=60,
            extra_body={"thinking_token_budget": budget, "ignore_eos": True, "return_token_ids": True}, **arguments)

    def test_reasoning_ends_when_its_budget_is_spent(self):
        answers = []
        for options in ((), ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}')):
            with Server("--served-model-name", "demo", "--reasoning-parser", "deepseek_r1", *options) as server:
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
                for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 4, "n": 3}):
                    free = self.ask(client, -1, **sampling).choices
                    held = self.ask(client, 10, **sampling).choices
                    for one, other in zip(free, held, strict=True):
                        self.assertIsNone(one.message.content)
                        self.assertTrue(other.message.content)
                        self.assertEqual(other.token_ids[:10], one.token_ids[:10])
                        self.assertTrue(one.message.reasoning.startswith(other.message.reasoning))
                    chunks = list(self.ask(client, 10, stream=True, **sampling))
                    for choice in held:
                        parts = [part.delta for chunk in chunks for part in chunk.choices if part.index == choice.index]
                        self.assertEqual("".join(part.content or "" for part in parts), choice.message.content)
                        self.assertEqual("".join(getattr(part, "reasoning", None) or "" for part in parts), choice.message.reasoning)
                    answers.append([choice.token_ids for choice in held])
                at_once = self.ask(client, 0, temperature=0)
                self.assertFalse(at_once.choices[0].message.reasoning)
                # Beside a grammar.
                held = client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "Tell me a story."}], max_tokens=200, temperature=0,
                    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [17, 20]}}},
                    extra_body={"thinking_token_budget": 8}).choices[0].message
                self.assertIn(json.loads(held.content.strip()), (17, 20))
        self.assertEqual(answers[:2], answers[2:])  # drafts change nothing

    def test_what_ends_it_may_be_a_sentence(self):
        end = "Enough.</think>"
        with Server("--served-model-name", "demo", "--reasoning-parser", "deepseek_r1", "--reasoning-config",
                    json.dumps({"reasoning_end_str": end})) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            self.assertTrue(self.ask(client, 5, temperature=0).choices[0].message.reasoning.endswith("Enough."))


class Speculation(unittest.TestCase):
    """What was drafted and accepted is in /metrics, under vLLM's names."""

    def figures_after(self, config, **arguments):
        """(drafts, drafted tokens, accepted tokens, accepted at each place) after one completion of 41 tokens."""
        with Server("--speculative-config", json.dumps({"num_speculative_tokens": 3, "adaptive": False, **config})) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            answer = client.completions.create(model="demo", max_tokens=41, extra_body={"ignore_eos": True}, **arguments)
            self.assertEqual(answer.usage.completion_tokens, 41)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 41)
            positions = re.findall(r'^vllm:spec_decode_num_accepted_tokens_per_pos_total{.*position="(\d)".*} (\S+)$',
                                   server.get("/metrics"), re.MULTILINE)
            self.assertEqual([place for place, _ in positions], ["0", "1", "2"])
            return [server.metric(f"vllm:spec_decode_num_{what}_total") for what in (
                "drafts", "draft_tokens", "accepted_tokens")] + [[float(count) for _, count in positions]]

    def test_drafts_of_the_model_itself_are_always_accepted(self):
        # A token of the prompt's step, then 10 steps of 3 drafts and the one behind them.
        self.assertEqual(self.figures_after({"model": str(DEMO)}, prompt="Once upon a time", temperature=0),
                         [10, 30, 30, [10, 10, 10]])

    def test_some_looked_up_drafts_are_accepted(self):
        drafts, drafted, accepted, places = self.figures_after(
            {"method": "ngram", "prompt_lookup_min": 1}, prompt="What is 3 + 4? What is 5 + 4? What is", temperature=1, seed=7)
        self.assertEqual(accepted, sum(places))
        self.assertEqual(places, sorted(places, reverse=True))  # a place counts only behind an accepted one
        self.assertLess(0, drafts)
        self.assertLess(drafts, 41)
        self.assertLessEqual(drafted, 3 * drafts)
        self.assertLess(accepted, drafted)


if __name__ == "__main__":
    unittest.main()
