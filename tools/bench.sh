#!/usr/bin/env bash
# Measures the project's performance goals, and prints goal and result side by side. The output of every part is kept in
# build/bench. Results are meaningful on an idle machine only.
# Usage: tools/bench.sh [PART...]   (after `make build` and the benchmarks of build/release; `make bench` does all of it)
# Parts: see below; default: all. The measurements are in tools/bench and, as far as they need our code, tests/support.
# Variables, also as in `make bench ROUNDS=1 PARTS='actors ring'`; a peer that none names is left out, with a line that says so:
#   VLLM_PYTHON   Python of an environment with vLLM: compares the same workloads, and its scheduler
#   LLAMA_BIN     folder with llama.cpp's llama-server; with MODEL also GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0: the model's weights
#   LMCACHE_PYTHON  Python of an environment with lmcache: compares its server with the cache server
#   TRANSFORMERS_PYTHON  Python of an environment with numpy, Pillow, torch, torchvision and transformers: compares Mamba-2, the
#                 encoder and the preprocessing of images
#   MASKBENCH     folder maskbench/data of guidance-ai/jsonschemabench, and MASKBENCH_PYTHON the Python of an environment with
#                 llguidance, xgrammar, transformers and mistral-common: compares grammar masks (MASKBENCH_COUNT schemas [200])
#   MODEL         Hugging Face folder; default: random weights in the shape SHAPE [qwen3-0.6b], qwen3-moe, llama-1b or gemma3-1b
#   ROUNDS        repetitions of each workload on each engine [3]
#   SERVER_OPTIONS  of `troupe serve`, for the parts that start servers of one engine: '--threads 1'
#   LENGTHS       tokens of the prompts that are offloaded ['2048 16384']
# tools/bench/bench_peers.py --help explains the comparison of engines.
set -euo pipefail
cd "$(dirname "$0")/.."
release=build/release
out=build/bench
bench=tools/bench
tokenizers=tests/golden/tokenizers
demo=tools/demo_model/model
shape=${SHAPE:-qwen3-0.6b}
rounds=${ROUNDS:-3}
python=build/venv-bench/bin/python
torch_python=${TRANSFORMERS_PYTHON:-build/venv/bin/python}
parts=(actors ring cache scheduler step schedulers tokenizers kernels first_token demo structured masks topologies speculation adapters
  cache_server offload disaggregation images tower mamba moe peers)
export TROUPE_BINARY=${TROUPE_BINARY:-$PWD/$release/troupe}
mkdir -p "$out"

heading() { printf '\n== [%s/%s] %s\n' "$number" "${#chosen[@]}" "$1"; }
# Prints and keeps a command's output: record NAME COMMAND...
record() {
  local name=$1
  shift
  "$@" 2>&1 | tee "$out/$name.txt"
}
# Adds a row to the table that is printed at the end: row WHAT GOAL MEASURED
row() { printf '%-52s %14s %16s\n' "$1" "$2" "${3:-not measured}" >> "$out/table.txt"; }
skipped() { printf '%s is left out: %s\n' "$1" "$2"; }
# A model with random weights, written at the first call: made SHAPE
made() {
  local folder=build/models/$1
  [[ -f $folder/tokenizer.json && -f $folder/model.safetensors ]] || "$python" "$bench/make_model.py" "$1" "$folder" >&2
  echo "$folder"
}

actors() {
  heading 'Messages of a decode step through all actors (the worker computes nothing)'
  record actors "$release/tests/bench_actors" "$tokenizers/qwen2" 2000 9
  for running in 1 64; do
    row "actors, $running running: us per step" '< 60' \
      "$(awk -v n=$running '$1 == n && $2 == "no" && $3 == "no" { print $4 }' "$out/actors.txt")"
    row "actors, $running running: us more through rings" '< 40' \
      "$(awk -v n=$running '$1 == n && $2 == "no" { if ($3 == "yes") print $4 - near; near = $4 }' "$out/actors.txt")"
  done
}

