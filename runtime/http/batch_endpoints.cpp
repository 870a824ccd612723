#include <charconv>
#include <utility>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/batch_file.hpp"
#include "runtime/http/batch_store.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::int64_t kDefaultBatches = 20, kMaxListedBatches = 100;
constexpr std::int64_t kMaxWindowSeconds = 30 * 86400;
constexpr std::size_t kMaxMetadataPairs = 16, kMaxMetadataKey = 64, kMaxMetadataValue = 512;
constexpr Interval kOutputExpiry = {3600, 30 * 86400};

struct BatchFields {
  std::string input_file_id, endpoint, completion_window, metadata;
  std::int64_t window_s = 0;
  std::int64_t output_expires_s = 0;
};

/// OpenAI has 24h only; this has any number of s, m, h or d. 0: it is no such text.
std::int64_t seconds_of_window(std::string_view text) {
  constexpr std::pair<char, std::int64_t> kUnits[] = {
      {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end + 1 != text.data() + text.size()) return 0;
  for (const auto& [unit, seconds] : kUnits) {
    if (*end == unit && count >= 1 && count <= kMaxWindowSeconds / seconds) return count * seconds;
  }
  return 0;
}

void check_metadata(const JsonFields& fields, const std::string& text) {
  const auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.size() > kMaxMetadataPairs) {
    return fields.wrong_value("metadata", "metadata has " + std::to_string(object.size()) +
                                              " pairs, at most " +
                                              std::to_string(kMaxMetadataPairs) + " are allowed");
  }
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) return fields.wrong_form("metadata", "an object of strings");
    const std::size_t size = value.get_ref<const std::string&>().size();
    if (key.size() > kMaxMetadataKey || size > kMaxMetadataValue)
      return fields.wrong_value("metadata", "metadata has a key of " + std::to_string(key.size()) +
                                                " bytes with a value of " + std::to_string(size) +
                                                ", the limits are " +
                                                std::to_string(kMaxMetadataKey) + " and " +
                                                std::to_string(kMaxMetadataValue));
  }
}

Result<BatchFields> parse_batch_fields(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  BatchFields batch;
  for (const std::string_view name : {"input_file_id", "endpoint", "completion_window"})
    fields.require(name);
  batch.input_file_id = fields.text("input_file_id").value_or("");
  batch.endpoint = fields.text("endpoint").value_or("");
  batch.completion_window = fields.text("completion_window").value_or("");
  batch.window_s = seconds_of_window(batch.completion_window);
  if (fields.has("completion_window") && batch.window_s == 0)
    fields.wrong_value("completion_window",
                       "completion_window is \"" + batch.completion_window.substr(0, 32) +
                           "\", must be 24h, or another number of s, m, h or d, of 30d at most");
  if (const auto known = check_batch_url(batch.endpoint, "endpoint");
      fields.has("endpoint") && !known.ok())
    fields.wrong_value("endpoint", known.error().message);
  if (auto metadata = fields.raw("metadata", JsonKind::kObject)) {
    check_metadata(fields, *metadata);
    batch.metadata = *std::move(metadata);
  }
  if (const auto expiry = fields.object("output_expires_after")) {
    expiry->require("anchor");
    expiry->require("seconds");
    if (const auto anchor = expiry->text("anchor"); anchor && *anchor != "created_at")
      expiry->wrong_value("anchor",
                          "anchor is \"" + anchor->substr(0, 32) + "\", must be created_at");
    batch.output_expires_s = expiry->integer("seconds", kOutputExpiry).value_or(0);
  }
  RETURN_IF_ERROR(fields.result());
  return batch;
}

