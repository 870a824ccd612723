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

/// Owns the names of the adapters with their files. Used by the RequestRouter, which outlives the
/// engines and loads into them the adapters that they lack.
class AdapterRegistry {
 public:
  /// Why it cannot be loaded, checked in advance: its name or path is empty, or the name is taken.
  [[nodiscard]] std::optional<Error> check_load(const LoadAdapter& what) const;
  /// Registers an adapter that the engine has loaded; returns it as requests should name it.
  LoraRequest add(LoraRequest loaded);
  /// False: there is none.
  bool remove(const std::string& name);
  /// Null: there is none.
  [[nodiscard]] const LoraRequest* find(const std::string& name) const;
  /// By name.
  [[nodiscard]] AdapterList list() const;
  /// The same; none: no engine has listed its adapters yet.
  [[nodiscard]] std::optional<AdapterList> known() const;

  /// The adapters of another RequestRouter, until an engine lists its own.
  void restore(const std::vector<LoraRequest>& adapters);
  /// The adapters that an engine lacks, and those that it should not have.
  struct Difference {
    std::vector<LoraRequest> to_load;
    std::vector<std::string> to_unload;
  };
  /// Compares the adapters of an engine: unknown ones are registered, unless they were removed.
  [[nodiscard]] Difference match(const std::vector<LoraRequest>& loaded);

 private:
  std::map<std::string, LoraRequest> adapters_;
  std::set<std::string> removed_;
  /// The first id of each name and path: other weights at the same place need a revision.
  std::map<std::pair<std::string, std::string>, std::int32_t> first_ids_;
  bool is_known_ = false;
};

/// One reply of the replies of all ranks, which must have loaded the same files.
[[nodiscard]] AdapterReply join_ranks(CollectiveRpcReply reply);

}  // namespace troupe
