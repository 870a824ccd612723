#!/usr/bin/env python3
"""MaskBench: Troupe's masks beside llguidance's and xgrammar's, in one run over the same schemas and documents.

    bench_masks.py DATA [--count N] [--seed N] [--engines NAME,...] [--tokenizer FOLDER] [--bench PROGRAM]
                        [--cpu-limit-s N] [--any-order] [--answers FOLDER [--kept NAME,...]] [--slow]

DATA is the folder maskbench/data of guidance-ai/jsonschemabench: files of {"schema", "tests": [{"valid", "data"}]}.
Without --tokenizer the vocabulary is Tekken's (131,072 tokens), which the package mistral-common brings along. Needs
the packages llguidance, xgrammar, transformers and mistral-common; none of them is needed by anything else here.

Each engine is a process that reads a line per schema and answers with a line, one schema after the other, so that
whatever else runs on the machine slows all of them. A schema with its documents may take --cpu-limit-s seconds of CPU time.
Interrupted, it prints the table of what has been measured. xgrammar takes hours unless the limit is small: with --answers
each answer is kept in a file of its engine and not asked for again; --kept takes those of these engines from there only,
and the schemas that they have answered. Times are CPU times of the engine's thread. A mask's time is that of the mask and
of accepting the token behind it; a first mask's is that of compiling and of the first mask. A document is accepted if each
of its tokens is in its mask and the text may end behind the last one. The documents' properties have the order in which
llguidance takes them; where it does not take the schema, any order, which Troupe takes with --any-order.
"""
import argparse
import base64
import importlib.util
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VOCABULARY = 131072
NUM_SPECIAL = 1000


