// Arbitrary text as the Hub's description of a revision: it must end with a snapshot whose paths
// stay in its folder, or with an error.
#include <cstdint>
#include <string_view>

#include "runtime/base/check.hpp"
#include "runtime/hub/hub_cache.hpp"
#include "runtime/hub/hub_snapshot.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto snapshot =
      troupe::parse_hub_snapshot({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!snapshot.ok()) return 0;
  CHECK(troupe::is_object_hash(snapshot->commit), snapshot->commit);
  std::vector<std::string> paths;
  for (const troupe::HubFile& file : snapshot->files) {
    CHECK(troupe::is_repository_path(file.path), file.path);
    CHECK(troupe::is_object_hash(file.etag), file.etag);
    paths.push_back(file.path);
  }
  for (const char* file : {"", "x.gguf", "Q4_K_M"})
    (void)troupe::files_to_load({.repository = "owner/name", .file = file}, paths);
  return 0;
}
