#!/usr/bin/env python3
"""Embeddings of texts against those of transformers, by OpenAI's and Ollama's clients; scores and documents by relevance;
classes of texts and of pairs; what is refused."""
import array
import base64
import concurrent.futures
import json
import math
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import ollama
from openai import BadRequestError, NotFoundError, OpenAI

from support import BINARY, DEADLINE_S, ENVIRONMENT, Server

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden/models"


def load_vectors(model, name):
    """The rows of an array in golden.safetensors."""
    data = (GOLDEN / "goldens" / model / "golden.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensor = json.loads(data[8:8 + size])[name]
    begin, end = (8 + size + offset for offset in tensor["data_offsets"])
    values = array.array("f", data[begin:end])
    width = tensor["shape"][1]
    return [list(values[i:i + width]) for i in range(0, len(values), width)]


def load_texts(model):
    inputs = json.loads((GOLDEN / "goldens" / model / "golden.json").read_text())["inputs"]
    return [each["text"] for each in inputs if not each.get("pair")]


def worst(got, want):
    return max(abs(a - b) for one, other in zip(got, want, strict=True) for a, b in zip(one, other, strict=True))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


class PoolingTest(unittest.TestCase):
    def post(self, server, path, **fields):
        request = urllib.request.Request(server.url + path, json.dumps({"model": "demo", **fields}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
            return json.load(response)

    def refusal(self, server, path, **fields):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.post(server, path, **fields)
        return caught.exception.code, json.loads(caught.exception.read())["error"]


class Embeddings(PoolingTest):
    def check_model(self, model, vectors, *options):
        texts = load_texts(model)
        want = load_vectors(model, vectors)[:len(texts)]
        with self.serve(model, *options) as server:
            answer = self.client(server).embeddings.create(model="demo", input=texts, encoding_format="float")
            vectors = [each.embedding for each in answer.data]
            self.assertEqual([each.index for each in answer.data], list(range(len(texts))))
            self.assertLess(worst(vectors, want), 1e-5)
            self.assertEqual(answer.usage.prompt_tokens, answer.usage.total_tokens)
            # Alone and beside others, whatever the order: the same bits.
            with concurrent.futures.ThreadPoolExecutor(len(texts)) as threads:
                alone = list(threads.map(lambda text: self.embed(server, input=text)["data"][0]["embedding"], texts))
            self.assertEqual(alone, vectors)
        return texts, vectors

    def serve(self, model, *options):
        return Server("--model", str(GOLDEN / "models" / model), "--served-model-name", "demo", "--dtype", "float32", *options)

    def client(self, server):
        return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)

    def embed(self, server, **fields):
        return self.post(server, "/v1/embeddings", **fields)

    def test_the_last_token_of_a_decoder(self):
        self.check_model("qwen3_embed", "embedding")

    def test_the_mean_of_an_encoder(self):
        self.check_model("bert_embed", "embedding_mean")

    def test_the_first_token_of_an_encoder_on_two_ranks(self):
        self.check_model("bert_embed", "embedding_cls", "--pooler-config", '{"pooling_type": "CLS"}',
                         "--tensor-parallel-size", "2")

    def test_a_decoder_without_a_head_by_the_name_of_its_class(self):
        texts = load_texts("qwen3_embed")
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "model"
            shutil.copytree(GOLDEN / "models/qwen3_embed", copy)
            config = json.loads((copy / "config.json").read_text())
            # As a checkpoint of which transformers has loaded the body alone; its head would not be tied.
            config.update(architectures=["Qwen3Model"], tie_word_embeddings=False)
            (copy / "config.json").write_text(json.dumps(config))
            for has_modules in (True, False):  # the last token, normalized, is what both say
                if not has_modules:
                    (copy / "modules.json").unlink()
                with Server("--model", str(copy), "--served-model-name", "demo", "--dtype", "float32") as server:
                    got = [each["embedding"] for each in self.embed(server, input=texts)["data"]]
                    self.assertLess(worst(got, load_vectors("qwen3_embed", "embedding")[:len(texts)]), 1e-5)

    def test_long_texts_in_chunks_have_the_same_bits(self):
        text = "An engine that answers slowly but never wrongly is still an engine. " * 12
        vectors = []
        for tokens in ("1024", "48"):
            with self.serve("qwen3_embed", "--max-num-batched-tokens", tokens, "--max-num-seqs", "16") as server:
                vectors.append([self.embed(server, input=text)["data"][0]["embedding"] for _ in range(2)])
        self.assertEqual(vectors[0], vectors[1])
        self.assertEqual(vectors[0][0], vectors[0][1])

    def test_what_clients_ask_for(self):
        texts = load_texts("qwen3_embed")
        with self.serve("qwen3_embed") as server:
            client = self.client(server)
            whole = client.embeddings.create(model="demo", input=texts[0])  # the client asks for base64
            plain = self.embed(server, input=texts[0])["data"][0]["embedding"]
            self.assertEqual(array.array("f", whole.data[0].embedding), array.array("f", plain))
            coded = self.embed(server, input=texts[0], encoding_format="base64")["data"][0]["embedding"]
            self.assertEqual(array.array("f", base64.b64decode(coded)), array.array("f", plain))
            short = [each.embedding for each in client.embeddings.create(model="demo", input=texts, dimensions=48).data]
            self.assertLess(worst(short, load_vectors("qwen3_embed", "embedding_first_48_dims")[:len(texts)]), 1e-5)
            tokens = self.post(server, "/tokenize", prompt=texts[0])["tokens"]
            self.assertEqual(self.embed(server, input=tokens)["data"][0]["embedding"], plain)
            self.assertEqual(self.embed(server, input=[tokens, tokens])["data"][1]["embedding"], plain)
            raw = self.post(server, "/pooling", input=texts[0], normalize=False)
            self.assertEqual(raw["data"][0]["object"], "pooling")
            self.assertLess(worst([raw["data"][0]["data"]], load_vectors("qwen3_embed", "pooled_last")[:1]), 1e-4)
            many = self.embed(server, input=["word"] * 2048)["data"]
            self.assertEqual((len(many), many[2047]["embedding"]), (2048, many[0]["embedding"]))
            # The last tokens are kept.
            kept = self.embed(server, input=texts[0], truncate_prompt_tokens=5)
            self.assertEqual(kept["usage"]["prompt_tokens"], 5)
            self.assertEqual(kept["data"][0]["embedding"], self.embed(server, input=tokens[-5:])["data"][0]["embedding"])

            scores = self.post(server, "/v1/score", text_1=texts[0], text_2=texts[:3])["data"]
            vectors = [each["embedding"] for each in self.embed(server, input=texts[:3])["data"]]
            for i, each in enumerate(scores):
                self.assertAlmostEqual(each["score"], cosine(vectors[0], vectors[i]), 6)
            pairs = self.post(server, "/score", queries=texts[:2], documents=texts[1:3])["data"]
            self.assertAlmostEqual(pairs[1]["score"], cosine(vectors[1], vectors[2]), 6)
            for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
                ranked = self.post(server, path, query=texts[1], documents=texts[:3], top_n=2)["results"]
                self.assertEqual(ranked[0]["index"], 1)
                self.assertEqual(ranked[0]["document"], {"text": texts[1]})
                self.assertGreater(ranked[0]["relevance_score"], ranked[1]["relevance_score"])
                self.assertEqual(len(ranked), 2)
            self.assertEqual(self.post(server, "/rerank", query="a", documents=[{"text": "b"}])["results"][0]["document"]["text"], "b")

            theirs = ollama.Client(server.url)
            self.assertLess(worst([list(each) for each in theirs.embed("demo", texts[:3]).embeddings], vectors), 1e-6)
            self.assertLess(worst([list(theirs.embeddings("demo", texts[0]).embedding)], vectors[:1]), 1e-6)
            self.assertEqual(len(theirs.embed("demo", "word " * 3000).embeddings), 1)  # it is cut

    def test_what_is_refused(self):
        with self.serve("qwen3_embed") as server:
            client = self.client(server)
            with self.assertRaises(NotFoundError) as caught:
                client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}])
            self.assertIn("the model gives embeddings, it generates no text", str(caught.exception))
            with self.assertRaises(BadRequestError) as caught:
                client.embeddings.create(model="demo", input="word " * 3000)
            self.assertIn("max_model_len is 1024", str(caught.exception))
            for fields, said in (({"input": ""}, "input must not be empty"),
                                 ({"input": []}, "input must not be empty"),
                                 ({}, "input"),
                                 ({"input": "x", "dimensions": 97}, "dimensions"),
                                 ({"input": "x", "dimensions": 0}, "dimensions"),
                                 ({"input": "x", "encoding_format": "bytes"}, "must be float or base64"),
                                 ({"input": [[1, 640]]}, "640"),
                                 ({"input": ["x"] * 2049}, "2048")):
                code, error = self.refusal(server, "/v1/embeddings", **fields)
                self.assertEqual(code, 400, fields)
                self.assertIn(said, error["message"])
            code, error = self.refusal(server, "/score", text_1=["a", "b"], text_2=["a", "b", "c"])
            self.assertEqual((code, "1:1, 1:N or N:N" in error["message"]), (400, True))
            self.assertEqual(self.refusal(server, "/rerank", query="a", documents=[])[0], 400)
            code, error = self.refusal(server, "/v1/embeddings", input="x", truncate_prompt_tokens=2000)
            self.assertEqual((code, "truncate_prompt_tokens" in error["message"]), (400, True))
        done = subprocess.run([BINARY, "generate", str(GOLDEN / "models/bert_embed")], input='{"prompt":"x"}\n', env=ENVIRONMENT,
                              text=True, capture_output=True, timeout=DEADLINE_S)
        self.assertIn("the model gives embeddings, it generates no text", done.stdout)
        self.assertEqual(done.returncode, 1)
        with Server() as server:
            code, error = self.refusal(server, "/v1/embeddings", input="x")
            self.assertEqual((code, "it gives no embeddings" in error["message"]), (404, True))


