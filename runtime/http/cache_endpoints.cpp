// Administration of the prefix cache.

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/kv_lookup.hpp"
#include "runtime/base/ordered_json.hpp"
#include "runtime/http/cache_control.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/engine_call.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_object.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/target.hpp"
#include "runtime/kv_events/cached_prompts.hpp"

namespace troupe {
namespace {

using OrderedJson = nlohmann::ordered_json;

// ---- warm, pin, look up, move -------------------------------------------------------------------

/// So many prompts are computed at once.
constexpr std::size_t kWarmInFlight = 8;
/// Of a body; the server's own limit is lower.
constexpr std::size_t kMaxWarmBodies = 1 << 16;

/// What is done with prompts.
enum class PromptVerb : std::uint8_t {
  kWarm,
  kPin,     ///< as well
  kLookup,  ///< nothing is computed
  kMove     ///< from one group to another
};

/// A request for one prompt: what its parser made of it.
struct WarmBody {
  Prepared prepared;
  std::size_t index = 0;  ///< of the prompt
  std::int64_t group = 0;
  OrderedJson next;  ///< kMove: what the other group gets, with the answer's kv_transfer_params
  Prepare* prepare = nullptr;
};
using WarmBodies = std::vector<WarmBody>;

/// Prompts of another server's cache.
struct WarmSource {
  KVEventsSource events;
  std::size_t max_prompts = 0;  ///< 0: as many as the server takes
};

struct WarmRequest {
  PromptVerb verb = PromptVerb::kWarm;
  std::size_t num_prompts = 0;
  WarmBodies bodies;
  OrderedJson common = OrderedJson::object();  ///< of all prompts
  OrderedJson cache_control;                   ///< of those that are pinned
  std::optional<WarmSource> source;            ///< of further ones
  std::int64_t from = 0;                       ///< kMove: groups
  std::int64_t to = 0;

  /// The same request to each group, so that wherever a prompt goes later it is cached.
  void add(OrderedJson body, Prepare* prepare, const ServerDefaults& defaults) {
    for (const char* const name : {"stream_options", "n", "max_completion_tokens"})
      body.erase(name);
    body["stream"] = false;
    body["max_tokens"] = 1;
    if (verb == PromptVerb::kLookup) body["kv_transfer_params"] = OrderedJson::parse(kLookupParams);
    const std::size_t index = num_prompts++;
    if (verb == PromptVerb::kMove) {
      OrderedJson next = body;
      next["data_parallel_rank"] = to;
      body["data_parallel_rank"] = from;
      body["kv_transfer_params"] = {{"do_remote_decode", true}, {"do_remote_prefill", false}};
      bodies.push_back({prepare(body.dump(), defaults), index, from, std::move(next), prepare});
      return;
    }
    const auto add_to = [&](std::int64_t group) {
      bodies.push_back({prepare(body.dump(), defaults), index, group, {}, nullptr});
    };
    const auto rank = body.find("data_parallel_rank");
    if (rank != body.end() && !rank->is_null())
      return add_to(rank->is_number_integer() ? rank->get<std::int64_t>() : 0);
    for (std::int32_t group = 0; group < defaults.data_parallel_size; ++group) {
      if (defaults.data_parallel_size > 1) body["data_parallel_rank"] = group;
      add_to(group);
    }
  }
};

/// Errors: kInvalidArgument.
std::optional<WarmSource> parse_warm_source(const JsonFields& fields) {
  const auto events = fields.object("events");
  if (!events) return std::nullopt;
  WarmSource source;
  events->require("replay_endpoint");
  source.events.replay_endpoint = events->text("replay_endpoint").value_or("");
  source.events.topic = events->text("topic").value_or("");
  source.max_prompts =
      static_cast<std::size_t>(events->integer("max_prompts", {1, kMaxWarmBodies}).value_or(0));
  constexpr double kMaxTimeoutSeconds = 60;
  const double timeout_s = events->number("timeout_s", {0.1, kMaxTimeoutSeconds}).value_or(10);
  source.events.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout_s * 1000));
  return source;
}

