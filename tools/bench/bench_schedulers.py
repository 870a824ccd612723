#!/usr/bin/env python3
"""Times schedule + update of a decode step, this scheduler's and vLLM's own, in turns, and prints how many times faster
this one is. CPU time of the one thread that works, so that a busy machine does not decide; the KV cache with its
prefix hashing is part of both.

Usage: bench_schedulers.py PYTHON BENCH_SCHEDULER [ROUNDS]
PYTHON: of an environment that has vLLM; BENCH_SCHEDULER: build/release/tests/bench_scheduler."""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

RUNNING = (1, 64, 256, 1024)
GOAL = 20
BLOCK_SIZE = 16
PROMPT_TOKENS = 64
NUM_BLOCKS = 1 << 17
MAX_LEN = 1 << 20
MEASURED_S = 1.0


def vllm_scheduler(num_running, model):
    """vLLM's Scheduler with so many requests that have been prefilled, as bench_scheduler.cpp sets ours up."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256_cbor
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    model_config = ModelConfig(model=model, dtype="float32", skip_tokenizer_init=True, max_model_len=MAX_LEN)
    cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    cache_config.num_gpu_blocks = NUM_BLOCKS
    config = VllmConfig(
        model_config=model_config, cache_config=cache_config,
        scheduler_config=SchedulerConfig(
            max_num_seqs=num_running, max_num_batched_tokens=num_running * PROMPT_TOKENS, max_model_len=MAX_LEN,
            enable_chunked_prefill=True, async_scheduling=False, is_encoder_decoder=False))
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config=config, block_size=BLOCK_SIZE, structured_output_manager=StructuredOutputManager(config),
        kv_cache_config=KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[],
                                      kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]))
    init_none_hash(sha256_cbor)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256_cbor)
    for i in range(num_running):
        scheduler.add_request(Request(
            request_id=str(i), prompt_token_ids=[token + i for token in range(PROMPT_TOKENS)],
            sampling_params=SamplingParams(max_tokens=MAX_LEN, ignore_eos=True), pooling_params=None,
            block_hasher=hasher))
    return scheduler


def time_vllm(num_running, model):
    """Microseconds of CPU per step."""
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler = vllm_scheduler(num_running, model)
    ids = [str(i) for i in range(num_running)]

    def step():
        output = scheduler.schedule()
        assert len(output.num_scheduled_tokens) == num_running
        # As in the benchmark of ours, the result is made within the time measured.
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index={id: i for i, id in enumerate(ids)},
                                   sampled_token_ids=[[7] for _ in ids])
        scheduler.update_from_output(output, result)

    for _ in range(2):
        step()
    steps = 0
    begin = time.thread_time()
    while (spent := time.thread_time() - begin) < MEASURED_S or steps < BLOCK_SIZE:
        for _ in range(BLOCK_SIZE):  # a new block of every request falls into each such group of steps
            step()
        steps += BLOCK_SIZE
    return spent / steps * 1e6


def vllm_worker():
    """Answers each number of running requests with a time. Standard output belongs to the answers alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as model:
        # Only the shape of a model: nothing is loaded.
        config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
                  "num_key_value_heads": 1, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 4096,
                  "max_position_embeddings": MAX_LEN, "torch_dtype": "float32"}
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        for line in sys.stdin:
            print(time_vllm(int(line), model), file=answers, flush=True)


def time_ours(bench, num_running):
    done = subprocess.run(
        [bench, f"--benchmark_filter=^schedule_and_update/{num_running}$", "--benchmark_format=json",
         f"--benchmark_min_time={MEASURED_S}"], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)["benchmarks"][0]
    assert result["time_unit"] == "us", result
    return result["cpu_time"]


def main():
    python, bench = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    with subprocess.Popen([python, __file__, "--vllm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as worker:
        times = {num_running: [] for num_running in RUNNING}
        for _ in range(rounds):
            for num_running in RUNNING:
                ours = time_ours(bench, num_running)
                print(num_running, file=worker.stdin, flush=True)
                answer = worker.stdout.readline()
                if not answer:
                    sys.exit("vLLM's scheduler could not be run, see above")
                times[num_running].append((ours, float(answer)))
        worker.stdin.close()
    print(f"schedule + update of one decode step, CPU time, {rounds} rounds; faster: of medians, of the best")
    print(f"{'running':>8} {'ours us':>10} {'vLLM us':>10} {'faster':>8} {'(best)':>8} {'goal':>6}")
    for num_running, pairs in times.items():
        ours, theirs = zip(*pairs)
        medians = statistics.median(ours), statistics.median(theirs)
        print(f"{num_running:8} {medians[0]:10.2f} {medians[1]:10.1f} {medians[1] / medians[0]:8.1f} "
              f"{min(theirs) / min(ours):8.1f} {GOAL:6}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--vllm"]:
        vllm_worker()
    elif len(sys.argv) < 3:
        sys.exit(__doc__)
    else:
        main()