ring() {
  heading 'Shared-memory rings between processes'
  record ring "$release/tests/bench_ring"
  row 'ring, there and back, 1 reader: us' '< 15' "$(awk '/1 reader, no spinning/ { print $(NF - 1) }' "$out/ring.txt")"
}

cache() {
  heading 'The block pool with a million blocks, and block hashes'
  record cache "$release/tests/bench_cache" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
  for operation in allocate free hit; do
    row "$operation a block: ns" '< 100' "$(awk -v name="^${operation}_block.*_median" '$1 ~ name { print $2 }' "$out/cache.txt")"
  done
}

scheduler() {
  heading 'The scheduler with its KV cache'
  record scheduler "$release/tests/bench_scheduler" --benchmark_repetitions=5 --benchmark_report_aggregates_only=true
  row 'scheduler, 256 running: us per step' '< 150' \
    "$(awk '/^schedule_and_update\/256_median/ { print $2 }' "$out/scheduler.txt")"
}

step() {
  heading 'Host time of a step besides the model'
  record step "$release/tests/bench_step" --benchmark_repetitions=3 --benchmark_report_aggregates_only=true
  step_us() { awk -v name="^decode_step/$1/.*_median" '$1 ~ name { print $2 }' "$out/step.txt"; }
  row 'a step, 256 running, at 32k over 1k tokens: times' '< 1.5' \
    "$(awk -v long="$(step_us 256/32768)" -v short="$(step_us 256/1024)" 'BEGIN { printf "%.2f", long / short }')"
}

schedulers() {
  heading "This scheduler and vLLM's own, interleaved"
  if [[ ! ${VLLM_PYTHON:-} ]]; then
    skipped vLLM 'VLLM_PYTHON names no Python'
    return
  fi
  record schedulers python3 "$bench/bench_schedulers.py" "$VLLM_PYTHON" "$release/tests/bench_scheduler"
  for running in 1 64 256 1024; do
    row "scheduler, $running running: times faster than vLLM's" '> 20' \
      "$(awk -v n=$running '$1 == n { print $4 }' "$out/schedulers.txt")"
  done
}

tokenizers() {
  heading 'Tokenizers on one thread: this repository and multilingual text'
  local text=$out/text.txt ours theirs
  git ls-files -z -- '*.md' '*.hpp' '*.cpp' '*.py' | xargs -0 cat > "$text"
  PYTHONUTF8=1 python3 -c '
import json, sys
for line in open(sys.argv[1], encoding="utf-8"):
    print(json.loads(line)["text"])' "$tokenizers/qwen2/vectors.jsonl" >> "$text"
  for name in qwen2 llama3 gemma; do
    echo "$name:"
    record "tokenizer-$name" "$release/tests/bench_tokenizer" "$tokenizers/$name" "$text" 2 | tail -n 1
    ours=$(sed -n 's|.*encode \([0-9.]*\) MB/s.*|\1|p' "$out/tokenizer-$name.txt")
    record "tokenizer-$name-hf" "$python" "$bench/bench_tokenizers.py" "$tokenizers/$name" "$text" 2
    theirs=$(sed -n 's|.*encode \([0-9.]*\) MB/s.*|\1|p' "$out/tokenizer-$name-hf.txt")
    row "tokenizer $name against Hugging Face: MB/s" "> $theirs" "$ours"
  done
}

kernels() {
  heading 'Kernels, as fractions of the peak bandwidth and arithmetic of this machine'
  record kernels "$release/tests/bench_kernels" --benchmark_min_time=0.1
}

first_token() {
  heading 'From the start of troupe serve to the first token of the demo model'
  record first_token python3 "$bench/bench_first_token.py" 9
  row 'start to first token, demo model: s' '< 1' \
    "$(sed -n 's/^median: first token after \([0-9.]*\) s/\1/p' "$out/first_token.txt")"
}

