#pragma once
// OpenAI's /v1/audio/transcriptions and /v1/audio/translations: what is said in a sound. Names and
// defaults are vLLM's. A sound longer than the model's window is transcribed as transformers'
// `generate` does it (Whisper's long form, arXiv 2212.04356, 3.8): the next window begins at the
// last timestamp that the model has predicted.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/endpoints.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

enum class SpeechFormat : std::uint8_t { kJson, kText, kVerboseJson, kSrt, kVtt };

/// What an InputProcessor made of a file.
struct Sound {
  double seconds = 0;
  std::int64_t num_frames = 0;      ///< of 10 ms
  std::int64_t num_mels = 0;        ///< numbers of a frame
  std::int64_t window_frames = 0;   ///< that the model takes at a time
  TokenId no_timestamps = 0;        ///< the ids of timestamps are larger
  TokenId end = 0;                  ///< of a transcript
  std::vector<std::byte> features;  ///< [frames, num_mels], float
};

struct SpeechRequest : GenerationFields {
  bool translates = false;
  std::string language = "en";
  SpeechFormat format = SpeechFormat::kJson;
  std::string previous_text;  ///< `prompt`
  std::string file;           ///< the sound's bytes
  Sound sound;

  /// The answer has timestamps.
  [[nodiscard]] bool has_times() const noexcept {
    return format != SpeechFormat::kJson && format != SpeechFormat::kText;
  }
  /// The model is to say when.
  [[nodiscard]] bool is_timed() const noexcept {
    return has_times() || sound.num_frames > sound.window_frames;
  }
};

/// Of a form's body. Errors: kCorrupt, kInvalidArgument, kUnsupported.
[[nodiscard]] Result<SpeechRequest> parse_speech_request(std::string_view content_type,
                                                         std::string_view body, bool translates);

/// What is said between two times, in seconds from the beginning of the sound.
struct SpeechSegment {
  std::int64_t seek = 0;  ///< the frame at which its window begins
  double begin = 0;
  double end = 0;
  std::string text;
  std::vector<TokenId> token_ids;  ///< with those of its timestamps
  bool operator==(const SpeechSegment&) const = default;
};
/// The transcript of one window.
struct SpeechWindow {
  std::vector<SpeechSegment> segments;
  std::int64_t num_frames = 0;  ///< to the beginning of the next window
};
/// Of what a model generated for the window that begins at frame `seek`: its tokens, and its text
/// with timestamps, "<|0.00|> Hello.<|1.20|>"; other tokens of this form are left out. What follows
/// the last pair of timestamps belongs to the next window.
[[nodiscard]] SpeechWindow speech_window(std::span<const TokenId> token_ids, std::string_view text,
                                         const Sound& sound, std::int64_t seek);
/// The body of the answer, and its media type.
struct SpeechBody {
  std::string content_type;
  std::string text;
};
[[nodiscard]] SpeechBody speech_body(const SpeechRequest& request, std::string_view text,
                                     std::span<const SpeechSegment> segments);

/// `id` is the response's.
[[nodiscard]] std::unique_ptr<Exchange> start_speech(ServiceContext& context, ResponseSink& sink,
                                                     SpeechRequest request, std::string id);
/// generation_endpoints.cpp: counts the request for limits, and starts it. Pre: it has a sound.
[[nodiscard]] Result<Answer> begin_speech(ServiceContext& context, const HttpRequest& http,
                                          SpeechRequest request, ResponseSink& sink);

Endpoint answer_transcription;
Endpoint answer_translation;

}  // namespace troupe
