#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "runtime/base/base64.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/speech.hpp"

namespace troupe {
namespace {

/// "00:01:02,345", or with a full stop.
std::string clock_text(double seconds, char point) {
  const auto ms = static_cast<long long>(std::llround(seconds * 1000));
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%02lld:%02lld:%02lld%c%03lld", ms / 3600000,
                ms / 60000 % 60, ms / 1000 % 60, point, ms % 1000);
  return text.data();
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// What is between "<|" and "|>" is a number of seconds.
bool is_time(std::string_view token) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), seconds);
  return error == std::errc() && stop == token.data() + token.size() && seconds >= 0;
}

void append_seconds(std::string& out, double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", seconds);
  out += text.data();
}

/// The text before, between and after the timestamps.
std::vector<std::string> texts_between_times(std::string_view text) {
  std::vector<std::string> texts(1);
  while (!text.empty()) {
    const std::size_t token = text.find("<|");
    const std::size_t token_end = token == text.npos ? text.npos : text.find("|>", token + 2);
    if (token_end == text.npos) {
      texts.back() += text;
      break;
    }
    texts.back() += text.substr(0, token);
    if (is_time(text.substr(token + 2, token_end - token - 2))) texts.emplace_back();
    text.remove_prefix(token_end + 2);
  }
  return texts;
}

/// From frame `seek` on, as an InputProcessor takes it.
Prompt window_prompt(const SpeechRequest& request, std::int64_t seek) {
  const Sound& sound = request.sound;
  const std::size_t frame_bytes = static_cast<std::size_t>(sound.num_mels) * sizeof(float);
  const auto rest = std::span(sound.features).subspan(static_cast<std::size_t>(seek) * frame_bytes);
  const std::size_t most = static_cast<std::size_t>(sound.window_frames) * frame_bytes;
  const auto features = rest.first(std::min(rest.size(), most));
  ChatPrompt prompt;
  prompt.messages_json = "[{\"role\":\"user\",\"content\":";
  append_json_string(prompt.messages_json, request.previous_text);
  prompt.messages_json += "}]";
  prompt.documents_json = "[\"" + to_base64(features) + "\"]";
  prompt.template_kwargs_json = "{\"language\":";
  append_json_string(prompt.template_kwargs_json, request.language);
  prompt.template_kwargs_json +=
      request.translates ? ",\"translates\":true" : ",\"translates\":false";
  prompt.template_kwargs_json +=
      request.is_timed() ? ",\"timestamps\":true}" : ",\"timestamps\":false}";
  return prompt;
}

/// One window after the other.
class SpeechGeneration final : public Generation {
 public:
  SpeechGeneration(ServiceContext& context, ResponseSink& sink, SpeechRequest request,
                   std::string id)
      : Generation(context, sink, request, std::move(id), {}),
        counters_(context.counters),
        request_(std::move(request)) {
    submit_window();
  }

 private:
  void submit_window() {
    submit({window_prompt(request_, seek_)}, {head().id + "-" + std::to_string(parts().size())},
           request_, false);
  }

  void take_output(const CompletionOutput& output) override {
    if (!request_.is_timed()) {
      text_ += output.text;
      return;
    }
    window_text_ += output.text;
    window_tokens_.insert(window_tokens_.end(), output.token_ids.begin(), output.token_ids.end());
  }
  void go_on() override {
    if (!request_.is_timed()) return;
    SpeechWindow window = speech_window(std::exchange(window_tokens_, {}),
                                        std::exchange(window_text_, {}), request_.sound, seek_);
    for (SpeechSegment& segment : window.segments) {
      text_ += segment.text;
      if (request_.has_times()) segments_.push_back(std::move(segment));
    }
    seek_ += window.num_frames;
    if (seek_ >= request_.sound.num_frames) return;
    ++counters_.num_samples;
    submit_window();
  }

  void append_events(std::string& out, Part& /*part*/) override {
    if (!text_.empty()) append_chunk(out, std::exchange(text_, {}), false);
  }
  void append_end(std::string& out) override { append_chunk(out, "", true); }
  void append_chunk(std::string& out, std::string_view text, bool is_last) const {
    out += "data: {\"id\":";
    append_json_string(out, head().id);
    out += ",\"object\":";
    append_json_string(out, stream_object());
    out += ",\"created\":";
    append_json_integer(out, head().created);
    out += ",\"model\":";
    append_json_string(out, head().model);
    out += ",\"choices\":[{\"delta\":{\"content\":";
    append_json_string(out, text);
    out += is_last ? "},\"finish_reason\":\"stop\"}]}\n\n" : "},\"finish_reason\":null}]}\n\n";
  }

  std::string final_json() override {
    SpeechBody made = speech_body(request_, text_, segments_);
    content_type_ = std::move(made.content_type);
    return std::move(made.text);
  }
  [[nodiscard]] std::string_view final_type() const override { return content_type_; }
  [[nodiscard]] std::string_view stream_object() const override {
    return request_.translates ? "translation.chunk" : "transcription.chunk";
  }

  ServiceCounters& counters_;
  SpeechRequest request_;
  std::string content_type_;
  std::int64_t seek_ = 0;  ///< the frame at which the window begins
  std::string window_text_;
  std::vector<TokenId> window_tokens_;
  std::string text_;  ///< of finished segments, not yet shown
  std::vector<SpeechSegment> segments_;
};

}  // namespace