demo() {
  heading 'The demo model: one batch, then a queue of requests'
  record demo-latency "$release/troupe" bench latency --batch-size 8 --input-len 32 --output-len 128 --num-iters-warmup 1 \
    --num-iters 5
  record demo-throughput "$release/troupe" bench throughput --num-prompts 200 --input-len 128 --output-len 128
}

structured() {
  heading 'Streams with and without a JSON schema, in turns'
  record structured python3 "$bench/bench_structured.py" 64 200
  for schema in records 'long names'; do
    row "64 streams with a schema ($schema), by those without" '> 0.95' \
      "$(sed -n "s/^$schema: [0-9]* tokens.s, ratio \([0-9.]*\) .*/\1/p" "$out/structured.txt")"
  done
}

masks() {
  if [[ -z ${MASKBENCH:-} || -z ${MASKBENCH_PYTHON:-} ]]; then
    skipped masks 'MASKBENCH and MASKBENCH_PYTHON name no schemas and no Python'
    return
  fi
  heading 'Grammar masks beside llguidance and xgrammar, on the schemas of JSONSchemaBench'
  record masks "$MASKBENCH_PYTHON" "$bench/bench_masks.py" "$MASKBENCH" --count "${MASKBENCH_COUNT:-200}"
  row 'mask p99.9: us' '< 1000' "$(awk '$1 == "troupe" { print $5 }' "$out/masks.txt")"
  row 'first mask p50: us' '< 1000' "$(awk '$1 == "troupe" { print $7 }' "$out/masks.txt")"
}

topologies() {
  heading 'Topologies: overhead of separate processes, and pause of a stream when one is killed'
  record topologies python3 "$bench/bench_topologies.py" 5
  record topologies-free python3 "$bench/bench_topologies.py" 5 --threads 1
  record streams python3 "$bench/bench_streams.py" 1000 32
  over_single() { awk '/^multi-process/ { print $4 }' "$out/$1.txt"; }
  row 'multi-process over single process, per token: us' '< 40' "$(over_single topologies)"
  row '  with one compute thread: us' '< 40' "$(over_single topologies-free)"
  row 'worker killed, pause of a stream: ms' '< 1000' "$(awk '/^multi-process/ { print $6 }' "$out/topologies.txt")"
  row 'scheduler killed, pause of a stream: ms' '< 1000' "$(awk '/^multi-process/ { print $8 }' "$out/topologies.txt")"
  row 'all processes while idle: % of a core' '< 1' "$(awk '/^multi-process/ { print $10 }' "$out/topologies.txt")"
}

speculation() {
  heading 'Speculation beside none, on text that repeats itself and on text that does not, in turns'
  record speculation python3 "$bench/bench_speculation.py" "$demo" "$rounds"
  [[ $python ]] && record speculation-large python3 "$bench/bench_speculation.py" "$(made qwen3-0.6b)" "$rounds"
  gain() { awk -v t="$1" -v c="$2" -v d="$3" '$0 ~ " " t " +" c " +" d " " { print $1, $(NF - 1) }' "$out"/speculation*.txt; }
  for drafts in ngram suffix; do
    for clients in 1 16; do
      for text in repeating 'not repeating'; do
        while read -r name ratio; do
          row "$drafts, $text, $clients clients, $name" "$([[ $text == repeating ]] && echo '> 1' || echo '>= 0.97')" "$ratio"
        done < <(gain "$text" $clients $drafts)
      done
    done
  done
}

adapters() {
  heading 'Sixteen adapters in a batch beside one, in turns'
  [[ $python ]] || return 0
  record adapters "$python" "$bench/bench_adapters.py" "$(made qwen3-0.6b)" "$rounds"
  row '16 adapters in a batch of 16, by one' '> 0.8' "$(sed -n 's/.*of time: .*sixteen by one //p' "$out/adapters.txt")"
}

