// The Supervisor's decisions in a world of processes and actors that end, fall silent, are cut off
// and come late, all at random: it always ends in a running engine or a failure that has a name.
//
// TROUPE_PROPERTY_EVENTS: how many events in all, 50,000 if it is not set; a thorough run takes
// 1,000,000. TROUPE_PROPERTY_SEED: see property_seed.hpp.
#include "runtime/supervision/supervision.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#include "runtime/base/log.hpp"
#include "tests/support/property_seed.hpp"

namespace troupe::supervision {
namespace {

constexpr double kNodeTimeout_s = 5;
constexpr double kAskDeadline_s = 60;
constexpr double kSupervisorTimeout_s = 60;

Topology make_topology(std::initializer_list<NodeConfig> nodes, TopologySize size) {
  return {.nodes = nodes, .size = size};
}

std::vector<Role> roles_of_engine() { return {kSpawnOrder.begin(), kSpawnOrder.end()}; }

/// One of what configs/ has, by number.
Topology topology_number(std::uint64_t number) {
  const std::vector<Role> front = {Role::kFrontend, Role::kRequestRouter};
  switch (number % 5) {
    case 0:
      return single_process_topology({.num_workers = 2, .num_groups = 1});
    case 1:  // a process for the front, the engine and each worker
      return make_topology({{.name = "front", .roles = front},
                            {.name = "core", .roles = roles_of_engine()},
                            {.name = "worker-0", .workers = {0}},
                            {.name = "worker-1", .workers = {1}}},
                           {.num_workers = 2, .num_groups = 1});
    case 2: {  // one for each role
      Topology topology{.size = {.num_workers = 1, .num_groups = 1}};
      for (const RoleSpec& spec : kRoles)
        topology.nodes.push_back({.name = std::string(spec.name), .roles = {spec.role}});
      topology.nodes.push_back({.name = "worker-0", .workers = {0}});
      return topology;
    }
    case 3:  // groups, one of which begins later
      return make_topology({{.name = "front", .roles = front},
                            {.name = "group-0", .roles = roles_of_engine(), .workers = {0}},
                            {.name = "group-1",
                             .roles = roles_of_engine(),
                             .workers = {0},
                             .groups = {1},
                             .optional = true}},
                           {.num_workers = 1, .num_groups = 2});
    default:  // two hosts
      return make_topology({{.name = "front", .roles = front},
                            {.name = "core", .roles = roles_of_engine(), .workers = {0}},
                            {.name = "worker-1", .host = "10.0.0.2", .workers = {1}}},
                           {.num_workers = 2, .num_groups = 1});
  }
}

/// Processes, actors, a network and a clock.
class World {
 public:
  /// `calm`: nothing goes wrong by itself.
  explicit World(std::uint64_t seed, bool calm = false)
      : random_(seed), topology_(topology_number(seed)), calm_(calm) {
    processes_.resize(topology_.nodes.size());
    core_ = make_core();
    if (is_single_process()) {
      processes_[0].running = true;
      begin_node(0);
      core_->add_own_node(processes_[0].node, processes_[0].heart);
    }
    tell([&] { core_->start(now_); });
    for (std::size_t node = 0; node < processes_.size(); ++node) {
      if (is_remote(node) || topology_.nodes[node].optional) start_by_hand(node);
    }
    check_later();
  }