/// A pinned conversation is pinned up to its end.
void mark_last_message(OrderedJson& conversation, const OrderedJson& cache_control) {
  const auto messages = conversation.find("messages");
  if (messages == conversation.end() || !messages->is_array() || messages->empty()) return;
  if (OrderedJson& last = messages->back(); last.is_object()) last["cache_control"] = cache_control;
}

Result<WarmRequest> parse_warm_request(std::string_view body, PromptVerb verb,
                                       const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  fields.text("model");
  fields.text("cache_salt");
  if (fields.element_kind("prompts") == JsonKind::kArray)
    fields.token_lists("prompts", defaults.vocab_size, kMaxWarmBodies);
  else
    fields.texts("prompts", kMaxWarmBodies);
  fields.each_object("conversations", [](const JsonFields& conversation) {
    conversation.require("messages");
    conversation.raw("messages", JsonKind::kArray);
  });
  WarmRequest request{.verb = verb};
  if (verb == PromptVerb::kWarm) request.source = parse_warm_source(fields);
  if (verb == PromptVerb::kPin) {
    const std::string ttl = fields.text("ttl").value_or("5m");
    if (const auto ttl_s = parse_cache_control("ephemeral", ttl, ""); !ttl_s.ok())
      fields.fail(ttl_s.error());
    request.cache_control = {{"type", "ephemeral"}, {"ttl", ttl}};
  }
  if (verb == PromptVerb::kMove) {
    const Interval groups = {0, static_cast<double>(defaults.data_parallel_size - 1)};
    for (const char* const name : {"from", "to"}) fields.require(name);
    request.from = fields.integer("from", groups).value_or(0);
    request.to = fields.integer("to", groups).value_or(0);
  }
  RETURN_IF_ERROR(fields.result());
  if (verb == PromptVerb::kMove && request.from == request.to)
    return invalid_argument("from and to are the same group", "to");

  ASSIGN_OR_RETURN(const OrderedJson given, parse_json_object(body));
  OrderedJson& common = request.common;
  for (const char* const name : {"model", "cache_salt"})
    if (const auto found = given.find(name); found != given.end() && !found->is_null())
      common[name] = *found;
  const auto each = [&](const char* name, auto&& add) {
    const auto found = given.find(name);
    if (found == given.end() || found->is_null()) return;
    if (found->is_string()) return add(*found);
    for (const OrderedJson& one : *found) add(one);
  };
  each("prompts", [&](const OrderedJson& prompt) {
    OrderedJson one = common;
    one["prompt"] = prompt;
    if (verb == PromptVerb::kPin) one["cache_control"] = request.cache_control;
    request.add(std::move(one), prepare_completion, defaults);
  });
  each("conversations", [&](const OrderedJson& conversation) {
    OrderedJson one = common;
    one.update(conversation);
    if (verb == PromptVerb::kPin) mark_last_message(one, request.cache_control);
    request.add(std::move(one), prepare_chat, defaults);
  });
  if (request.num_prompts == 0 && !request.source)
    return invalid_argument(verb == PromptVerb::kWarm
                                ? "there are neither prompts nor conversations nor events"
                                : "there are neither prompts nor conversations",
                            "prompts");
  return request;
}

/// Adds the prompts of its source. Blocks. Errors: of the source.
Result<WarmRequest> read_warm_source(WarmRequest request, const ServerDefaults& defaults,
                                     std::size_t max_prompts) {
  const WarmSource& source = *request.source;
  ASSIGN_OR_RETURN(const CachedPrompts cached, read_cached_prompts(source.events));
  const std::size_t left = max_prompts - request.num_prompts;
  for (const std::vector<TokenId>& prompt :
       cached.prompts(source.max_prompts == 0 ? left : std::min(left, source.max_prompts))) {
    OrderedJson one = request.common;
    one["prompt"] = prompt;
    request.add(std::move(one), prepare_completion, defaults);
  }
  return request;
}