def make_tekken(folder):
    """Writes a tokenizer.json whose ids are Tekken's without their offset of 1,000; special tokens come last."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    package = pathlib.Path(importlib.util.find_spec("mistral_common").origin).parent
    tekken = json.loads((package / "data" / "tekken_240911.json").read_text())
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in tekken["vocab"][:VOCABULARY - NUM_SPECIAL]}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}

    def spelled(token):
        return "".join(spelling[byte] for byte in token)

    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], spelled(a), spelled(b)) for a, b in cuts]
    merges = [(a, b) for _, _, _, a, b in sorted(merges)]
    tokenizer = Tokenizer(BPE({spelled(token): rank for token, rank in ranks.items()}, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(tekken["config"]["pattern"]), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(f"<SPECIAL_{i}>", special=True) for i in range(NUM_SPECIAL)])
    tokenizer.save(str(folder / "tokenizer.json"))


# ---- The other engines, each in a process of its own -------------------------------------------------------------


class LlGuidance:
    def __init__(self, tokenizer):
        import llguidance.hf
        import llguidance.numpy
        self.llguidance = llguidance
        self.tokenizer = llguidance.hf.from_tokenizer(tokenizer, eos_token=len(tokenizer) - 1)
        self.mask = llguidance.numpy.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema):
        grammar = self.llguidance.LLMatcher.grammar_from_json_schema(schema)
        self.compiled = self.llguidance.LLMatcher(self.tokenizer, grammar)
        if self.compiled.is_error():
            raise ValueError(self.compiled.get_error())

    def begin(self):
        self.matcher = self.compiled.deep_copy()

    def fill(self):
        self.llguidance.numpy.fill_next_token_bitmask(self.matcher, self.mask, 0)

    def accept(self, token):
        allowed = bool(self.mask[0, token // 32] >> (token % 32) & 1)
        if allowed:
            self.matcher.consume_token(token)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())
        return allowed

    def may_end(self):
        return self.matcher.is_accepting()


class XGrammar:
    strict = False

    def __init__(self, tokenizer):
        import xgrammar
        self.xgrammar = xgrammar
        size = len(tokenizer)
        self.end = size - 1
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size, stop_token_ids=[self.end])
        self.mask = xgrammar.allocate_token_bitmask(1, size)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema):
        self.compiled = self.compiler.compile_json_schema(schema, any_whitespace=not self.strict,
                                                          strict_mode=self.strict)

    def begin(self):
        self.matcher = self.xgrammar.GrammarMatcher(self.compiled)

    def fill(self):
        self.matcher.fill_next_token_bitmask(self.mask)

    def accept(self, token):
        return self.matcher.accept_token(token)

    def may_end(self):
        return self.matcher.is_terminated() or self.matcher.accept_token(self.end)


class XGrammarStrict(XGrammar):
    """No white space but that of json.dumps, no properties but those that are named: its own default."""
    strict = True


PYTHON_ENGINES = {"llguidance": LlGuidance, "xgrammar": XGrammar, "xgrammar-strict": XGrammarStrict}


def serve(name, folder, cpu_limit_s):
    """Measures in a fork of this process: where one ends at the limit or in a crash, the next one need not load anything."""
    from transformers import PreTrainedTokenizerFast
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input ends it
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(pathlib.Path(folder) / "tokenizer.json"))
    engine = PYTHON_ENGINES[name](tokenizer)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    print(json.dumps({"ready": True}), file=answers, flush=True)
    worker = None
    for line in sys.stdin:
        if worker is None:
            (request_out, request_in), (answer_out, answer_in) = os.pipe(), os.pipe()
            worker = os.fork()
            if worker == 0:
                os.close(request_in)
                os.close(answer_out)
                work(engine, os.fdopen(request_out), os.fdopen(answer_in, "w"), cpu_limit_s)
                os._exit(0)
            os.close(request_out)
            os.close(answer_in)
            requests, results = os.fdopen(request_in, "w"), os.fdopen(answer_out)
        requests.write(line)
        requests.flush()
        answer = results.readline()
        if not answer:
            os.waitpid(worker, 0)
            requests.close()
            results.close()
            worker = None
            answer = json.dumps({"error": f"over {cpu_limit_s} s of CPU time, or a crash", "ended": True}) + "\n"
        answers.write(answer)
        answers.flush()


def work(engine, requests, answers, cpu_limit_s):
    for line in requests:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)  # SIGPROF ends the process
        print(json.dumps(measure(engine, json.loads(line))), file=answers, flush=True)


def measure(engine, request):
    start = time.thread_time_ns()
    try:
        engine.compile(request["schema"])
    except (ValueError, RuntimeError) as error:
        return {"error": str(error)}
    compile_us = (time.thread_time_ns() - start) / 1e3
    masks, accepted = [], []
    for tokens in request["tests"]:
        engine.begin()
        fits = True
        try:
            for token in tokens:
                start = time.thread_time_ns()
                engine.fill()
                fits = engine.accept(token)
                masks.append((time.thread_time_ns() - start) / 1e3)
                if not fits:
                    break
            accepted.append(bool(fits and engine.may_end()))
        except (ValueError, RuntimeError):
            accepted.append(None)  # the engine gave up
    return {"compile_us": compile_us, "mask_us": masks, "accepted": accepted}


# ---- The comparison ----------------------------------------------------------------------------------------------


class Engine:
    def __init__(self, name, command):
        self.name = name
        self.first_us, self.mask_us, self.refused = [], [], {}
        self.wrongly_refused_names = []
        self.taken = self.wrongly_accepted = self.wrongly_refused = self.gave_up = self.right = self.ended = 0
        self.slow = []
        self.kept, self.keep = {}, None
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def keep_answers(self, file):
        if file.exists():
            self.kept = {entry["name"]: entry["answer"] for entry in map(json.loads, file.read_text().splitlines())}
        self.keep = file.open("a")

    def ask(self, name, line):
        if name in self.kept:
            return self.kept[name]
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if self.keep is not None:
            print(json.dumps({"name": name, "answer": answer}), file=self.keep, flush=True)
        return answer

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} has ended")
        return json.loads(line)

    def take(self, name, tests, answer):
        if "error" in answer:
            self.refused[name] = answer["error"]
            self.ended += "ended" in answer
            return
        self.taken += 1
        first_us = answer["compile_us"] + next(iter(answer["mask_us"]), 0)
        self.first_us.append(first_us)
        self.mask_us += answer["mask_us"]
        self.slow.append((max(answer["mask_us"], default=0), first_us, name))
        for i, (test, accepted) in enumerate(zip(tests, answer["accepted"], strict=True)):
            if accepted is None:
                self.gave_up += 1
            elif accepted == test["valid"]:
                self.right += 1
            elif accepted:
                self.wrongly_accepted += 1
                print(f"{self.name}: {name}: test {i} is accepted, but not valid")
            else:
                self.wrongly_refused += 1
                self.wrongly_refused_names.append(name)
                if self.name == "troupe":
                    print(f"{self.name}: {name}: test {i} is refused, but valid")

    def row(self):
        def at(values, p):
            return values[min(len(values) - 1, int(p * len(values)))] if values else 0

        self.mask_us.sort()
        self.first_us.sort()
        mean = sum(self.mask_us) / max(1, len(self.mask_us))
        cells = [mean, *(at(self.mask_us, p) for p in (0.5, 0.99, 0.999, 1)), *(at(self.first_us, p) for p in (0.5, 0.9, 0.99, 1))]
        counts = [self.taken, self.right, self.wrongly_accepted, self.wrongly_refused, self.gave_up, self.ended]
        return [self.name, *(f"{cell:.1f}" for cell in cells), *map(str, counts)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engines", default="troupe,llguidance,xgrammar")
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--bench", default=str(ROOT / "build" / "release" / "tests" / "bench_grammar"))
    parser.add_argument("--cpu-limit-s", type=float, default=20, help="for a schema with its documents")
    parser.add_argument("--any-order", action="store_true", help="Troupe's option any_order")
    parser.add_argument("--answers", type=pathlib.Path)
    parser.add_argument("--kept", default="", help="engines that are not asked anything")
    parser.add_argument("--slow", action="store_true", help="print the slowest schemas and why schemas are refused")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.tokenizer
        if folder is None:
            folder = pathlib.Path(temporary)
            make_tekken(folder)
        compare(options, folder)


def compare(options, folder):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    files = sorted(options.data.glob("*.json"))
    if options.count < len(files):
        files = random.Random(options.seed).sample(files, options.count)
    engines = []
    for name in options.engines.split(","):
        serve_command = [sys.executable, __file__, "--serve", name, str(folder), str(options.cpu_limit_s)]
        engines.append(Engine(name, [options.bench, str(folder)] if name == "troupe" else serve_command))
        if options.answers is not None:
            options.answers.mkdir(exist_ok=True)
            engines[-1].keep_answers(options.answers / f"{name}.jsonl")
    for engine in engines:
        engine.answer()  # it is ready
        if engine.name in options.kept.split(","):
            files = [file for file in files if file.stem in engine.kept]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    measured = []
    try:
        measure_all(engines, tokenizer, files, options.any_order, measured)
    except KeyboardInterrupt:
        print(f"interrupted behind {len(measured)} of {len(files)} schemas")
    report(options, engines, tokenizer, measured)


def measure_all(engines, tokenizer, files, any_order, measured):
    for file in files:
        case = json.loads(file.read_text())
        tests = case["tests"]
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in tests]
        request = {"schema": json.dumps(case["schema"], ensure_ascii=False), "any_order": any_order,
                   "tests": [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]}
        line = json.dumps(request)
        answers = [engine.ask(file.stem, line) for engine in engines]
        for engine, answer in zip(engines, answers, strict=True):
            engine.take(file.stem, tests, answer)
        measured.append(file.stem)


def report(options, engines, tokenizer, names_of):
    print(f"{len(names_of)} schemas, vocabulary of {tokenizer.get_vocab_size()} tokens, times in microseconds")
    names = ["engine", "mask avg", "p50", "p99", "p99.9", "max", "first p50", "p90", "p99", "max", "taken", "right",
             "wrongly accepted", "wrongly refused", "gave up", "over limit"]
    rows = [names, *(engine.row() for engine in engines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for engine in engines:
        common = set.intersection(*(set(names_of) - set(other.refused) for other in engines))
        number = sum(name in common for name in engine.wrongly_refused_names)
        print(f"{engine.name}: {number} documents wrongly refused of the {len(common)} schemas that all take")
    if not options.slow:
        return
    for engine in engines:
        print(f"{engine.name}: slowest masks:")
        for mask, first, name in sorted(engine.slow, reverse=True)[:12]:
            print(f"  {mask:10.1f} (first {first:.1f}) {name}")
        print(f"{engine.name}: slowest first masks:")
        for mask, first, name in sorted(engine.slow, key=lambda row: -row[1])[:12]:
            print(f"  {first:10.1f} {name}")
        reasons = {}
        for name, reason in engine.refused.items():
            reasons.setdefault(reason.splitlines()[0][:150] if reason else "", []).append(name)
        print(f"{engine.name}: refused:")
        for reason, all_names in sorted(reasons.items(), key=lambda item: -len(item[1]))[:40]:
            print(f"  {len(all_names):5} {reason} ({all_names[0]})")


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--serve":
        serve(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        main()
