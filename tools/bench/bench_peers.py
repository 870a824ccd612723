#!/usr/bin/env python3
"""Runs the same workloads on Troupe and on other CPU engines, interleaved, and prints each figure with its goal, the best peer's
figure and its fraction of the machine's limit, which is sampled in the same round. Builds and installs nothing: peers are
optional, and without any it prints our own figures and the limits. The table is written to OUT/NAME.txt, a chart to
OUT/NAME.svg, all samples to OUT/NAME.json.

All engines get requests over HTTP from the same client. Those of a width run at the same time, and all but the active one are
stopped (SIGSTOP), so that they are compared within minutes: memory for all of them is needed (up to 20 GiB for Qwen3-0.6B with
both peers).

Peers: llama.cpp (folder with llama-server) with GGUF files of the same weights; vLLM (the Python of an environment that has it,
and metadata under the name vllm, version X+cpu). Model: a Hugging Face folder with weights in bfloat16. Example:
  tools/bench/bench_peers.py --model qwen3-0.6b --llama build/bin --gguf bfloat16=q.gguf --gguf int8=q8_0.gguf --works prefill,decode"""
import argparse
import contextlib
import ctypes.util
import json
import math
import os
import pathlib
import random
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

QUANTIZED = ("int8", "int4")
WIDTHS = ("bfloat16", *QUANTIZED)
BITS = {"bfloat16": 16, "int8": 8 + 16 / 64, "int4": 4 + 16 / 32}  # including a scale per group
SAME_FILE = ", same GGUF"  # of a figure for which Troupe has loaded llama.cpp's file; without, it quantises the folder at load
GOALS = {  # figure -> ratio to the best peer, or to a named one
    "prefill 512": {"vllm": 1.3, "llama.cpp": 8}, "prefill 2048": {"vllm": 1.3, "llama.cpp": 8},
    **{f"decode {context} {width}": 1.1 for width in WIDTHS for context in (128, 2048)},
    **{f"decode {context} {width}{SAME_FILE}": 1.1 for width in QUANTIZED for context in (128, 2048)},
    "batch 8": 1.5, "batch 32": 1.5, "clients 16, tokens/s": 1.5, "clients 16, TTFT p99": 1.0, "clients 16, ITL p99": 1.0,
    "prefix 2048, TTFT": 2.0, "n-gram speculation": 2.0, "kept beside a busy process": 1.0,
    "start to first token": 1.0, "resident memory": 1.0, **{f"divergence {width}": 1.0 for width in WIDTHS}}
FLOORS = {"kept beside a busy process": 0.45}  # goals that need no peer
SMALLER_IS_BETTER = ("TTFT", "ITL", "start", "memory", "divergence")
LIMIT_GOALS = {"prefill": 0.5, "decode": 0.85}
WORKS = ("prefill", "decode", "batch", "clients", "prefix", "neighbour", "ngram", "accuracy", "start")
OF_WIDTHS = ("decode", "accuracy")  # the others are measured in bfloat16
DECODED = 32  # tokens per decode measurement
REPEATED = "the cat sat on the mat and looked at the moon, and then "
NUM_ROWS, ROW_PROMPT = 8, 64  # distributions for accuracy, and the prompt tokens of each
CLIENT_SLOTS, SLOT_TOKENS = 16, 2176  # llama.cpp's KV cache
KV_CACHE_GIB = 2  # of the other engines; resident memory counts the written part
START_S, WORK_S = 900, 1800
THREADS = len(os.sched_getaffinity(0))