cache_server() {
  heading 'The cache server beside those of LMCache and Redis'
  record cache-server python3 "$bench/bench_cache_server.py" "$release/tests/bench_cache_server" "$rounds"
  # times OPERATION BYTES AT_ONCE CLIENTS COLUMN OTHER: the cache server's figure by the other server's
  times() {
    awk -v o="$1" -v b="$2" -v n="$3" -v c="$4" -v column="$5" -v other="$6" \
      '$2 == o && $3 == b && $4 == n && $5 == c { found[$1] = $column }
      END { if (found[other]) printf "%.2f", found["troupe"] / found[other] }' "$out/cache-server.txt"
  }
  local operation bytes at_once clients what
  for clients in 1 64; do
    while read -r operation bytes at_once; do
      what="$operation"
      [[ $bytes == 0 ]] || what+=" $((bytes >> 10)) KiB"
      [[ $at_once == 1 ]] || what+=" x$at_once"
      what+=", $clients clients:"
      if [[ ${LMCACHE_PYTHON:-} ]]; then
        row "$what requests/s by lmcache_server" '> 5' "$(times "$operation" "$bytes" "$at_once" "$clients" 6 lmcache_server)"
        row "$what CPU of a request by lmcache_server" '< 0.2' "$(times "$operation" "$bytes" "$at_once" "$clients" 9 lmcache_server)"
      fi
      row "$what requests/s by the limit of sockets" '> 0.8' "$(times "$operation" "$bytes" "$at_once" "$clients" 6 limit)"
      row "$what requests/s by Redis" '> 1' "$(times "$operation" "$bytes" "$at_once" "$clients" 6 redis)"
      row "$what p99 by Redis" '< 1' "$(times "$operation" "$bytes" "$at_once" "$clients" 7 redis)"
    done < <(awk '$1 == "troupe" && $5 == '"$clients"' { print $2, $3, $4 }' "$out/cache-server.txt")
  done
}

offload() {
  heading 'Keys and values from other tiers, beside computing them anew'
  [[ $python ]] || return 0
  # shellcheck disable=SC2086
  record offload "$python" "$bench/bench_offload.py" "$(made qwen3-0.6b)" "$rounds" ${LENGTHS:-}
  while read -r tier length _ _ times _ probe _ share; do
    row "$tier, $length tokens: times faster than computing" '> 1' "$times"
    row "$tier, $length tokens: share of $probe" '-' "$share"
  done < <(awk '$2 ~ /^[0-9]+$/' "$out/offload.txt")
}

disaggregation() {
  heading 'Between the tokens of streams while long prompts arrive: prefill apart from decode beside both together'
  [[ $python ]] || return 0
  record disaggregation python3 "$bench/bench_disaggregation.py" "$(made qwen3-0.6b)" "$rounds"
  row 'p99 between tokens, apart by joint' '<= 0.5' "$(sed -n 's/.* by joint: //p' "$out/disaggregation.txt")"
}

images() {
  heading 'Images: preprocessing on one thread'
  record images "$torch_python" "$bench/bench_images.py" "$release/tests/bench_images"
  row 'images per second, by those of Pillow' '> 2' "$(sed -n 's/.*ours \/ Pillow: //p' "$out/images.txt")"
  row 'images per second, by those of torchvision' '> 2' "$(sed -n 's/.*ours \/ torchvision: //p' "$out/images.txt")"
}

tower() {
  heading 'Images: the encoder, and the first token behind a new image and behind those that caches have'
  [[ $python ]] || return 0
  record tower "$torch_python" "$bench/bench_tower.py" "$(made gemma3-vision)" "$rounds"
  row 'vision encoder, by that of transformers' '> 2' "$(sed -n 's/^the encoder in transformers .*by ours //p' "$out/tower.txt")"
  row '  of CPU time' '> 2' "$(sed -n 's/^of CPU time in transformers .*by ours //p' "$out/tower.txt")"
  for cached in processor encoder 'processor, encoder' prefix 'processor, encoder, prefix'; do
    row "first token, cached: $cached; by new image" '< 1' \
      "$(sed -n "s/^$cached  *[0-9]*  *\([0-9.]*\) .*/\1/p" "$out/tower.txt")"
  done
}

