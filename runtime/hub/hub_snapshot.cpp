#include "runtime/hub/hub_snapshot.hpp"

#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/hub/hub_reference.hpp"

namespace troupe {

bool is_object_hash(std::string_view text) noexcept {
  return (text.size() == 40 || text.size() == 64) &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Result<HubSnapshot> parse_hub_snapshot(std::string_view text, const std::string& what) {
  const auto malformed = [&](const std::string& field) {
    return Error{ErrorCode::kCorrupt, "the Hub's description of " + what + " has no valid " + field,
                 "model"};
  };
  const auto json = parse_bounded_json<nlohmann::json>(text);
  if (!json.is_object()) return malformed("JSON object");
  HubSnapshot snapshot;
  const auto hash = [](const nlohmann::json& object, const char* name) {
    const auto found = object.find(name);
    const bool is_text = found != object.end() && found->is_string();
    std::string value = is_text ? found->get<std::string>() : "";
    return is_object_hash(value) ? value : "";
  };
  snapshot.commit = hash(json, "sha");
  if (snapshot.commit.empty()) return malformed("sha");
  const auto siblings = json.find("siblings");
  if (siblings == json.end() || !siblings->is_array()) return malformed("siblings");
  for (const auto& sibling : *siblings) {
    if (!sibling.is_object() || !sibling.contains("rfilename") || !sibling["rfilename"].is_string())
      return malformed("siblings");
    HubFile file{.path = sibling["rfilename"].get<std::string>()};
    if (!is_repository_path(file.path)) return malformed("file name: '" + file.path + "'");
    const auto lfs = sibling.find("lfs");
    const bool is_large = lfs != sibling.end() && lfs->is_object();
    const nlohmann::json& sized = is_large ? *lfs : sibling;
    file.etag = is_large ? hash(*lfs, "sha256") : hash(sibling, "blobId");
    const auto size = sized.find("size");
    if (file.etag.empty() || size == sized.end() || !size->is_number_unsigned())
      return malformed("hash and size of " + file.path);
    file.num_bytes = size->get<std::uint64_t>();
    snapshot.files.push_back(std::move(file));
  }
  return snapshot;
}

}  // namespace troupe
