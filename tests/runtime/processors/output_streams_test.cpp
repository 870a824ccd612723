// Whole streams: random ones, by what must hold for all of them, and those of the reference.

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "runtime/base/json.hpp"
#include "runtime/processors/output_processor.hpp"
#include "runtime/tokenizer/incremental_decoder.hpp"
#include "tests/runtime/processors/byte_tokenizer.hpp"

namespace troupe {
namespace {

struct Stream {
  std::string text;
  std::vector<TokenId> token_ids;
  std::vector<std::string> pieces;
  StopReason stop_reason;
  int num_finished = 0;
};

/// Feeds the tokens in steps of the given sizes (repeated), until they or the request end.
Stream run(const std::shared_ptr<const Tokenizer>& tokenizer, const OutputRequest& request,
           std::span<const TokenId> tokens, const std::vector<std::size_t>& step_sizes) {
  OutputProcessor processor(tokenizer);
  processor.add(request);
  Stream stream;
  for (std::size_t step = 0; !tokens.empty() && processor.num_requests() > 0; ++step) {
    const std::size_t count = std::min(step_sizes[step % step_sizes.size()], tokens.size());
    EngineCoreOutputs outputs;
    EngineCoreOutput& output = outputs.outputs.emplace_back();
    output.id = request.id;
    output.new_token_ids.assign(tokens.begin(),
                                tokens.begin() + static_cast<std::ptrdiff_t>(count));
    tokens = tokens.subspan(count);
    if (tokens.empty()) output.finish_reason = FinishReason::kLength;
    for (const RequestOutput& result : processor.process(outputs).to_frontend.outputs) {
      const CompletionOutput& sample = result.outputs.at(0);
      if (request.params.output_kind == OutputKind::kDelta) {
        stream.text += sample.text;
        stream.token_ids.insert(stream.token_ids.end(), sample.token_ids.begin(),
                                sample.token_ids.end());
      } else {
        BOOST_TEST(sample.text.starts_with(stream.text));  // what was said is not taken back
        stream.text = sample.text;
        stream.token_ids = sample.token_ids;
      }
      stream.pieces.push_back(sample.text);
      stream.stop_reason = sample.stop_reason;
      stream.num_finished += result.finished;
    }
  }
  return stream;
}

/// The text of a stream, token by token, without any of the machinery: decode, look for stop
/// strings in the whole text.
std::string expected_text(const std::shared_ptr<const Tokenizer>& tokenizer,
                          const OutputRequest& request, std::span<const TokenId> tokens) {
  IncrementalDecoder decoder(tokenizer, request.params.skip_special_tokens,
                             request.prompt_token_ids);
  std::string text;
  for (const TokenId token : tokens) {
    text += decoder.step(token).text.value_or("");
    std::size_t begin = std::string::npos;
    std::size_t end = std::string::npos;
    for (const std::string& stop : request.params.stop) {
      const std::size_t found = text.find(stop);
      if (found != std::string::npos && found + stop.size() < end) {
        begin = found;
        end = found + stop.size();
      }
    }
    if (end != std::string::npos) {
      return text.substr(0, request.params.include_stop_str_in_output ? end : begin);
    }
  }
  return text;
}

BOOST_AUTO_TEST_CASE(deltas_add_up_to_the_text_however_the_tokens_arrive) {
  const auto tokenizer = byte_tokenizer();
  std::mt19937 random(2024);
  const std::vector<std::string> pieces = {"a", "b", "ab", "é", "🙂", " ", "hello", "\n"};
  int num_stopped = 0;
  for (int round = 0; round < 600; ++round) {
    OutputRequest request;
    request.id = RequestId{1};
    request.prompt_token_ids = byte_tokens("prompt");
    SamplingParams& params = request.params;
    params.include_stop_str_in_output = random() % 2 == 0;
    for (std::size_t i = random() % 4; i > 0; --i) {
      std::string stop;
      for (std::size_t length = 1 + random() % 4; length > 0; --length) {
        stop += pieces[random() % pieces.size()];
      }
      params.stop.edit().push_back(stop);
    }
    std::vector<TokenId> tokens;
    const std::size_t length = 1 + random() % 60;
    while (tokens.size() < length) {
      if (random() % 20 == 0) {
        tokens.push_back(
            static_cast<TokenId>(128 + random() % 131));  // broken characters, specials
      } else {
        for (const TokenId id : byte_tokens(pieces[random() % pieces.size()])) tokens.push_back(id);
      }
    }
    std::vector<std::size_t> step_sizes;
    for (int i = 0; i < 5; ++i) step_sizes.push_back(1 + random() % 4);

    BOOST_TEST_CONTEXT("round " << round) {
      const std::string expected = expected_text(tokenizer, request, tokens);
      params.output_kind = OutputKind::kFinalOnly;
      const Stream whole = run(tokenizer, request, tokens, step_sizes);
      BOOST_TEST(whole.text == expected);
      for (const OutputKind kind : {OutputKind::kDelta, OutputKind::kCumulative}) {
        params.output_kind = kind;
        params.stream_interval = 1 + static_cast<std::int32_t>(random() % 4);
        const Stream stream = run(tokenizer, request, tokens, step_sizes);
        BOOST_TEST(stream.text == whole.text);
        BOOST_TEST((stream.token_ids == whole.token_ids));
        BOOST_TEST((stream.stop_reason == whole.stop_reason));
        BOOST_TEST(stream.num_finished == 1);
      }
      num_stopped += whole.stop_reason.index() == 2;
    }
  }
  BOOST_TEST(num_stopped > 100);
}

BOOST_AUTO_TEST_CASE(a_stream_that_is_taken_up_again_anywhere_is_the_same_stream) {
  const auto tokenizer = byte_tokenizer();
  std::mt19937 random(7);
  const std::vector<TokenId> tokens = byte_tokens("héllo 🙂 wörld, aab aabb STOP and more");
  OutputRequest request;
  request.id = RequestId{1};
  request.params.stop = {"STOP", "abc"};
  request.params.output_kind = OutputKind::kDelta;
  const Stream whole = run(tokenizer, request, tokens, {1});
  BOOST_TEST(whole.text == "héllo 🙂 wörld, aab aabb ");
  std::string before;
  for (std::size_t cut = 0; cut < whole.pieces.size(); ++cut) {
    request.emitted.resize(1);
    request.emitted[0].token_ids.assign(tokens.begin(),
                                        tokens.begin() + static_cast<std::ptrdiff_t>(cut));
    const Stream rest = run(tokenizer, request, std::span(tokens).subspan(cut), {1 + random() % 3});
    BOOST_TEST(before + rest.text == whole.text);
    before += whole.pieces[cut];
  }
}

BOOST_AUTO_TEST_CASE(streams_of_the_reference_come_out_byte_for_byte) {
  int num_streams = 0;
  for (const auto& folder : std::filesystem::directory_iterator(TROUPE_GOLDEN_DIR "/streams")) {
    const auto tokenizer = Tokenizer::load(folder.path());
    BOOST_REQUIRE_MESSAGE(tokenizer.ok(), folder.path());
    std::ifstream file(folder.path() / "streams.jsonl");
    for (std::string line; std::getline(file, line); ++num_streams) {
      const auto row = nlohmann::json::parse(line);
      OutputRequest request;
      request.id = RequestId{1};
      request.prompt_token_ids = row.at("prompt_token_ids").get<std::vector<TokenId>>();
      const auto tokens = row.at("greedy_token_ids").get<std::vector<TokenId>>();
      for (const OutputKind kind : {OutputKind::kDelta, OutputKind::kCumulative}) {
        request.params.output_kind = kind;
        BOOST_TEST_CONTEXT(folder.path().filename() << " stream " << num_streams) {
          BOOST_TEST(run(*tokenizer, request, tokens, {1}).text ==
                     row.at("streamed_text").get<std::string>());
        }
      }
    }
  }
  BOOST_TEST(num_streams >= 25);
}

}  // namespace
}  // namespace troupe
