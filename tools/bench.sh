#!/usr/bin/env bash
# Measures the project's performance goals, and prints goal and result side by side. The output of every part is kept in
# build/bench. Results are meaningful on an idle machine only.
# Usage: tools/bench.sh   (after `make build` and the benchmarks of build/release; `make bench` does all of it)
# Variables, also as in `make bench ROUNDS=1`:
#   VLLM_PYTHON   Python of an environment with vLLM: compares the same workloads, and its scheduler
#   LLAMA_BIN     folder with llama.cpp's llama-server; also set GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0: the model's weights
#   LMCACHE_PYTHON  Python of an environment with lmcache: compares its server with the cache server
#   TRANSFORMERS_PYTHON  Python of an environment with numpy, torch and transformers: compares Mamba-2
#   MODEL         Hugging Face folder; default: random weights in the shape SHAPE [qwen3-0.6b], llama-1b or gemma3-1b
#   ROUNDS        repetitions of each workload on each engine [3]
# tools/bench_peers.py --help explains the comparison of engines.
set -euo pipefail
cd "$(dirname "$0")/.."
release=build/release
out=build/bench
tokenizers=tests/golden/tokenizers
shape=${SHAPE:-qwen3-0.6b}
python=build/venv-bench/bin/python
mkdir -p "$out"

heading() { printf '\n== %s\n' "$1"; }
# Prints and keeps a command's output: record NAME COMMAND...
record() {
  local name=$1
  shift
  "$@" 2>&1 | tee "$out/$name.txt"
}
# Adds a row to the table that is printed at the end: row WHAT GOAL MEASURED
row() { printf '%-52s %14s %16s\n' "$1" "$2" "$3" >> "$out/table.txt"; }
: > "$out/table.txt"

read -r load _ < /proc/loadavg
if awk -v load="$load" 'BEGIN { exit !(load > 0.5) }'; then
  echo "The machine is not idle (load $load): results will be worse."
fi
if [[ ! -x $python ]] || ! "$python" -c 'import numpy, tokenizers' 2> /dev/null; then
  echo "Installing numpy and tokenizers into build/venv-bench"
  if ! { python3 -m venv build/venv-bench &&
    build/venv-bench/bin/pip install --quiet --disable-pip-version-check numpy tokenizers; }; then
    echo "Installation failed: no comparison of tokenizers, no random model." >&2
    python=
  fi
fi

heading 'Messages of a decode step through all actors (the worker computes nothing)'
record actors "$release/tests/bench_actors" "$tokenizers/qwen2" 2000 9
for running in 1 64; do
  row "actors, $running running: us per step" '< 60' \
    "$(awk -v n=$running '$1 == n && $2 == "no" && $3 == "no" { print $4 }' "$out/actors.txt")"
  row "actors, $running running: us more through rings" '< 40' \
    "$(awk -v n=$running '$1 == n && $2 == "no" { if ($3 == "yes") print $4 - near; near = $4 }' "$out/actors.txt")"
done

heading 'Shared-memory rings between processes'
record ring "$release/tests/bench_ring"
row 'ring, there and back, 1 reader: us' '< 15' "$(awk '/1 reader, no spinning/ { print $(NF - 1) }' "$out/ring.txt")"

heading 'Pictures: preprocessing on one thread'
record pictures build/venv/bin/python tests/support/bench_pictures.py "$release/tests/bench_pictures"
model=build/models/gemma3-vision
[[ -d $model ]] || build/venv/bin/python tests/support/make_model.py gemma3-vision "$model"
record tower build/venv/bin/python tests/support/bench_tower.py "$release/troupe" "$model"
row 'pictures per second, by those of Pillow' '> 2' "$(awk '/geometric mean/ { print $NF }' "$out/pictures.txt")"

heading 'Mamba-2 beside transformers'
record mamba "${TRANSFORMERS_PYTHON:-build/venv/bin/python}" tests/support/bench_mamba.py "$release/troupe" build/models/mamba2
row 'Mamba-2, tokens by those of transformers' '> 5' "$(awk '/in transformers/ { print $NF }' "$out/mamba.txt")"
row 'Mamba-2, prompts by those of transformers' '> 5' "$(awk '/in transformers/ { print $(NF - 2) }' "$out/mamba.txt")"

heading 'Topologies: overhead of separate processes, and pause of a stream when one is killed'
record topologies env TROUPE_BINARY="$release/troupe" python3 tests/support/bench_topologies.py 5
record topologies-free env TROUPE_BINARY="$release/troupe" python3 tests/support/bench_topologies.py 5 --threads 1
record streams env TROUPE_BINARY="$release/troupe" python3 tests/system/bench_streams.py 1000 32
over_single() { awk '/^multi-process/ { print $4 }' "$out/$1.txt"; }
row 'multi-process over single process, per token: us' '< 40' "$(over_single topologies)"
row '  with one compute thread: us' '< 40' "$(over_single topologies-free)"
row 'worker killed, pause of a stream: ms' '< 1000' "$(awk '/^multi-process/ { print $6 }' "$out/topologies.txt")"
row 'scheduler killed, pause of a stream: ms' '< 1000' "$(awk '/^multi-process/ { print $8 }' "$out/topologies.txt")"
row 'all processes while idle: % of a core' '< 1' "$(awk '/^multi-process/ { print $10 }' "$out/topologies.txt")"

heading 'The cache server beside those of LMCache and Redis'
record cache-server build/venv/bin/python tests/support/bench_cache_server.py "$release/troupe" \
  "$release/tests/bench_cache_server"
