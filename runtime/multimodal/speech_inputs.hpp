#pragma once
// Requests to write down what is said in a sound, as the engine takes them: the decoder's prompt
// and the encoder's features (Whisper, arXiv 2212.04356).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/ids.hpp"
#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/multimodal/log_mel.hpp"

namespace troupe {

/// What a model that writes down sounds says to other requests.
[[nodiscard]] Error not_speech();

/// One window of a sound, and what is to become of it.
struct SpeechTask {
  std::vector<float> frames;  ///< LogMel::frames: [at most LogMelConfig::num_frames, num_mels]
  std::string language = "en";
  bool translates = false;    ///< into English
  bool timestamps = false;    ///< the model says when
  std::string previous_text;  ///< what was said before, or how it may be spelt
};

/// Of a conversation, as runtime/http's speech endpoints make it. Errors: kUnsupported, another
/// one.
[[nodiscard]] Result<SpeechTask> parse_speech_prompt(const ChatPrompt& prompt);

/// Constant after it is loaded; used by the InputProcessor.
class SpeechInputs {
 public:
  /// The id of a special token; nothing: there is none.
  using FindToken = std::function<std::optional<TokenId>(std::string_view)>;

  /// Reads preprocessor_config.json. num_rows: of an encoder's output.
  /// Errors: kCorrupt, kUnsupported (a field that would change the features), kNotFound; a token
  /// that prompts or timestamps need and that is not there.
  static Result<std::shared_ptr<const SpeechInputs>> load(const std::filesystem::path& model,
                                                          std::int64_t num_rows,
                                                          const FindToken& find_token);

  /// The features of the file in a conversation's document, as JSON: {"seconds": 2.5,
  /// "num_frames": of the sound, "num_mels", "window_frames": that the model takes at a time,
  /// "no_timestamps" and "end": token ids, "features": LogMel::frames in base64}. Errors: those of
  /// decode_audio.
  [[nodiscard]] Result<std::string> features(const ChatPrompt& prompt) const;

  struct Expanded {
    std::vector<TokenId> token_ids;
    MultiModalFeature item;
  };
  /// `previous`: the tokens of SpeechTask::previous_text, of which the last ones are taken.
  /// Errors: kInvalidArgument, a language that the model has no token for, frames that are no
  /// window.
  [[nodiscard]] Result<Expanded> expand(const SpeechTask& task,
                                        std::vector<TokenId> previous) const;
  [[nodiscard]] const LogMelConfig& config() const noexcept { return mel_.config(); }

 private:
  SpeechInputs(const LogMelConfig& config, std::int64_t num_rows, FindToken find_token);

  LogMel mel_;
  std::int64_t num_rows_;
  FindToken find_token_;
};

/// preprocessor_config.json of such a model. Errors as above.
[[nodiscard]] Result<LogMelConfig> load_log_mel_config(const std::filesystem::path& model);

}  // namespace troupe
