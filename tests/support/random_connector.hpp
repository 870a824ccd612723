#pragma once
// A KV connector that does whatever a real one may do, at random: does not know yet, has more or
// less, loads now or in the background, fails, keeps blocks after a request's end.

#include <deque>
#include <map>
#include <random>
#include <set>

#include "runtime/scheduler/kv_connector.hpp"

namespace troupe {

class RandomConnector final : public KVConnector {
 public:
  /// Single blocks can fail only with one KV-cache group.
  RandomConnector(std::uint32_t seed, bool blocks_fail)
      : random_(seed), blocks_fail_(blocks_fail) {}

  std::optional<Match> get_num_new_matched_tokens(const RequestState& request,
                                                  std::int32_t num_local_tokens) override {
    if (one_in(6)) return std::nullopt;
    Match match;
    if (one_in(2)) match.num_tokens = pick(0, request.num_tokens() - num_local_tokens);
    match.async = match.num_tokens > 0 && one_in(2);
    async_[request.id] = match.async;
    return match;
  }
  void update_state_after_alloc(const RequestState& request, const BlockTable& blocks,
                                std::int32_t num_external_tokens) override {
    if (num_external_tokens == 0) return;
    ++num_loads;
    if (async_.at(request.id))
      loading_[request.id] = blocks[0];
    else
      loaded_in_step_.insert(loaded_in_step_.end(), blocks[0].begin(), blocks[0].end());
  }
  Finished request_finished(const RequestState& request, const BlockTable&) override {
    if (loading_.contains(request.id) || !one_in(3)) return {};
    sending_.insert(request.id);
    return {.delay_free = true, .kv_transfer_params = R"({"do_remote_prefill":true})"};
  }
  std::string build_connector_metadata(const SchedulerOutput&) override {
    open_steps_.push_back(std::exchange(loaded_in_step_, {}));
    return "metadata";
  }
  [[nodiscard]] bool has_pending_block_frees() const override { return pending_frees_; }
  bool reset_cache() override { return true; }

  /// What the workers report with the oldest open step.
  KVConnectorOutput report() {
    KVConnectorOutput output;
    pending_frees_ = !sending_.empty() && one_in(8);
    for (auto next = loading_.begin(); next != loading_.end();) {
      const auto load = next++;
      if (!one_in(3)) continue;
      output.finished_recving.push_back(load->first);
      if (one_in(5)) {
        output.failed_recving.push_back(load->first);
        ++num_failures;
      } else if (one_in(4)) {
        fail_block(load->second, output);
      }
      loading_.erase(load);
    }
    for (auto next = sending_.begin(); next != sending_.end();) {
      const auto sent = next++;
      if (!one_in(3)) continue;
      output.finished_sending.push_back(*sent);
      sending_.erase(sent);
    }
    if (!open_steps_.front().empty() && one_in(4)) fail_block(open_steps_.front(), output);
    open_steps_.pop_front();
    return output;
  }

  int num_loads = 0;
  int num_failures = 0;

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool one_in(int n) { return pick(1, n) == 1; }
  void fail_block(const std::vector<BlockId>& blocks, KVConnectorOutput& output) {
    if (!blocks_fail_) return;
    output.invalid_block_ids.push_back(
        blocks[static_cast<std::size_t>(pick(0, static_cast<int>(blocks.size()) - 1))]);
    ++num_failures;
  }

  std::mt19937 random_;
  bool blocks_fail_;
  bool pending_frees_ = false;
  std::map<RequestId, bool> async_;  ///< the last answer
  std::map<RequestId, std::vector<BlockId>> loading_;
  std::vector<BlockId> loaded_in_step_;
  std::deque<std::vector<BlockId>> open_steps_;  ///< what was loaded within each
  std::set<RequestId> sending_;
};

/// Refuses one token in seven.
class RandomGrammar final : public GrammarMasker {
 public:
  bool accept(TokenId token) override {
    if (token % 7 == 0) return false;
    ++num_accepted_;
    return true;
  }
  void rollback(std::size_t num_tokens) override { num_accepted_ -= num_tokens; }
  [[nodiscard]] std::size_t words_per_row() const { return 2; }
  void fill_bitmask(std::span<std::int32_t> row) override { row[0] = row[1] = 0x7f; }
  [[nodiscard]] std::optional<Error> why_nothing_fits() const override { return std::nullopt; }

 private:
  std::size_t num_accepted_ = 0;
};

}  // namespace troupe
