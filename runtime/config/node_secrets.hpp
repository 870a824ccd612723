#pragma once
// What the Supervisor tells a process that it starts, but not on the command line, which every user
// of the host can read.

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The last argument of a process that is to read its secrets from standard input.
inline constexpr std::string_view kReadSecretsOption = "--secrets-from-stdin";

struct NodeSecrets {
  std::string cluster_secret;          ///< empty: none is needed, or the options name another
  std::vector<std::string> arguments;  ///< belong to those of the command line

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static NodeSecrets decode(std::string_view text);
};

/// Takes the options whose values are secrets out of a command line.
[[nodiscard]] std::vector<std::string> take_secret_options(std::vector<std::string>& arguments);

}  // namespace troupe
