#!/usr/bin/env python3
"""Runs the same work on Troupe and on the engines that people use on CPUs, in turns, and prints each figure with its ratio to
the best peer and its fraction of the machine's limits, which are sampled in the same round. Builds and installs nothing: what
is not named is left out. A chart goes to OUT/peers.svg, all samples to OUT/peers.json.

Peers: llama.cpp (folder with llama-bench, and llama-server for the works with clients) with GGUF files of the same weights;
vLLM (the Python of an environment that has it). Model: a Hugging Face folder. Example:
  tools/bench_peers.py --model qwen3-0.6b --llama build/bin --gguf bfloat16=q.gguf --gguf int8=q8_0.gguf --works prefill,decode"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

GOALS = {  # work -> ratio to the best peer
    "prefill 512 bfloat16": 1.3, "prefill 2048 bfloat16": 1.3,
    "decode 128 bfloat16": 1.1, "decode 2048 bfloat16": 1.1, "decode 128 int8": 1.1, "decode 2048 int8": 1.1,
    "decode 128 int4": 1.1, "decode 2048 int4": 1.1,
    "batch 8": 1.5, "batch 32": 1.5, "clients 16, tokens/s": 1.5, "clients 16, TTFT p99": 1.0, "clients 16, ITL p99": 1.0,
    "prefix 2048, TTFT": 2.0, "kept beside a busy process": 1.0, "start to first token": 1.0, "resident memory": 1.0}
SMALLER_IS_BETTER = ("TTFT", "ITL", "start", "memory")
DECODED = 32  # tokens that a decode's speed is taken from
WORKS = ("prefill", "decode", "neighbour", "batch", "clients", "prefix", "start")
TIMEOUT_S = 1800
THREADS = len(os.sched_getaffinity(0))


def output_of(command, env=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=TIMEOUT_S,
                          env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def busy_neighbour():
    """A process that never sleeps, on the last core."""
    core = max(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


class Troupe:
    name = "troupe"

    def __init__(self, binary, model, gguf):
        self.binary, self.model, self.gguf = binary, model, gguf
        self.widths = ["bfloat16", *(width for width in gguf if width != "bfloat16")]

    def _arguments(self, width):
        if width == "bfloat16":
            return [self.model, "--dtype", "bfloat16"]
        return [self.gguf[width]]  # the same file as the peer reads

    def _latency(self, width, input_len, output_len):
        with tempfile.NamedTemporaryFile(suffix=".json") as result:
            output_of([self.binary, "bench", "latency", *self._arguments(width), "--max-model-len", 4096, "--batch-size", 1,
                       "--input-len", input_len, "--output-len", output_len, "--num-iters-warmup", 1, "--num-iters", 1,
                       "--output-json", result.name])
            return json.load(result)["avg_latency"]

    def prefill(self, width, length):
        return length / self._latency(width, length, 1)

    def decode(self, width, context):
        return DECODED / (self._latency(width, context, DECODED + 1) - self._latency(width, context, 1))

    def server(self, port):
        return [self.binary, "serve", self.model, "--dtype", "bfloat16", "--max-model-len", 4096, "--port", port], {}


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, folder, gguf):
        self.bench, self.llama_server = folder / "llama-bench", folder / "llama-server"
        self.gguf, self.widths = gguf, list(gguf)

    def _bench(self, width, *arguments):
        rows = json.loads(output_of([self.bench, "-m", self.gguf[width], "-t", THREADS, "-r", 1, "-o", "json", "-fa", 1,
                                     *arguments]))
        return rows[0]["avg_ts"]

    def prefill(self, width, length):
        return self._bench(width, "-p", length, "-n", 0)

    def decode(self, width, context):
        return self._bench(width, "-p", 0, "-n", DECODED, "-d", context)

    def server(self, port):
        if not self.llama_server.exists() or "bfloat16" not in self.gguf:
            return None
        return [self.llama_server, "-m", self.gguf["bfloat16"], "-t", THREADS, "-tb", THREADS, "-np", 16, "-c", 40960, "-b", 2048,
                "-ub", 512, "-fa", "on", "--no-webui", "--port", port], {}


class Vllm:
    name = "vllm"
    widths = []  # as a server only

    def __init__(self, python, model):
        self.python, self.model = python, model

    def server(self, port):
        env = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": f"0-{THREADS - 1}", "OMP_NUM_THREADS": str(THREADS),
               "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        return [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model, "--dtype", "bfloat16",
                "--max-model-len", 4096, "--max-num-seqs", 32, "--port", port], env


def resident_mib(pid):
    """Of a process and its children."""
    total, pids = 0, [pid]
    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError):
            total += int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return total


def first_token(url, model):
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        answer.read()


@contextlib.contextmanager
def serving(engine, figures):
    """Starts the engine's server; start and memory enter the figures. Yields its URL and model name."""
    port = free_port()
    command, env = engine.server(port)
    url = f"http://127.0.0.1:{port}"
    start = time.monotonic()
    log = tempfile.TemporaryFile()
    child = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, env={**os.environ, **env},
                             start_new_session=True)
    try:
        while True:
            if child.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"{engine.name} ended with {child.returncode}: {log.read()[-500:].decode(errors='replace')}")
            if time.monotonic() - start > TIMEOUT_S:
                raise RuntimeError(f"{engine.name} did not listen within {TIMEOUT_S} s")
            with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5):
                break
            time.sleep(0.02)
        with urllib.request.urlopen(url + "/v1/models", timeout=60) as models:
            model = json.load(models)["data"][0]["id"]
        first_token(url, model)
        figures["start to first token"] = time.monotonic() - start
        yield url, model
        figures["resident memory"] = resident_mib(child.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def load(troupe, url, model, tokenizer, *, prompts, clients, input_len, output_len, prefix_len=0):
    with tempfile.NamedTemporaryFile(suffix=".json") as result:
        output_of([troupe, "bench", "serve", "--base-url", url, "--model", model, "--tokenizer", tokenizer,
                   "--num-prompts", prompts, "--max-concurrency", clients, "--random-input-len", input_len,
                   "--random-output-len", output_len, "--random-prefix-len", prefix_len, "--ignore-eos",
                   "--output-json", result.name])
        return json.load(result)


def served_works(engine, options, figures):
    with serving(engine, figures) as (url, model):
        def run(**sizes):
            return load(options.troupe, url, model, options.model, **sizes)
        if "batch" in options.works:
            for size in (8, 32):
                figures[f"batch {size}"] = run(prompts=size, clients=size, input_len=128, output_len=64)["output_throughput"]
        if "clients" in options.works:
            result = run(prompts=32, clients=16, input_len=256, output_len=128)
            figures["clients 16, tokens/s"] = result["output_throughput"]
            figures["clients 16, TTFT p99"] = result["p99_ttft_ms"]
            figures["clients 16, ITL p99"] = result["p99_itl_ms"]
        if "prefix" in options.works:
            run(prompts=1, clients=1, input_len=16, output_len=1, prefix_len=2048)
            figures["prefix 2048, TTFT"] = run(prompts=5, clients=1, input_len=16, output_len=4,
                                               prefix_len=2048)["median_ttft_ms"]


def offline_works(engine, options, figures):
    for width in engine.widths:
        if "prefill" in options.works and width == "bfloat16":
            for length in (512, 2048):
                figures[f"prefill {length} {width}"] = engine.prefill(width, length)
        if "decode" in options.works:
            for context in (128, 2048):
                figures[f"decode {context} {width}"] = engine.decode(width, context)
    if "neighbour" in options.works and "bfloat16" in engine.widths:
        alone = engine.decode("bfloat16", 128)
        with busy_neighbour():
            figures["kept beside a busy process"] = engine.decode("bfloat16", 128) / alone


def limits_of(options):
    """Stream bandwidth in GB/s, as the kernels' benchmark samples it before anything else."""
    text = output_of([options.kernels, "--benchmark_filter=rms_norm", "--benchmark_min_time=0.01"])
    found = re.search(r"stream read ([\d.]+) GB/s", text)
    return float(found[1]) if found else 0.0


def weight_bytes(options, width):
    if width in options.gguf:
        return options.gguf[width].stat().st_size
    return sum(file.stat().st_size for file in options.model.glob("*.safetensors"))


def unit(work):
    if "memory" in work:
        return "MiB"
    if "kept" in work:
        return ""
    if "start" in work:
        return "s"
    return "ms" if any(word in work for word in SMALLER_IS_BETTER) else "tok/s"


def table(options, samples, stream):
    """Rows (work, figures by engine, ratio to the best peer, goal, fraction of the stream limit)."""
    rows = []
    for work in sorted({work for figures in samples.values() for work in figures}, key=list(GOALS).index):
        medians = {name: statistics.median(figures[work]) for name, figures in samples.items() if figures.get(work)}
        smaller = any(word in work for word in SMALLER_IS_BETTER)
        peers = [value for name, value in medians.items() if name != "troupe"]
        ratio = None
        if "troupe" in medians and peers:
            ratio = min(peers) / medians["troupe"] if smaller else medians["troupe"] / max(peers)
        fraction = None
        decode = re.fullmatch(r"decode 128 (\w+)", work)
        if decode and stream and "troupe" in medians:
            fraction = medians["troupe"] * weight_bytes(options, decode[1]) / 1e9 / stream
        rows.append((work, medians, ratio, GOALS[work], fraction))
    return rows


def print_table(rows, names):
    print(f"\n{'work':28} {'':6}" + "".join(f"{name:>12}" for name in names) + f"{'ratio':>8} {'goal':>6} {'of stream':>10}")
    for work, medians, ratio, goal, fraction in rows:
        cells = "".join(f"{medians[name]:12.4g}" if name in medians else f"{'-':>12}" for name in names)
        print(f"{work:28} {unit(work):6}{cells}" + (f"{ratio:8.2f}" if ratio else f"{'-':>8}") + f" {goal:6.1f} " +
              (f"{fraction:10.0%}" if fraction else f"{'-':>10}"))


def draw(rows, path):
    """Bars of the ratios; a line where the goal is."""
    shown = [row for row in rows if row[2]]
    if not shown:
        return
    scale, height, left = 420 / max(4.0, *(row[2] for row in shown)), 26, 210
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 500}" height="{height * len(shown) + 40}" '
             'font-family="sans-serif" font-size="13">',
             f'<text x="{left}" y="18">times the best peer (line: goal)</text>']
    for i, (work, _, ratio, goal, _) in enumerate(shown):
        y = 30 + i * height
        colour = "#2a7" if ratio >= goal else "#c73"
        parts += [f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{work}</text>',
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
                        help="the same weights; WIDTH bfloat16, int8 (Q8_0) or int4 (Q4_0); may be repeated")
    parser.add_argument("--llama", type=pathlib.Path, help="folder with llama-bench and llama-server")
    parser.add_argument("--vllm", type=pathlib.Path, help="Python of an environment that has vLLM")
    parser.add_argument("--works", default=",".join(WORKS), help=f"of {','.join(WORKS)} [all]")
    parser.add_argument("--rounds", type=int, default=3, help="each runs every engine once [3]")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench"))
    options = parser.parse_args()
    options.works = options.works.split(",")
    if unknown := set(options.works) - set(WORKS):
        parser.error(f"unknown work {', '.join(sorted(unknown))}; known are {', '.join(WORKS)}")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}, at least 1 is needed")
    try:
        options.gguf = {width: pathlib.Path(file) for width, file in (given.split("=", 1) for given in options.gguf)}
    except ValueError:
        parser.error("--gguf takes WIDTH=FILE")
    if unknown := set(options.gguf) - {"bfloat16", "int8", "int4"}:
        parser.error(f"unknown width {', '.join(sorted(unknown))}; known are bfloat16, int8, int4")
    for path in [options.troupe, options.kernels, options.model, *options.gguf.values()]:
        if not path.exists():
            parser.error(f"there is no {path}")
    return options