  /// Disturbs it until there were so many events.
  void run(std::uint64_t num_events) {
    disturb_later();
    while (num_events_ < num_events && !over()) step();
  }
  /// Nothing is disturbed any more: it must come to an end of one of the two kinds.
  void settle() {
    calm_ = true;
    while (!core_) step();
    const double deadline = now_ + 3600;
    while (!over() && now_ < deadline && !is_serving()) step();
    BOOST_TEST((over() || is_serving()),
               "after an hour of peace there is neither an engine nor "
               "a failure");
    if (over()) BOOST_TEST(!failure_.empty());
  }
  /// Until every group serves; false: not within an hour.
  [[nodiscard]] bool wait_for_all() {
    const double deadline = now_ + 3600;
    while (now_ < deadline && !serves_all()) step();
    return serves_all();
  }
  /// The Supervisor is stopped (SIGSTOP), without notice.
  void sleep(double seconds) {
    asleep_until_ = now_ + seconds;
    while (now_ < asleep_until_ + 2 * kNodeTimeout_s) step();
  }
  /// What runs can be ended.
  void stop() {
    if (!quit_) tell([&] { core_->stop(now_); });
    const double deadline = now_ + 60;
    while (!quit_ && now_ < deadline) step();
    BOOST_TEST(quit_, "the Supervisor has not ended within a minute");
    for (std::size_t node = 0; node < processes_.size(); ++node) {
      if (!is_remote(node) && !topology_.nodes[node].optional && !is_single_process())
        BOOST_TEST(!processes_[node].running, "process " << topology_.nodes[node].name);
    }
  }

  /// Its process dies; another one comes later.
  void kill_supervisor(double absence_s) {
    if (!core_ || is_single_process()) return;
    core_.reset();
    handles_.clear();
    watched_.clear();
    answered_ = false;
    for (Process& process : processes_) {
      if (process.running) process.orphaned_at = now_;
    }
    later(absence_s, [this] { start_supervisor(); });
  }
  /// The Supervisor dies when only the RequestRouter has been notified that the group ends.
  void die_ending_group(std::size_t group) {
    dies_at_loss_ = true;
    tell([&] { BOOST_TEST(core_->end_group(now_, group).ok()); });
    BOOST_TEST(!core_);
  }
  [[nodiscard]] int num_spawned() const noexcept { return num_spawned_; }
  [[nodiscard]] std::uint64_t num_events() const noexcept { return num_events_; }
  [[nodiscard]] bool is_serving() const {
    return core_ && core_->is_up() &&
           std::all_of(
               watched_.begin(), watched_.end(),
               [&](ActorId actor) { return !is_known(actor) || actors_.at(actor).alive; }) &&
           router_has_engines() && nodes_know_encoders();
  }
  [[nodiscard]] int num_refused() const noexcept { return num_refused_; }
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }

 private:
  struct Process {
    bool running = false;
    bool silent = false;     ///< stopped, or cut off
    bool is_child = false;   ///< of the Supervisor
    std::uint64_t run = 0;   ///< counts its starts
    std::uint64_t life = 0;  ///< as the Supervisor counts them
    std::int64_t pid = 0;
    ActorId node = kNobody;
    ActorId heart = kNobody;
    double heard_at = 0;
    double busy_s = 0;
    /// What was sent to its actors while it was silent, in order: the network delivers it later.
    std::vector<std::pair<ActorId, std::function<void()>>> held;
    // For the next Supervisor.
    double orphaned_at = 0;  ///< 0: it is not
    std::uint64_t epoch = 0;
    bool prepared = false;
    bool has_tokenizer = false;
    std::vector<std::pair<RunningActor, ActorId>> runs;
    std::map<std::uint32_t, GroupRecord> records;
  };
  struct Actor {
    std::size_t node = 0;
    bool alive = true;
  };
  /// The RequestRouter's state of a group; engines are identified by their OutputProcessor.
  struct RoutedGroup {
    ActorId engine = kNobody;
    ActorId lost = kNobody;  ///< the last one whose requests it has taken back
  };

  std::unique_ptr<Supervision> make_core() {
    return std::make_unique<Supervision>(
        SupervisionConfig{.topology = topology_,
                          .parallel = {.tensor_parallel_size = topology_.size.num_workers},
                          .supervisor_host = "127.0.0.1",
                          .node_timeout_s = kNodeTimeout_s,
                          .step_timeout_s = 300,
                          .epoch = epoch_,
                          .name = "test",
                          .secret = "secret",
                          .settle = [this](std::span<const ModelLoaded> loaded,
                                           const KVCacheConfig& before) -> Result<SettledModel> {
                            BOOST_TEST(std::ssize(loaded) == topology_.size.num_workers);
                            if (one_in(500)) return invalid_argument("the ranks do not agree");
                            SettledModel settled{.model = loaded.front(), .cache = before};
                            settled.cache.num_blocks = 10;
                            return settled;
                          }});
  }

