#!/usr/bin/env python3
"""Measures CacheBlend (arXiv 2405.16444): prompts of 6 to 12 paragraphs, all of which are kept, in a new order.

  tools/bench/bench_blend.py --model FOLDER [--model FOLDER ...] [--binary build/release/troupe] [--output build/bench]

For each share of tokens that is computed: the time to the first token in units of that of a full prefill and of a hit in the
prefix cache; the KL divergence of the first token's distribution from that of a full prefill (over its 20 likeliest tokens and
the rest together, which is a lower bound); how many greedy answers begin with the same token, and which part of them is the
same up to the first difference. The table goes to OUT/blend.txt, a chart to OUT/blend.svg, all samples to OUT/blend.json.

The text of a model with random weights means nothing, but how far its answers move does. With --retrieval the model is one that
train_retrieval.py has trained, and the prompts are those of retrieval_prompts.py, whose answers depend on the order of the
paragraphs: how many of them are right is told, too.
"""
import argparse
import http.client
import json
import math
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import time

from retrieval_prompts import PARAGRAPHS, paragraphs_of, prompt_of

RATIOS = (0.0, 0.05, 0.15, 0.3, 1.0)
SEPARATOR = " # # "
NUM_LOGPROBS = 20


class Server:
    def __init__(self, binary, model, options):
        self.errors = tempfile.TemporaryFile()
        config = {"kv_connector": "BlendConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
            "enable_blending": False, "blend_special_str": SEPARATOR, "blend_min_tokens": 1}}
        self.process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--model", model, "--served-model-name", "m", "--kv-transfer-config",
             json.dumps(config), "--log-stats-interval-s", "0", *options],
            stdout=subprocess.PIPE, stderr=self.errors, text=True)
        for line in self.process.stdout:
            if found := re.search(r" at http://[^:]+:(\d+)", line):
                self.port = int(found.group(1))
                return
        self.errors.seek(0)
        raise SystemExit(f"{model} is not served: {self.errors.read().decode()[-2000:]}")

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return connection.getresponse()

    def tokens(self, text):
        return json.loads(self.post("/tokenize", {"model": "m", "prompt": text, "add_special_tokens": False}).read())["tokens"]

    def ask(self, prompt, params, num_tokens):
        """Seconds to the first token, its distribution, the tokens, and how many tokens of the prompt were blended."""
        begin = time.monotonic()
        response = self.post("/v1/completions", {
            "model": "m", "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "logprobs": NUM_LOGPROBS, "return_tokens_as_token_ids": True, "return_token_ids": True,
            "stream_options": {"include_usage": True}, "kv_transfer_params": params})
        seconds, first, tokens, blended = None, None, [], 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise SystemExit(event)
            for choice in event["choices"]:
                if seconds is None:
                    seconds = time.monotonic() - begin
                    first = choice["logprobs"]["top_logprobs"][0]
                tokens += choice.get("token_ids") or []
            if event.get("usage"):
                blended = (event["usage"].get("prompt_tokens_details") or {}).get("blended_tokens", 0)
        return {"seconds": seconds, "first": first, "tokens": tokens, "blended": blended}


def divergence(exact, other):
    """KL(exact || other) of the tokens that both know, and of the rest together."""
    known = [token for token in exact if token in other]
    p = [math.exp(exact[token]) for token in known]
    q = [math.exp(other[token]) for token in known]
    rest = max(1e-9, 1 - sum(p)), max(1e-9, 1 - sum(q))
    return max(0.0, sum(a * math.log(a / b) for a, b in zip((*p, rest[0]), (*q, rest[1])) if a > 0))


def same_part(exact, other):
    for i, (a, b) in enumerate(zip(exact, other)):
        if a != b:
            return i / len(exact)
    return 1.0


def measure(arguments, model):
    source = random.Random(arguments.seed)
    server = Server(arguments.binary, model, arguments.option)
    try:
        separator = server.tokens(SEPARATOR)
        vocabulary = [token for token in range(100, arguments.vocabulary) if token not in separator]
        paragraphs = [[source.choice(vocabulary) for _ in range(arguments.tokens)] for _ in range(12)]
        question = [source.choice(vocabulary) for _ in range(12)]
        known = paragraphs_of(source, PARAGRAPHS) if arguments.retrieval else []

        def prompt(order, number):
            """Its tokens, and the right answer."""
            if known:
                tokens, answers = prompt_of(source, [known[paragraph] for paragraph in order], separator)
                asked = source.choice(list(answers))
                return tokens + [asked], answers[asked]
            tokens = [vocabulary[number]]  # so that prompts share no prefix
            for paragraph in order:
                tokens += separator + paragraphs[paragraph]
            return tokens + separator + question, None

        # All paragraphs are kept from here on, and the weights are in memory.
        server.ask(prompt(range(12), 0)[0], {}, 2)
        samples = []
        for number in range(1, arguments.prompts + 1):
            order = source.sample(range(12), source.randint(6, 12))
            tokens, answer = prompt(order, number)
            sample = {"paragraphs": len(order), "tokens": len(tokens), "blended": {}, "answer": answer}
            for ratio in RATIOS:
                sample["blended"][ratio] = server.ask(
                    tokens, {"enable_blending": True, "blend_recompute_ratios": ratio}, arguments.answer)
            sample["full"] = server.ask(tokens, {}, arguments.answer)
            sample["prefix"] = server.ask(tokens, {}, arguments.answer)
            samples.append(sample)
        return samples
    finally:
        server.stop()


