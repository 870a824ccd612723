#pragma once
// Options of vLLM's that are not Troupe's, so that a command line which was written for vLLM either
// does here what it did there or says what it cannot do.

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

struct VllmOption {
  enum class Kind : std::uint8_t {
    kFlag,     ///< takes no value; no effect here, and no answer would be another with it
    kValue,    ///< takes one; the same
    kValues,   ///< takes one or more, as many as stand before the next option; the same
    kRefused,  ///< ignoring it would change answers, or what clients and other processes meet
  };
  std::string_view name;
  Kind kind;
  std::string_view reason;
  /// Values that mean nothing here, separated by "|"; any other is refused. Empty: any.
  std::string_view values = {};
};

[[nodiscard]] std::span<const VllmOption> vllm_options() noexcept;
/// nullptr: vLLM has no such option, or it is Troupe's too.
[[nodiscard]] const VllmOption* find_vllm_option(std::string_view name) noexcept;
/// Whether `text` is a value with which `option` may be ignored.
[[nodiscard]] bool is_harmless(const VllmOption& option, std::string_view text) noexcept;

}  // namespace troupe