  // ---- Time and chance

  bool one_in(std::uint32_t n) { return !calm_ && random_() % n == 0; }
  double delay(double most) { return most * static_cast<double>(random_() % 1000) / 1000; }
  void later(double delay_s, std::function<void()> what) {
    queue_.emplace(now_ + delay_s, std::move(what));
  }
  /// For this Supervisor, and no later one.
  void later_here(double delay_s, std::function<void()> what) {
    later(delay_s, [this, epoch = epoch_, what = std::move(what)] {
      if (core_ && epoch == epoch_) what();
    });
  }
  void step() {
    auto next = queue_.extract(queue_.begin());
    now_ = std::max(now_, next.key());
    next.mapped()();
  }
  bool over() const { return quit_ || !failure_.empty(); }

  /// An event, and what the core does about it.
  template <class Event>
  void tell(Event event) {
    if (quit_ || !core_) return;
    ++num_events_;
    event();
    for (auto commands = core_->take_commands(); !commands.empty();
         commands = core_->take_commands()) {
      for (const Command& command : commands) {
        BOOST_REQUIRE_MESSAGE(!quit_, "there is a command behind the last one");
        std::visit([this](const auto& what) { carry_out(what); }, command);
        // The RequestRouter has taken the requests back, but their engine has not been ended.
        if (std::holds_alternative<SendLoss>(command) && answered_ &&
            (std::exchange(dies_at_loss_, false) || one_in(20)))
          kill_supervisor(delay(2));
        if (!core_) return;
      }
    }
  }
  void check_later() {
    later(kCheckInterval_s, [this] {
      if (core_) --num_events_;  // counts for nothing
      if (now_ >= asleep_until_) tell([&] { core_->check(now_); });
      if (core_) std::erase_if(handles_, [&](ActorId actor) { return !core_->knows(actor); });
      for (std::size_t node = 0; node < processes_.size(); ++node) {
        const Process& process = processes_[node];
        if (process.orphaned_at > 0) {
          if (now_ - process.orphaned_at > kSupervisorTimeout_s)
            end_process(node, "no supervisor", LossCause::kOutside);
          continue;
        }
        if (process.running && process.node != kNobody && !is_single_process() &&
            now_ - process.heard_at > 2 * kNodeTimeout_s)
          end_process(node, "it has heard nothing", LossCause::kOutside);
      }
      check_later();
    });
  }

  // ---- The Supervisor's own death

  void start_supervisor() {
    ++epoch_;
    core_ = make_core();
    for (std::size_t node = 0; node < processes_.size(); ++node) {
      Process& process = processes_[node];
      process.is_child = process.running && process.is_child;
      if (process.is_child) process.life = core_->adopt_process(now_, node, process.pid);
    }
    tell([&] { core_->start(now_); });
    for (std::size_t node = 0; node < processes_.size(); ++node) {
      if (processes_[node].running && processes_[node].node != kNobody) join_later(node);
    }
  }

  // ---- What there is

