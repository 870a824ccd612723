#include "actors/module.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <future>
#include <memory>

#include "actors/spawn.hpp"
#include "runtime/base/log.hpp"

extern char** environ;

namespace troupe {
namespace {

constexpr const char* kSection = "troupe";
constexpr std::string_view kNodeProgram = "node-program";
/// For the actors of an engine that does not start. One that loads a model ends later.
constexpr auto kEndDeadline = std::chrono::seconds(3);

/// The value as a command-line argument; nullopt: unsupported type.
std::optional<std::string> to_argument(const caf::config_value& value) {
  if (const auto text = caf::get_if<std::string>(&value)) return *text;
  if (const auto flag = caf::get_if<bool>(&value)) return *flag ? "true" : "false";
  std::array<char, 32> digits{};
  const auto print = [&](auto number) {
    const auto end = std::to_chars(digits.begin(), digits.end(), number).ptr;
    return std::string(digits.begin(), end);
  };
  if (const auto number = caf::get_if<std::int64_t>(&value)) return print(*number);
  if (const auto number = caf::get_if<double>(&value)) return print(*number);
  return std::nullopt;
}

/// The section as a command line, including the program name.
Result<std::vector<std::string>> to_arguments(const caf::settings& section) {
  std::vector<std::string> arguments(1);
  for (const auto& [name, value] : section) {
    const auto list = caf::get_if<caf::config_value::list>(&value);
    for (const caf::config_value& element : list ? *list : caf::config_value::list{value}) {
      const auto text = to_argument(element);
      if (!text) {
        return invalid_argument(std::string(kSection) + "." + name +
                                    " is neither a string, a number, a flag nor a list of those: " +
                                    caf::to_string(value),
                                name);
      }
      if (name == kNodeProgram) {
        arguments.front() = *text;
      } else {
        arguments.push_back("--" + name + "=" + *text);
      }
    }
  }
  return arguments;
}

}  // namespace

void configure_system(caf::actor_system_config& config) {
  add_message_types<caf::id_block::troupe>(config);
  add_message_types<caf::id_block::troupe_local>(config);
  add_message_types<caf::id_block::troupe_handles>(config);
  add_caf_type<ActorHandles>(config, "ActorHandles");
  tune(config);
}

Result<StartOptions> start_options(const caf::actor_system_config& config) {
  StartOptions start;
  start.serve_http = false;
  if (const auto section = caf::get_if<caf::settings>(&caf::content(config), kSection)) {
    ASSIGN_OR_RETURN(start.node_arguments, to_arguments(*section));
    start.node_program = std::move(start.node_arguments.front());
    start.node_arguments.erase(start.node_arguments.begin());
  }
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.emplace_back(*variable);
  OptionSet set;
  bind_options(set, start.options);
  // CAF settings in Troupe's own file apply to its nodes; this system has its own configuration.
  std::vector<ConfigEntry> for_caf;
  RETURN_IF_ERROR(load_options(set, start.options, start.node_arguments, environment, for_caf));
  for (const std::string& note : set.notes()) log_warning(note);
  return start;
}

namespace {

/// For a Supervisor that nobody monitors yet: what is attached first is called last.
std::shared_future<void> end_of(const SupervisorActor& supervisor) {
  auto ended = std::make_shared<std::promise<void>>();
  std::shared_future<void> future = ended->get_future().share();
  caf::actor_cast<caf::actor>(supervisor)->attach_functor([ended](const caf::error&) {
    ended->set_value();
  });
  return future;
}

}  // namespace

Result<Engine> start(caf::actor_system& system, const StartOptions& options) {
  RETURN_IF_ERROR(validate(options.options));
  set_log_level(options.options.log.log_level);
  auto handles = std::make_shared<EngineHandles>();
  Engine engine;
  engine.supervisor = spawn_supervisor(system, options, handles);
  engine.ended = end_of(engine.supervisor);
  caf::scoped_actor self{system};
  std::optional<Error> failure;
  ask(self.ptr(), engine.supervisor, Start{})
      .receive([&](Started& started) { engine.started = std::move(started); },
               [&](const caf::error& error) {
                 failure = Error{ErrorCode::kInternal, to_text(error, system)};
               });
  if (!failure) failure = engine.started.error;
  if (failure) {
    // Without the Supervisor, the actors that it has started would go on.
    ask(self.ptr(), engine.supervisor, kEndDeadline, Stop{})
        .receive([](const Stopped&) {}, [](const caf::error&) {});  // it may have ended
    self->send_exit(engine.supervisor, caf::exit_reason::user_shutdown);
    engine.ended.wait_for(kEndDeadline);
    return *failure;
  }
  engine.handles = *handles;
  return engine;
}

namespace {

bool end(caf::actor_system& system, Engine& engine, const Stop& how) {
  caf::scoped_actor self{system};
  bool clean = false;
  ask(self.ptr(), engine.supervisor, how)
      .receive([&](const Stopped& stopped) { clean = stopped.clean; }, [](const caf::error&) {});
  engine.ended.wait_for(kEndDeadline);
  engine = Engine{};
  return clean;
}

}  // namespace

bool stop(caf::actor_system& system, Engine& engine, double drain_timeout_s) {
  return end(system, engine, {.drain_timeout_s = drain_timeout_s});
}

bool retire(caf::actor_system& system, Engine& engine) {
  return end(system, engine, {.retire = true});
}

}  // namespace troupe
