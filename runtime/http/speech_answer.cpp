#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

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

/// The number of a token for a time.
std::optional<double> time_of(std::string_view token) {
  double seconds = 0;
  const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), seconds);
  if (error != std::errc() || stop != token.data() + token.size() || seconds < 0)
    return std::nullopt;
  return seconds;
}

void append_seconds(std::string& out, double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f", seconds);
  out += text.data();
}

/// What the answer to each window looks like, and where it is.
class SpeechGeneration final : public Generation {
 public:
  SpeechGeneration(ServiceContext& context, ResponseSink& sink, SpeechRequest request,
                   std::string id)
      : Generation(context, sink, request, std::move(id), {}), request_(std::move(request)) {
    std::vector<std::string> external_ids;
    for (std::size_t i = 0; i < request_.prompts.size(); ++i)
      external_ids.push_back(this->head().id + "-" + std::to_string(i));
    held_.resize(request_.prompts.size());
    std::vector<Prompt> prompts = std::move(request_.prompts);
    submit(std::move(prompts), external_ids, request_, false);
  }

 private:
  /// Windows are computed side by side, and shown one after the other.
  void append_events(std::string& out, Part& part) override {
    for (const CompletionOutput& output : part.pending.outputs)
      held_[static_cast<std::size_t>(part.index)] += output.text;
    while (shown_ < parts().size()) {
      std::string text = std::exchange(held_[shown_], {});
      if (!text.empty()) append_chunk(out, text, false);
      const Part& window = parts()[shown_];
      const bool has_more = window.has_pending && &window != &part;  // comes with the next call
      if (!window.finished || has_more) break;
      ++shown_;
    }
  }
  void append_end(std::string& out) override {
    for (; shown_ < held_.size(); ++shown_)
      if (!held_[shown_].empty()) append_chunk(out, held_[shown_], false);
    append_chunk(out, "", true);
  }
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

  [[nodiscard]] SpeechBody body() {
    std::vector<std::string> texts;
    for (Part& part : parts()) {
      std::string& text = texts.emplace_back();
      for (const CompletionOutput& output : part.pending.outputs) text += output.text;
    }
    return speech_body(request_, texts);
  }
  std::string final_json() override {
    SpeechBody made = body();
    content_type_ = std::move(made.content_type);
    return std::move(made.text);
  }
  [[nodiscard]] std::string_view final_type() const override { return content_type_; }
  [[nodiscard]] std::string_view stream_object() const override {
    return request_.translates ? "translation.chunk" : "transcription.chunk";
  }

  SpeechRequest request_;
  std::string content_type_;
  std::vector<std::string> held_;  ///< by window: not yet shown
  std::size_t shown_ = 0;          ///< windows that are shown to their ends
};

}  // namespace

std::vector<SpeechSegment> speech_segments(std::string_view text, double window_begin,
                                           double window_end) {
  std::vector<SpeechSegment> segments;
  SpeechSegment current{.begin = window_begin, .end = window_end, .text = {}};
  const auto finish = [&](double end) {
    if (!without_blanks(current.text).empty()) {
      current.end = std::max(end, current.begin);
      segments.push_back(current);
    }
    current = {.begin = end, .end = window_end, .text = {}};
  };
  while (!text.empty()) {
    const std::size_t token = text.find("<|");
    const std::size_t token_end = token == text.npos ? text.npos : text.find("|>", token + 2);
    if (token_end == text.npos) {
      current.text += text;
      break;
    }
    current.text += text.substr(0, token);
    if (const auto seconds = time_of(text.substr(token + 2, token_end - token - 2)))
      finish(std::min(window_begin + *seconds, window_end));
    text.remove_prefix(token_end + 2);
  }
  finish(window_end);
  return segments;
}

SpeechBody speech_body(const SpeechRequest& request, const std::vector<std::string>& texts) {
  std::string whole;
  std::vector<SpeechSegment> segments;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!request.has_times()) {
      whole += texts[i];
      continue;
    }
    const double end = i + 1 < request.starts.size() ? request.starts[i + 1] : request.seconds;
    for (SpeechSegment& segment : speech_segments(texts[i], request.starts[i], end)) {
      whole += segment.text;
      segments.push_back(std::move(segment));
    }
  }
  SpeechBody body{.content_type = "text/plain; charset=utf-8", .text = {}};
  std::string& out = body.text;
  std::size_t number = 0;
  switch (request.format) {
    case SpeechFormat::kText:
      out = whole + "\n";
      return body;
    case SpeechFormat::kSrt:
      for (const SpeechSegment& segment : segments)
        out += std::to_string(++number) + "\n" + clock_text(segment.begin, ',') + " --> " +
               clock_text(segment.end, ',') + "\n" + std::string(without_blanks(segment.text)) +
               "\n\n";
      return body;
    case SpeechFormat::kVtt:
      out = "WEBVTT\n\n";
      for (const SpeechSegment& segment : segments)
        out += clock_text(segment.begin, '.') + " --> " + clock_text(segment.end, '.') + "\n" +
               std::string(without_blanks(segment.text)) + "\n\n";
      return body;
    case SpeechFormat::kJson:
    case SpeechFormat::kVerboseJson:
      break;
  }
  body.content_type = "application/json";
  out = "{\"text\":";
  append_json_string(out, whole);
  if (request.format == SpeechFormat::kVerboseJson) {
    out += ",\"task\":";
    append_json_string(out, request.translates ? "translate" : "transcribe");
    out += ",\"language\":";
    append_json_string(out, request.language);
    out += ",\"duration\":";
    append_seconds(out, request.seconds);
    out += ",\"segments\":[";
    for (const SpeechSegment& segment : segments) {
      out += number == 0 ? "{\"id\":" : ",{\"id\":";
      append_json_integer(out, number++);
      out += ",\"start\":";
      append_seconds(out, segment.begin);
      out += ",\"end\":";
      append_seconds(out, segment.end);
      out += ",\"text\":";
      append_json_string(out, segment.text);
      out += '}';
    }
    out += ']';
  }
  out += ",\"usage\":{\"type\":\"duration\",\"seconds\":";
  append_json_integer(out, static_cast<std::int64_t>(std::ceil(request.seconds)));
  out += "}}";
  return body;
}

std::unique_ptr<Exchange> start_speech(ServiceContext& context, ResponseSink& sink,
                                       SpeechRequest request, std::string id) {
  return std::make_unique<SpeechGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
