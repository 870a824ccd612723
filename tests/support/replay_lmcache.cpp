// replay_lmcache FILE...: replays golden data of LMCache, prints the first differences and
// "N cases, K mismatches". Exit status: 0 all equal, 1 a mismatch or no case at all, 2 wrong usage.

#include <cstdio>
#include <exception>

#include "tests/support/lmcache_replay.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: replay_lmcache FILE...\n");
    return 2;
  }
  std::size_t num_cases = 0;
  std::size_t num_mismatches = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      const troupe::ReplayReport report = troupe::replay_lmcache(argv[i]);
      for (const std::string& difference : report.differences) std::puts(difference.c_str());
      num_cases += report.num_cases;
      num_mismatches += report.num_mismatches;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "replay_lmcache: %s: %s\n", argv[i], error.what());
      return 1;
    }
  }
  std::printf("%zu cases, %zu mismatches\n", num_cases, num_mismatches);
  return num_cases == 0 || num_mismatches != 0 ? 1 : 0;
}