/// Runs the requests, some at a time, and answers when all have ended.
class WarmCall final : public Exchange {
 public:
  WarmCall(ServiceContext& context, const HttpRequest& http, ResponseSink& sink,
           WarmRequest request)
      : context_(context),
        count_(context),
        http_(http),
        sink_(sink),
        request_(std::move(request)),
        self_(std::make_shared<WarmCall*>(this)) {
    http_.body.clear();
    if (request_.source)
      read_source();
    else
      start();
  }

 private:
  void start() {
    calls_.resize(request_.bodies.size());
    post_advance();
  }

  /// On a work thread: the other server may not answer.
  void read_source() {
    const auto read = [waiting = std::weak_ptr(self_), request = std::move(request_),
                       &config = context_.config, post = context_.environment.post] {
      auto result = std::make_shared<Result<WarmRequest>>(WarmRequest());
      try {
        *result = read_warm_source(request, config.defaults, config.max_warm_prompts);
      } catch (const std::exception& failure) {
        *result = Error{ErrorCode::kInternal, failure.what(), ""};
      }
      post([waiting, result] {
        const auto self = waiting.lock();
        if (!self) return;
        WarmCall& call = **self;
        contain(call.sink_, [&] {
          if (!result->ok()) return call.sink_.respond(error_response(result->error()));
          call.request_ = *std::move(*result);
          call.start();
        });
      });
    };
    if (!context_.environment.work) return read();
    context_.environment.work({.tenant = 0, .client = 0, .num_bytes = 0, .function = read});
  }

  /// What one of the requests is answered to.
  class Call final : public ResponseSink {
   public:
    explicit Call(WarmCall& owner) : owner_(owner) {}

    void respond(HttpResponse response) override {
      if (response_) return;
      response_ = std::move(response);
      owner_.post_advance();
    }
    void begin(HttpResponse head) override { streamed_ = std::move(head); }
    void write(std::string_view bytes, bool last) override {
      streamed_.body += bytes;
      if (last) respond(std::move(streamed_));
    }
    [[nodiscard]] bool ready() const noexcept override { return true; }
    void fail(std::string_view what) noexcept override {
      try {
        respond(error_response({ErrorCode::kInternal, std::string(what), ""}));
      } catch (...) {
        // Out of memory: the exchange waits until its client leaves.
      }
    }

    WarmCall& owner_;
    std::optional<HttpResponse> response_;
    HttpResponse streamed_;
    std::unique_ptr<Exchange> exchange_;
  };

  /// Nothing of a request is on the call stack then.
  void post_advance() {
    context_.environment.post([waiting = std::weak_ptr(self_)] {
      const auto self = waiting.lock();
      if (!self) return;
      WarmCall& call = **self;
      contain(call.sink_, [&] { call.advance(); });
    });
  }

  void advance() {
    if (is_answered_) return;  // calls that ended together have posted one of these each
    for (std::size_t i = num_ended_in_order_; i < next_; ++i) {
      if (calls_[i] == nullptr || !calls_[i]->response_) continue;
      end(i, *calls_[i]->response_);
      calls_[i].reset();
      --num_running_;
    }
    while (num_ended_in_order_ < next_ && calls_[num_ended_in_order_] == nullptr)
      ++num_ended_in_order_;
    while (next_ < calls_.size() && num_running_ < kWarmInFlight) {
      const std::size_t i = next_++;
      calls_[i] = std::make_unique<Call>(*this);
      ++num_running_;
      Call& call = *calls_[i];
      contain(call, [&] {
        Result<Answer> answer = request_.bodies[i].prepared(context_, http_, call);
        if (answer.ok())
          call.exchange_ = *std::move(answer);
        else
          call.respond(error_response(answer.error()));
      });
    }
    if (num_running_ > 0 || next_ < calls_.size()) return;
    is_answered_ = true;
    answer();
  }

