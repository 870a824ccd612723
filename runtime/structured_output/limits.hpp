#pragma once
// What a client's schema, regular expression or grammar may cost, and the error that ends what
// costs more.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "messages/error.hpp"

namespace troupe {

struct GrammarLimits {
  std::size_t max_source_bytes = std::size_t{1} << 20;
  std::size_t max_nodes = 400'000;       ///< of the grammar as it is written
  std::size_t max_depth = 400;           ///< of groups within groups
  std::uint32_t max_repetition = 65536;  ///< the largest count in {m,n}
  /// Expressions, their tables and masks of one compiled grammar, over all of its requests.
  std::size_t max_bytes = std::size_t{256} << 20;
  /// Derivatives that one token or one mask may take.
  std::uint64_t max_steps = 20'000'000;
  /// Expressions that are looked at to see whether an intersection is empty.
  std::size_t max_emptiness_steps = 20'000;
};

/// Thrown where a grammar is refused or goes over a limit. It ends in the functions of this folder
/// that other folders call, which return the error.
class GrammarRefused : public std::exception {
 public:
  explicit GrammarRefused(std::string message, ErrorCode code = ErrorCode::kInvalidArgument)
      : error_{code, std::move(message), {}} {}
  [[nodiscard]] const char* what() const noexcept override { return error_.message.c_str(); }
  [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
  Error error_;
};

}  // namespace troupe