# cache_server SERVER OPERATION BYTES CLIENTS COLUMN
cache_server() {
  awk -v s="$1" -v o="$2" -v b="$3" -v c="$4" -v n="$5" '$1 == s && $2 == o && $3 == b && $4 == c { print $n }' \
    "$out/cache-server.txt"
}
for clients in 1 64; do
  row "cache server, 1 MB values, $clients clients: MB/s" "> $(cache_server redis get 1048576 $clients 7)" \
    "$(cache_server troupe get 1048576 $clients 7)"
  if [[ ${LMCACHE_PYTHON:-} ]]; then
    row "cache server, $clients clients: times lmcache_server" '> 5' \
      "$(awk -v a="$(cache_server troupe exist 0 $clients 5)" -v b="$(cache_server lmcache_server exist 0 $clients 5)" \
        'BEGIN { printf "%.1f", a / b }')"
  fi
done

heading 'The block pool with a million blocks, and block hashes'
record cache "$release/tests/bench_cache" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
for operation in allocate free hit; do
  row "$operation a block: ns" '< 100' "$(awk -v name="^${operation}_block.*_median" '$1 ~ name { print $2 }' "$out/cache.txt")"
done

heading 'The scheduler with its KV cache'
record scheduler "$release/tests/bench_scheduler" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
row 'scheduler, 256 running: us per step' '< 150' "$(awk '/^schedule_and_update\/256_median/ { print $2 }' "$out/scheduler.txt")"

heading 'Host time of a step besides the model'
record step "$release/tests/bench_step" --benchmark_repetitions=3 --benchmark_report_aggregates_only=true
step_us() { awk -v name="^decode_step/$1/.*_median" '$1 ~ name { print $2 }' "$out/step.txt"; }
row 'a step, 256 running, at 32k over 1k tokens: times' '< 1.5' \
  "$(awk -v long="$(step_us 256/32768)" -v short="$(step_us 256/1024)" 'BEGIN { printf "%.2f", long / short }')"

if [[ ${VLLM_PYTHON:-} ]]; then
  heading "This scheduler and vLLM's own, interleaved"
  record schedulers python3 tests/support/bench_schedulers.py "$VLLM_PYTHON" "$release/tests/bench_scheduler"
  for running in 1 64 256 1024; do
    row "scheduler, $running running: times faster than vLLM's" '> 20' \
      "$(awk -v n=$running '$1 == n { print $4 }' "$out/schedulers.txt")"
  done
fi

heading 'Tokenizers on one thread: this repository and multilingual text'
text=$out/text.txt
git ls-files -z -- '*.md' '*.hpp' '*.cpp' '*.py' | xargs -0 cat > "$text"
PYTHONUTF8=1 python3 -c '
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    print(json.loads(line)["text"])' "$tokenizers/qwen2/vectors.jsonl" >> "$text"
for name in qwen2 llama3 gemma; do
  echo "$name:"
  record "tokenizer-$name" "$release/tests/bench_tokenizer" "$tokenizers/$name" "$text" 2 | tail -n 1
  ours=$(sed -n 's|.*encode \([0-9.]*\) MB/s.*|\1|p' "$out/tokenizer-$name.txt")
  theirs='not measured'
  if [[ $python ]]; then
    record "tokenizer-$name-hf" "$python" tests/support/bench_tokenizers.py "$tokenizers/$name" "$text" 2
    theirs=$(sed -n 's|.*encode \([0-9.]*\) MB/s.*|\1|p' "$out/tokenizer-$name-hf.txt")
  fi
  row "tokenizer $name against Hugging Face: MB/s" "> $theirs" "$ours"
done

heading 'From the start of troupe serve to the first token of the demo model'
record first_token env TROUPE_BINARY="$release/troupe" python3 tests/system/bench_first_token.py 9
row 'start to first token, demo model: s' '< 1' "$(sed -n 's/^median: first token after \([0-9.]*\) s/\1/p' "$out/first_token.txt")"

heading 'Kernels, as fractions of the peak bandwidth and arithmetic of this machine'
record kernels "$release/tests/bench_kernels" --benchmark_min_time=0.1

heading 'The demo model: one batch, then a queue of requests'
record demo-latency "$release/troupe" bench latency --batch-size 8 --input-len 32 --output-len 128 --num-iters-warmup 1 --num-iters 5
record demo-throughput "$release/troupe" bench throughput --num-prompts 200 --input-len 128 --output-len 128

heading 'Typical CPU workloads, on this engine and on its peers'
model=${MODEL:-}
if [[ ! $model && $python ]]; then
  model=build/models/$shape
  [[ -f $model/model.safetensors ]] || "$python" tests/support/make_model.py "$shape" "$model"
fi
rm -f "$out/peers.txt"
if [[ $model ]]; then
  peers=(--model "$model" --rounds "${ROUNDS:-3}" --out "$out")
  [[ ${VLLM_PYTHON:-} ]] && peers+=(--vllm "$VLLM_PYTHON")
  [[ ${LLAMA_BIN:-} ]] && peers+=(--llama "$LLAMA_BIN")
  for width in bfloat16:GGUF_BF16 int8:GGUF_Q8_0 int4:GGUF_Q4_0; do
    file=${width#*:}
    [[ ${!file:-} ]] && peers+=(--gguf "${width%:*}=${!file}")
  done
  record peers-log python3 tools/bench_peers.py "${peers[@]}"
fi

heading 'Goals'
printf '%-52s %14s %16s\n' '' goal measured
cat "$out/table.txt"
if [[ -f $out/peers.txt ]]; then
  printf '\n%s:\n' "$model"
  cat "$out/peers.txt"
fi
