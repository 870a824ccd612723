#include "runtime/hub/hub_reference.hpp"

#include <algorithm>

namespace troupe {
namespace {

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// The Hub's rule for owners and names.
bool is_name(std::string_view name) {
  constexpr std::size_t kMaxName = 96;
  return !name.empty() && name.size() <= kMaxName && name.front() != '.' && name.front() != '-' &&
         name.find("..") == std::string_view::npos && name.find("--") == std::string_view::npos &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

/// Also of the form refs/pr/1.
bool is_revision(std::string_view revision) {
  constexpr std::size_t kMaxRevision = 256;
  return revision.size() <= kMaxRevision && is_repository_path(revision) &&
         std::all_of(revision.begin(), revision.end(), [](char c) {
           return is_alphanumeric(c) || c == '-' || c == '_' || c == '.' || c == '/' || c == '+';
         });
}

}  // namespace

std::string HubReference::text() const {
  return repository + (revision.empty() ? "" : "@" + revision) + (file.empty() ? "" : ":" + file);
}

std::optional<HubReference> parse_hub_reference(std::string_view text) {
  for (const std::string_view prefix : {"https://huggingface.co/", "https://hf.co/", "hf://"})
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  HubReference reference;
  if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    reference.file = text.substr(colon + 1);
    text = text.substr(0, colon);
    if (!is_repository_path(reference.file)) return std::nullopt;
  }
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    reference.revision = text.substr(at + 1);
    text = text.substr(0, at);
    if (!is_revision(reference.revision)) return std::nullopt;
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name(text.substr(0, slash)) ||
      !is_name(text.substr(slash + 1)) || text.ends_with(".gguf"))
    return std::nullopt;
  reference.repository = text;
  return reference;
}

bool is_repository_path(std::string_view path) noexcept {
  for (;;) {
    const std::size_t end = path.find('/');
    const std::string_view part = path.substr(0, end);
    if (part.empty() || part == "." || part == ".." ||
        part.find_first_of(std::string_view("\\\0", 2)) != std::string_view::npos)
      return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

}  // namespace troupe
