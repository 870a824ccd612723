// An application with actors of its own beside the engine's, in one actor system and without HTTP:
// a Storyteller asks the engine for a text and gives each piece of it to a Printer as it comes.
//
//   storyteller --config-file=FILE [--num-tokens=N]     ; in FILE, [troupe] has the engine's
//   options
#include <caf/io/all.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <troupe/actors/module.hpp>
#include <troupe/actors/shutdown_guard.hpp>

namespace {

struct Config : caf::actor_system_config {
  std::int32_t num_tokens = 32;

  Config() {
    opt_group{custom_options_, "global"}.add(num_tokens, "num-tokens", "length of the story");
    load<caf::io::middleman>();
    load<troupe::module>();
  }
};

caf::behavior printer() {
  return {[](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }};
}

/// Owns its request, with what has come of it: an engine that is started again goes on behind that.
struct Story {
  Story() = default;
  static inline const char* name = "storyteller";
  troupe::GenerateRequest request;
};

/// Ends with the story.
caf::behavior storyteller(caf::stateful_actor<Story>* self, const caf::actor& printer,
                          std::int32_t num_tokens) {
  troupe::GenerateRequest& request = troupe::state(self).request;
  request.id = troupe::RequestId{1};
  request.external_id = "story";
  request.prompt = troupe::TextPrompt{"Once upon a time"};
  request.params.seed = 7;
  request.params.max_tokens = num_tokens;
  request.params.ignore_eos = true;
  request.params.output_kind = troupe::OutputKind::kDelta;
  request.emitted.resize(1);
  return {
      // There is an engine: at the start, and whenever it was started again.
      [=](const troupe::EngineReady&,
          const std::vector<troupe::InputProcessorActor>& input_processors,
          const troupe::OutputProcessorActor& output_processor, const troupe::SchedulerActor&) {
        troupe::ask(self, output_processor, troupe::Subscribe{}).then([=](const troupe::Status&) {
          troupe::send(self, input_processors.front(), troupe::state(self).request);
        });
      },
      // What a step has computed.
      [=](const troupe::RequestOutputs& outputs) {
        for (const troupe::RequestOutput& output : outputs.outputs) {
          if (output.error) return self->quit(troupe::exit_reason_of(output.error->message));
          for (const troupe::CompletionOutput& sample : output.outputs) {
            auto& emitted = troupe::state(self).request.emitted[0].token_ids;
            emitted.insert(emitted.end(), sample.token_ids.begin(), sample.token_ids.end());
            troupe::send(self, printer, sample.text);
          }
          if (output.finished) self->quit();
        }
      },
  };
}

int fail(const std::string& why) {
  std::fprintf(stderr, "storyteller: %s\n", why.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  Config config;
  if (auto error = config.parse(argc, argv)) return fail("wrong arguments");
  auto options = troupe::start_options(config);
  if (!options.ok()) return fail(options.error().message);

  troupe::ShutdownGuard guard;
  caf::actor_system system{config};
  const caf::actor teller = system.spawn(storyteller, system.spawn(printer), config.num_tokens);
  const auto introduce = [teller](const troupe::EngineHandles& engine) {
    troupe::post(teller, troupe::EngineReady{}, engine.input_processors, engine.output_processor,
                 engine.scheduler);
  };
  options->on_restart = [introduce](const troupe::EngineHandles& engine) {
    std::fprintf(stderr, "storyteller: the engine is there again\n");
    introduce(engine);
  };
  options->on_failure = [](const std::string& why) { std::_Exit(fail(why)); };

  auto engine = troupe::start(system, *options);
  if (!engine.ok()) {
    caf::anon_send_exit(teller, caf::exit_reason::kill);
    return fail(engine.error().message);
  }
  introduce(engine->handles);

  caf::scoped_actor self{system};
  caf::error reason;
  self->monitor(teller);
  self->receive([&](const caf::down_msg& down) { reason = down.reason; });
  troupe::stop(system, *engine, 0);
  const int code = reason ? fail(troupe::to_text(reason, system)) : 0;
  guard.arm(code);
  return code;
}
