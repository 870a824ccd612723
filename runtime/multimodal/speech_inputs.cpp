#include "runtime/multimodal/speech_inputs.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/encoder_input.hpp"
#include "runtime/base/base64.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/multimodal/audio_decoder.hpp"
#include "runtime/multimodal/data_url.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr const char* kSpeechFile = "preprocessor_config.json";
constexpr std::string_view kStart = "<|startoftranscript|>";
constexpr std::string_view kNoTimestamps = "<|notimestamps|>";
constexpr std::string_view kFirstTimestamp = "<|0.00|>";
constexpr std::string_view kEnd = "<|endoftext|>";

Error bad_preprocessor(const std::string& reason) {
  return Error{ErrorCode::kUnsupported, std::string(kSpeechFile) + ": " + reason, ""};
}

Result<std::vector<std::byte>> document_bytes(const json& document) {
  constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
  return decode_data_url("data:;base64," + document.get<std::string>(), kMaxBytes);
}

}  // namespace

Error not_speech() {
  return Error{ErrorCode::kUnsupported,
               "the model writes down sounds, for /v1/audio/transcriptions, and does nothing else",
               "model"};
}

Result<SpeechTask> parse_speech_prompt(const ChatPrompt& prompt) {
  const json messages = json::parse(prompt.messages_json, nullptr, false);
  const json documents = json::parse(prompt.documents_json, nullptr, false);
  const json settings = json::parse(prompt.template_kwargs_json, nullptr, false);
  if (!messages.is_array() || messages.empty() || !documents.is_array() || documents.empty() ||
      !documents[0].is_string() || !settings.is_object() || !settings.contains("translates"))
    return not_speech();
  SpeechTask task{.frames = {},
                  .language = settings.value("language", ""),
                  .translates = settings.value("translates", false),
                  .timestamps = settings.value("timestamps", false),
                  .previous_text = messages[0].value("content", "")};
  ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, document_bytes(documents[0]));
  task.frames.resize(bytes.size() / sizeof(float));
  std::memcpy(task.frames.data(), bytes.data(), task.frames.size() * sizeof(float));
  return task;
}

Result<LogMelConfig> load_log_mel_config(const std::filesystem::path& model) {
  ASSIGN_OR_RETURN(const std::string text, read_model_text(model, kSpeechFile));
  const json fields = json::parse(text, nullptr, false);
  if (!fields.is_object())
    return Error{ErrorCode::kCorrupt, std::string(kSpeechFile) + ": not a JSON object", ""};
  const auto kind = fields.value("feature_extractor_type", "WhisperFeatureExtractor");
  if (kind != "WhisperFeatureExtractor")
    return bad_preprocessor("feature_extractor_type " + kind + " is not supported");
  const auto number = [&](const char* key, std::int64_t otherwise) {
    const auto found = fields.find(key);
    return found != fields.end() && found->is_number_integer() ? found->get<std::int64_t>()
                                                               : otherwise;
  };
  LogMelConfig config;
  config.num_mels = number("feature_size", config.num_mels);
  config.sampling_rate = number("sampling_rate", config.sampling_rate);
  config.hop_length = number("hop_length", config.hop_length);
  config.fft_size = number("n_fft", config.fft_size);
  config.num_samples = number("chunk_length", 30) * config.sampling_rate;
  constexpr std::int64_t kMax = 1 << 24;
  for (const std::int64_t size : {config.num_mels, config.sampling_rate, config.hop_length,
                                  config.fft_size, config.num_samples})
    if (size < 1 || size > kMax)
      return bad_preprocessor("a size is " + std::to_string(size) + ", not from 1 to " +
                              std::to_string(kMax));
  if (config.num_samples % config.hop_length != 0 || config.fft_size > config.num_samples)
    return bad_preprocessor("hop_length " + std::to_string(config.hop_length) + " and n_fft " +
                            std::to_string(config.fft_size) + " do not go with windows of " +
                            std::to_string(config.num_samples) + " samples");
  if (fields.value("dither", 0.0) != 0) return bad_preprocessor("dither is not supported");
  if (fields.value("do_normalize", false)) return bad_preprocessor("do_normalize is not supported");
  return config;
}

SpeechInputs::SpeechInputs(const LogMelConfig& config, std::int64_t num_rows, FindToken find_token)
    : mel_(config), num_rows_(num_rows), find_token_(std::move(find_token)) {}

