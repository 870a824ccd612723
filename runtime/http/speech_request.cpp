#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>

#include "runtime/http/dialect.hpp"
#include "runtime/http/multipart.hpp"
#include "runtime/http/speech.hpp"
#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxSpeechFieldBytes = 64 << 10;

constexpr std::pair<std::string_view, SpeechFormat> kSpeechFormats[] = {
    {"json", SpeechFormat::kJson},
    {"text", SpeechFormat::kText},
    {"verbose_json", SpeechFormat::kVerboseJson},
    {"srt", SpeechFormat::kSrt},
    {"vtt", SpeechFormat::kVtt}};

/// Fields of OpenAI's and vLLM's that would change the answer.
constexpr const char* kRefusedSpeechFields[] = {
    "include[]", "known_speaker_names[]", "known_speaker_references[]", "to_language", "hotwords",
    "vllm_xargs"};
/// Only false is supported.
constexpr const char* kNeverInSpeech[] = {"stream_include_usage", "stream_continuous_usage_stats",
                                          "use_beam_search"};
/// Only this value is supported.
constexpr std::pair<const char*, const char*> kNeutralSpeechFields[] = {
    {"chunking_strategy", "auto"}, {"n", "1"}, {"length_penalty", "1"}};

/// The fields of a form; the first error sticks.
class SpeechForm {
 public:
  Result<void> read(std::string_view content_type, std::string_view body) {
    ASSIGN_OR_RETURN(const std::string boundary, MultipartParser::boundary_of(content_type));
    std::string* field = nullptr;
    std::string name;
    MultipartParser parser(
        boundary, {.begin =
                       [&](const FormPart& part) {
                         name = part.name;
                         field = &fields_[part.name];
                         if (!field->empty()) *field += '\n';  // a list
                       },
                   .content =
                       [&](std::string_view bytes) {
                         field->append(bytes);
                         if (name != "file" && field->size() > kMaxSpeechFieldBytes)
                           fail(name,
                                "has more than " + std::to_string(kMaxSpeechFieldBytes) + " bytes");
                       }});
    parser.feed(body);
    return parser.finish();
  }
  [[nodiscard]] bool has(const std::string& name) const { return fields_.contains(name); }
  [[nodiscard]] std::string text(const std::string& name, std::string otherwise = {}) const {
    const auto found = fields_.find(name);
    return found == fields_.end() ? std::move(otherwise) : found->second;
  }
  template <class T>
  [[nodiscard]] T number(const std::string& name, T otherwise) {
    const auto found = fields_.find(name);
    if (found == fields_.end() || found->second.empty()) return otherwise;
    const std::string& text = found->second;
    T value{};
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || stop != text.data() + text.size())
      fail(name, "is \"" + text.substr(0, 64) + "\", not a number");
    return value;
  }
  [[nodiscard]] bool flag(const std::string& name) {
    const std::string text = this->text(name, "false");
    if (text == "true" || text == "True" || text == "1") return true;
    if (text != "false" && text != "False" && text != "0" && !text.empty())
      fail(name, "is \"" + text.substr(0, 64) + "\", neither true nor false");
    return false;
  }
  std::string take_file() { return std::move(fields_["file"]); }
  void fail(const std::string& name, const std::string& reason) {
    if (!error_) error_ = invalid_argument(name + " " + reason, name);
  }
  void refuse_unsupported() {
    for (const char* const name : kRefusedSpeechFields)
      if (!text(name).empty()) refuse(name);
    for (const char* const name : kNeverInSpeech)
      if (flag(name)) refuse(name);
    for (const auto& [name, neutral] : kNeutralSpeechFields)
      if (const std::string given = text(name, neutral); !given.empty() && given != neutral)
        refuse(name);
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  void refuse(const std::string& name) {
    if (!error_) error_ = unsupported(name, name);
  }

  std::map<std::string, std::string> fields_;
  std::optional<Error> error_;
};

}  // namespace

Result<SpeechRequest> parse_speech_request(std::string_view content_type, std::string_view body,
                                           bool translates) {
  SpeechForm form;
  RETURN_IF_ERROR(form.read(content_type, body));
  SpeechRequest request;
  request.dialect = &kOpenAiDialect;
  request.translates = translates;
  request.model = form.text("model");
  request.language = form.text("language", "en");
  request.previous_text = form.text("prompt");
  const std::string format = form.text("response_format", "json");
  const auto* const known =
      std::ranges::find(kSpeechFormats, format, [](const auto& each) { return each.first; });
  if (known == std::end(kSpeechFormats))
    form.fail("response_format",
              "is \"" + format.substr(0, 64) + "\", not one of json, text, verbose_json, srt, vtt");
  else
    request.format = known->second;
  request.stream = form.flag("stream");
  if (request.stream && request.has_times())
    form.fail("stream", "is true, but response_format " + format + " is not streamed");
  if (form.text("timestamp_granularities[]").find("word") != std::string::npos)
    return Error{ErrorCode::kUnsupported,
                 "timestamp_granularities has \"word\", supported is segment",
                 "timestamp_granularities"};
  form.refuse_unsupported();
  SamplingParams& params = request.params;
  params.temperature = form.number("temperature", 0.0f);
  params.top_p = form.number("top_p", params.top_p);
  params.top_k = form.number("top_k", params.top_k);
  params.min_p = form.number("min_p", params.min_p);
  params.repetition_penalty = form.number("repetition_penalty", params.repetition_penalty);
  params.frequency_penalty = form.number("frequency_penalty", params.frequency_penalty);
  params.presence_penalty = form.number("presence_penalty", params.presence_penalty);
  if (form.has("seed")) params.seed = form.number("seed", std::int64_t{0});
  if (form.has("max_completion_tokens"))
    params.max_tokens = form.number("max_completion_tokens", std::int32_t{0});
  params.skip_special_tokens = !request.has_times();
  if (request.stream) params.output_kind = OutputKind::kDelta;
  if (!form.has("file")) form.fail("file", "is missing from the form");
  if (form.error()) return *form.error();
  request.file = form.take_file();
  if (request.file.empty()) return invalid_argument("file is empty", "file");
  return request;
}

}  // namespace troupe
