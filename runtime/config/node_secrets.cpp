#include "runtime/config/node_secrets.hpp"

#include <algorithm>
#include <array>

namespace troupe {

constexpr std::array<std::string_view, 1> kSecretOptions = {"--api-key"};

/// Arguments contain no zero bytes, so these are the separator.
std::string NodeSecrets::encode() const {
  std::string text = cluster_secret;
  for (const std::string& argument : arguments) text.append(1, '\0').append(argument);
  return text;
}

NodeSecrets NodeSecrets::decode(std::string_view text) {
  NodeSecrets secrets;
  std::size_t end = std::min(text.find('\0'), text.size());
  secrets.cluster_secret = text.substr(0, end);
  while (end < text.size()) {
    const std::size_t begin = end + 1;
    end = std::min(text.find('\0', begin), text.size());
    secrets.arguments.emplace_back(text.substr(begin, end - begin));
  }
  return secrets;
}

std::vector<std::string> take_secret_options(std::vector<std::string>& arguments) {
  std::vector<std::string> taken, rest;
  bool is_value = false;
  for (std::string& argument : arguments) {
    std::string name = argument.substr(0, argument.find('='));
    std::replace(name.begin(), name.end(), '_', '-');  // as the option parser does
    const bool is_secret =
        std::find(kSecretOptions.begin(), kSecretOptions.end(), name) != kSecretOptions.end();
    const bool take = is_value || is_secret;
    is_value = !is_value && is_secret && name.size() == argument.size();
    (take ? taken : rest).push_back(std::move(argument));
  }
  arguments = std::move(rest);
  return taken;
}

}  // namespace troupe