def summarise(samples):
    rows = []
    for ratio in RATIOS:
        of = [(sample["blended"][ratio], sample["full"], sample["prefix"]) for sample in samples]
        if any(blended["blended"] == 0 for blended, _, _ in of):
            raise SystemExit(f"at ratio {ratio} a prompt was not blended")
        rows.append({
            "ratio": ratio,
            "of_full": statistics.median(blended["seconds"] / full["seconds"] for blended, full, _ in of),
            "of_prefix": statistics.median(blended["seconds"] / prefix["seconds"] for blended, _, prefix in of),
            "kl": statistics.mean(divergence(full["first"], blended["first"]) for blended, full, _ in of),
            "first": statistics.mean(full["tokens"][0] == blended["tokens"][0] for blended, full, _ in of),
            "right": statistics.mean(blended["tokens"][0] == sample["answer"]
                                     for blended, sample in ((sample["blended"][ratio], sample) for sample in samples)),
            "same": statistics.mean(same_part(full["tokens"], blended["tokens"]) for blended, full, _ in of),
            "exact": all(full["tokens"] == blended["tokens"] and full["first"] == blended["first"] for blended, full, _ in of)})
    return rows


def table(name, samples, rows):
    full = statistics.median(sample["full"]["seconds"] for sample in samples)
    lines = [f"{name}: {len(samples)} prompts of {min(s['tokens'] for s in samples)} to {max(s['tokens'] for s in samples)}"
             f" tokens, full prefill {full:.3f} s, prefix hit"
             f" {statistics.median(sample['prefix']['seconds'] for sample in samples):.3f} s (medians)",
             f"{'ratio':>6} {'TTFT/full':>10} {'TTFT/prefix hit':>16} {'KL':>10} {'same first':>11} {'same part':>10} {'exact':>6}"]
    has_answers = samples[0]["answer"] is not None
    if has_answers:
        right = statistics.mean(sample["full"]["tokens"][0] == sample["answer"] for sample in samples)
        lines[0] += f"; {right:.2f} of the answers of full prefills are right"
        lines[1] += f" {'right':>6}"
    for row in rows:
        lines.append(f"{row['ratio']:>6} {row['of_full']:>10.3f} {row['of_prefix']:>16.2f} {row['kl']:>10.2e}"
                     f" {row['first']:>11.2f} {row['same']:>10.2f} {'yes' if row['exact'] else 'no':>6}"
                     + (f" {row['right']:>6.2f}" if has_answers else ""))
    return "\n".join(lines)


COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")


def chart(results):
    """Three panels over the share of computed tokens."""
    panels = (("TTFT / full prefill", "of_full", 1.2), ("KL from full prefill", "kl", None), ("same answer, part", "same", 1.05))
    width, height, left, top = 300, 220, 60, 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(panels) * (width + left) + 20}" height="{height + 110}" '
             'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>']
    for number, (title, key, most) in enumerate(panels):
        x0 = left + number * (width + left)
        most = most or 1.1 * max((row[key] for rows in results.values() for row in rows), default=1) or 1
        parts.append(f'<text x="{x0}" y="{top - 14}" font-weight="bold">{title}</text>'
                     f'<path d="M{x0} {top}V{top + height}H{x0 + width}" stroke="black" fill="none"/>')
        for step in range(5):
            y = top + height - step * height / 4
            parts.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{step * most / 4:.2g}</text>'
                         f'<path d="M{x0} {y}H{x0 + width}" stroke="#ddd"/>')
        for ratio in RATIOS:
            parts.append(f'<text x="{x0 + ratio * width}" y="{top + height + 16}" text-anchor="middle" font-size="9">{ratio}</text>')
        for colour, rows in zip(COLOURS, results.values()):
            points = " ".join(f"{x0 + row['ratio'] * width:.1f},{top + height - min(row[key], most) / most * height:.1f}"
                              for row in rows)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="{left}" y="{top + height + 34}">share of the cached tokens that is computed</text>')
    for number, (colour, name) in enumerate(zip(COLOURS, results)):
        parts.append(f'<text x="{left + number * 260}" y="{top + height + 56}" fill="{colour}">{name}</text>')
    return "\n".join((*parts, "</svg>\n"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/troupe")
    parser.add_argument("--model", action="append", required=True, help="folder; may come again")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("build/bench"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=160, help="of a paragraph")
    parser.add_argument("--answer", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--vocabulary", type=int, default=500, help="ids below it are used")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--retrieval", action="store_true", help="prompts of retrieval_prompts.py, for train_retrieval.py's models")
    parser.add_argument("--option", action="append", default=[], help="of the server, as --option=--dtype --option=float32")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    everything, results, tables = {}, {}, []
    for model in arguments.model:
        name = pathlib.Path(model).name
        everything[name] = measure(arguments, model)
        results[name] = summarise(everything[name])
        tables.append(table(name, everything[name], results[name]))
        print(tables[-1], flush=True)
    (arguments.output / "blend.txt").write_text("\n\n".join(tables) + "\n")
    (arguments.output / "blend.svg").write_text(chart(results))
    (arguments.output / "blend.json").write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
