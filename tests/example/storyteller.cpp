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
#include <utility>

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

/// Asks for the story, and ends with it.
caf::behavior storyteller(caf::event_based_actor* self, const troupe::RequestRouterActor& engine,
                          const caf::actor& printer, std::int32_t num_tokens) {
  troupe::GenerateRequest request;
  request.id = troupe::RequestId{1};
  request.prompt = troupe::TextPrompt{"Once upon a time"};
  request.params.seed = 7;
  request.params.max_tokens = num_tokens;
  request.params.ignore_eos = true;
  request.params.output_kind = troupe::OutputKind::kDelta;
  troupe::send(self, engine, troupe::SubmitRequest{std::move(request), {}});
  return {
      // What a step has computed.
      [=](const troupe::RequestOutputs& outputs) {
        for (const troupe::RequestOutput& output : outputs.outputs) {
          if (output.error) return self->quit(troupe::exit_reason_of(output.error->message));
          for (const troupe::CompletionOutput& sample : output.outputs)
            troupe::send(self, printer, sample.text);
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
  options->on_failure = [](const std::string& why) { std::_Exit(fail(why)); };

  auto engine = troupe::start(system, *options);
  if (!engine.ok()) return fail(engine.error().message);
  const caf::actor teller =
      system.spawn(storyteller, engine->handles.router, system.spawn(printer), config.num_tokens);
  caf::scoped_actor self{system};
  caf::error reason;
  self->monitor(teller);
  self->receive([&](const caf::down_msg& down) { reason = down.reason; });
  troupe::stop(system, *engine, 0);
  const int code = reason ? fail(troupe::to_text(reason, system)) : 0;
  guard.arm(code);
  return code;
}
