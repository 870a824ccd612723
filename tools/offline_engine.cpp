#include "tools/offline_engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "actors/deadlines.hpp"
#include "runtime/base/clock.hpp"
#include "runtime/config/topology.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {

Result<std::unique_ptr<OfflineEngine>> OfflineEngine::start(CommandLine& line, Http http) {
  ASSIGN_OR_RETURN(const Topology topology, options_topology(line.options));
  if (topology.nodes.size() > 1)
    return invalid_argument("the topology has " + std::to_string(topology.nodes.size()) +
                                " nodes, but this command runs the engine in its own process: "
                                "start `troupe serve` with "
                                "the topology, and use the server",
                            "config-file");
  RETURN_IF_ERROR(resolve_model(line.options));
  std::unique_ptr<OfflineEngine> offline(new OfflineEngine);
  RETURN_IF_ERROR(offline->config_.apply(line.caf_entries));
  offline->system_.emplace(offline->config_);
  ProgressBar progress("loading");
  offline->model_names_ = line.options.model.served_model_name;
  offline->has_adapters_ = line.options.engine.enable_lora;
  auto engine = troupe::start(
      *offline->system_,
      {.options = line.options,
       .serve_http = http == Http::kServed,
       .on_progress = [&](const LoadProgress& p) { progress.show(p.fraction, p.what); },
       .on_failure =
           [](const std::string& reason) {
             std::fprintf(stderr, "troupe: the engine failed: %s\n", reason.c_str());
             std::_Exit(kExitFailure);  // the main thread waits for outputs that will not arrive
           },
       .on_spawned =
           [link = offline->scheduler_](const std::string& kind, const caf::actor& actor) {
             const std::lock_guard lock(link->mutex);
             if (kind == "scheduler") link->actor = actor;
           }});
  if (!engine.ok()) {
    progress.finish();
    return engine.error();
  }
  progress.complete("ready");
  offline->engine_ = std::move(engine).value();
  offline->self_.emplace(*offline->system_);
  return offline;
}

OfflineEngine::~OfflineEngine() {
  self_.reset();
  {
    const std::lock_guard lock(scheduler_->mutex);
    scheduler_->actor = nullptr;
  }
  if (system_ && engine_.supervisor) stop(*system_, engine_, 0);
  guard_.arm(exit_code_);
}

Result<ServedModel> OfflineEngine::served_model(const std::string& model) {
  const bool is_base =
      model.empty() || std::ranges::find(model_names_, model) != model_names_.end();
  if (is_base || !has_adapters_) return find_served_model(model, model_names_, {});
  SchedulerActor scheduler;
  {
    const std::lock_guard lock(scheduler_->mutex);
    scheduler = caf::actor_cast<SchedulerActor>(scheduler_->actor);
  }
  AdapterReply adapters;
  ask(self_->ptr(), scheduler, kControlDeadline, ListAdapters{})
      .receive([&](AdapterReply& answer) { adapters = std::move(answer); },
               [&](const caf::error& error) {
                 adapters.error = Error{ErrorCode::kInternal, to_text(error, *system_)};
               });
  if (adapters.error) return *adapters.error;
  return find_served_model(model, model_names_, adapters.adapters);
}

RequestId OfflineEngine::submit(GenerateRequest request, Placement placement) {
  const RequestId id{next_id_};
  next_id_ += static_cast<std::uint64_t>(request.params.n);
  request.id = id;
  if (request.external_id.empty()) request.external_id = to_string(id);
  request.arrival_time = wall_seconds();
  send(self_->ptr(), engine_.handles.router,
       SubmitRequest{.request = std::move(request), .placement = std::move(placement)});
  return id;
}

void OfflineEngine::abort(RequestId id) {
  send(self_->ptr(), engine_.handles.router, AbortRequests{{id}});
}

RequestOutputs OfflineEngine::next() {
  RequestOutputs result;
  (*self_)->receive([&](RequestOutputs& outputs) { result = std::move(outputs); });
  return result;
}

std::optional<RequestOutputs> OfflineEngine::next_within(double seconds) {
  std::optional<RequestOutputs> result;
  (*self_)->receive([&](RequestOutputs& outputs) { result = std::move(outputs); },
                    caf::after(std::chrono::duration_cast<std::chrono::milliseconds>(
                        std::chrono::duration<double>(seconds))) >>
                        [] {});
  return result;
}

RequestOutput OfflineEngine::run(GenerateRequest request) {
  request.params.output_kind = OutputKind::kFinalOnly;
  const RequestId id = submit(std::move(request));
  for (;;) {
    for (RequestOutput& output : next().outputs) {
      if (output.id == id && output.finished) return std::move(output);
    }
  }
}

RenderReply OfflineEngine::render(RenderRequest request) {
  RenderReply reply;
  ask(self_->ptr(), engine_.handles.router, std::move(request))
      .receive([&](RenderReply& answer) { reply = std::move(answer); },
               [&](const caf::error& error) {
                 reply.error = Error{ErrorCode::kInternal, to_text(error, *system_)};
               });
  return reply;
}

}  // namespace troupe::tools
