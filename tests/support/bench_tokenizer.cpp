// bench_tokenizer FOLDER TEXT_FILE [SECONDS]: encodes the file's text on one thread, over and over,
// and prints MB/s. The text goes in documents of about 8 KB, cut at line ends, as prompts come to a
// server.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "runtime/tokenizer/tokenizer.hpp"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<std::string_view> documents_of(std::string_view text) {
  constexpr std::size_t kDocumentBytes = 8192;
  std::vector<std::string_view> documents;
  while (!text.empty()) {
    const std::size_t line_end = text.find('\n', std::min(kDocumentBytes, text.size()));
    const std::size_t size = line_end == std::string_view::npos ? text.size() : line_end + 1;
    documents.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return documents;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_tokenizer FOLDER TEXT_FILE [SECONDS]\n");
    return 2;
  }
  const auto load_start = Clock::now();
  const auto tokenizer = troupe::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
    return 1;
  }
  std::printf("load %.1f ms\n", 1e3 * seconds_since(load_start));
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const double min_seconds = argc > 3 ? std::atof(argv[3]) : 3.0;

  std::vector<std::vector<troupe::TokenId>> encoded;
  double best = 0;
  const auto start = Clock::now();
  for (int round = 0; round < 3 || seconds_since(start) < min_seconds; ++round) {
    encoded.clear();
    const auto round_start = Clock::now();
    for (const std::string_view document : documents_of(text)) {
      encoded.push_back((*tokenizer)->encode(document, false).value());
    }
    const double rate = static_cast<double>(text.size()) / 1e6 / seconds_since(round_start);
    best = std::max(best, rate);
    std::printf("round %d: %.2f MB/s\n", round, rate);
    std::fflush(stdout);
  }
  std::size_t num_tokens = 0;
  for (const auto& ids : encoded) num_tokens += ids.size();
  const auto decode_start = Clock::now();
  std::size_t num_decoded_bytes = 0;
  for (const auto& ids : encoded) num_decoded_bytes += (*tokenizer)->decode(ids, true).size();
  const double decode_rate =
      static_cast<double>(num_decoded_bytes) / 1e6 / seconds_since(decode_start);
  std::printf("%zu bytes, %zu tokens, encode %.2f MB/s, decode %.2f MB/s\n", text.size(),
              num_tokens, best, decode_rate);
}
