# The commands of the project. Each installs what it needs first; a second call installs nothing.
#   make serve    build and serve the demo model on port 8000 (MODEL=folder for another, PORT=n)
#   make test     build and run all tests: release, then address+undefined and thread sanitizers; those that passed
#                 run again once their program or data change (ALL=1: always)
#   make test-long  the long tests (soak, fuzzing, differential runs), in the release build
#   make test-clients  clients of other projects: OpenAI, Anthropic, LangChain, LiteLLM, pydantic-ai, instructor, schemathesis
#   make test-models  random configurations of every family against transformers (MODEL_CASES of each, MODEL_SEED)
#   make test-traces  random traces of vLLM's own scheduler, replayed by Troupe's (TRACE_CASES of each family, TRACE_SEED)
#   make build    the binary, build/release/troupe
#   make bench    the benchmarks; tools/bench.sh says which variables name the peers
#   make check    format, includes, clang-tidy
#   make fuzz     every fuzz target for FUZZ_SECONDS each

PORT ?= 8000
FUZZ_SECONDS ?= 600
MODEL_CASES ?= 100
MODEL_SEED ?= 1
TRACE_CASES ?= 100
TRACE_SEED ?= 1
JOBS ?= $(shell nproc)

.PHONY: serve test test-long test-clients test-models test-traces build bench check fuzz clean setup setup-test release

setup:
	@tools/setup.sh build
setup-test:
	@tools/setup.sh test

release:
	@cmake --preset release > /dev/null
	@cmake --build --preset release -j $(JOBS)

build: setup
	@cmake --preset release > /dev/null
	@cmake --build --preset release -j $(JOBS) --target troupe

serve: build
	@build/release/troupe serve $(MODEL) --port $(PORT)

test: setup-test
	@tools/test_all.sh $(JOBS)

test-long: setup-test release
	@cmake --build --preset release -j $(JOBS) --target long_tests
	ctest --test-dir build/release --output-on-failure -L long

test-clients: setup-test build
	@cmake --build --preset release -j $(JOBS) --target parse_answers
	@tools/test_clients.sh

test-models: setup-test
	@cmake --preset release > /dev/null
	@cmake --build --preset release -j $(JOBS) --target answer_models troupe
	@tools/test_models.sh --count $(MODEL_CASES) --seed $(MODEL_SEED) $(FAMILIES)

test-traces: setup-test
	@cmake --preset release > /dev/null
	@cmake --build --preset release -j $(JOBS) --target replay_traces
	@tools/test_traces.sh --count $(TRACE_CASES) --seed $(TRACE_SEED) $(FAMILIES)

bench: setup-test release
	@tools/bench.sh

check: setup-test
	@tools/check.sh

fuzz: setup-test
	@tools/fuzz.sh $(FUZZ_SECONDS)

clean:
	rm -rf build
