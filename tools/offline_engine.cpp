#include "tools/offline_engine.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "actors/engine_settings.hpp"
#include "runtime/base/clock.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {

Result<std::unique_ptr<OfflineEngine>> OfflineEngine::start(CommandLine& line) {
  ASSIGN_OR_RETURN(line.options.model.model, model_folder(line.options));
  std::unique_ptr<OfflineEngine> offline(new OfflineEngine);
  RETURN_IF_ERROR(offline->config_.apply(line.caf_entries));
  offline->system_.emplace(offline->config_);
  offline->seed_ = first_seed(line.options.model);
  ProgressBar progress("loading");
  auto engine = troupe::start(
      *offline->system_,
      {.options = line.options,
       .serve_http = false,
       .on_progress = [&](const LoadProgress& p) { progress.show(p.fraction, p.what); },
       .on_failure =
           [](const std::string& reason) {
             std::fprintf(stderr, "troupe: the engine failed: %s\n", reason.c_str());
             std::_Exit(kExitFailure);  // the main thread waits for outputs that will not come
           }});
  if (!engine.ok()) {
    progress.finish();
    return engine.error();
  }
  progress.complete("ready");
  offline->engine_ = std::move(engine).value();
  offline->self_.emplace(*offline->system_);
  ask(offline->self_->ptr(), offline->engine_.handles.output_processor, Subscribe{})
      .receive([](const Status&) {}, [](const caf::error&) {});  // on_failure tells of its death
  return offline;
}

OfflineEngine::~OfflineEngine() {
  self_.reset();
  if (system_ && engine_.supervisor) stop(*system_, engine_, 0);
  guard_.arm(exit_code_);
}

const InputProcessorActor& OfflineEngine::input_processor(RequestId id) const {
  const auto& pool = engine_.handles.input_processors;
  return pool[value(id) % pool.size()];
}

RequestId OfflineEngine::submit(GenerateRequest request) {
  const RequestId id{next_id_};
  next_id_ += static_cast<std::uint64_t>(request.params.n);
  request.id = id;
  if (request.external_id.empty()) request.external_id = to_string(id);
  request.arrival_time = wall_seconds();
  request.params.philox_key = seed_ + value(id);
  send(self_->ptr(), input_processor(id), std::move(request));
  return id;
}

void OfflineEngine::abort(RequestId id) {
  send(self_->ptr(), input_processor(id), AbortRequests{{id}});
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
  ask(self_->ptr(), input_processor(RequestId{next_id_}), std::move(request))
      .receive([&](RenderReply& answer) { reply = std::move(answer); },
               [&](const caf::error& error) {
                 reply.error = Error{ErrorCode::kInternal, to_text(error, *system_)};
               });
  return reply;
}

}  // namespace troupe::tools
