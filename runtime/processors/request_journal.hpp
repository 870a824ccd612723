#pragma once
// The journal of live requests, from which they can be resubmitted to another engine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "messages/control.hpp"
#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/processors/coordinator.hpp"

namespace troupe {

/// Owns every unfinished request: its input, and the output that its client has received. The
/// engine has groups (one, unless it is data-parallel). When a group is lost, its requests continue
/// after their last token in another one, in the order of their arrival; while there is none, they
/// wait here. Used by the RequestRouter; and by the Frontend if the RequestRouter is in another
/// process and so acts as the only group.
///
/// Quarantine: a request that was in two groups when they crashed is a suspect. Suspects run one at
/// a time in a group without other requests, until they finish; a suspect fails with an error at
/// its third crash, if it ran alone. The other groups continue meanwhile.
///
/// A group may be killed by hand repeatedly, which must not lose a request; or for the memory that
/// a request takes, which would repeat forever. They are distinguished by progress: a kill before
/// the request has got any token in that group counts twice, or four times if it was a suspect and
/// alone; a kill before it has got kMinProgress tokens counts once, and a later one resets the
/// count. With kSuspectKills it is a suspect, with kMaxKills and alone it fails: after 17 kills
/// without a token. That many, as kills by the kernel's OOM killer are detected, and count as
/// crashes (ProcessEnd), and as a slow machine may compute no token between several kills by hand.
///
/// A prefill group computes a prompt only (prompt_of), as a request with an id of its own: that
/// group may hold its blocks for long, also while the same request is sent there again. Its answer
/// says where the KV is, and the request waits for a group that goes on. If either group is lost
/// meanwhile it begins anew. It may answer early, while it still computes: then both groups are at
/// it, and the other one computes what it cannot get.
///
/// Every added request ends once: with a finished output passed to `record`, or with one returned
/// by a function here.
class RequestJournal {
 public:
  /// Maximum number of requests waiting for an engine, without those that have been in one.
  static constexpr std::size_t kMaxWaiting = 1024;
  static constexpr int kSuspectCrashes = 2;
  static constexpr int kMaxCrashes = 3;
  static constexpr int kSuspectKills = 4;
  static constexpr int kMaxKills = 64;
  static constexpr std::size_t kMinProgress = 16;
  /// A request for the final output only is run with deltas of this many tokens, so that they are
  /// not lost with the engine. (RequestClients merges them.)
  static constexpr std::int32_t kFinalOnlyInterval = 16;

  /// first_prompt_id: ids from there on are given to the requests for prompts only.
  explicit RequestJournal(std::size_t num_groups = 1,
                          RequestId first_prompt_id = RequestId{std::uint64_t{1} << 63})
      : groups_(num_groups), next_prompt_id_(first_prompt_id) {}

  /// The request waits until take_submissions returns it. Pre: its id is new. Error: kOverloaded,
  /// the maximum number of requests is waiting.
  Result<void> add(SubmitRequest submission);

  struct Submission {
    std::size_t group = 0;
    GenerateRequest request;
    bool again = false;  ///< it was in a group that was lost
    /// Out of memory while submitting it: the request, of which only the id is valid, has ended.
    std::optional<Error> error = std::nullopt;
    Placement placement = {};
  };
  /// The requests to submit to groups now, oldest first, by the coordinator's choice; empty while
  /// there is no group.
  [[nodiscard]] std::vector<Submission> take_submissions(Coordinator& coordinator);

  /// Records what clients receive, and removes the outputs of prompts that another group continues.
  /// Returns the requests that could not be recorded, with the reason, to be aborted.
  struct Failure {
    RequestId id{};
    Error error;
  };
  std::vector<Failure> record(RequestOutputs& outputs);

  struct ToEngine {
    std::size_t group = 0;
    AbortRequests samples;  ///< all of one request
  };
  struct Aborted {
    std::vector<ToEngine> to_engine;
    RequestOutputs ended;  ///< those that are in no group
  };
  /// Aborts requests of disconnected clients, or after a timeout. Unknown ids are ignored.
  [[nodiscard]] Aborted abort(std::span<const RequestId> ids);
  [[nodiscard]] Aborted abort_all();