Result<std::shared_ptr<const SpeechInputs>> SpeechInputs::load(const std::filesystem::path& model,
                                                               std::int64_t num_rows,
                                                               const FindToken& find_token) {
  ASSIGN_OR_RETURN(const LogMelConfig config, load_log_mel_config(model));
  if (config.num_frames() != 2 * num_rows)
    return bad_preprocessor("a window has " + std::to_string(config.num_frames()) +
                            " frames, the model takes " + std::to_string(2 * num_rows));
  for (const std::string_view token : {kStart, kNoTimestamps, kFirstTimestamp, kEnd})
    if (!find_token(token))
      return Error{ErrorCode::kCorrupt, "tokenizer.json has no token " + std::string(token), ""};
  if (*find_token(kFirstTimestamp) != *find_token(kNoTimestamps) + 1)
    return Error{ErrorCode::kCorrupt,
                 "tokenizer.json: " + std::string(kFirstTimestamp) + " does not follow " +
                     std::string(kNoTimestamps),
                 ""};
  return std::shared_ptr<const SpeechInputs>(new SpeechInputs(config, num_rows, find_token));
}

Result<std::string> SpeechInputs::features(const ChatPrompt& prompt) const {
  const json documents = json::parse(prompt.documents_json, nullptr, false);
  const json settings = json::parse(prompt.template_kwargs_json, nullptr, false);
  if (!settings.is_object() || !settings.contains("features") || !documents.is_array() ||
      documents.empty() || !documents[0].is_string())
    return not_speech();
  ASSIGN_OR_RETURN(const std::vector<std::byte> file, document_bytes(documents[0]));
  const std::int64_t rate = config().sampling_rate;
  ASSIGN_OR_RETURN(const std::vector<float> samples, decode_audio(file, rate));
  const std::vector<float> frames = mel_.frames(samples);
  return json{{"seconds", static_cast<double>(samples.size()) / static_cast<double>(rate)},
              {"num_frames", std::ssize(samples) / config().hop_length},
              {"num_mels", config().num_mels},
              {"window_frames", config().num_frames()},
              {"no_timestamps", *find_token_(kNoTimestamps)},
              {"end", *find_token_(kEnd)},
              {"features", to_base64(std::as_bytes(std::span(frames)))}}
      .dump();
}

Result<SpeechInputs::Expanded> SpeechInputs::expand(const SpeechTask& task,
                                                    std::vector<TokenId> previous) const {
  const std::int64_t most = config().num_mels * config().num_frames();
  if (std::ssize(task.frames) > most || std::ssize(task.frames) % config().num_mels != 0)
    return invalid_argument("a window has " + std::to_string(task.frames.size()) +
                                " numbers, not up to " + std::to_string(most) + " in frames of " +
                                std::to_string(config().num_mels),
                            "file");
  Expanded expanded;
  std::vector<TokenId>& ids = expanded.token_ids;
  const auto add = [&](std::string_view token) {
    const std::optional<TokenId> id = find_token_(token);
    if (id) ids.push_back(*id);
    return id.has_value();
  };
  if (!previous.empty() && add("<|startofprev|>")) {
    // As many as Whisper was trained with: not more than half of its positions are for the past.
    constexpr std::ptrdiff_t kMaxPrevious = 223;
    const auto count = std::min(kMaxPrevious, std::ssize(previous));
    ids.insert(ids.end(), previous.end() - count, previous.end());
  }
  add(kStart);
  // Models of one language have no tokens for languages and tasks.
  if (find_token_("<|transcribe|>")) {
    if (!add("<|" + task.language + "|>"))
      return invalid_argument(
          "language is \"" + task.language.substr(0, 32) + "\", which the model has no token for",
          "language");
    add(task.translates ? "<|translate|>" : "<|transcribe|>");
  } else if (task.translates) {
    return Error{ErrorCode::kUnsupported, "the model does not translate", "model"};
  }
  if (!task.timestamps) add(kNoTimestamps);
  const std::vector<float> features = mel_.window(task.frames);
  const std::int64_t shape[] = {config().num_mels, config().num_frames()};
  expanded.item = {.modality = "audio",
                   .identifier = {},
                   .offset = 0,
                   .length = static_cast<std::int32_t>(num_rows_),
                   .is_embed = {},
                   .data = pack_encoder_input(shape, features)};
  expanded.item.identifier =
      to_hex(xxh3_128(std::string_view(expanded.item.data->data(), expanded.item.data->size())));
  return expanded;
}

}  // namespace troupe
