// replay_goldens KIND FOLDER: replays reference data in FOLDER, prints the first differences and
// "N cases, K mismatches". Exit status: 0 all equal, 1 a mismatch or no case at all, 2 wrong usage.

#include <cstdio>
#include <exception>
#include <string_view>

#include "tests/support/replay.hpp"

namespace {

struct Kind {
  std::string_view name;
  troupe::ReplayReport (*replay)(const std::filesystem::path& folder);
};

constexpr Kind kKinds[] = {
    {"tokenizers", troupe::replay_tokenizers},
    {"templates", troupe::replay_templates},
    {"sampling", troupe::replay_sampling},
    {"images", troupe::replay_images},
    {"models", [](const std::filesystem::path& folder) { return troupe::replay_models(folder); }},
};

int usage() {
  std::fprintf(stderr, "usage: replay_goldens KIND FOLDER\nkinds:");
  for (const Kind& kind : kKinds) std::fprintf(stderr, " %s", kind.name.data());
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || !std::filesystem::is_directory(argv[2])) return usage();
  for (const Kind& kind : kKinds) {
    if (kind.name != argv[1]) continue;
    try {
      const troupe::ReplayReport report = kind.replay(argv[2]);
      for (const std::string& difference : report.differences) std::puts(difference.c_str());
      std::printf("%zu cases, %zu mismatches\n", report.num_cases, report.num_mismatches);
      return report.num_cases == 0 || report.num_mismatches != 0 ? 1 : 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "replay_goldens: %s\n", error.what());
      return 1;
    }
  }
  return usage();
}