  /// The group accepts requests.
  void group_ready(std::size_t group);
  /// The group keeps its requests, and gets no more.
  void close_group(std::size_t group) { groups_[group].open = false; }

  struct Lost {
    std::size_t num_resubmissions = 0;  ///< requests that will run again
    RequestOutputs ended;               ///< those that will not
  };
  /// The group's outputs are no longer recorded: its requests wait again. `returns`: the group will
  /// be ready again.
  [[nodiscard]] Lost group_lost(std::size_t group, LossCause cause, bool returns);

  /// There will be no engine: ends all requests.
  [[nodiscard]] RequestOutputs fail_all(const Error& error);

  /// Ends waiting requests whose deadline has passed. Seconds, wall clock.
  [[nodiscard]] RequestOutputs expire(double now);
  /// The next deadline in wall-clock seconds; infinity if there is none.
  [[nodiscard]] double next_deadline() const;

  [[nodiscard]] std::size_t num_live() const noexcept { return entries_.size(); }
  [[nodiscard]] std::size_t num_in(std::size_t group) const { return groups_[group].num_requests; }
  /// Requests are waiting to be submitted.
  [[nodiscard]] bool has_waiting() const noexcept {
    return !waiting_.empty() || !suspects_.empty();
  }
  /// Suspects are waiting, or one is running alone.
  [[nodiscard]] bool in_quarantine() const noexcept {
    return !suspects_.empty() || quarantined_.has_value();
  }

 private:
  struct Entry {
    GenerateRequest request;  // `emitted` grows with recorded output
    Placement placement;
    std::uint64_t sequence = 0;
    int num_crashes = 0;
    int kill_score = 0;             // see above
    int num_kills = 0;              // in a row that count
    std::size_t tokens_before = 0;  // when its group got it

    [[nodiscard]] bool is_suspect() const noexcept {
      return num_crashes >= kSuspectCrashes || kill_score >= kSuspectKills;
    }
    std::optional<std::size_t> group;    // none: it waits
    std::optional<RequestId> prompt_id;  // the group computes its prompt, for another one
    std::optional<RequestId> early_id;   // of a prompt that may still be computed, beside it
    std::string kv_transfer_params;      // what that group has answered, for the next one
    bool aborted = false;                // the group has been told
    bool taken_back = false;             // it waits, and has been in a group before
  };
  /// A request for a prompt.
  struct Prompt {
    RequestId request{};  // whose it is
    std::size_t group = 0;
    std::int32_t num_samples = 0;  // as they count in the group
    bool is_early = false;         // another group has the request, or it waits for one
  };
  using Prompts = std::unordered_map<RequestId, Prompt>;
  struct Group {
    bool open = false;     // takes requests
    bool returns = false;  // lost, but will return
    std::size_t num_requests = 0;
    std::int32_t num_samples = 0;
  };
  using Entries = std::unordered_map<RequestId, Entry>;
  // By sequence: the order of arrival.
  using Queue = std::map<std::uint64_t, RequestId>;

  void note(Entry& entry, const CompletionOutput& output);
  static void count_loss(Entry& entry, LossCause cause, bool was_alone);
  void choose_quarantine();
  Submission hand_out(Queue& queue, Coordinator::Route route);
  [[nodiscard]] bool take_prefill(Entries::iterator entry, RequestOutput& output);
  void answer_early(Entries::iterator entry, std::string kv_transfer_params);
  void end_early(Prompts::iterator prompt);
  void take_back(Entry& entry);
  void end_waiting(Entry& entry);
  void abort_one(RequestId id, Aborted& aborted);
  void end(Entries::iterator entry);
  void end_with(Entries::iterator entry, std::optional<Error> error,
                std::optional<FinishReason> reason, RequestOutputs& ended);

  Entries entries_;
  Queue waiting_;
  Queue suspects_;  // waiting, too, and submitted before the others
  std::vector<Group> groups_;
  RequestId next_prompt_id_;
  Prompts prompts_;                        // by prompt_id
  std::optional<std::size_t> quarantine_;  // the group reserved for suspects
  std::optional<RequestId> quarantined_;   // the suspect that runs there
  std::size_t num_taken_back_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace troupe
