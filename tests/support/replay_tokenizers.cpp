// Replays tokenizer vectors: encoding with and without special tokens, offsets, decoding, streams,
// pairs.

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/incremental_decoder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"
#include "tests/support/replay.hpp"

namespace troupe {
namespace {

using nlohmann::json;
using TokenizerPtr = std::shared_ptr<const Tokenizer>;

json stream_item(const IncrementalDecoder::Step& step) {
  const json piece = step.text ? json(*step.text) : json();
  return step.reset ? json{{"reset", piece}} : piece;
}

json stream(const TokenizerPtr& tokenizer, const std::vector<TokenId>& prompt,
            const std::vector<TokenId>& ids, bool skip_special_tokens) {
  IncrementalDecoder decoder(tokenizer, skip_special_tokens, prompt);
  json items = json::array();
  for (const TokenId id : ids) items.push_back(stream_item(decoder.step(id)));
  return items;
}

json offsets_json(const std::vector<TextOffsets>& offsets) {
  json list = json::array();
  for (const TextOffsets& range : offsets) list.push_back({range.begin, range.end});
  return list;
}

/// Compares the fields that a row has; collects the first difference in words.
class RowCheck {
 public:
  RowCheck(const json& row, std::string place) : row_(row), place_(std::move(place)) {}

  void expect(const char* key, const json& actual) {
    if (!difference_.empty() || !row_.contains(key) || row_[key] == actual) return;
    difference_ =
        place_ + ": " + key + " is " + abbreviated(actual) + ", expected " + abbreviated(row_[key]);
  }
  [[nodiscard]] const std::string& difference() const { return difference_; }

 private:
  static std::string abbreviated(const json& value) {
    constexpr std::size_t kMaxBytes = 300;
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
    return text;
  }

  const json& row_;
  std::string place_;
  std::string difference_;
};

void check_vector(const TokenizerPtr& tokenizer, const json& row, RowCheck& check) {
  const auto text = row["text"].get<std::string>();
  const std::vector<TokenId> ids = tokenizer->encode(text, false).value();
  const std::vector<TokenId> ids_special = tokenizer->encode(text, true).value();
  const Encoding encoding = tokenizer->encode_with_offsets(text, false).value();
  check.expect("ids", ids);
  check.expect("ids", encoding.ids);
  check.expect("ids_special", ids_special);
  check.expect("ids_special", tokenizer->encode_with_offsets(text, true).value().ids);
  check.expect("offsets", offsets_json(encoding.offsets));
  check.expect("decoded", tokenizer->decode(ids_special, false));
  check.expect("decoded_skip", tokenizer->decode(ids_special, true));
  check.expect("stream", stream(tokenizer, {}, ids, false));
  check.expect("stream_skip", stream(tokenizer, {}, ids_special, true));
}

void check_decode(const TokenizerPtr& tokenizer, const json& row, RowCheck& check) {
  const auto ids = row["ids"].get<std::vector<TokenId>>();
  const auto prompt = row.value("prompt_ids", std::vector<TokenId>());
  check.expect("decoded", tokenizer->decode(ids, false));
  check.expect("decoded_skip", tokenizer->decode(ids, true));
  check.expect("stream", stream(tokenizer, prompt, ids, false));
  check.expect("stream_skip", stream(tokenizer, prompt, ids, true));
}

void check_pair(const TokenizerPtr& tokenizer, const json& row, RowCheck& check) {
  const Encoding encoding =
      tokenizer->encode_pair(row["text"].get<std::string>(), row["pair"].get<std::string>(), true)
          .value();
  json mask = json::array();
  for (const bool is_special : encoding.special_tokens_mask) mask.push_back(is_special ? 1 : 0);
  json sequences = json::array();
  for (const auto& sequence : encoding.sequence_ids) {
    sequences.push_back(sequence ? json(*sequence) : json());
  }
  check.expect("ids_special", encoding.ids);
  check.expect("type_ids", encoding.type_ids);
  check.expect("special_tokens_mask", mask);
  check.expect("sequence_ids", sequences);
}

using CheckRow = void (*)(const TokenizerPtr&, const json&, RowCheck&);

void replay_file(const TokenizerPtr& tokenizer, const std::filesystem::path& path,
                 CheckRow check_row, ReplayReport& report) {
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const json row = json::parse(line);
    RowCheck check(row, path.parent_path().filename().string() + "/" + path.filename().string() +
                            ":" + std::to_string(number));
    check_row(tokenizer, row, check);
    report.add(check.difference());
  }
}

void replay_one(const std::filesystem::path& folder, ReplayReport& report) {
  const auto tokenizer = Tokenizer::load(folder);
  if (!tokenizer.ok()) {
    report.add(tokenizer.error().message);
    return;
  }
  replay_file(*tokenizer, folder / "vectors.jsonl", check_vector, report);
  replay_file(*tokenizer, folder / "decode.jsonl", check_decode, report);
  replay_file(*tokenizer, folder / "pairs.jsonl", check_pair, report);
}

}  // namespace

ReplayReport replay_tokenizers(const std::filesystem::path& folder) {
  ReplayReport report;
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    replay_one(folder, report);
    return report;
  }
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "tokenizer.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  for (const auto& each : folders) replay_one(each, report);
  return report;
}

}  // namespace troupe
