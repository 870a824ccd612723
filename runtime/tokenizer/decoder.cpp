#include "runtime/tokenizer/decoder.hpp"

#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/byte_level.hpp"
#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/pattern.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

using json_fields::Json;
using DecoderPtr = std::unique_ptr<const TokenDecoder>;
using Tokens = std::vector<std::string>;

template <class Function>
class FunctionDecoder : public TokenDecoder {
 public:
  explicit FunctionDecoder(Function function) : function_(std::move(function)) {}
  void apply(Tokens& tokens) const override { function_(tokens); }

 private:
  Function function_;
};

template <class Function>
DecoderPtr from_function(Function function) {
  return std::make_unique<FunctionDecoder<Function>>(std::move(function));
}

std::string join(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

/// Replaces every `from` in `text`.
void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string replaced;
  std::size_t behind = 0;
  for (; at != std::string::npos; at = text.find(from, behind)) {
    replaced.append(text, behind, at - behind).append(to);
    behind = at + from.size();
  }
  text = replaced.append(text, behind);
}

void decode_byte_level(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) append_byte_level(bytes, token);
  std::string text;
  unicode::append_lossy(text, bytes);
  tokens.assign(1, text);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The byte of a token "<0xNN>".
std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const int high = hex_digit(token[3]);
  const int low = hex_digit(token[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

/// Decodes runs of byte tokens. In a run that is not valid UTF-8, each byte becomes U+FFFD.
void decode_byte_fallback(Tokens& tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (unicode::is_valid(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(unicode::kReplacement));
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      run.push_back(*byte);
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
}

/// Strips up to `max_start` and `max_stop` occurrences of a character off the ends of each token.
void strip_tokens(Tokens& tokens, std::string_view content, std::size_t max_start,
                  std::size_t max_stop) {
  for (std::string& token : tokens) {
    std::string_view rest = token;
    for (std::size_t n = 0; n < max_start && rest.starts_with(content); ++n) {
      rest.remove_prefix(content.size());
    }
    for (std::size_t n = 0; n < max_stop && rest.ends_with(content); ++n) {
      rest.remove_suffix(content.size());
    }
    token = std::string(rest);
  }
}

/// Removes the spaces that word-level models put around punctuation and English contractions.
void clean_up(std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& [from, to] : kReplacements) replace_all(text, from, to);
}

Result<DecoderPtr> make_word_piece(const Json& json) {
  ASSIGN_OR_RETURN(const std::string prefix, json_fields::text(json, "prefix"));
  ASSIGN_OR_RETURN(const bool cleans_up, json_fields::boolean(json, "cleanup", true));
  return from_function([prefix, cleans_up](Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && tokens[i].starts_with(prefix)) {
        tokens[i].erase(0, prefix.size());
      } else if (i > 0) {
        tokens[i].insert(0, 1, ' ');
      }
      if (cleans_up) clean_up(tokens[i]);
    }
  });
}

Result<DecoderPtr> make_metaspace(const Json& json) {
  ASSIGN_OR_RETURN(const char32_t replacement, json_fields::character(json, "replacement"));
  ASSIGN_OR_RETURN(const auto scheme, json_fields::optional_text(json, "prepend_scheme"));
  ASSIGN_OR_RETURN(const bool adds_prefix, json_fields::boolean(json, "add_prefix_space", true));
  const std::string mark = unicode::to_utf8(replacement);
  const bool drops_first = adds_prefix && scheme != "never";
  return from_function([mark, drops_first](Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], mark, i == 0 && drops_first ? "" : " ");
    }
  });
}

