// replay_traces FILE...: replays recorded scheduler traces (.jsonl, .jsonl.gz) against our code.

#include <cstdio>

#include "tests/support/trace_replay.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: replay_traces FILE...\n");
    return 2;
  }
  troupe::TraceReport total;
  for (int i = 1; i < argc; ++i) total += troupe::replay_trace_file(argv[i]);
  std::printf("%zu traces, %zu operations, %zu mismatches\n", total.num_traces,
              total.num_operations, total.num_mismatches);
  if (!total.first_difference.empty()) std::printf("%s\n", total.first_difference.c_str());
  return total.num_mismatches == 0 ? 0 : 1;
}