  /// No group is absent.
  bool serves_all() const {
    if (!is_serving()) return false;
    const auto groups = core_->status().groups;
    return std::all_of(groups.begin(), groups.end(), [](const GroupStatus& group) {
      return group.state == GroupState::kServing;
    });
  }
  /// Each node of a group knows those that run, where the topology has any.
  bool nodes_know_encoders() const {
    std::size_t num_encoders = 0;
    for (const NodeConfig& node : topology_.nodes) num_encoders += node.has(Role::kEncoder) ? 1 : 0;
    if (num_encoders == 0) return true;
    for (std::size_t index = 0; index < processes_.size(); ++index) {
      const Process& process = processes_[index];
      if (topology_.nodes[index].serves_all_groups() || process.node == kNobody) continue;
      const auto seen = encoders_seen_.find(process.node);
      if (seen == encoders_seen_.end() || seen->second.size() != num_encoders ||
          !std::all_of(seen->second.begin(), seen->second.end(),
                       [&](ActorId encoder) { return actors_.at(encoder).alive; }))
        return false;
    }
    return true;
  }
  bool is_single_process() const { return topology_.nodes.front().name.empty(); }
  bool is_remote(std::size_t node) const { return !topology_.nodes[node].host.empty(); }
  bool is_known(ActorId actor) const { return core_->knows(actor); }
  ActorId add_actor(std::size_t node) {
    actors_.emplace(++last_actor_, Actor{node});
    return last_actor_;
  }
  /// The end of an actor on a disconnected host is not reported.
  void end_actor(ActorId id, bool unreachable) {
    Actor& actor = actors_.at(id);
    if (!std::exchange(actor.alive, false) || !watched_.contains(id)) return;
    later_here(delay(0.2),
               [=, this] { tell([&] { core_->actor_down(now_, id, "down", unreachable); }); });
  }
  void begin_node(std::size_t node) {
    processes_[node].node = add_actor(node);
    processes_[node].heart = add_actor(node);
    processes_[node].heard_at = now_;
  }
  void end_process(std::size_t node, const std::string& how, LossCause cause) {
    Process& process = processes_[node];
    if (!std::exchange(process.running, false)) return;
    process.node = process.heart = kNobody;
    process.silent = false;
    process.orphaned_at = 0;
    process.runs.clear();
    process.held.clear();
    for (auto& [id, actor] : actors_) {
      if (actor.node == node && actor.alive) end_actor(id, true);
    }
    if (process.is_child) {
      const NodeExited exited{static_cast<std::uint32_t>(node), process.life, how, cause};
      later_here(delay(0.3), [=, this] { tell([&] { core_->process_exited(now_, exited); }); });
    } else if (is_remote(node)) {
      later(1 + delay(10), [=, this] { start_by_hand(node); });
    }
  }
  void start_by_hand(std::size_t node) {
    Process& process = processes_[node];
    if (process.running) return;
    process = {.running = true, .run = process.run + 1, .pid = ++last_pid_};
    join_later(node);
  }
  void join_later(std::size_t node) {
    later(delay(2), [=, this, run = processes_[node].run] {
      Process& process = processes_[node];
      if (!process.running || process.run != run || process.silent) return;
      if (!core_) return join_later(node);
      if (process.node == kNobody) begin_node(node);
      NodeAccepted accepted;
      JoinNode join{.version = TROUPE_VERSION,
                    .name = topology_.nodes[node].name,
                    .pid = process.pid,
                    .port = 1,
                    .epoch = process.epoch,
                    .prepared = process.prepared,
                    .has_tokenizer = process.has_tokenizer};
      std::vector<ActorId> actors = {process.node, process.heart};
      for (const auto& [what, actor] : process.runs) {
        join.actors.push_back(what);
        actors.push_back(actor);
      }
      for (const auto& [group, record] : process.records) join.groups.push_back(record);
      handles_.insert(actors.begin(), actors.end());
      tell([&] { accepted = core_->join(now_, join, actors); });
      if (!core_) return;  // it is to join the next one
      if (accepted.error && accepted.error->code == ErrorCode::kUnavailable)
        return join_later(node);
      if (accepted.error) return end_process(node, accepted.error->message, LossCause::kOutside);
      process.epoch = accepted.epoch;
      process.orphaned_at = 0;
      process.heard_at = now_;
      later_here(delay(1), [=, this, actor = process.node] {
        if (!is_heard(actor)) return;
        NodeConnected connected;
        if (one_in(100)) connected.error = Error{ErrorCode::kUnavailable, "10.0.0.3"};
        tell([&] { core_->node_connected(now_, actor, connected); });
      });
    });
  }
  /// Each serving group, with an engine whose requests the router has not taken back.
  bool router_has_engines() const {
    const auto routed = routed_.find(core_->router());
    const auto groups = core_->status().groups;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (groups[group].state != GroupState::kServing) continue;
      if (routed == routed_.end()) return false;
      const auto found = routed->second.find(static_cast<std::uint32_t>(group));
      if (found == routed->second.end() || found->second.engine == kNobody) return false;
    }
    return true;
  }
  bool is_heard(ActorId actor) const {
    const Actor& found = actors_.at(actor);
    return found.alive && !processes_[found.node].silent;
  }

