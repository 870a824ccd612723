#pragma once
// A tokenizer whose tokens one can read: ids 0 to 255 are the bytes, then some longer tokens and a
// special one.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {

inline constexpr TokenId kHello = 256;       // "hello"
inline constexpr TokenId kSpaceWorld = 257;  // " world"
inline constexpr TokenId kEndOfText = 258;   // special
inline constexpr std::int32_t kVocabSize = 259;

inline std::shared_ptr<const Tokenizer> byte_tokenizer() {
  // The byte-level alphabet of GPT-2: printable bytes stand for themselves, the others for the code
  // points from 256 on, in order.
  nlohmann::json vocabulary = nlohmann::json::object();
  int next = 256;
  std::string space;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = printable ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text = {static_cast<char>(code)};
    } else {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    if (byte == ' ') space = text;
    vocabulary[text] = byte;
  }
  vocabulary["hello"] = kHello;
  vocabulary[space + "world"] = kSpaceWorld;
  const nlohmann::json byte_level = {{"type", "ByteLevel"},
                                     {"add_prefix_space", false},
                                     {"trim_offsets", true},
                                     {"use_regex", true}};
  const nlohmann::json tokenizer = {{"version", "1.0"},
                                    {"added_tokens",
                                     {{{"id", kEndOfText},
                                       {"content", "<|end|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}}}},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", byte_level},
                                    {"post_processor", nullptr},
                                    {"decoder", byte_level},
                                    {"model",
                                     {{"type", "BPE"},
                                      {"dropout", nullptr},
                                      {"unk_token", nullptr},
                                      {"continuing_subword_prefix", nullptr},
                                      {"end_of_word_suffix", nullptr},
                                      {"fuse_unk", false},
                                      {"byte_fallback", false},
                                      {"ignore_merges", true},
                                      {"vocab", vocabulary},
                                      {"merges", nlohmann::json::array()}}}};
  return Tokenizer::from_json(tokenizer.dump(), R"({"eos_token": "<|end|>"})").value();
}

/// One token per byte.
inline std::vector<TokenId> byte_tokens(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

}  // namespace troupe
