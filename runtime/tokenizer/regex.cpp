#include "runtime/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <string>

#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

constexpr std::string_view kWhitespaceSet = R"(\t-\r\x{85}\p{Z})";
/// Oniguruma counts these Latin-1 superscripts and fractions as word characters too.
constexpr std::string_view kWordSet = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)";
constexpr std::string_view kHexSet = "0-9A-Fa-f";

/// The members of a class escape whose meaning differs in PCRE2; empty for others.
std::string_view set_of_escape(char escape) {
  switch (escape) {
    case 's':
    case 'S':
      return kWhitespaceSet;
    case 'w':
    case 'W':
      return kWordSet;
    case 'h':
    case 'H':
      return kHexSet;
    default:
      return {};
  }
}

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

/// Rewrites a pattern from Oniguruma's syntax to PCRE2's.
class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (c == '\\') {
        RETURN_IF_ERROR(escape());
      } else if (c == '[') {
        RETURN_IF_ERROR(character_class());
      } else {
        out_.push_back(c);
        ++position_;
      }
    }
    return std::move(out_);
  }

 private:
  Error refuse(const char* what) const {
    return json_fields::unsupported(std::string(what) + " in the pattern \"" +
                                    std::string(pattern_) + "\"");
  }

  Result<void> escape() {
    if (position_ + 1 >= pattern_.size()) return refuse("a backslash at the end");
    const char escaped = pattern_[position_ + 1];
    const std::string_view set = set_of_escape(escaped);
    if (set.empty()) {
      out_.append(pattern_, position_, 2);
    } else {
      out_.append(is_upper(escaped) ? "[^" : "[").append(set).append("]");
    }
    position_ += 2;
    return {};
  }

  /// Reads a class up to its closing bracket. Pre: at '['.
  Result<void> character_class() {
    std::string members = "[";
    ++position_;
    if (position_ < pattern_.size() && pattern_[position_] == '^') {
      members.push_back('^');
      ++position_;
    }
    while (position_ < pattern_.size() && pattern_[position_] != ']') {
      const char c = pattern_[position_];
      if (c == '\\' && position_ + 1 < pattern_.size()) {
        const char escaped = pattern_[position_ + 1];
        const std::string_view set =
            is_upper(escaped) ? std::string_view() : set_of_escape(escaped);
        members.append(set.empty() ? pattern_.substr(position_, 2) : set);
        position_ += 2;
      } else if (pattern_.substr(position_, 2) == "[:") {
        const std::size_t end = pattern_.find(":]", position_);
        if (end == std::string_view::npos) return refuse("an unfinished class name");
        members.append(pattern_, position_, end + 2 - position_);
        position_ = end + 2;
      } else if (pattern_.substr(position_, 4) == "&&[^") {
        position_ += 2;
        return intersection_with_complement(members);
      } else if (c == '[' || pattern_.substr(position_, 2) == "&&") {
        return refuse("a class in a class");
      } else {
        members.push_back(c);
        ++position_;
      }
    }
    if (position_ == pattern_.size()) return refuse("an unfinished class");
    ++position_;
    out_.append(members).push_back(']');
    return {};
  }

  /// [A&&[^B]] -> (?:(?![B])[A]). Pre: at the inner '['; `members` is "[A".
  Result<void> intersection_with_complement(const std::string& members) {
    PatternTranslator inner(pattern_);
    inner.position_ = position_;
    RETURN_IF_ERROR(inner.character_class());
    position_ = inner.position_;
    if (position_ >= pattern_.size() || pattern_[position_] != ']') {
      return refuse("a class in a class");
    }
    ++position_;
    std::string excluded = inner.out_;
    excluded.erase(1, 1);  // "[^B]" -> "[B]"
    out_.append("(?:(?!").append(excluded).append(")").append(members).append("])");
    return {};
  }

  std::string_view pattern_;
  std::size_t position_ = 0;
  std::string out_;
};

/// What a match needs beside the pattern, one per thread.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack =
      pcre2_jit_stack_create(std::size_t{64} * 1024, std::size_t{8} * 1024 * 1024, nullptr);
  MatchState() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, 10'000'000);
    pcre2_set_heap_limit(context, 64 * 1024);  // in KiB
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

/// The last of the places from `from` on at which one search begins to match.
std::size_t last_start(std::string_view text, std::size_t from) {
  constexpr std::size_t kMaxBytesTimesStarts = std::size_t{1} << 25;
  const std::size_t num_starts =
      std::max<std::size_t>(kMaxBytesTimesStarts / (text.size() + 1), 64);
  if (text.size() - from <= num_starts) return text.size();
  std::size_t last = from + num_starts;
  while (unicode::is_continuation(static_cast<unsigned char>(text[last]))) --last;
  return last;
}

}  // namespace

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, PatternTranslator(pattern).run());
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_USE_OFFSET_LIMIT, &error,
                    &error_offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return json_fields::unsupported("the pattern \"" + std::string(pattern) + "\" (" +
                                    reinterpret_cast<const char*>(text) + ")");
  }
  // Without a just-in-time compiler for this machine the interpreter runs the pattern.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return std::shared_ptr<const Regex>(new Regex(code));
}

Regex::~Regex() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

std::optional<ByteRange> Regex::find(std::string_view text, std::size_t from,
                                     WorkBudget& work) const {
  static thread_local MatchState state;
  const auto* code = static_cast<const pcre2_code*>(code_);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto match = [&](std::uint32_t options) {
    return pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | options, state.data,
                       state.context);
  };
  while (true) {
    // No more than some starting places at once: a match that looks ahead to the end of the text
    // at each of them takes its square.
    const std::size_t last = last_start(text, from);
    pcre2_set_offset_limit(state.context, last);
    work.look();
    int rc = match(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = match(PCRE2_NO_JIT);
    if (rc >= 0) {
      const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
      work.charge(2 + bounds[1] - from);
      return ByteRange{bounds[0], bounds[1]};
    }
    if (rc != PCRE2_ERROR_NOMATCH) throw WorkStopped(WorkStopped::Reason::kTooMuch);
    work.charge(2 + last - from);
    if (last == text.size()) return std::nullopt;
    from = last + unicode::char_bytes(static_cast<unsigned char>(text[last]));
  }
}

}  // namespace troupe
