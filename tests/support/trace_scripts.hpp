#pragma once
// What the traces script instead of running it: a KV connector and grammars.

#include <map>

#include "runtime/base/json.hpp"
#include "runtime/scheduler/grammar.hpp"
#include "runtime/scheduler/kv_connector.hpp"
#include "tests/support/trace_format.hpp"

namespace troupe {

/// Does what a request's "remote" says, and notes every call.
class ScriptedConnector final : public KVConnector {
 public:
  explicit ScriptedConnector(const TraceIds& ids) : ids_(ids) {}

  void add_request(RequestId id, nlohmann::json remote) { remote_[id] = std::move(remote); }
  void set_pending_frees(bool pending) { pending_frees_ = pending; }
  /// Calls since the last one.
  [[nodiscard]] nlohmann::json take_calls() {
    return std::exchange(calls_, nlohmann::json::array());
  }

  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override;
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override;
  Finished request_finished(const RequestState& request, const BlockTable& blocks) override;
  [[nodiscard]] bool has_pending_block_frees() const override { return pending_frees_; }
  bool reset_cache() override;

 private:
  const TraceIds& ids_;
  std::map<RequestId, nlohmann::json> remote_;
  bool pending_frees_ = false;
  nlohmann::json calls_ = nlohmann::json::array();
};

/// After n tokens it accepts t if t % mod == n % mod. A row is the one word n % mod.
class ScriptedGrammar final : public GrammarMasker {
 public:
  explicit ScriptedGrammar(std::int32_t mod) : mod_(mod) {}
  bool accept(TokenId token) override;
  void rollback(std::size_t num_tokens) override { n_ -= static_cast<std::int32_t>(num_tokens); }
  [[nodiscard]] std::size_t words_per_row() const { return 1; }
  void fill_bitmask(std::span<std::int32_t> row) override { row[0] = n_ % mod_; }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override { return std::nullopt; }

 private:
  std::int32_t mod_;
  std::int32_t n_ = 0;
};

}  // namespace troupe
