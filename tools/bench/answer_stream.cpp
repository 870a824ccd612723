#include "tools/bench/answer_stream.hpp"

#include "runtime/base/json.hpp"

namespace troupe::tools {
namespace {

using Json = nlohmann::json;

/// The text of a completion's or a chat's chunk.
std::string chunk_text(const Json& choice) {
  const auto text_at = [](const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) return text_at(choice, "text");
  return text_at(*delta, "content") + text_at(*delta, "reasoning") +
         text_at(*delta, "reasoning_content");
}

std::int64_t count_at(const Json& usage, const char* key) {
  const auto found = usage.find(key);
  return found != usage.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

}  // namespace

bool EventStream::take_line(std::string_view line) {
  constexpr std::string_view kData = "data:";
  if (line.empty()) return !data_.empty();
  if (!line.starts_with(kData)) return false;
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (!data_.empty()) data_ += '\n';
  data_ += line;
  return false;
}

void AnswerRecorder::on_event(std::string_view data, double time) {
  if (data == "[DONE]") return;
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) {
    record_.error = "the server sent an event that is not a JSON object";
    return;
  }
  if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
    const auto message = error->is_object() ? error->find("message") : error->end();
    record_.error = error->is_object() && message != error->end() && message->is_string()
                        ? message->get<std::string>()
                        : error->dump();
    return;
  }
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    has_usage_ = true;
    record_.num_prompt_tokens = count_at(*usage, "prompt_tokens");
    record_.num_output_tokens = count_at(*usage, "completion_tokens");
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return;
  const Json& choice = choices->front();
  if (!choice.is_object()) return;
  const std::string text = chunk_text(choice);
  const auto reason = choice.find("finish_reason");
  ended_ = ended_ || (reason != choice.end() && !reason->is_null());
  record_.text += text;
  if (first_token_) {
    record_.token_latencies.push_back(time - last_chunk_);
  } else if (!text.empty() || choice.contains("text")) {
    first_token_ = time;
  }
  last_chunk_ = time;
}

RequestRecord AnswerRecorder::finish() && {
  record_.success = record_.error.empty() && ended_;
  if (!ended_ && record_.error.empty())
    record_.error = "the stream ended before the response was complete";
  record_.latency = last_chunk_;
  record_.first_token = first_token_.value_or(last_chunk_);
  if (!has_usage_ && first_token_) {
    record_.num_output_tokens = static_cast<std::int64_t>(record_.token_latencies.size()) + 1;
  }
  return std::move(record_);
}

}  // namespace troupe::tools