def output_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=WORK_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get_json(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def post(url, fields):
    request = urllib.request.Request(url, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WORK_S) as answer:
        return json.load(answer)


@contextlib.contextmanager
def busy_neighbour():
    """A busy loop on the last core."""
    core = max(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def openai_logprobs(url, model, prompt, vocab_size):
    """Log-probabilities of the whole vocabulary after a prompt, by token id."""
    answer = post(url + "/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0,
                                            "logprobs": vocab_size, "return_tokens_as_token_ids": True})
    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return {int(token.removeprefix("token_id:")): logprob for token, logprob in top.items()}


class Engine:
    works = WORKS
    suffix = ""  # of its figures


class Troupe(Engine):
    name = "troupe"
    widths = WIDTHS
    logprobs = staticmethod(openai_logprobs)

    def __init__(self, options, *extra):
        self.options, self.extra = options, extra

    def model(self, width):
        """The model and its format, as options of `serve`."""
        if width in QUANTIZED:
            return [self.options.model, "--dtype", "bfloat16", "--quantization", width]
        return [self.options.model, "--dtype", width]

    def command(self, width, port):
        return [self.options.troupe, "serve", *self.model(width), "--max-model-len", 4096, "--max-logprobs", -1,
                "--kv-cache-memory-bytes", KV_CACHE_GIB << 30, "--port", port, *self.extra], {}


class TroupeOfGguf(Troupe):
    """With llama.cpp's file of quantised weights."""
    works = ("decode",)
    suffix = SAME_FILE

    def __init__(self, options):
        super().__init__(options)
        self.widths = tuple(width for width in QUANTIZED if width in options.gguf)

    def model(self, width):
        return [self.options.gguf[width]]


class LlamaCpp(Engine):
    """One slot per client, each with its share of the KV cache: half of `batch 32` waits for a slot."""
    name = "llama.cpp"

    def __init__(self, folder, gguf):
        self.binary, self.gguf, self.widths = folder / "llama-server", gguf, tuple(gguf)

    def command(self, width, port):
        slots = CLIENT_SLOTS if width == "bfloat16" else 1
        return [self.binary, "-m", self.gguf[width], "-t", THREADS, "-tb", THREADS, "-np", slots, "-c", slots * SLOT_TOKENS,
                "-b", 2048, "-ub", 512, "-fa", "on", "--port", port], {}

    @staticmethod
    def logprobs(url, _, prompt, vocab_size):
        answer = post(url + "/completion", {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": vocab_size})
        return {entry["id"]: entry["logprob"] for entry in answer["completion_probabilities"][0]["top_logprobs"]}


class Vllm(Engine):
    name = "vllm"
    widths = ("bfloat16",)
    logprobs = staticmethod(openai_logprobs)

    def __init__(self, python, model):
        self.python, self.model = python, model

    def command(self, _, port):
        env = {"VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}",
               "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        # As recommended by its documentation, if installed.
        preload = [self.python.parent.parent / "lib" / "libiomp5.so", ctypes.util.find_library("tcmalloc_minimal")]
        env["LD_PRELOAD"] = " ".join(str(library) for library in preload if library and (
            not isinstance(library, pathlib.Path) or library.exists()))
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, "--dtype", "bfloat16",
                "--max-model-len", 4096, "--max-num-seqs", 32, "--max-logprobs", -1, "--port", port], env


def resident_mib(pid):
    """Of a process and its children; shared memory counts once."""
    total, pids = 0, [pid]
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):
            total += int(re.search(r"^Pss:\s+(\d+)", pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)[1]) / 1024
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return total


class Server:
    """An engine's server with its process group, which is stopped except within `with server.working()`."""

    def __init__(self, engine, width):
        self.engine, self.width = engine, width
        port = free_port()
        command, env = engine.command(width, port)
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        begin = time.monotonic()
        self.process = subprocess.Popen([str(part) for part in command], stdout=self.log, stderr=self.log,
                                        env={**os.environ, **env}, start_new_session=True)
        try:
            self._wait_until_healthy(begin + START_S)
            self.model = get_json(self.url + "/v1/models")["data"][0]["id"]
            post(self.url + "/v1/completions", {"model": self.model, "prompt": "Once upon a time", "max_tokens": 1})
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - begin
        os.killpg(self.process.pid, signal.SIGSTOP)

    def _wait_until_healthy(self, deadline):
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(f"{self.engine.name} ended with {self.process.returncode}: "
                                   f"{self.log.read()[-1000:].decode(errors='replace')}")
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5):
                return
            time.sleep(0.02)
        raise RuntimeError(f"{self.engine.name} was not ready within {START_S} s")

    @contextlib.contextmanager
    def working(self):
        os.killpg(self.process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGSTOP)

    def stop(self):
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


class Client:
    """The workloads, each on one server: they return {figure: value}."""

    def __init__(self, options, reference):
        self.options, self.reference, self.seed = options, reference, 0

    def _load(self, server, *arguments):
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            output_of([self.options.troupe, "bench", "serve", "--base-url", server.url, "--model", server.model, "--tokenizer",
                       self.options.model, "--ignore-eos", "--seed", self.seed, "--output-json", result.name, *arguments])
            return json.load(result)

    def _random(self, server, prompts, clients, input_len, output_len, prefix_len=0):
        # A warm-up request, equal to the first one, precedes them and is not counted.
        return self._load(server, "--num-prompts", prompts, "--max-concurrency", clients, "--random-input-len", input_len,
                          "--random-output-len", output_len, "--random-prefix-len", prefix_len)

    def prefill(self, server):
        # The first of three hits the prefix cache: the median is the better of the other two.
        return {f"prefill {length}": 1000 * length / self._random(server, 3, 1, length, 1)["median_ttft_ms"]
                for length in (512, 2048)}

    def _decode(self, server, context):
        return 1000 / self._random(server, 1, 1, context, DECODED + 1)["median_tpot_ms"]

    def decode(self, server):
        return {f"decode {context} {server.width}{server.engine.suffix}": self._decode(server, context) for context in (128, 2048)}

    def neighbour(self, server):
        alone = self._decode(server, 128)
        with busy_neighbour():
            return {"kept beside a busy process": self._decode(server, 128) / alone}

    def batch(self, server):
        return {f"batch {size}": self._random(server, size, size, 128, 64)["output_throughput"] for size in (8, 32)}

    def clients(self, server):
        result = self._random(server, 32, 16, 256, 128)
        return {"clients 16, tokens/s": result["output_throughput"], "clients 16, TTFT p99": result["p99_ttft_ms"],
                "clients 16, ITL p99": result["p99_itl_ms"]}

    def prefix(self, server):
        return {"prefix 2048, TTFT": self._random(server, 5, 1, 16, 4, 2048)["median_ttft_ms"]}

    def ngram(self, server):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as dataset:
            dataset.write(json.dumps({"prompt": 12 * REPEATED, "output_tokens": 65}) + "\n")
            dataset.flush()
            result = self._load(server, "--num-prompts", 1, "--dataset", dataset.name)
        return {"n-gram speculation": 1000 / result["median_tpot_ms"]}

    def accuracy(self, server):
        """Mean Kullback-Leibler divergence from float32, in nats."""
        rows = distributions(server, self.options.shape["vocab_size"])
        return {f"divergence {server.width}": statistics.mean(map(divergence, self.reference, rows))}

    def start(self, server):
        return {"start to first token": server.start_s, "resident memory": resident_mib(server.process.pid)}


def distributions(server, vocab_size):
    """Log-probabilities after some random prompts, the same for all servers."""
    source = random.Random(1)
    prompts = [[source.randrange(256, vocab_size - 256) for _ in range(ROW_PROMPT)] for _ in range(NUM_ROWS)]
    return [server.engine.logprobs(server.url, server.model, prompt, vocab_size) for prompt in prompts]


def divergence(exact, found):
    least = min(found.values())  # for tokens that an engine omits
    return sum(math.exp(logprob) * (logprob - found.get(token, least)) for token, logprob in exact.items())


def limits_of(options):
    """Memory bandwidth in GB/s and throughput of the bf16 unit in GFLOP/s, measured by the kernel benchmark; 0: not measured."""
    text = output_of([options.kernels, "--benchmark_filter=rms_norm/1/", "--benchmark_min_time=0.01"])
    found = re.search(r"stream read ([\d.]+) GB/s.*bf16 unit ([\d.]+) GFLOP/s", text)
    return {"stream": float(found[1]), "bf16": float(found[2])}


def weights_of(model, shape):
    """Number of weights of the layers' matrices that a token needs, and of the head."""
    layers = head = embedding = 0
    share = shape.get("num_experts_per_tok", 1) / shape.get("num_experts", shape.get("num_local_experts", 1))
    for file in model.glob("*.safetensors"):
        with open(file, "rb") as data:
            header = json.loads(data.read(struct.unpack("<Q", data.read(8))[0]))
        for name, tensor in header.items():
            size = math.prod(tensor.get("shape", [0]))
            if "embed_tokens" in name:
                embedding += size
            elif "lm_head" in name:
                head += size
            elif len(tensor.get("shape", [])) == 2:
                layers += size * share if ".experts." in name else size
    return layers, head or embedding


def limit_fraction(options, figure, value, limits):
    """Of the matrix units in prefill (the layers' products alone), of the stream's bandwidth in decode (weights in their width, and KV
    cache): more than 1 where an engine keeps them in fewer bits."""
    layers, head = weights_of(options.model, options.shape)
    if re.fullmatch(r"prefill \d+", figure):
        return value * 2 * layers / 1e9 / limits["bf16"] if limits["bf16"] else None
    if match := re.match(r"decode (\d+) (\w+)", figure):
        shape, context, width = options.shape, int(match[1]), match[2]
        head_dim = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
        num_layers, pattern = shape["num_hidden_layers"], shape.get("sliding_window_pattern")
        window = shape.get("sliding_window") if shape.get("use_sliding_window", True) else None
        num_full = num_layers if not window else num_layers // pattern if pattern else 0
        seen = num_full * context + (num_layers - num_full) * min(context, window or context)
        # Quantised at load, the head has 8 bits.
        head_width = width if width == "bfloat16" or figure.endswith(SAME_FILE) else "int8"
        read = layers * BITS[width] / 8 + head * BITS[head_width] / 8
        read += 2 * seen * shape["num_key_value_heads"] * head_dim * 2
        return value * read / 1e9 / limits["stream"] if limits["stream"] else None
    return None


def unit(figure):
    for word, name in {"memory": "MiB", "kept": "", "divergence": "nats", "start": "s", "TTFT": "ms", "ITL": "ms"}.items():
        if word in figure:
            return name
    return "tok/s"


def table(options, samples, limits):
    """Rows (figure, ours, the best peer's name and figure, ratio, goal, fraction of the limit)."""
    rows = []
    for figure in GOALS:
        of_peers = figure.removesuffix(SAME_FILE)
        ours = statistics.median(found) if (found := samples["troupe"].get(figure)) else None
        medians = {name: statistics.median(figures[of_peers]) for name, figures in samples.items()
                   if name != "troupe" and figures.get(of_peers)}
        if ours is None and (not medians or of_peers != figure):
            continue
        smaller = any(word in figure for word in SMALLER_IS_BETTER)
        best = (min if smaller else max)(medians, key=medians.get) if medians else None
        goal = GOALS[figure]
        if isinstance(goal, dict):
            goal = goal.get(best, min(goal.values()))
        ratio = None
        if ours and best:
            ratio = medians[best] / ours if smaller else ours / medians[best]
        rows.append((figure, ours, best, medians.get(best), ratio, goal,
                     limit_fraction(options, figure, ours, limits) if ours else None))
    return rows


def table_text(rows, limits):
    lines = [f"{'':27} {'':5} {'goal':>14} {'ours':>10} {'best peer':>32} {'ratio':>7} {'of limit':>9}"]
    for figure, ours, best, theirs, ratio, goal, fraction in rows:
        goals = [f"{goal:g}x"]
        if figure in FLOORS:
            goals = [f"{FLOORS[figure]:.0%}"]
        if (least := LIMIT_GOALS.get(figure.split()[0])) and fraction:
            goals.append(f"{least:.0%}")
        peer = f"{theirs:.4g} ({best})" if best else "no peer"
        lines.append(f"{figure:27} {unit(figure):5} {', '.join(goals):>14} {f'{ours:.4g}' if ours else '-':>10} {peer:>32} "
                     f"{f'{ratio:.2f}' if ratio else '-':>7} {f'{fraction:.0%}' if fraction else '-':>9}")
    return "\n".join([*lines, f"Limits: stream read {limits['stream']:.1f} GB/s (of decode), bf16 unit {limits['bf16']:.0f} "
                      "GFLOP/s (of prefill). Ratio above 1: ahead."])


def draw(rows, path):
    """Bars of the ratios, with a line at each goal."""
    shown = [(row[0], row[4], row[5]) for row in rows if row[4]]
    if not shown:
        return
    scale, height, left = 420 / max(4.0, *(ratio for _, ratio, _ in shown)), 26, 210
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 500}" height="{height * len(shown) + 40}" '
             'font-family="sans-serif" font-size="13">',
             f'<text x="{left}" y="18">times the best peer (line: goal)</text>']
    for i, (figure, ratio, goal) in enumerate(shown):
        y = 30 + i * height
        colour = "#2a7" if ratio >= goal else "#c73"
        parts += [f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{figure}</text>',
                  f'<rect x="{left}" y="{y}" width="{ratio * scale:.1f}" height="{height - 8}" fill="{colour}"/>',
                  f'<line x1="{left + goal * scale:.1f}" x2="{left + goal * scale:.1f}" y1="{y - 3}" y2="{y + height - 5}" '
                  'stroke="black"/>',
                  f'<text x="{left + ratio * scale + 6:.1f}" y="{y + 14}">{ratio:.2f}</text>']
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--troupe", type=pathlib.Path, default=pathlib.Path("build/release/troupe"))
    parser.add_argument("--kernels", type=pathlib.Path, default=pathlib.Path("build/release/tests/bench_kernels"),
                        help="samples the limits")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="Hugging Face folder, weights in bfloat16")
    parser.add_argument("--gguf", action="append", default=[], metavar="WIDTH=FILE",
                        help="the same weights for llama.cpp; WIDTH bfloat16, int8 (Q8_0) or int4 (Q4_0); may be repeated")
    parser.add_argument("--llama", type=pathlib.Path, help="folder with llama-server")
    parser.add_argument("--vllm", type=pathlib.Path, help="Python of an environment with vLLM")
    parser.add_argument("--works", default=",".join(WORKS), help=f"of {','.join(WORKS)} [all]")
    parser.add_argument("--widths", default=",".join(WIDTHS), help=f"of {','.join(WIDTHS)} [all]")
    parser.add_argument("--rounds", type=int, default=3, help="each runs every work on every engine once [3]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    parser.add_argument("--name", default="peers", help="of the files in OUT [peers]")
    options = parser.parse_args()
    for name, known in (("works", WORKS), ("widths", WIDTHS)):
        given = getattr(options, name).split(",")
        if unknown := set(given) - set(known):
            parser.error(f"--{name} has no {', '.join(sorted(unknown))}; known are {', '.join(known)}")
        setattr(options, name, [each for each in known if each in given])
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, at least 1 is needed")
    try:
        options.gguf = {width: pathlib.Path(file) for width, file in (given.split("=", 1) for given in options.gguf)}
    except ValueError:
        parser.error("--gguf takes WIDTH=FILE")
    if unknown := set(options.gguf) - set(WIDTHS):
        parser.error(f"unknown width {', '.join(sorted(unknown))}; known are {', '.join(WIDTHS)}")
    if bool(options.llama) != bool(options.gguf):
        parser.error("--llama and --gguf must be given together")
    peers = [options.vllm] * bool(options.vllm) + [options.llama and options.llama / "llama-server"] * bool(options.llama)
    for path in [options.troupe, options.kernels, options.model / "config.json", *options.gguf.values(), *peers]:
        if not path.exists():
            parser.error(f"no such path: {path}")
    options.shape = json.loads((options.model / "config.json").read_text())
    return options


class Measurement:
    """All samples: {engine: {figure: [value of each round]}}."""

    def __init__(self, options):
        self.options, self.samples, self.limits = options, {"troupe": {}}, {"stream": [], "bf16": []}
        self.engines = [Troupe(options)]
        if options.vllm:
            self.engines.append(Vllm(options.vllm, options.model))
        if options.llama:
            self.engines += [TroupeOfGguf(options), LlamaCpp(options.llama, options.gguf)]
        self.client = Client(options, self._reference() if "accuracy" in options.works else None)

    def _reference(self):
        print("float32, for the accuracy of the others ...", flush=True)
        server = Server(Troupe(self.options), "float32")
        try:
            with server.working():
                return distributions(server, self.options.shape["vocab_size"])
        finally:
            server.stop()

    def _start(self, stack, engine, width):
        print(f"{width}: starting {engine.name} ...", flush=True)
        try:
            server = Server(engine, width)
        except (RuntimeError, OSError) as error:
            if engine.name == "troupe":
                raise
            print(f"  {engine.name} is skipped: {error}", file=sys.stderr)
            return None
        stack.callback(server.stop)
        return server

    def _run(self, server, work, name):
        try:
            with server.working():
                found = getattr(self.client, work)(server)
        except (RuntimeError, OSError, ArithmeticError, subprocess.TimeoutExpired) as error:
            print(f"  {name}, {work}: {error}", file=sys.stderr)
            return
        for figure, value in found.items():
            self.samples.setdefault(name, {}).setdefault(figure, []).append(value)
            print(f"  {name:12} {figure:28} {value:.4g} {unit(figure)}", flush=True)

    def run_width(self, width):
        works = [work for work in self.options.works if width == "bfloat16" or work in OF_WIDTHS]
        if not works:
            return
        with contextlib.ExitStack() as stack:
            servers = [server for engine in self.engines if width in engine.widths and set(works) & set(engine.works)
                       if (server := self._start(stack, engine, width))]
            speculating = None
            if "ngram" in works:
                config = json.dumps({"method": "ngram", "num_speculative_tokens": 8})
                speculating = self._start(stack, Troupe(self.options, "--speculative-config", config), width)
            for turn in range(self.options.rounds):
                sampled = limits_of(self.options)
                for name, value in sampled.items():
                    self.limits[name].append(value)
                print(f"{width}, round {turn + 1} of {self.options.rounds}: stream read {sampled['stream']:.1f} GB/s, bf16 unit "
                      f"{sampled['bf16']:.0f} GFLOP/s", flush=True)
                self.client.seed += 1  # prompts are never repeated
                for work in works:
                    if work == "ngram":  # its peer is the same engine without
                        self._run(speculating, work, "troupe")
                        self._run(servers[0], work, "without")
                        continue
                    for server in servers:
                        if work in server.engine.works:
                            self._run(server, work, server.engine.name)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped
    options = parse_arguments()
    measurement = Measurement(options)
    for width in options.widths:
        measurement.run_width(width)
    limits = {name: statistics.median(values) for name, values in measurement.limits.items()}
    rows = table(options, measurement.samples, limits)
    text = table_text(rows, limits)
    print("\n" + text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.name}.txt").write_text(text + "\n")
    samples = {"limits": measurement.limits, "samples": measurement.samples}
    (options.out / f"{options.name}.json").write_text(json.dumps(samples, indent=1) + "\n")
    draw(rows, options.out / f"{options.name}.svg")


if __name__ == "__main__":
    main()
