#pragma once
// OpenAI's /v1/audio/transcriptions and /v1/audio/translations: what is said in a sound, window by
// window. Names and defaults are vLLM's.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/endpoints.hpp"
#include "runtime/http/openai_request.hpp"
#include "runtime/http/service_context.hpp"

namespace troupe {

enum class SpeechFormat : std::uint8_t { kJson, kText, kVerboseJson, kSrt, kVtt };

struct SpeechRequest : GenerationFields {
  bool translates = false;
  std::string language = "en";
  SpeechFormat format = SpeechFormat::kJson;
  std::string previous_text;  ///< `prompt`
  std::string file;           ///< the sound's bytes
  // What an InputProcessor made of it.
  std::vector<Prompt> prompts;  ///< by window
  std::vector<double> starts;   ///< of the windows, seconds
  double seconds = 0;           ///< of the whole sound

  /// The model is to say when.
  [[nodiscard]] bool has_times() const noexcept {
    return format != SpeechFormat::kJson && format != SpeechFormat::kText;
  }
};

/// Of a form's body. Errors: kCorrupt, kInvalidArgument, kUnsupported.
[[nodiscard]] Result<SpeechRequest> parse_speech_request(std::string_view content_type,
                                                         std::string_view body, bool translates);

/// What is said between two times, in seconds from the beginning of the sound.
struct SpeechSegment {
  double begin = 0;
  double end = 0;
  std::string text;
  bool operator==(const SpeechSegment&) const = default;
};
/// Of a window's text with its tokens for times, "<|0.00|> Hello.<|1.20|>"; other tokens of this
/// form are left out. A segment that is not ended ends with the window.
[[nodiscard]] std::vector<SpeechSegment> speech_segments(std::string_view text, double window_begin,
                                                         double window_end);
/// The body of the answer, and its media type. `texts`: by window.
struct SpeechBody {
  std::string content_type;
  std::string text;
};
[[nodiscard]] SpeechBody speech_body(const SpeechRequest& request,
                                     const std::vector<std::string>& texts);

/// `id` is the response's.
[[nodiscard]] std::unique_ptr<Exchange> start_speech(ServiceContext& context, ResponseSink& sink,
                                                     SpeechRequest request, std::string id);
/// generation_endpoints.cpp: counts the request for limits, and starts it. Pre: it has prompts.
[[nodiscard]] Result<Answer> begin_speech(ServiceContext& context, const HttpRequest& http,
                                          SpeechRequest request, ResponseSink& sink);

Endpoint answer_transcription;
Endpoint answer_translation;

}  // namespace troupe