  /// A message without an answer. The connection is lost only if the process ends.
  void deliver(ActorId whom, std::function<void()> message) {
    if (is_heard(whom)) return message();
    if (actors_.at(whom).alive)
      processes_[actors_.at(whom).node].held.emplace_back(whom, std::move(message));
  }
  void hear_again(std::size_t node) {
    processes_[node].silent = false;
    for (const auto& [actor, message] : std::exchange(processes_[node].held, {})) {
      if (actors_.at(actor).alive) message();
    }
  }

  // ---- The commands of the core

  /// `answer` is called with an error or none, now or when the deadline has passed.
  void ask(ActorId whom, const std::function<void(std::optional<Error>)>& answer) {
    BOOST_REQUIRE(actors_.contains(whom));
    later_here(delay(1), [=, this] {
      if (is_heard(whom)) {
        const bool fails = one_in(200);
        return tell([&] {
          answer(fails ? std::optional(Error{ErrorCode::kInternal, "it does not work"})
                       : std::nullopt);
        });
      }
      later_here(kAskDeadline_s, [=, this] {
        tell([&] { answer(Error{ErrorCode::kUnavailable, "no answer"}); });
      });
    });
  }
  /// The same for actors, that many.
  void ask_for_actors(ActorId node, std::size_t count, const RunningActor& actor,
                      const std::function<void(const SpawnedActors&)>& answer) {
    ask(node, [=, this](const std::optional<Error>& error) {
      SpawnedActors spawned{.error = error, .actors = {}};
      auto& runs = processes_[actors_.at(node).node].runs;
      std::erase_if(runs, [&](const auto& each) {  // the last one in this place
        const RunningActor& other = each.first;
        return std::tie(other.is_worker, other.role, other.group, other.rank) ==
               std::tie(actor.is_worker, actor.role, actor.group, actor.rank);
      });
      for (std::size_t i = 0; i < count && !error; ++i) {
        spawned.actors.push_back(add_actor(actors_.at(node).node));
        runs.emplace_back(actor, spawned.actors.back());
        handles_.insert(spawned.actors.back());
      }
      answer(spawned);
    });
  }

