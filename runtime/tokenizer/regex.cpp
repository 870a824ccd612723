#include "runtime/tokenizer/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <string>

#include "runtime/tokenizer/json_fields.hpp"
#include "runtime/tokenizer/regex_translator.hpp"
#include "runtime/tokenizer/unicode.hpp"

namespace troupe {
namespace {

/// Match state besides the pattern, one per thread.
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

/// The last start position that one search, beginning at `from`, may try.
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
  ASSIGN_OR_RETURN(const std::string translated, translate_regex(pattern));
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
  // Without PCRE2's JIT for this machine the pattern is interpreted.
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
    // Limits the start positions per search: a match that looks ahead to the end of the text at
    // each of them is quadratic.
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
