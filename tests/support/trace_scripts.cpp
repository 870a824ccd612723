#include "tests/support/trace_scripts.hpp"

namespace troupe {

using nlohmann::json;

std::optional<KVConnector::Match> ScriptedConnector::get_num_new_matched_tokens(
    const RequestState& request, std::int32_t num_local_tokens) {
  json& remote = remote_[request.id];
  std::optional<Match> match = Match{};
  if (!remote.is_null()) {
    const int defer = remote.value("defer", 0);
    if (defer > 0) {
      remote["defer"] = defer - 1;
      match.reset();
    } else {
      match->num_tokens = std::max(0, remote["tokens"].get<std::int32_t>() - num_local_tokens);
      match->async = remote["async"].get<bool>() && match->num_tokens > 0;
    }
  }
  calls_.push_back(
      {{"fn", "match"},
       {"id", ids_.name(request.id)},
       {"computed", num_local_tokens},
       {"ret", {match ? json(match->num_tokens) : json(), match ? match->async : false}}});
  return match;
}

void ScriptedConnector::update_state_after_alloc(const RequestState& request,
                                                 const BlockTable& blocks,
                                                 std::int32_t num_external_tokens) {
  calls_.push_back({{"fn", "alloc"},
                    {"id", ids_.name(request.id)},
                    {"ext", num_external_tokens},
                    {"blocks", blocks}});
}

KVConnector::Finished ScriptedConnector::request_finished(const RequestState& request,
                                                          const BlockTable& blocks) {
  const json& remote = remote_[request.id];
  Finished finished;
  json params;
  if (!remote.is_null()) {
    finished.delay_free = remote.value("delay", false);
    if (remote.contains("params")) params = remote["params"];
  }
  if (!params.is_null()) finished.kv_transfer_params = params.dump();
  calls_.push_back({{"fn", "finished"},
                    {"id", ids_.name(request.id)},
                    {"status", status_name(request.status)},
                    {"blocks", blocks},
                    {"ret", {finished.delay_free, params}}});
  return finished;
}

bool ScriptedConnector::reset_cache() {
  calls_.push_back({{"fn", "reset_cache"}, {"ret", true}});
  return true;
}

bool ScriptedGrammar::accept(TokenId token) {
  if (token % mod_ != n_ % mod_) return false;
  ++n_;
  return true;
}

}  // namespace troupe