Result<Answer> try_create_batch(ServiceContext& context, const HttpRequest& http,
                                const Result<BatchFields>& parsed, ResponseSink& sink) {
  ASSIGN_OR_RETURN(const BatchFields fields, parsed);
  BatchStore& store = *context.counters.batches;
  const std::string owner = file_owner_of(http);
  const auto input = store.file(fields.input_file_id, owner);
  if (!input.ok() && input.error().code == ErrorCode::kNotFound)
    return invalid_argument(
        "input_file_id is \"" + fields.input_file_id.substr(0, 128) + "\", there is no such file",
        "input_file_id");
  if (!input.ok()) return input.error();
  if (input->purpose != "batch")
    return invalid_argument("input_file_id is \"" + input->id + "\", whose purpose is " +
                                input->purpose + ", must be batch",
                            "input_file_id");
  const auto now = static_cast<std::int64_t>(context.environment.wall_clock());
  StoredBatch batch{.id = "batch_" + context.random_id(),
                    .owner = owner,
                    .responses_owner = owner_of(http),
                    .endpoint = fields.endpoint,
                    .input_file_id = input->id,
                    .completion_window = fields.completion_window,
                    .metadata = fields.metadata,
                    .output_expires_s = fields.output_expires_s,
                    .created_at = now,
                    .expires_at = now + fields.window_s};
  batch.reached(BatchStatus::kValidating) = now;
  RETURN_IF_ERROR(store.add_batch(batch));
  if (context.counters.batches_changed) context.counters.batches_changed();
  sink.respond(json_response(batch_json(batch)));
  return Answer(nullptr);
}

Result<Answer> try_list_batches(ServiceContext& context, const HttpRequest& http,
                                ResponseSink& sink) {
  ASSIGN_OR_RETURN(const std::int64_t limit, list_limit(http, kDefaultBatches, kMaxListedBatches));
  ASSIGN_OR_RETURN(std::vector<StoredBatch> batches,
                   context.counters.batches->batches(
                       file_owner_of(http),
                       unescaped(query_value(http.target, "after").value_or("")), limit + 1));
  const bool has_more = static_cast<std::int64_t>(batches.size()) > limit;
  if (has_more) batches.pop_back();
  std::string json = "{\"object\":\"list\",\"data\":";
  append_json_array(json, batches,
                    [](std::string& out, const StoredBatch& batch) { out += batch_json(batch); });
  const auto append_id = [&](std::string_view name, bool first) {
    json.append(",\"").append(name).append("\":");
    if (batches.empty()) {
      json += "null";
    } else {
      append_json_string(json, first ? batches.front().id : batches.back().id);
    }
  };
  append_id("first_id", true);
  append_id("last_id", false);
  sink.respond(json_response(json + (has_more ? ",\"has_more\":true}" : ",\"has_more\":false}")));
  return Answer(nullptr);
}

/// ID and what follows it in "/v1/batches/ID/more".
std::pair<std::string, std::string> batch_path_of(const HttpRequest& http) {
  const std::string rest = unescaped(http.path().substr(kBatchesPath.size() + 1));
  const std::size_t slash = rest.find('/');
  return {rest.substr(0, slash), slash == std::string::npos ? "" : rest.substr(slash + 1)};
}

Result<Answer> try_show_batch(ServiceContext& context, const HttpRequest& http, bool cancel,
                              ResponseSink& sink) {
  const auto [id, more] = batch_path_of(http);
  if (more != (cancel ? "cancel" : ""))
    return Error{ErrorCode::kNotFound, "no such path: " + std::string(http.path().substr(0, 256)),
                 ""};
  BatchStore& store = *context.counters.batches;
  const std::string owner = file_owner_of(http);
  const auto now = static_cast<std::int64_t>(context.environment.wall_clock());
  ASSIGN_OR_RETURN(const StoredBatch batch,
                   cancel ? store.cancel_batch(id, owner, now) : store.batch(id, owner));
  if (cancel && context.counters.batches_changed) context.counters.batches_changed();
  sink.respond(json_response(batch_json(batch)));
  return Answer(nullptr);
}

}  // namespace

Prepared prepare_batch(std::string_view body, const ServerDefaults&) {
  return [parsed = parse_batch_fields(body)](ServiceContext& context, const HttpRequest& http,
                                             ResponseSink& sink) {
    return try_create_batch(context, http, parsed, sink);
  };
}

Answer answer_batches(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_list_batches(context, http, sink), sink);
}

Answer answer_batch(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_show_batch(context, http, /*cancel=*/false, sink), sink);
}

Answer answer_cancelled_batch(ServiceContext& context, const HttpRequest& http,
                              ResponseSink& sink) {
  return answer_or_refuse(try_show_batch(context, http, /*cancel=*/true, sink), sink);
}

}  // namespace troupe
