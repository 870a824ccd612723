#pragma once
// The adapters that requests may name.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "messages/error.hpp"
#include "messages/worker.hpp"

namespace troupe {

[[nodiscard]] Error unknown_adapter(const std::string& name);

/// Owns the names and what they stand for. The RequestRouter's: it outlives the engines, which are
/// told what they have not.
class AdapterRegistry {
 public:
  /// Why it cannot be loaded, before anyone tries: its name or path is empty, or the name is taken.
  [[nodiscard]] std::optional<Error> check_load(const LoadAdapter& what) const;
  /// What the engine has loaded, as requests are to name it.
  LoraRequest add(LoraRequest loaded);
  /// False: there is none.
  bool remove(const std::string& name);
  /// Null: there is none.
  [[nodiscard]] const LoraRequest* find(const std::string& name) const;
  /// By name.
  [[nodiscard]] AdapterList list() const;
  /// The same; none: no engine has told what it has.
  [[nodiscard]] std::optional<AdapterList> known() const;

  /// What another RequestRouter had, before an engine tells.
  void restore(const std::vector<LoraRequest>& adapters);
  /// What an engine lacks, and what it has and should not.
  struct Difference {
    std::vector<LoraRequest> to_load;
    std::vector<std::string> to_unload;
  };
  /// An engine tells what it has: what has no name here gets one, unless it was removed.
  [[nodiscard]] Difference match(const std::vector<LoraRequest>& loaded);

 private:
  std::map<std::string, LoraRequest> adapters_;
  std::set<std::string> removed_;
  /// The first id of each name and path: other weights at the same place need a revision.
  std::map<std::pair<std::string, std::string>, std::int32_t> first_ids_;
  bool is_known_ = false;
};

}  // namespace troupe