  void carry_out(const StartProcess& what) {
    Process& process = processes_[what.node];
    BOOST_TEST(!topology_.nodes[what.node].name.empty());
    if (one_in(100)) {
      return core_->process_failed(now_, what.node, what.life,
                                   {ErrorCode::kIo, "there is no such program"});
    }
    if (process.running) {  // started by hand before: this one will be rejected
      BOOST_TEST(!process.is_child, "a second process for node " << what.node);
    }
    process = {.running = true,
               .silent = one_in(30),
               .is_child = true,
               .run = process.run + 1,
               .life = what.life,
               .pid = ++last_pid_};
    core_->process_started(what.node, what.life, process.pid);
    join_later(what.node);
  }
  void carry_out(const KillProcess& what) {
    BOOST_TEST(!is_remote(what.node));
    end_process(what.node, "killed", LossCause::kKilled);
  }
  void carry_out(const BeatHeart& what) {
    if (!is_heard(what.heart)) return;
    Process& process = processes_[actors_.at(what.heart).node];
    process.heard_at = now_;
    later_here(delay(0.1), [=, this] {
      if (!is_heard(what.heart)) return;
      --num_events_;  // counts for nothing
      const double busy_s = processes_[actors_.at(what.heart).node].busy_s;
      tell([&] { core_->heart_beat(now_, what.heart, {busy_s}); });
    });
  }
  void carry_out(const SendLeave& what) {
    deliver(what.node, [=, this] {
      end_process(actors_.at(what.node).node, "it was asked to", LossCause::kOutside);
    });
  }
  void carry_out(const AskPrepare& what) {
    ask(what.actor, [=, this](const std::optional<Error>& error) {
      Process& process = processes_[what.node];
      if (!error) (what.question.read_tokenizer ? process.has_tokenizer : process.prepared) = true;
      core_->node_prepared(now_, what.node, what.visit, Status{error});
    });
  }
  void carry_out(const AskWorker& what) {
    ++num_spawned_;
    const RunningActor worker{
        .is_worker = true, .group = what.question.group, .rank = what.question.rank};
    ask_for_actors(what.node, 1, worker, [=, this](const SpawnedActors& spawned) {
      core_->worker_spawned(now_, what.incarnation, what.question, spawned);
    });
  }
  void carry_out(const AskLoad& what) {
    BOOST_TEST(std::ssize(what.ranks) == what.parallel.world_size());
    for (const RankPlacement& rank : what.ranks) BOOST_TEST(rank.rank_on_host < rank.ranks_on_host);
    ask_workers(what.executor, what.group, what.incarnation,
                std::vector<WorkerResult>(what.ranks.size(), ModelLoaded{}));
  }
  void carry_out(const AskWorkers& what) {
    ask_workers(what.executor, what.group, what.incarnation,
                std::vector<WorkerResult>(static_cast<std::size_t>(topology_.size.num_workers)));
  }
  void ask_workers(ActorId executor, std::uint32_t group, std::uint32_t incarnation,
                   const std::vector<WorkerResult>& results) {
    ask(executor, [=, this](const std::optional<Error>& error) {
      core_->workers_replied(now_, group, incarnation,
                             {error ? std::vector<WorkerResult>() : results, error});
    });
  }
  void carry_out(const AskRole& what) {
    const SpawnRole& question = what.question;
    BOOST_TEST(question.peers.size() == what.peers.size());
    for (const ActorId peer : what.peers) BOOST_TEST(actors_.contains(peer));
    for (const Peer peer : spec_of(question.role).peers()) {
      BOOST_TEST((peer == Peer::kRingNodes ||
                  std::count(question.peers.begin(), question.peers.end(), peer) > 0));
    }
    const std::size_t count =
        question.role == Role::kExecutor && !question.ring_ranks.empty() ? 2 : 1;
    ++num_spawned_;
    const RunningActor actor{.role = question.role,
                             .group = question.group,
                             .incarnation = question.incarnation,
                             .life = question.life};
    ask_for_actors(what.node, count, actor, [=, this](const SpawnedActors& spawned) {
      core_->role_spawned(now_, question, spawned);
    });
  }
  void carry_out(const AskListen& what) {
    ask(what.frontend, [=, this](const std::optional<Error>& error) {
      core_->port_opened(now_, what.life, {.port = 80, .error = error});
    });
  }
  void carry_out(const SendEngine& what) {
    BOOST_TEST(actors_.contains(what.router));
    for (const ActorId actor : what.input_processors) BOOST_TEST(actors_.contains(actor));
    BOOST_TEST(actors_.contains(what.output_processor));
    BOOST_TEST(actors_.contains(what.scheduler));
    deliver(what.router, [=, this, epoch = epoch_] {
      RoutedGroup& group = routed_[what.router][what.message.group];
      if (group.lost != what.output_processor) {
        group.engine = what.output_processor;
        return;
      }
      ++num_refused_;
      if (epoch != epoch_) return;  // the Supervisor that asked is dead
      later_here(delay(0.1), [=, this] {
        tell([&] { core_->engine_refused(now_, {what.message.group, what.message.incarnation}); });
      });
    });
  }
  void carry_out(const SendLoss& what) {
    BOOST_TEST(!what.message.reason.empty());
    deliver(what.router, [=, this] {
      RoutedGroup& group = routed_[what.router][what.message.group];
      if (group.engine != kNobody) group.lost = std::exchange(group.engine, kNobody);
    });
  }
  void carry_out(const SendHealth&) {}
  void carry_out(const SendRecord& what) {
    BOOST_TEST(std::ssize(what.record.loaded) == topology_.size.num_workers);
    deliver(what.node, [=, this] {
      processes_[actors_.at(what.node).node].records[what.record.group] = what.record;
    });
  }
  void carry_out(const SendRouter& what) {
    BOOST_TEST(actors_.contains(what.node));
    BOOST_TEST(actors_.contains(what.router));
  }
  void carry_out(const SendEncoders& what) {
    BOOST_TEST(actors_.contains(what.node));
    BOOST_TEST(what.message.names.size() == what.encoders.size());
    for (const ActorId encoder : what.encoders) BOOST_TEST(actors_.contains(encoder));
    deliver(what.node, [=, this] { encoders_seen_[what.node] = what.encoders; });
  }
  void carry_out(const WatchActor& what) {
    BOOST_TEST(is_known(what.actor));
    if (!is_single_process())
      BOOST_TEST(handles_.contains(what.actor), "an actor is named that was forgotten");
    watched_.insert(what.actor);
    Actor& actor = actors_.at(what.actor);
    if (actor.alive) return;
    actor.alive = true;  // its end is reported again
    end_actor(what.actor, !processes_[actor.node].running);
  }
  void carry_out(const EndActor& what) {
    if (!actors_.at(what.actor).alive) {
      watched_.insert(what.actor);
      actors_.at(what.actor).alive = true;
    }
    end_actor(what.actor, false);
  }
  void carry_out(const ConfirmLater& what) {
    later_here(0.2, [=, this] { tell([&] { core_->confirm_loss(now_, what.loss); }); });
  }
  void carry_out(const AnswerStart& what) {
    BOOST_TEST(!std::exchange(answered_, true));
    if (what.started.error) {
      failure_ = what.started.error->message;
    } else {
      BOOST_TEST(actors_.contains(what.router));
    }
  }
  void carry_out(const AnnounceRouter& what) { BOOST_TEST(actors_.contains(what.router)); }
  void carry_out(const AnnounceFailure& what) { failure_ = what.reason; }
  void carry_out(const Quit&) { quit_ = true; }

