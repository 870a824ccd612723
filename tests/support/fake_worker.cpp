#include "tests/support/fake_worker.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>

namespace troupe::testing {
namespace {

/// The tokens that the grammars allow at each position of a step.
class Masks {
 public:
  explicit Masks(const GrammarOutput& grammar) : grammar_(grammar) {}
  /// The token, or the first one that is allowed if it is not. `row`: how many drafts are before
  /// it.
  [[nodiscard]] TokenId choose(RequestId id, std::size_t row, TokenId token) const {
    std::size_t first = 0;
    const auto width = static_cast<std::size_t>(grammar_.words_per_row);
    for (std::size_t i = 0; i < grammar_.ids.size(); ++i) {
      if (grammar_.ids[i] == id) {
        const auto words = std::span(grammar_.bitmask).subspan((first + row) * width, width);
        const auto allows = [&](TokenId one) {
          const auto bit = static_cast<std::size_t>(one);
          return (static_cast<std::uint32_t>(words[bit / 32]) >> (bit % 32) & 1) != 0;
        };
        if (allows(token)) return token;
        for (TokenId other = 0; other < grammar_.words_per_row * 32; ++other)
          if (allows(other)) return other;
      }
      first += static_cast<std::size_t>(grammar_.num_rows[i]);
    }
    return token;
  }

 private:
  const GrammarOutput& grammar_;
};

struct FakeWorkerState {
  FakeWorkerState() = default;
  static inline const char* name = "fake_worker";
  struct Known {
    std::int32_t num_tokens = 0;
    std::vector<TokenId> drafts;  ///< behind them
  };
  std::unordered_map<RequestId, Known> requests;
  std::optional<SchedulerOutput> unsampled;  ///< waits for its GrammarOutput