class Classifiers(PoolingTest):
    """Of one text and of two, against transformers."""
    GOLDEN = GOLDEN.parent / "classifiers"

    def classifier(self, folder, name, *options, config=None):
        golden = json.loads((self.GOLDEN / "golden.json").read_text())[name]
        copy = pathlib.Path(folder) / name
        shutil.copytree(self.GOLDEN / name, copy, dirs_exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(GOLDEN / "models" / golden["tokenizer"] / file, copy)
        fields = json.loads((copy / "config.json").read_text()) | (config or {})
        (copy / "config.json").write_text(json.dumps(fields))
        return golden, Server("--model", str(copy), "--served-model-name", "demo", "--dtype", "float32", *options)

    def check_scores(self, server, pairs):
        queries, documents, logits = zip(*pairs)
        want = [1 / (1 + math.exp(-each[0])) for each in logits]
        scores = self.post(server, "/score", queries=queries, documents=documents)["data"]
        for one, other in zip(scores, want, strict=True):
            self.assertAlmostEqual(one["score"], other, 5)
        raw = self.post(server, "/v1/score", text_1=queries, text_2=documents, use_activation=False)["data"]
        for one, other in zip(raw, logits, strict=True):
            self.assertAlmostEqual(one["score"], other[0], 4)
        # One query, alone and beside others: the same bits.
        with concurrent.futures.ThreadPoolExecutor(len(pairs)) as threads:
            alone = list(threads.map(lambda pair: self.post(server, "/score", text_1=pair[0], text_2=pair[1])["data"][0]["score"], pairs))
        self.assertEqual(alone, [each["score"] for each in scores])
        ranked = self.post(server, "/v2/rerank", query=queries[0], documents=[documents[0], documents[1]])["results"]
        self.assertEqual([each["index"] for each in ranked], sorted((0, 1), key=lambda i: -want[i]))
        self.assertEqual(ranked[0]["relevance_score"], max(alone[:2]))

    def test_rerankers(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, options in (("bert_reranker", ()), ("bert_reranker", ("--tensor-parallel-size", "2")),
                                  ("xlm_roberta_reranker", ()), ("qwen3_reranker", ())):
                golden, server = self.classifier(folder, name, *options)
                with self.subTest(name), server:
                    self.check_scores(server, golden["pairs"])
                    for text, logits in golden["texts"]:
                        one = self.post(server, "/classify", input=text)["data"][0]
                        self.assertAlmostEqual(one["probs"][0], 1 / (1 + math.exp(-logits[0])), 5)
                    code, error = self.refusal(server, "/v1/embeddings", input="x")
                    self.assertEqual((code, "it gives no embeddings" in error["message"]), (400, True), error)
                    # Of a long pair the document is cut.
                    long = self.post(server, "/score", text_1="birds", text_2="sleep " * 400, truncate_prompt_tokens=-1)
                    self.assertIn(long["usage"]["prompt_tokens"], (128, 256))
                    code, error = self.refusal(server, "/score", text_1="birds", text_2="sleep " * 400)
                    self.assertEqual((code, "max_model_len" in error["message"]), (400, True), error)

    def test_activations(self):
        """Fields that say which: of scores sentence-transformers' or 'problem_type' of classes, neither of the other."""
        fields = ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
                  {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"}},
                  {"problem_type": "regression"})
        with tempfile.TemporaryDirectory() as folder:
            for each in fields:
                golden, server = self.classifier(folder, "bert_reranker", config=each)
                (first, second, logits), (text, logits_of_text) = golden["pairs"][0], golden["texts"][0]
                with self.subTest(each), server:
                    score = self.post(server, "/score", text_1=first, text_2=second)["data"][0]["score"]
                    ranked = self.post(server, "/rerank", query=first, documents=[second])["results"][0]["relevance_score"]
                    probability = self.post(server, "/classify", input=text)["data"][0]["probs"][0]
                    is_regression = "problem_type" in each
                    self.assertAlmostEqual(score, 1 / (1 + math.exp(-logits[0])) if is_regression else logits[0], 4)
                    self.assertEqual(score, ranked)
                    self.assertAlmostEqual(
                        probability, logits_of_text[0] if is_regression else 1 / (1 + math.exp(-logits_of_text[0])), 4)

    def test_classes(self):
        with tempfile.TemporaryDirectory() as folder:
            golden, server = self.classifier(folder, "bert_classes")
            with server:
                texts = [text for text, _ in golden["texts"]]
                answer = self.post(server, "/classify", input=texts)
                for one, (_, logits) in zip(answer["data"], golden["texts"], strict=True):
                    powers = [math.exp(each) for each in logits]
                    self.assertLess(worst([one["probs"]], [[each / sum(powers) for each in powers]]), 1e-5)
                    self.assertEqual(one["label"], ["sad", "even", "glad"][logits.index(max(logits))])
                    self.assertEqual(one["num_classes"], 3)
                self.assertTrue(answer["id"].startswith("classify-"))
                raw = self.post(server, "/pooling", input=texts[0], task="classify", use_activation=False)["data"][0]["data"]
                self.assertLess(worst([raw], [golden["texts"][0][1]]), 1e-4)
                for path, fields in (("/score", {"text_1": "a", "text_2": "b"}), ("/rerank", {"query": "a", "documents": ["b"]})):
                    code, error = self.refusal(server, path, **fields)
                    self.assertEqual((code, "the model has 3 classes" in error["message"]), (400, True), error)
            done = subprocess.run([BINARY, "serve", str(pathlib.Path(folder) / "bert_classes"), "--runner", "generate"],
                                  env=ENVIRONMENT, text=True, capture_output=True, timeout=DEADLINE_S)
            self.assertIn("classifies texts, it generates none", done.stderr + done.stdout)


if __name__ == "__main__":
    unittest.main()