  void end(std::size_t index, const HttpResponse& response) {
    if (response.status == 200 && request_.bodies[index].prepare != nullptr)
      return move_on(index, response);
    if (response.status == 200) {
      ++num_warm_;
      const auto body = OrderedJson::parse(response.body, nullptr, /*allow_exceptions=*/false);
      if (!body.is_object() || !body.contains("usage")) return;
      if (request_.verb == PromptVerb::kLookup) return add_found(index, body);
      num_tokens_ += body["usage"].value("prompt_tokens", std::int64_t{0});
      return;
    }
    if (!first_failure_) first_failure_ = response;
    errors_.push_back({{"index", request_.bodies[index].index}, {"message", response.error}});
  }

  /// The group that is to have it loads it from the one that has answered.
  void move_on(std::size_t index, const HttpResponse& response) {
    WarmBody& first = request_.bodies[index];
    const auto answer = OrderedJson::parse(response.body, nullptr, /*allow_exceptions=*/false);
    const auto params =
        answer.is_object() ? answer.value("kv_transfer_params", OrderedJson()) : OrderedJson();
    if (!params.is_object()) {
      const Error error{ErrorCode::kUnsupported,
                        "no other group can load from group " + std::to_string(first.group) +
                            ": kv-transfer-config has to name a PeerConnector with kv_both",
                        ""};
      if (!first_failure_) first_failure_ = error_response(error);
      errors_.push_back({{"index", first.index}, {"message", error.message}});
      return;
    }
    first.next["kv_transfer_params"] = params;
    Prepared prepared = first.prepare(first.next.dump(), context_.config.defaults);
    const std::size_t prompt = first.index;
    request_.bodies.push_back({std::move(prepared), prompt, request_.to, {}, nullptr});
    calls_.emplace_back();
  }

  /// What a group has of a prompt.
  void add_found(std::size_t index, const OrderedJson& body) {
    const auto found = body.find("kv_transfer_params");
    if (found == body.end() || !found->is_object()) return;
    const WarmBody& of = request_.bodies[index];
    OrderedJson group = {{"group", of.group}};
    group.update(*found);
    group.erase("num_tokens");
    OrderedJson& prompt = found_[of.index];
    if (prompt.is_null())
      prompt = {{"index", of.index},
                {"num_tokens", found->value("num_tokens", std::int64_t{0})},
                {"groups", OrderedJson::array()}};
    prompt["groups"].push_back(std::move(group));
  }

  void answer() {
    if (num_warm_ == 0 && first_failure_) return sink_.respond(*std::move(first_failure_));
    OrderedJson json;
    if (request_.verb == PromptVerb::kLookup) {
      OrderedJson prompts = OrderedJson::array();
      for (auto& [index, prompt] : found_) {
        // Ended in any order.
        std::ranges::sort(prompt["groups"].get_ref<OrderedJson::array_t&>(), {},
                          [](const OrderedJson& one) { return one["group"].get<std::int64_t>(); });
        prompts.push_back(std::move(prompt));
      }
      json = {{"prompts", std::move(prompts)}, {"errors", errors_}};
    } else {
      json = {{"status", status()},
              {"num_prompts", request_.num_prompts},
              {"num_computed", num_warm_},
              {"prompt_tokens", num_tokens_},
              {"errors", errors_}};
    }
    sink_.respond(json_response(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)));
  }

  [[nodiscard]] const char* status() const noexcept {
    if (request_.verb == PromptVerb::kPin) return "pinned";
    return request_.verb == PromptVerb::kMove ? "moved" : "warm";
  }

  ServiceContext& context_;
  const ExchangeCount count_;
  HttpRequest http_;  // for its key and its headers
  ResponseSink& sink_;
  WarmRequest request_;
  std::vector<std::unique_ptr<Call>> calls_;  // null: not started, or ended
  std::size_t next_ = 0;
  std::size_t num_ended_in_order_ = 0;
  std::size_t num_running_ = 0;
  bool is_answered_ = false;
  std::size_t num_warm_ = 0;
  std::int64_t num_tokens_ = 0;
  std::map<std::size_t, OrderedJson> found_;  // by the index of its prompt
  OrderedJson errors_ = OrderedJson::array();
  std::optional<HttpResponse> first_failure_;
  const std::shared_ptr<WarmCall*> self_;
};