  // ---- What happens to it

  void disturb_later() {
    // Sometimes many at once, sometimes long peace.
    const double pause = random_() % 4 == 0 ? delay(2) : 10 + delay(120);
    later(pause, [this] {
      if (calm_) return;
      if (answered_ || one_in(20)) disturb();
      disturb_later();
    });
  }
  void disturb() {
    const std::size_t node = random_() % processes_.size();
    Process& process = processes_[node];
    switch (random_() % 9) {
      case 8:
        return kill_supervisor(random_() % 4 == 0 ? 30 + delay(60) : delay(30));
      case 0:
      case 1:
        if (!is_single_process()) end_process(node, "killed by signal 9", LossCause::kKilled);
        return;
      case 2: {  // any actor but a node's
        std::vector<ActorId> alive;
        for (const auto& [id, actor] : actors_) {
          const Process& home = processes_[actor.node];
          if (actor.alive && watched_.contains(id) && id != home.node) alive.push_back(id);
        }
        if (!alive.empty()) end_actor(alive[random_() % alive.size()], false);
        return;
      }
      case 3:  // stopped for good, or cut off for a while
        if (!process.running || is_single_process()) return;
        process.silent = true;
        if (random_() % 2 == 0) {
          later(delay(4 * kNodeTimeout_s), [=, this, run = process.run] {
            if (processes_[node].run == run) hear_again(node);
          });
        }
        return;
      case 4:
        if (!process.running) return;
        process.busy_s = 400;
        later(1, [=, this] { processes_[node].busy_s = 0; });
        return;
      case 5: {
        const auto group = random_() % groups_();
        tell([&] { static_cast<void>(core_->end_group(now_, group)); });
        return;
      }
      case 6:  // a node comes that was drained, or is there already
        if (!process.running) {
          if (is_remote(node) || topology_.nodes[node].optional) start_by_hand(node);
        } else if (is_remote(node)) {
          process.node = process.heart = kNobody;
          process.held.clear();
          ++process.run;
          join_later(node);
        }
        return;
      default:  // a stranger
        tell([&] {
          const JoinNode join{.version = TROUPE_VERSION, .name = "nobody"};
          BOOST_TEST(core_->join(now_, join, {1, 2}).error.has_value());
        });
    }
  }
  std::size_t groups_() const { return static_cast<std::size_t>(topology_.size.num_groups) + 1; }

