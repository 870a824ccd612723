// Sounds: from files of every format to samples, windows and features.
#include "runtime/multimodal/speech_inputs.hpp"

#include <sndfile.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>

#include "runtime/base/file.hpp"
#include "runtime/multimodal/audio_decoder.hpp"

namespace troupe {
namespace {

const std::string kWhisper = TROUPE_GOLDEN_DIR "/models/models/whisper";

/// A tone that grows, `seconds` long.
std::vector<float> tone(double hz, double rate, double seconds) {
  std::vector<float> samples;
  const auto count = static_cast<int>(rate * seconds);
  for (int i = 0; i < count; ++i)
    samples.push_back(
        static_cast<float>(0.5 * i / count * std::sin(2 * std::numbers::pi * hz * i / rate)));
  return samples;
}

struct Bytes {
  std::string data;
  sf_count_t place = 0;
};

std::string encode(const std::vector<float>& samples, int rate, int channels, int format) {
  SF_VIRTUAL_IO io{
      [](void* user) { return static_cast<sf_count_t>(static_cast<Bytes*>(user)->data.size()); },
      [](sf_count_t offset, int whence, void* user) {
        auto& bytes = *static_cast<Bytes*>(user);
        bytes.place = whence == SEEK_SET   ? offset
                      : whence == SEEK_CUR ? bytes.place + offset
                                           : static_cast<sf_count_t>(bytes.data.size()) + offset;
        return bytes.place;
      },
      [](void* out, sf_count_t count, void* user) {
        auto& bytes = *static_cast<Bytes*>(user);
        count = std::min(count, static_cast<sf_count_t>(bytes.data.size()) - bytes.place);
        std::memcpy(out, bytes.data.data() + bytes.place, static_cast<std::size_t>(count));
        bytes.place += count;
        return count;
      },
      [](const void* from, sf_count_t count, void* user) {
        auto& bytes = *static_cast<Bytes*>(user);
        bytes.data.resize(
            std::max(bytes.data.size(), static_cast<std::size_t>(bytes.place + count)));
        std::memcpy(bytes.data.data() + bytes.place, from, static_cast<std::size_t>(count));
        bytes.place += count;
        return count;
      },
      [](void* user) { return static_cast<Bytes*>(user)->place; }};
  Bytes bytes;
  SF_INFO info{.frames = 0,
               .samplerate = rate,
               .channels = channels,
               .format = format,
               .sections = 0,
               .seekable = 0};
  SNDFILE* const file = sf_open_virtual(&io, SFM_WRITE, &info, &bytes);
  BOOST_REQUIRE_MESSAGE(file != nullptr, sf_strerror(nullptr));
  std::vector<float> frames;
  for (const float sample : samples)
    for (int channel = 0; channel < channels; ++channel)
      frames.push_back(channel == 0 ? sample : -sample / 2);
  sf_writef_float(file, frames.data(), static_cast<sf_count_t>(samples.size()));
  sf_close(file);
  return bytes.data;
}

Result<std::vector<float>> decode(const std::string& file, const AudioLimits& limits = {}) {
  return decode_audio(std::as_bytes(std::span(file)), 16000, limits);
}

double error_of(const std::vector<float>& a, const std::vector<float>& b, std::size_t offset = 0) {
  double sum = 0;
  const std::size_t count = std::min(a.size() - offset, b.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto difference = static_cast<double>(a[i + offset] - b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

BOOST_AUTO_TEST_CASE(sounds_of_every_format_are_read) {
  const std::vector<float> samples = tone(440, 16000, 1);
  const auto wav = decode(encode(samples, 16000, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16));
  BOOST_REQUIRE(wav.ok());
  BOOST_TEST(wav->size() == samples.size());
  BOOST_TEST(error_of(*wav, samples) < 2e-5);
  const auto flac = decode(encode(samples, 16000, 1, SF_FORMAT_FLAC | SF_FORMAT_PCM_16));
  BOOST_REQUIRE(flac.ok());
  BOOST_TEST((*flac == *wav));
  const auto ogg = decode(encode(samples, 16000, 1, SF_FORMAT_OGG | SF_FORMAT_VORBIS));
  BOOST_REQUIRE(ogg.ok());
  BOOST_TEST(error_of(*ogg, samples) < 0.02);
  const auto mp3 = decode(encode(samples, 16000, 1, SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III));
  BOOST_REQUIRE(mp3.ok());
  BOOST_TEST(mp3->size() >= samples.size());
  // Channels are averaged: the second one is minus half of the first.
  const auto stereo = decode(encode(samples, 16000, 2, SF_FORMAT_WAV | SF_FORMAT_FLOAT));
  BOOST_REQUIRE(stereo.ok());
  std::vector<float> quarter = samples;
  for (float& sample : quarter) sample /= 4;
  BOOST_TEST(error_of(*stereo, quarter) < 1e-6);
}

BOOST_AUTO_TEST_CASE(other_rates_become_the_models) {
  for (const int rate : {8000, 22050, 44100, 48000}) {
    const auto found = decode(encode(tone(440, rate, 1), rate, 1, SF_FORMAT_WAV | SF_FORMAT_FLOAT));
    BOOST_REQUIRE(found.ok());
    BOOST_TEST(std::abs(std::ssize(*found) - 16000) <= 1, rate);
    BOOST_TEST(error_of(*found, tone(440, 16000, 1)) < 0.005, rate);
  }
  // Frequencies above those of the lower rate are removed.
  const auto high = resample(tone(12000, 48000, 1), 48000, 16000);
  BOOST_TEST(error_of(high, std::vector<float>(high.size())) < 0.002);
}

BOOST_AUTO_TEST_CASE(what_is_no_sound_is_refused) {
  BOOST_TEST(decode("").error().message == "the sound cannot be read: it is empty");
  BOOST_TEST(decode("# Not a sound").error().param == "file");
  const std::string wav = encode(tone(440, 16000, 1), 16000, 1, SF_FORMAT_WAV | SF_FORMAT_PCM_16);
  BOOST_TEST((decode(wav, {.max_encoded_bytes = 1000}).error().code == ErrorCode::kTooLarge));
  BOOST_TEST(
      decode(wav, {.max_seconds = 0.5}).error().message.starts_with("the sound is longer than"));
}

BOOST_AUTO_TEST_CASE(a_window_of_a_long_sound_is_a_part_of_its_frames) {
  const LogMel mel(load_log_mel_config(kWhisper).value());
  const std::vector<float> samples = tone(440, 16000, 3);
  const std::vector<float> frames = mel.frames(samples);
  BOOST_REQUIRE(frames.size() == 300u * 80);
  const auto window = mel.window(std::span(frames).subspan(150 * 80));
  BOOST_REQUIRE(window.size() == 80u * 200);
  BOOST_TEST(window[0] == frames[150 * 80]);
  BOOST_TEST(window[200] == frames[150 * 80 + 1]);
  BOOST_TEST(window[149] == frames[299 * 80]);
  BOOST_TEST(window[150] == 0);  // behind the sound's end
  // One that is short is filled up with silence first.
  BOOST_TEST(mel.frames(std::span(samples).first(100)).size() == 200u * 80);
}

BOOST_AUTO_TEST_CASE(prompts_have_the_tokens_of_language_task_and_times) {
  const auto token = [](std::string_view name) -> std::optional<TokenId> {
    constexpr std::string_view kTokens[] = {
        "<|startoftranscript|>", "<|en|>",           "<|translate|>", "<|transcribe|>",
        "<|startofprev|>",       "<|notimestamps|>", "<|0.00|>",      "<|endoftext|>"};
    const auto* const found = std::ranges::find(kTokens, name);
    if (found == std::end(kTokens)) return std::nullopt;
    return static_cast<TokenId>(found - std::begin(kTokens));
  };
  const auto inputs = SpeechInputs::load(kWhisper, 100, token);
  BOOST_REQUIRE_MESSAGE(inputs.ok(), (inputs.ok() ? "" : inputs.error().message));
  SpeechTask task{.frames = std::vector<float>(80 * 100, 0.5f)};
  const auto plain = (*inputs)->expand(task, {});
  BOOST_REQUIRE(plain.ok());
  BOOST_TEST((plain->token_ids == std::vector<TokenId>{0, 1, 3, 5}));
  BOOST_TEST(plain->item.length == 100);
  task.translates = task.timestamps = true;
  BOOST_TEST(
      ((*inputs)->expand(task, {70, 71})->token_ids == std::vector<TokenId>{4, 70, 71, 0, 1, 2}));
  BOOST_TEST((*inputs)->expand(task, {})->item.identifier == plain->item.identifier);
  task.language = "xx";
  BOOST_TEST((*inputs)->expand(task, {}).error().param == "language");
  task.language = "en";
  for (const std::size_t size : {std::size_t{80} * 201, std::size_t{80} + 1}) {
    task.frames.resize(size);
    BOOST_TEST((*inputs)->expand(task, {}).error().message.starts_with("a window has " +
                                                                       std::to_string(size)));
  }
  BOOST_TEST(SpeechInputs::load(kWhisper, 99, token).error().message.find("200 frames") !=
             std::string::npos);
}

}  // namespace
}  // namespace troupe