def main():
    options = parse_arguments()
    engines = [Troupe(options.troupe, options.model, options.gguf)]
    if options.llama:
        engines.append(LlamaCpp(options.llama, options.gguf))
    if options.vllm:
        engines.append(Vllm(options.vllm, options.model))
    samples = {engine.name: {} for engine in engines}
    streams = []
    for turn in range(options.rounds):
        streams.append(limits_of(options))
        print(f"round {turn + 1} of {options.rounds}: stream read {streams[-1]:.1f} GB/s", flush=True)
        for engine in engines:
            figures = {}
            print(f"  {engine.name} ...", flush=True)
            try:
                offline_works(engine, options, figures)
                if {"batch", "clients", "prefix", "start"} & set(options.works) and engine.server(0):
                    served_works(engine, options, figures)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"  {engine.name}: {error}", file=sys.stderr)
            for work, value in figures.items():
                samples[engine.name].setdefault(work, []).append(value)
                print(f"    {work}: {value:.4g} {unit(work)}", flush=True)
    rows = table(options, samples, statistics.median(streams))
    print_table(rows, list(samples))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "peers.json").write_text(json.dumps({"stream GB/s": streams, "samples": samples}, indent=1) + "\n")
    draw(rows, options.out / "peers.svg")


if __name__ == "__main__":
    main()