/// Throws WorkStopped if a pattern or its replacements do much more work than real ones.
std::string replace_matches(const std::string& token, const Pattern& pattern,
                            const std::string& content) {
  constexpr std::uint64_t kMaxUnitsPerByte = 100;
  WorkBudget work({}, 10'000 + kMaxUnitsPerByte * token.size());
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  std::string replaced;
  for_each_match(
      token,
      [&](std::string_view text, std::size_t from) { return pattern.find(text, from, work); },
      [&](ByteRange range, bool is_match) {
        if (is_match) {
          replaced += content;
        } else {
          replaced.append(token, range.begin, range.size());
        }
        if (replaced.size() > kMaxBytes) throw WorkStopped(WorkStopped::Reason::kTooMuch);
      });
  return replaced;
}

Result<DecoderPtr> make_replace(const Json& json) {
  if (!json.contains("pattern")) return json_fields::malformed("Replace has no \"pattern\"");
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::from_json(json["pattern"]));
  ASSIGN_OR_RETURN(const std::string content, json_fields::text(json, "content"));
  return from_function([pattern = std::move(pattern), content](Tokens& tokens) {
    for (std::string& token : tokens) {
      try {
        token = replace_matches(token, pattern, content);
      } catch (const WorkStopped&) {
        // Decoding cannot fail: the token stays unchanged.
      }
    }
  });
}

Result<DecoderPtr> make_bpe_decoder(const Json& json) {
  ASSIGN_OR_RETURN(const std::string suffix, json_fields::text(json, "suffix"));
  if (suffix.empty()) return json_fields::malformed("BPEDecoder has an empty \"suffix\"");
  return from_function([suffix](Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      replace_all(tokens[i], suffix, i + 1 == tokens.size() ? "" : " ");
    }
  });
}

Result<DecoderPtr> make_strip(const Json& json) {
  ASSIGN_OR_RETURN(const char32_t character, json_fields::character(json, "content"));
  ASSIGN_OR_RETURN(const std::uint32_t start, json_fields::number(json, "start"));
  ASSIGN_OR_RETURN(const std::uint32_t stop, json_fields::number(json, "stop"));
  return from_function([content = unicode::to_utf8(character), start, stop](Tokens& tokens) {
    strip_tokens(tokens, content, start, stop);
  });
}

Result<DecoderPtr> make_sequence(const Json& json) {
  ASSIGN_OR_RETURN(const Json* list, json_fields::array(json, "decoders"));
  std::vector<std::shared_ptr<const TokenDecoder>> steps;
  for (const Json& step : *list) {
    ASSIGN_OR_RETURN(DecoderPtr made, make_decoder(step));
    steps.push_back(std::move(made));
  }
  return from_function([steps = std::move(steps)](Tokens& tokens) {
    for (const auto& step : steps) step->apply(tokens);
  });
}

}  // namespace

void append_byte_level(std::string& bytes, std::string_view token) {
  const std::size_t begin = bytes.size();
  for (std::size_t i = 0; i < token.size();) {
    const auto byte = byte_level::byte_of(unicode::next(token, i));
    if (!byte) {
      bytes.replace(begin, std::string::npos, token);
      return;
    }
    bytes.push_back(static_cast<char>(*byte));
  }
}

Result<DecoderPtr> make_decoder(const Json& json) {
  if (json.is_null()) {
    return from_function([](Tokens& tokens) {
      for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
    });
  }
  ASSIGN_OR_RETURN(const std::string type, json_fields::type_of(json, "decoder"));
  if (type == "Sequence") return make_sequence(json);
  if (type == "ByteLevel") return from_function(decode_byte_level);
  if (type == "ByteFallback") return from_function(decode_byte_fallback);
  if (type == "Fuse") return from_function([](Tokens& tokens) { tokens.assign(1, join(tokens)); });
  if (type == "Replace") return make_replace(json);
  if (type == "Strip") return make_strip(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "WordPiece") return make_word_piece(json);
  if (type == "BPEDecoder") return make_bpe_decoder(json);
  return json_fields::unsupported("decoder " + type);
}

bool decodes_tokens_apart(const Json& json) {
  if (!json.is_object()) return false;
  const std::string& type = json.at("type").get_ref<const std::string&>();
  if (type != "Sequence") {
    return type == "ByteLevel" || type == "ByteFallback" || type == "Fuse" || type == "Replace" ||
           type == "Strip";
  }
  // What follows a Fuse sees the whole text as one token.
  const Json& steps = json.at("decoders");
  const auto fuse = std::find_if(steps.begin(), steps.end(),
                                 [](const Json& step) { return step.at("type") == "Fuse"; });
  return std::all_of(steps.begin(), steps.end(), decodes_tokens_apart) &&
         (fuse == steps.end() || std::next(fuse) == steps.end());
}

}  // namespace troupe