Result<Answer> try_warm(ServiceContext& context, const HttpRequest& http,
                        const Result<WarmRequest>& parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(WarmRequest request, parsed);
  if (request.num_prompts > context.config.max_warm_prompts)
    return invalid_argument("there are " + std::to_string(request.num_prompts) +
                                " prompts, max-warm-prompts is " +
                                std::to_string(context.config.max_warm_prompts),
                            "prompts");
  return Answer(std::make_unique<WarmCall>(context, http, sink, std::move(request)));
}

Prepared prepare_verb(std::string_view body, PromptVerb verb, const ServerDefaults& defaults) {
  return [parsed = parse_warm_request(body, verb, defaults)](
             ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
    return try_warm(context, http, parsed, sink);
  };
}

// ---- export and import --------------------------------------------------------------------------

constexpr std::size_t kMaxNameBytes = 128;

/// Of a folder within the server's own.
Result<std::string> parse_cache_name(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  fields.require("name");
  std::string name = fields.text("name").value_or("");
  RETURN_IF_ERROR(fields.result());
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameBytes || name.front() == '.' ||
      !std::ranges::all_of(name, is_allowed))
    return invalid_argument("name must be 1 to " + std::to_string(kMaxNameBytes) +
                                " letters, digits, '.', '_' and '-', and not begin with '.'",
                            "name");
  return name;
}

Result<Answer> try_move_cache(ServiceContext& context, bool is_import,
                              const Result<std::string>& parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(const std::string name, parsed);
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.move_cache(
      {.is_import = is_import, .folder = context.config.admin_cache_directory + "/" + name},
      call->reply<CacheMoved>([is_import](const CacheMoved& moved) {
        if (moved.error) return error_response(*moved.error);
        std::string json = is_import ? R"({"status":"imported","num_blocks":)"
                                     : R"({"status":"exported","num_blocks":)";
        append_json_integer(json, moved.num_blocks);
        return json_response(json + "}");
      }));
  return Answer(std::move(call));
}

Prepared prepare_move(std::string_view body, bool is_import) {
  return [parsed = parse_cache_name(body), is_import](ServiceContext& context, const HttpRequest&,
                                                      ResponseSink& sink) {
    return try_move_cache(context, is_import, parsed, sink);
  };
}

Result<Answer> try_reset_prefix_cache(ServiceContext& context, const HttpRequest& http,
                                      ResponseSink& sink) {
  ResetCaches reset{.prefix_cache = true};
  ASSIGN_OR_RETURN(reset.preempt_running, query_flag(http.target, "reset_running_requests"));
  ASSIGN_OR_RETURN(reset.connector, query_flag(http.target, "reset_external"));
  auto call = std::make_unique<EngineCall>(context, sink);
  context.port.reset_caches(reset, call->reply<CachesReset>([](const CachesReset& done) {
    return json_response(done.ok ? R"({"success":true})" : R"({"success":false})");
  }));
  return Answer(std::move(call));
}

}  // namespace

Prepared prepare_warm(std::string_view body, const ServerDefaults& defaults) {
  return prepare_verb(body, PromptVerb::kWarm, defaults);
}

Prepared prepare_cache_pin(std::string_view body, const ServerDefaults& defaults) {
  return prepare_verb(body, PromptVerb::kPin, defaults);
}

Prepared prepare_cache_move(std::string_view body, const ServerDefaults& defaults) {
  return prepare_verb(body, PromptVerb::kMove, defaults);
}

Prepared prepare_cache_lookup(std::string_view body, const ServerDefaults& defaults) {
  return prepare_verb(body, PromptVerb::kLookup, defaults);
}

Prepared prepare_cache_export(std::string_view body, const ServerDefaults&) {
  return prepare_move(body, /*is_import=*/false);
}

Prepared prepare_cache_import(std::string_view body, const ServerDefaults&) {
  return prepare_move(body, /*is_import=*/true);
}

Answer answer_reset_prefix_cache(ServiceContext& context, const HttpRequest& http,
                                 ResponseSink& sink) {
  return answer_or_refuse(try_reset_prefix_cache(context, http, sink), sink);
}

}  // namespace troupe