  /// As the real one: a step that builds on one that failed fails as well.
  [[nodiscard]] StepAnswer execute(const SchedulerOutput& step, const GrammarOutput& grammar,
                                   KVConnectorOutput& kv_report, ECConnectorOutput& ec_report,
                                   std::int32_t num_drafts_to_make) {
    const Masks masks(grammar);
    ModelRunnerOutput result{.step = step.step, .ids = step.scheduled_ids};
    result.kv_connector = std::exchange(kv_report, {});
    result.ec_connector = std::exchange(ec_report, {});
    for (const RequestId id : step.preempted_ids) requests.erase(id);
    for (const RequestId id : step.finished_ids) requests.erase(id);
    for (const NewRequestData& request : step.new_requests)
      requests[request.id] = {static_cast<std::int32_t>(request.token_ids.size()), {}};
    // Known requests are listed in scheduling order.
    const CachedRequestData& cached = step.cached_requests;
    std::size_t next_cached = 0;
    auto draft = step.draft_token_ids.begin();
    for (std::size_t i = 0; i < step.scheduled_ids.size(); ++i) {
      const RequestId id = step.scheduled_ids[i];
      const auto request = requests.find(id);
      if (request == requests.end()) break;
      std::int32_t& known = request->second.num_tokens;
      std::vector<TokenId>& own_drafts = request->second.drafts;
      std::int32_t computed = 0;
      if (next_cached < cached.ids.size() && cached.ids[next_cached] == id) {
        // Planned ahead, it may rely on drafts that were rejected.
        computed = std::min(cached.num_computed_tokens[next_cached++], known - 1);
      } else {
        const auto added = std::find_if(step.new_requests.begin(), step.new_requests.end(),
                                        [&](const NewRequestData& one) { return one.id == id; });
        if (added == step.new_requests.end()) break;
        computed = added->num_computed_tokens;
      }
      const std::int32_t num_drafts = step.num_draft_tokens.empty() ? 0 : step.num_draft_tokens[i];
      const auto drafts_end = draft + num_drafts;
      if (computed + step.num_scheduled_tokens[i] < known + num_drafts) {
        result.num_sampled.push_back(0);
        draft = drafts_end;
        continue;
      }
      // Its own token behind the last draft that is right.
      const std::int32_t first = known;
      result.sampled_token_ids.push_back(masks.choose(id, 0, fake_token(id, known)));
      for (std::size_t n = 0; draft != drafts_end; ++draft, ++n) {
        const TokenId guess = *draft < 0 && n < own_drafts.size() ? own_drafts[n] : *draft;
        if (guess != result.sampled_token_ids.back()) break;
        result.sampled_token_ids.push_back(masks.choose(id, n + 1, fake_token(id, ++known)));
      }
      draft = drafts_end;
      result.num_sampled.push_back(++known - first);
      own_drafts.clear();
      if (num_drafts_to_make == 0) continue;
      std::vector<TokenId>& drafts = result.draft_token_ids.emplace_back(id, 0).second;
      for (std::int32_t position = known; position < known + num_drafts_to_make; ++position)
        drafts.push_back(position % 3 == 0 ? 0 : fake_token(id, position));
      own_drafts = drafts;
    }
    if (result.num_sampled.size() < step.scheduled_ids.size())
      return StepFailed{step.step, {ErrorCode::kInternal, "unknown request"}};
    return result;
  }
};

WorkerActor::behavior_type fake_worker(WorkerActor::stateful_pointer<FakeWorkerState> self,
                                       const std::shared_ptr<FakeWorkerLog>& log) {
  const auto answer = [self, log](StepAnswer result) {
    const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
    if (log->hold)
      log->held.push_back(std::move(result));
    else
      std::visit([&](auto& message) { send(self, executor, std::move(message)); }, result);
  };
  const auto sample = [self, log, answer](const SchedulerOutput& step,
                                          const GrammarOutput& grammar) {
    answer(state(self).execute(step, grammar, log->kv_report, log->ec_report, log->num_drafts));
  };
  return {
      [self, log](const WorkerRpc& rpc) {
        const auto executor = caf::actor_cast<ExecutorActor>(self->current_sender());
        WorkerRpcReply reply{.call = rpc.call, .rank = log->rank, .result = {}, .error = {}};
        if (const auto* load = std::get_if<LoadModel>(&rpc.method)) {
          send(self, executor, LoadProgress{log->rank, 0.5, "weights"});
          reply.result = ModelLoaded{.rank = log->rank, .architecture = load->options.model};
        }
        if (log->rpc_error) reply.error = log->rpc_error;
        send(self, executor, std::move(reply));
      },
      [](const JoinGroup&) {},
      [self, log, answer, sample](const SchedulerOutput& step) {
        ++log->num_steps;
        log->last_step = step.step;
        ++log->num_taken, log->num_taken.notify_all();
        log->batch_sizes.push_back(step.scheduled_ids.size());
        log->finished_ids.insert(log->finished_ids.end(), step.finished_ids.begin(),
                                 step.finished_ids.end());
        if (log->keep_quiet) return;
        const auto fail = [&](const char* why) {
          answer(StepFailed{step.step, {ErrorCode::kInternal, why}});
        };
        if (std::exchange(state(self).unsampled, std::nullopt))
          return fail("the step before was not sampled");
        if (log->num_steps_to_fail > 0) return --log->num_steps_to_fail, fail("made to fail");
        if (log->fails && log->fails(step)) return fail("made to fail");
        if (step.has_structured_output_requests)
          state(self).unsampled = step;
        else
          sample(step, {});
      },
      [self, log, sample](const GrammarOutput& grammar) {
        log->grammars.push_back(grammar);
        const std::optional<SchedulerOutput>& unsampled = state(self).unsampled;
        if (!unsampled || unsampled->step != grammar.step) return;
        sample(*std::exchange(state(self).unsampled, std::nullopt), grammar);
      },
  };
}

}  // namespace

WorkerActor spawn_fake_worker(caf::actor_system& system, std::shared_ptr<FakeWorkerLog> log) {
  return system.spawn(fake_worker, std::move(log));
}

void release_answer(const WorkerActor& worker, const ExecutorActor& executor, FakeWorkerLog& log) {
  std::visit([&](auto& message) { caf::send_as(worker, executor, std::move(message)); },
             log.held.front());
  log.held.pop_front();
}

}  // namespace troupe::testing
