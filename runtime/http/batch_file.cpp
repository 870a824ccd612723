#include "runtime/http/batch_file.hpp"

#include <algorithm>
#include <array>
#include <fstream>

#include "runtime/base/ordered_json.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_object.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

using BatchJson = nlohmann::ordered_json;

constexpr std::size_t kMaxCustomIdBytes = 512;
constexpr std::array<std::string_view, 12> kBatchUrls = {"/v1/chat/completions",
                                                         "/v1/completions",
                                                         "/v1/responses",
                                                         "/v1/embeddings",
                                                         "/v1/messages",
                                                         "/pooling",
                                                         "/classify",
                                                         "/score",
                                                         "/v1/score",
                                                         "/rerank",
                                                         "/v1/rerank",
                                                         "/v2/rerank"};

Result<BatchJson> parse_line_object(std::string_view line) {
  auto parsed = parse_json_object(line);
  if (parsed.ok()) return *std::move(parsed);
  return invalid_argument("the line is not a JSON object in UTF-8 with at most " +
                          std::to_string(JsonFields::kMaxDepth) + " levels and " +
                          std::to_string(JsonFields::kMaxValues) + " values");
}

Result<std::string> batch_text(const BatchJson& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string())
    return invalid_argument(std::string(name) + " must be a string", name);
  return found->get<std::string>();
}

void append_result_head(std::string& json, std::string_view id, std::string_view custom_id) {
  json.append("{\"id\":\"batch_req_").append(id).append("\",\"custom_id\":");
  append_json_string(json, custom_id);
}

}  // namespace

Result<void> check_batch_url(std::string_view url, const std::string& field) {
  if (std::find(kBatchUrls.begin(), kBatchUrls.end(), url) != kBatchUrls.end()) return {};
  std::string known;
  for (const std::string_view each : kBatchUrls)
    known.append(known.empty() ? "" : ", ").append(each);
  return invalid_argument(
      field + " is \"" + std::string(url.substr(0, 128)) + "\", must be one of " + known, field);
}

Result<BatchLine> parse_batch_line(std::string_view line) {
  ASSIGN_OR_RETURN(const BatchJson object, parse_line_object(line));
  BatchLine request;
  ASSIGN_OR_RETURN(request.custom_id, batch_text(object, "custom_id"));
  if (request.custom_id.empty() || request.custom_id.size() > kMaxCustomIdBytes)
    return invalid_argument("custom_id has " + std::to_string(request.custom_id.size()) +
                                " bytes, it must have 1 to " + std::to_string(kMaxCustomIdBytes),
                            "custom_id");
  ASSIGN_OR_RETURN(const std::string method, batch_text(object, "method"));
  if (method != "POST")
    return invalid_argument("method is \"" + method.substr(0, 32) + "\", must be POST", "method");
  ASSIGN_OR_RETURN(request.url, batch_text(object, "url"));
  RETURN_IF_ERROR(check_batch_url(request.url, "url"));
  const auto body = object.find("body");
  if (body == object.end() || !body->is_object())
    return invalid_argument("body must be an object", "body");
  if (body->value("stream", BatchJson(false)) == true)
    return invalid_argument("body: stream is not supported in batches", "stream");
  request.body = body->dump(-1, ' ', false, BatchJson::error_handler_t::replace);
  return request;
}

std::string batch_result_json(std::string_view id, std::string_view custom_id, unsigned status,
                              std::string_view body) {
  std::string json;
  append_result_head(json, id, custom_id);
  json += ",\"response\":{\"status_code\":";
  append_json_integer(json, status);
  json.append(",\"request_id\":\"").append(id).append("\",\"body\":");
  if (BatchJson::accept(body))
    json += body;
  else
    append_json_string(json, body);
  return json + "},\"error\":null}";
}

std::string batch_failure_json(std::string_view id, std::string_view custom_id,
                               std::string_view code, std::string_view message) {
  std::string json;
  append_result_head(json, id, custom_id);
  json += ",\"response\":null,\"error\":{\"code\":";
  append_json_string(json, code);
  json += ",\"message\":";
  append_json_string(json, message);
  return json + "}}";
}

Result<std::unordered_set<std::string>> take_finished(const std::filesystem::path& file) {
  std::unordered_set<std::string> ids;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return ids;
  std::ifstream input(file, std::ios::binary);
  std::uintmax_t good_bytes = 0;
  std::size_t number = 0;
  for (std::string line; std::getline(input, line) && !input.eof();) {
    ++number;
    const BatchJson parsed = BatchJson::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto id = parsed.is_object() ? parsed.find("custom_id") : parsed.end();
    if (id == parsed.end() || !id->is_string() || !parsed.contains("response"))
      return invalid_argument(file.string() + ": line " + std::to_string(number) +
                              " is not a result of a batch; choose another file, or remove it");
    ids.insert(id->get<std::string>());
    good_bytes += line.size() + 1;
  }
  if (std::filesystem::file_size(file, error) != good_bytes && !error)
    std::filesystem::resize_file(file, good_bytes, error);
  if (error || input.bad())
    return Error{ErrorCode::kIo, "cannot read " + file.string() + ": " + error.message(), {}};
  return ids;
}

}  // namespace troupe
