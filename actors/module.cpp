#include "actors/module.hpp"

#include "actors/spawn.hpp"

namespace troupe {

Result<Engine> start(caf::actor_system& system, const StartOptions& options) {
  RETURN_IF_ERROR(validate(options.options));
  auto handles = std::make_shared<EngineHandles>();
  Engine engine;
  engine.supervisor = spawn_supervisor(system, options, handles);
  caf::scoped_actor self{system};
  std::optional<Error> failure;
  self->request(engine.supervisor, caf::infinite, Start{})
      .receive([&](Started& started) { engine.started = std::move(started); },
               [&](const caf::error& error) {
                 failure = Error{ErrorCode::kInternal, to_text(error, system)};
               });
  if (!failure) failure = engine.started.error;
  if (failure) {
    self->send_exit(engine.supervisor, caf::exit_reason::user_shutdown);
    return *failure;
  }
  engine.handles = *handles;
  return engine;
}

bool stop(caf::actor_system& system, Engine& engine, double drain_timeout_s) {
  caf::scoped_actor self{system};
  bool clean = false;
  self->request(engine.supervisor, caf::infinite, Stop{drain_timeout_s})
      .receive([&](const Stopped& stopped) { clean = stopped.clean; }, [](const caf::error&) {});
  engine = Engine{};
  return clean;
}

}  // namespace troupe
