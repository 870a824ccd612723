#pragma once
// Secrets that the Supervisor passes to a child process outside its command line, which every user
// of the host can read.

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

/// The last argument of a process that reads its secrets from standard input.
inline constexpr std::string_view kReadSecretsOption = "--secrets-from-stdin";

struct NodeSecrets {
  std::string cluster_secret;          ///< empty: none is needed, or an option sets another one
  std::vector<std::string> arguments;  ///< to be added to the command line

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static NodeSecrets decode(std::string_view text);
};

/// Removes the options whose values are secrets from a command line, and returns them.
[[nodiscard]] std::vector<std::string> take_secret_options(std::vector<std::string>& arguments);

}  // namespace troupe