  std::mt19937_64 random_;
  Topology topology_;
  bool calm_;
  double now_ = 1;
  std::multimap<double, std::function<void()>> queue_;
  std::unique_ptr<Supervision> core_;
  std::vector<Process> processes_;  ///< by node
  std::map<ActorId, Actor> actors_;
  std::map<ActorId, std::map<std::uint32_t, RoutedGroup>> routed_;  ///< by RequestRouter
  std::map<ActorId, std::vector<ActorId>> encoders_seen_;  ///< by node: what it was told last
  std::set<ActorId> watched_;
  std::set<ActorId> handles_;  ///< that commands may name
  ActorId last_actor_ = kNobody;
  std::int64_t last_pid_ = 100;
  std::uint64_t num_events_ = 0;
  std::uint64_t epoch_ = 0;
  int num_spawned_ = 0;  ///< asked for
  int num_refused_ = 0;  ///< engines, by the RequestRouter
  bool answered_ = false;
  bool dies_at_loss_ = false;
  double asleep_until_ = 0;
  bool quit_ = false;
  std::string failure_;
};

BOOST_AUTO_TEST_CASE(another_supervisor_takes_over_what_runs_and_starts_nothing) {
  set_log_level("off");
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      World world(seed, /*calm=*/true);
      world.settle();
      const int num_spawned = world.num_spawned();
      world.kill_supervisor(10);
      world.settle();
      BOOST_TEST(world.is_serving());
      BOOST_TEST(world.num_spawned() == num_spawned);
      world.stop();
    }
  }
  set_log_level("info");
}

BOOST_AUTO_TEST_CASE(an_engine_whose_requests_were_taken_back_is_replaced_by_the_next_supervisor) {
  constexpr std::uint64_t kTwoGroups = 3;  // modulo the number of topologies
  set_log_level("off");
  for (std::uint64_t seed = kTwoGroups; seed <= 50; seed += 5) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      World world(seed, /*calm=*/true);
      BOOST_REQUIRE(world.wait_for_all());
      world.die_ending_group(1);
      BOOST_REQUIRE(world.wait_for_all());
      BOOST_TEST(world.num_refused() == 1);
      world.stop();
    }
  }
  set_log_level("info");
}

BOOST_AUTO_TEST_CASE(a_supervisor_that_was_stopped_does_not_take_the_others_for_silent) {
  set_log_level("off");
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      World world(seed, /*calm=*/true);
      BOOST_REQUIRE(world.wait_for_all());
      const int num_spawned = world.num_spawned();
      world.sleep(1.5 * kNodeTimeout_s);
      BOOST_TEST(world.is_serving());
      BOOST_TEST(world.num_spawned() == num_spawned);
      world.stop();
    }
  }
  set_log_level("info");
}

BOOST_AUTO_TEST_CASE(whatever_ends_there_is_an_engine_again_or_a_failure_with_a_name) {
  constexpr std::uint64_t kEventsPerWorld = 500;
  set_log_level("off");
  const std::uint64_t num_events =
      testing::number_from_environment("TROUPE_PROPERTY_EVENTS", 50000);
  const std::uint64_t first_seed = testing::property_seed();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  std::uint64_t seed = first_seed, events = 0;
  std::map<std::string, int> ends;
  int num_refused = 0;
  for (; events < num_events; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      World world(seed);
      world.run(kEventsPerWorld);
      world.settle();
      ++ends[world.is_serving() ? "serving" : "failed"];
      num_refused += world.num_refused();
      world.stop();
      events += world.num_events();
    }
  }
  BOOST_TEST_MESSAGE(events << " events, " << ends["serving"] << " engines, " << ends["failed"]
                            << " failures, " << num_refused << " engines refused");
  set_log_level("info");
  if (num_events < 50000) return;
  BOOST_TEST(ends["serving"] > ends["failed"]);
  BOOST_TEST(ends["failed"] > 0);
  BOOST_TEST(num_refused > 0);
}

}  // namespace
}  // namespace troupe::supervision
