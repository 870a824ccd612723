#include "runtime/http/rendering.hpp"

#include "runtime/base/memory.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

const Dialect& dialect_of(Rendering::Kind kind) {
  switch (kind) {
    case Rendering::Kind::kCountTokens:
      return kAnthropicDialect;
    case Rendering::Kind::kInputTokens:
      return kResponsesDialect;
    case Rendering::Kind::kTokenize:
    case Rendering::Kind::kDetokenize:
      break;
  }
  return kOpenAiDialect;
}

}  // namespace

Rendering::Rendering(ServiceContext& context, ResponseSink& sink, Kind kind, RenderRequest request)
    : context_(context),
      count_(context),
      sink_(sink),
      kind_(kind),
      show_strings_(request.return_token_strings),
      number_(context.next_rendering++),
      id_(context.port.allocate_ids(1)) {
  request.id = id_;
  context_.renderings.emplace(number_, this);
  // The reply arrives on another thread, possibly after the end of this object.
  context_.port.render(std::move(request), [&context, number = number_,
                                            post = context.environment.post](RenderReply reply) {
    post([&context, number, reply = std::move(reply)] {
      const auto waiting = context.renderings.find(number);
      if (waiting == context.renderings.end()) return;
      Rendering& rendering = *waiting->second;
      contain(rendering.sink(), [&] { rendering.answer(reply); });
    });
  });
}

Rendering::~Rendering() {
  context_.renderings.erase(number_);
  if (!answered_) context_.port.abort({id_});
}

void Rendering::answer(const RenderReply& reply) {
  answered_ = true;
  if (reply.error) return sink_.respond(error_response(*reply.error, 1, dialect_of(kind_)));
  std::string json;
  if (kind_ == Kind::kDetokenize) {
    json += "{\"prompt\":";
    append_json_string(json, reply.text);
  } else if (kind_ == Kind::kCountTokens) {
    json += "{\"input_tokens\":";
    append_json_integer(json, reply.token_ids.size());
    json += ",\"context_management\":{\"original_input_tokens\":";
    append_json_integer(json, reply.token_ids.size());
    json += '}';
  } else if (kind_ == Kind::kInputTokens) {
    json += R"({"object":"response.input_tokens","input_tokens":)";
    append_json_integer(json, reply.token_ids.size());
  } else {
    json += "{\"count\":";
    append_json_integer(json, reply.token_ids.size());
    json += ",\"max_model_len\":";
    append_json_integer(json, context_.config.defaults.max_model_len);
    json += ",\"tokens\":";
    append_json_array(json, reply.token_ids,
                      [](std::string& out, TokenId token) { append_json_integer(out, token); });
    json += ",\"token_strs\":";
    if (show_strings_) {
      append_json_array(json, reply.token_strings, [](std::string& out, const std::string& text) {
        append_json_string(out, text);
      });
    } else {
      json += "null";
    }
  }
  json += '}';
  constexpr std::size_t kFactor = 4;  // for the ids and texts that it was made of
  note_freed_memory(kFactor * json.size());
  sink_.respond({.status = 200, .content_type = "application/json", .body = std::move(json)});
}

}  // namespace troupe