mamba() {
  heading 'Mamba-2 beside transformers'
  record mamba "$torch_python" "$bench/bench_mamba.py" build/models/mamba2 "$rounds"
  row 'Mamba-2, tokens by those of transformers' '> 5' "$(awk '/in transformers/ { print $NF }' "$out/mamba.txt")"
  row 'Mamba-2, prompts by those of transformers' '> 5' "$(awk '/in transformers/ { print $(NF - 2) }' "$out/mamba.txt")"
}

# compare NAME FOLDER ARGUMENT...: the engines on a model. Of a random one there are GGUF files beside it.
compare() {
  local name=$1 folder=$2 file
  local arguments=(--model "$folder" --rounds "$rounds" --out "$out" --name "$name" "${@:3}")
  if [[ ${VLLM_PYTHON:-} ]]; then arguments+=(--vllm "$VLLM_PYTHON"); else skipped vLLM 'VLLM_PYTHON names no Python'; fi
  local files=("bfloat16=${GGUF_BF16:-$folder/bf16.gguf}" "int8=${GGUF_Q8_0:-$folder/q8_0.gguf}"
    "int4=${GGUF_Q4_0:-$folder/q4_0.gguf}") given=()
  for file in "${files[@]}"; do
    [[ -f ${file#*=} ]] && given+=(--gguf "$file")
  done
  if [[ ! ${LLAMA_BIN:-} ]]; then
    skipped llama.cpp 'LLAMA_BIN names no folder'
  elif [[ ! ${given[*]} ]]; then
    skipped llama.cpp "there is no GGUF file for $folder"
  else
    arguments+=(--llama "$LLAMA_BIN" "${given[@]}")
  fi
  rm -f "$out/$name.txt"
  record "$name-log" python3 "$bench/bench_peers.py" "${arguments[@]}"
}

moe() {
  heading 'A mixture of experts in the width of Qwen3-30B-A3B, on this engine and on its peers'
  [[ $python ]] || return 0
  GGUF_BF16='' GGUF_Q8_0='' GGUF_Q4_0='' compare moe "$(made qwen3-moe)" --works prefill,decode
}

peers() {
  heading 'Typical CPU workloads, on this engine and on its peers'
  [[ ${MODEL:-} || $python ]] || return 0
  compare peers "${MODEL:-$(made "$shape")}"
}

chosen=("$@")
[[ $# -gt 0 ]] || read -r -a chosen <<< "${PARTS:-${parts[*]}}"
for part in "${chosen[@]}"; do
  if [[ " ${parts[*]} " != *" $part "* ]]; then
    echo "There is no part $part; known are: ${parts[*]}" >&2
    exit 2
  fi
done

read -r load _ < /proc/loadavg
if awk -v load="$load" 'BEGIN { exit !(load > 0.5) }'; then
  echo "The machine is not idle (load $load): results will be worse."
fi
if [[ ! -x $python ]] || ! "$python" -c 'import numpy, tokenizers' 2> /dev/null; then
  echo "Installing numpy and tokenizers into build/venv-bench"
  if ! { python3 -m venv build/venv-bench &&
    build/venv-bench/bin/pip install --quiet --disable-pip-version-check numpy tokenizers; }; then
    echo "Installation failed: what needs random models is left out." >&2
    python=
  fi
fi

: > "$out/table.txt"
rm -f "$out"/moe.txt "$out"/peers.txt
number=0
for part in "${chosen[@]}"; do
  number=$((number + 1))
  # Of a part that fails, the others know nothing.
  set +e
  (set -e && "$part")
  [[ $? -eq 0 ]] || row "$part" '-' failed
  set -e
done

printf '\n== Goals\n'
printf '%-52s %14s %16s\n' '' goal measured
cat "$out/table.txt"
for name in moe peers; do
  [[ -f $out/$name.txt ]] || continue
  printf '\n%s:\n' "$name"
  cat "$out/$name.txt"
done