SpeechWindow speech_window(std::span<const TokenId> token_ids, std::string_view text,
                           const Sound& sound, std::int64_t seek) {
  // As in transformers, WhisperGenerationMixin._retrieve_segment.
  constexpr double kFrameSeconds = 0.01;
  constexpr double kTimestampSeconds = 0.02;
  constexpr std::int64_t kTimestampFrames = 2;
  if (!token_ids.empty() && token_ids.back() == sound.end)
    token_ids = token_ids.first(token_ids.size() - 1);
  const std::vector<std::string> texts = texts_between_times(text);
  const auto is_timestamp = [&](std::size_t i) { return token_ids[i] > sound.no_timestamps; };
  const auto steps_at = [&](std::size_t i) {
    return is_timestamp(i) ? token_ids[i] - sound.no_timestamps - 1 : 0;
  };
  const double offset = static_cast<double>(seek) * kTimestampSeconds / kTimestampFrames;
  std::size_t num_times = 0;  // before the segment
  SpeechWindow window{.segments = {},
                      .num_frames = std::min(sound.num_frames - seek, sound.window_frames)};
  const auto add = [&](std::size_t begin, std::size_t end, double begin_steps, double end_steps) {
    const auto ids = token_ids.subspan(begin, end - begin);
    SpeechSegment segment{.seek = seek,
                          .begin = offset + begin_steps * kTimestampSeconds,
                          .end = offset + end_steps * kTimestampSeconds,
                          .text = {},
                          .token_ids = {ids.begin(), ids.end()}};
    bool is_taken = false;
    for (std::size_t i = begin; i < end; ++i) {
      if (is_timestamp(i)) {
        ++num_times;
        is_taken = false;
      } else if (!std::exchange(is_taken, true) && num_times < texts.size()) {
        segment.text += texts[num_times];
      }
    }
    window.segments.push_back(std::move(segment));
  };
  const std::size_t size = token_ids.size();
  std::vector<std::size_t> ends;  // of segments that end with a timestamp before another one
  for (std::size_t i = 1; i < size; ++i)
    if (is_timestamp(i - 1) && is_timestamp(i)) ends.push_back(i);
  if (ends.empty()) {
    double end_steps =
        std::floor(static_cast<double>(window.num_frames) * kFrameSeconds / kTimestampSeconds);
    for (std::size_t i = 0; i < size; ++i)
      if (steps_at(i) > 0) end_steps = steps_at(i);
    if (size > 0) add(0, size, 0, end_steps);
    return window;
  }
  // A single timestamp at the end: nothing is said behind it.
  const bool ends_once = is_timestamp(size - 1) && !is_timestamp(size - 2);
  if (ends_once)
    ends.push_back(size);
  else
    ++ends.back();  // as transformers has it, with the timestamp of what follows
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    const bool has_next = end == ends.back() && !ends_once;
    add(begin, end, steps_at(begin), steps_at(end - (has_next ? 2 : 1)));
    begin = end;
  }
  if (!ends_once && steps_at(begin - 2) > 0)
    window.num_frames = kTimestampFrames * steps_at(begin - 2);
  return window;
}

SpeechBody speech_body(const SpeechRequest& request, std::string_view text,
                       std::span<const SpeechSegment> segments) {
  SpeechBody body{.content_type = "text/plain; charset=utf-8", .text = {}};
  std::string& out = body.text;
  std::size_t number = 0;
  const auto add_subtitles = [&](char point, const auto& add_head) {
    for (const SpeechSegment& segment : segments) {
      const std::string_view spoken = without_blanks(segment.text);
      if (spoken.empty()) continue;
      add_head();
      out += clock_text(segment.begin, point) + " --> " + clock_text(segment.end, point) + "\n" +
             std::string(spoken) + "\n\n";
    }
  };
  switch (request.format) {
    case SpeechFormat::kText:
      out = std::string(text) + "\n";
      return body;
    case SpeechFormat::kSrt:
      add_subtitles(',', [&] { out += std::to_string(++number) + "\n"; });
      return body;
    case SpeechFormat::kVtt:
      out = "WEBVTT\n\n";
      add_subtitles('.', [] {});
      return body;
    case SpeechFormat::kJson:
    case SpeechFormat::kVerboseJson:
      break;
  }
  body.content_type = "application/json";
  out = "{\"text\":";
  append_json_string(out, text);
  if (request.format == SpeechFormat::kVerboseJson) {
    out += ",\"task\":";
    append_json_string(out, request.translates ? "translate" : "transcribe");
    out += ",\"language\":";
    append_json_string(out, request.language);
    out += ",\"duration\":";
    append_seconds(out, request.sound.seconds);
    out += ",\"segments\":[";
    for (const SpeechSegment& segment : segments) {
      out += number == 0 ? "{\"id\":" : ",{\"id\":";
      append_json_integer(out, number++);
      out += ",\"seek\":";
      append_json_integer(out, segment.seek);
      out += ",\"start\":";
      append_seconds(out, segment.begin);
      out += ",\"end\":";
      append_seconds(out, segment.end);
      out += ",\"text\":";
      append_json_string(out, segment.text);
      out += ",\"tokens\":[";
      for (std::size_t i = 0; i < segment.token_ids.size(); ++i) {
        if (i > 0) out += ',';
        append_json_integer(out, segment.token_ids[i]);
      }
      out += "]}";
    }
    out += ']';
  }
  out += ",\"usage\":{\"type\":\"duration\",\"seconds\":";
  append_json_integer(out, static_cast<std::int64_t>(std::ceil(request.sound.seconds)));
  out += "}}";
  return body;
}

std::unique_ptr<Exchange> start_speech(ServiceContext& context, ResponseSink& sink,
                                       SpeechRequest request, std::string id) {
  return std::make_unique<SpeechGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
