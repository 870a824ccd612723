#pragma once
// vLLM options that Troupe does not have: a command line written for vLLM either has the same
// effect here or fails with the reason.

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

struct VllmOption {
  enum class Kind : std::uint8_t {
    kFlag,     ///< takes no value; has no effect here, and could not change results
    kValue,    ///< as kFlag, with one value
    kValues,   ///< as kFlag, with one or more values up to the next option
    kRefused,  ///< ignoring it would change results or the interface
  };
  std::string_view name;
  Kind kind;
  std::string_view reason;
  /// Values that are accepted without effect, separated by "|"; others are rejected. Empty: any.
  std::string_view values = {};
};

[[nodiscard]] std::span<const VllmOption> vllm_options() noexcept;
/// nullptr: not a vLLM option, or also one of Troupe's.
[[nodiscard]] const VllmOption* find_vllm_option(std::string_view name) noexcept;
/// Whether `option` may be ignored with the value `text`.
[[nodiscard]] bool is_harmless(const VllmOption& option, std::string_view text);

}  // namespace troupe
