#pragma once
// What it takes to run every live request again on another engine.

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

/// Owns every request that has not ended: as it came, and what its client has been given of it.
/// The engine has groups (one, unless it is data-parallel). When a group is lost, its requests run
/// again behind their last token in another one, in the order of their arrival; while there is
/// none, they wait here. Called by the RequestRouter; by the Frontend where the RequestRouter is in
/// another process, which is the one group then.
///
/// Quarantine: a request that was in two groups when they crashed is suspect. Suspects run one at a
/// time in a group that has nothing beside them, until they have ended; whose third crash comes
/// while it is alone fails with an error. The other groups go on meanwhile.
///
/// A group that is killed may be killed by hand, again and again, and no request is to be lost by
/// that; or by the kernel for the memory that a request takes, and that would go on for ever. What
/// tells them apart is that a request which cannot be computed gets nowhere: a kill before it has
/// got any token in that group counts twice for it, or four times if it was a suspect and alone;
/// one before it has got kMinProgress counts once, and one behind that makes it begin to count
/// anew. With kSuspectKills it is suspect, with kMaxKills and alone it fails: after five kills
/// without a token. (Of the kernel's kills there is a count, so these are crashes: ProcessEnd.)
///
/// Every request that is added ends once: with a finished output that `record` is shown, or with
/// one that a function here returns.
class RequestJournal {
 public:
  /// Requests that wait for an engine, but for those that have been in one.
  static constexpr std::size_t kMaxWaiting = 1024;
  static constexpr int kSuspectCrashes = 2;
  static constexpr int kMaxCrashes = 3;
  static constexpr int kSuspectKills = 4;
  static constexpr int kMaxKills = 16;
  static constexpr std::size_t kMinProgress = 16;
  /// A request for one final output is run as one for deltas of so many tokens, so that they are
  /// not lost with the engine. (RequestClients joins them.)
  static constexpr std::int32_t kFinalOnlyInterval = 16;

  explicit RequestJournal(std::size_t num_groups = 1) : groups_(num_groups) {}

  /// The request waits until take_submissions hands it out. Pre: its id is new. Error: kOverloaded,
  /// as many wait already.
  Result<void> add(SubmitRequest submission);

  struct Submission {
    std::size_t group = 0;
    GenerateRequest request;
    bool again = false;  ///< it was in a group that is lost
    /// There was no memory to hand it out: the request, of which only the id is here, has ended.
    std::optional<Error> error = std::nullopt;
    Placement placement = {};
  };
  /// What is to be given to groups now, oldest first, as the coordinator says; nothing while there
  /// is none.
  [[nodiscard]] std::vector<Submission> take_submissions(Coordinator& coordinator);

  /// Notes what clients are given. Those that could not be noted, with the reason: to be aborted.
  struct Failure {
    RequestId id{};
    Error error;
  };
  std::vector<Failure> record(const RequestOutputs& outputs);

  struct ToEngine {
    std::size_t group = 0;
    AbortRequests samples;  ///< all of one request
  };
  struct Aborted {
    std::vector<ToEngine> to_engine;
    RequestOutputs ended;  ///< those that no group has
  };
  /// Clients are gone, or have waited long enough; ids of requests. Unknown ones are ignored.
  [[nodiscard]] Aborted abort(std::span<const RequestId> ids);
  [[nodiscard]] Aborted abort_all();

  /// There is a group to give requests to.
  void group_ready(std::size_t group);
  /// It keeps what it has, and gets no more.
  void close_group(std::size_t group) { groups_[group].open = false; }

  struct Lost {
    std::size_t num_resubmissions = 0;  ///< requests that will run again
    RequestOutputs ended;               ///< those that will not
  };
  /// Its outputs are not recorded any more: its requests wait again. `returns`: it will be ready
  /// again.
  [[nodiscard]] Lost group_lost(std::size_t group, LossCause cause, bool returns);

  /// There will be no engine: ends all.
  [[nodiscard]] RequestOutputs fail_all(const Error& error);

  /// Ends those of the requests that wait whose time is up. Seconds, wall clock.
  [[nodiscard]] RequestOutputs expire(double now);
  /// The wall-clock second at which the next one is; infinity if there is none.
  [[nodiscard]] double next_deadline() const;

  [[nodiscard]] std::size_t num_live() const noexcept { return entries_.size(); }
  [[nodiscard]] std::size_t num_in(std::size_t group) const { return groups_[group].num_requests; }
  /// Something waits to be handed out.
  [[nodiscard]] bool has_waiting() const noexcept {
    return !waiting_.empty() || !suspects_.empty();
  }
  /// Suspects wait, or one is running alone.
  [[nodiscard]] bool in_quarantine() const noexcept {
    return !suspects_.empty() || quarantined_.has_value();
  }

 private:
  struct Entry {
    GenerateRequest request;  // `emitted` grows with what is recorded
    Placement placement;
    std::uint64_t sequence = 0;
    int num_crashes = 0;
    int kill_score = 0;             // see above
    int num_kills = 0;              // in a row that count
    std::size_t tokens_before = 0;  // that it had when its group got it

    [[nodiscard]] bool is_suspect() const noexcept {
      return num_crashes >= kSuspectCrashes || kill_score >= kSuspectKills;
    }
    std::optional<std::size_t> group;  // none: it waits
    bool aborted = false;              // the group has been told
    bool taken_back = false;           // it waits, and has been in a group before
  };
  struct Group {
    bool open = false;     // takes requests
    bool returns = false;  // lost, but not for ever
    std::size_t num_requests = 0;
    std::int32_t num_samples = 0;
  };
  using Entries = std::unordered_map<RequestId, Entry>;
  // By sequence: the order of arrival.
  using Queue = std::map<std::uint64_t, RequestId>;

  void note(Entry& entry, const CompletionOutput& output);
  static void count_loss(Entry& entry, LossCause cause, bool was_alone);
  void choose_quarantine();
  Submission hand_out(Queue& queue, std::size_t group);
  void take_back(Entry& entry);
  void end_waiting(Entry& entry);
  void abort_one(RequestId id, Aborted& aborted);
  void end(Entries::iterator entry);
  void end_with(Entries::iterator entry, std::optional<Error> error,
                std::optional<FinishReason> reason, RequestOutputs& ended);

  Entries entries_;
  Queue waiting_;
  Queue suspects_;  // wait, too, and before the others
  std::vector<Group> groups_;
  std::optional<std::size_t> quarantine_;  // the group that is kept for suspects
  std::optional<RequestId> quarantined_;   // the one that runs there
  std::size_t num_taken_back_ = 0;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace troupe
