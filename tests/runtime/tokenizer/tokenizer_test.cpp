#include "runtime/tokenizer/tokenizer.hpp"

#include <boost/test/unit_test.hpp>
#include <thread>

#include "runtime/tokenizer/incremental_decoder.hpp"
#include "runtime/tokenizer/special_tokens.hpp"
#include "tests/runtime/tokenizer/random_text.hpp"

namespace troupe {
namespace {

std::shared_ptr<const Tokenizer> load_golden(const std::string& name) {
  auto tokenizer = Tokenizer::load(std::filesystem::path(TROUPE_GOLDEN_DIR) / "tokenizers" / name);
  BOOST_REQUIRE(tokenizer.ok());
  return std::move(tokenizer).value();
}

Error error_of(std::string_view tokenizer_json) {
  const auto tokenizer = Tokenizer::from_json(tokenizer_json);
  BOOST_REQUIRE(!tokenizer.ok());
  return tokenizer.error();
}

BOOST_AUTO_TEST_CASE(byte_level_tokenizers_give_every_text_back) {
  std::mt19937 random(7);
  for (const char* name : {"llama3", "o200k", "deepseek", "gpt2", "starcoder"}) {
    const auto tokenizer = load_golden(name);
    for (int i = 0; i < 500; ++i) {
      const std::string text = testing::random_text(random, 60);
      BOOST_REQUIRE_EQUAL(tokenizer->decode(tokenizer->encode(text, false).value(), false), text);
    }
  }
}

BOOST_AUTO_TEST_CASE(streamed_pieces_join_to_the_decoded_text) {
  std::mt19937 random(8);
  for (const char* name : {"llama3", "qwen2", "gemma", "llama2"}) {
    const auto tokenizer = load_golden(name);
    for (int i = 0; i < 200; ++i) {
      const auto ids = tokenizer->encode(testing::random_text(random, 60), false).value();
      IncrementalDecoder decoder(tokenizer, true);
      std::string streamed;
      for (const TokenId id : ids) streamed += decoder.step(id).text.value_or("");
      BOOST_REQUIRE_EQUAL(streamed, tokenizer->decode(ids, true));
    }
  }
}

/// The stream by its definition: each step decodes all ids since the one before the last piece.
class PlainStream {
 public:
  PlainStream(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skips_(skip_special_tokens) {}
  std::string step(TokenId id) {
    const std::string before = prefix_;
    ids_.push_back(id);
    const std::string text = tokenizer_.decode(ids_, skips_);
    if (text.size() <= before.size() || text.ends_with("\uFFFD")) return "";
    if (!text.starts_with(before)) return restart(id);
    ids_.erase(ids_.begin(), ids_.begin() + num_prefix_ids_);
    num_prefix_ids_ = static_cast<std::ptrdiff_t>(ids_.size());
    prefix_ = tokenizer_.decode(ids_, skips_);
    return text.substr(before.size());
  }

 private:
  std::string restart(TokenId id) {
    ids_.clear();
    prefix_.clear();
    num_prefix_ids_ = 0;
    return step(id);
  }

  const Tokenizer& tokenizer_;
  bool skips_;
  std::vector<TokenId> ids_;
  std::string prefix_;
  std::ptrdiff_t num_prefix_ids_ = 0;
};

BOOST_AUTO_TEST_CASE(streams_of_random_tokens_have_the_pieces_of_the_definition) {
  std::mt19937 random(10);
  for (const char* name : {"llama3", "qwen2", "gemma", "llama2", "metaspace", "flags_bytelevel",
                           "flags_metaspace", "bert"}) {
    const auto tokenizer = load_golden(name);
    const auto last = static_cast<TokenId>(tokenizer->id_limit() + 1);
    for (int i = 0; i < 200; ++i) {
      IncrementalDecoder decoder(tokenizer, i % 2 == 0);
      PlainStream plain(*tokenizer, i % 2 == 0);
      for (int n = 0; n < 40; ++n) {
        const TokenId id = std::uniform_int_distribution<TokenId>(0, last)(random);
        BOOST_REQUIRE_MESSAGE(decoder.step(id).text.value_or("") == plain.step(id),
                              name << " token " << id);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_long_prompt_primes_a_stream_as_its_end_does) {
  std::mt19937 random(9);
  for (const char* name : {"llama3", "gemma", "llama2", "bert"}) {
    const auto tokenizer = load_golden(name);
    for (int i = 0; i < 50; ++i) {
      const auto text = testing::random_text(random, 400) + " end";
      const auto prompt = tokenizer->encode(text, true).value();
      const auto ids = tokenizer->encode(" and more text", false).value();
      IncrementalDecoder decoder(tokenizer, true, prompt);
      std::string streamed;
      for (const TokenId id : ids) streamed += decoder.step(id).text.value_or("");
      auto all = prompt;
      all.insert(all.end(), ids.begin(), ids.end());
      BOOST_REQUIRE_EQUAL(tokenizer->decode(prompt, true) + streamed, tokenizer->decode(all, true));
    }
  }
}

BOOST_AUTO_TEST_CASE(bytes_that_are_not_utf8_are_taken_as_replacement_characters) {
  const auto tokenizer = load_golden("llama3");
  BOOST_TEST((tokenizer->encode("a\xFFz\xE2\x82", false).value() ==
              tokenizer->encode("a\uFFFDz\uFFFD", false).value()));
}

BOOST_AUTO_TEST_CASE(ids_outside_the_vocabulary_decode_to_nothing) {
  const auto tokenizer = load_golden("llama3");
  const auto limit = static_cast<TokenId>(tokenizer->id_limit());
  BOOST_TEST(tokenizer->decode(std::vector<TokenId>{-1, limit, 1 << 30}, false).empty());
  BOOST_TEST(!tokenizer->id_to_token(limit).has_value());
  BOOST_TEST(!tokenizer->is_special(-1));
}

BOOST_AUTO_TEST_CASE(offsets_and_ids_of_both_ways_to_encode_agree) {
  std::mt19937 random(10);
  for (const char* name : {"qwen2", "flags_bytelevel", "flags_metaspace", "llama2"}) {
    const auto tokenizer = load_golden(name);
    for (int i = 0; i < 200; ++i) {
      const std::string text = testing::random_text(random, 60);
      const Encoding encoding = tokenizer->encode_with_offsets(text, true).value();
      BOOST_REQUIRE((encoding.ids == tokenizer->encode(text, true).value()));
      BOOST_REQUIRE(encoding.offsets.size() == encoding.ids.size());
      const std::size_t num_characters = unicode::count(text);
      for (const TextOffsets& range : encoding.offsets) {
        BOOST_REQUIRE(range.begin <= range.end);
        BOOST_REQUIRE(range.end <= num_characters);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(threads_share_a_tokenizer) {
  const auto tokenizer = load_golden("qwen2");
  const std::string text = "Threads share one tokenizer, and each has its own cache. 12345";
  const auto expected = tokenizer->encode(text, true).value();
  std::vector<int> num_wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& wrong : num_wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += tokenizer->encode(text, true).value() != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int wrong : num_wrong) BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(two_tokenizers_on_one_thread_do_not_mix_their_caches) {
  const auto first = load_golden("llama3");
  const auto second = load_golden("gpt2");
  const auto first_ids = first->encode("hello world", false).value();
  const auto second_ids = second->encode("hello world", false).value();
  BOOST_TEST((first->encode("hello world", false).value() == first_ids));
  BOOST_TEST((second->encode("hello world", false).value() == second_ids));
}

BOOST_AUTO_TEST_CASE(a_megabyte_without_a_space_is_encoded_in_reasonable_time) {
  // Quadratic work would take hours here.
  const std::string text(1 << 20, 'a');
  for (const char* name : {"llama3", "llama2", "metaspace"}) {
    const auto tokenizer = load_golden(name);
    const auto ids = tokenizer->encode(text, false).value();
    BOOST_TEST(tokenizer->decode(ids, true).size() == text.size());
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_supported_is_refused_by_name) {
  constexpr const char* kModel = R"("model":{"type":"BPE","vocab":{"a":0},"merges":[]})";
  const auto with = [&](const std::string& field) {
    return error_of("{" + field + "," + kModel + "}");
  };
  const auto names = [](const Error& error, std::string_view name) {
    return error.message.find(name) != std::string::npos;
  };
  const Error normalizer = with(R"("normalizer":{"type":"Nmt"})");
  BOOST_TEST((normalizer.code == ErrorCode::kUnsupported));
  BOOST_TEST(names(normalizer, "normalizer Nmt"));
  BOOST_TEST(names(with(R"("pre_tokenizer":{"type":"UnicodeScripts"})"), "UnicodeScripts"));
  BOOST_TEST(names(with(R"("post_processor":{"type":"Other"})"), "post_processor Other"));
  BOOST_TEST(names(with(R"("decoder":{"type":"CTC"})"), "decoder CTC"));
  BOOST_TEST(names(error_of(R"({"model":{"type":"BPE","dropout":0.1,"vocab":{},"merges":[]}})"),
                   "dropout"));
  BOOST_TEST(names(error_of(R"({"model":{"type":"Mystery"}})"), "model Mystery"));
  BOOST_TEST(names(
      with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a"}})"),
      "(a"));
}

BOOST_AUTO_TEST_CASE(what_is_malformed_is_refused_with_the_place) {
  BOOST_TEST((error_of("{").code == ErrorCode::kCorrupt));
  BOOST_TEST((error_of("[]").code == ErrorCode::kCorrupt));
  const Error merge =
      error_of(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]}})");
  BOOST_TEST(merge.message ==
             "tokenizer.json: a merge needs the token \"ab\", which is not in the "
             "vocabulary");
  BOOST_TEST((Tokenizer::load("/nonexistent").error().code == ErrorCode::kNotFound));
}

BOOST_AUTO_TEST_CASE(the_config_names_the_tokens_with_a_role) {
  const auto tokenizer = Tokenizer::from_json(
      R"({"model":{"type":"BPE","vocab":{"a":0,"<s>":1,"</s>":2},"merges":[]}})",
      R"({"bos_token":{"content":"<s>"},"eos_token":"</s>","pad_token":null,"add_bos_token":true,
          "model_max_length":1e30})");
  BOOST_REQUIRE(tokenizer.ok());
  BOOST_TEST((*tokenizer)->bos_id().value() == 1);
  BOOST_TEST((*tokenizer)->eos_id().value() == 2);
  BOOST_TEST(!(*tokenizer)->pad_id().has_value());
}

BOOST_AUTO_TEST_CASE(an_added_token_after_an_added_token_can_be_shown_without_a_space) {
  const auto tokenizer = Tokenizer::from_json(
      R"({"added_tokens":[{"id":1,"content":"<x>","special":true}],
          "model":{"type":"BPE","vocab":{"a":0},"merges":[]}})");
  BOOST_REQUIRE(tokenizer.ok());
  IncrementalDecoder spaced(*tokenizer, false);
  BOOST_TEST(spaced.step(1).text.value() == "<x>");
  BOOST_TEST(spaced.step(1).text.value() == " <x>");
  IncrementalDecoder close(*tokenizer, false);
  close.set_spaces_between_special_tokens(false);
  BOOST_TEST(close.step(1).text.value() == "<x>");
  BOOST_TEST(close.step(1).text.value() == "<x>");
  BOOST_TEST(close.step(0).text.value() == " a");
}

BOOST_AUTO_TEST_CASE(special_tokens_are_read_without_what_is_behind_them) {
  const std::string tokens =
      R"({"version":"1.0","padding":{"content":"<pad>","special":true},"added_tokens":[)"
      R"({"id":1,"content":"<s>","special":true},{"id":2,"content":"<tool_call>","special":false},)"
      R"({"id":3,"special":true,"content":"<end \"x\">"}])";
  const std::vector<std::string> expected = {"<s>", "<end \"x\">"};
  BOOST_TEST(parse_special_tokens(tokens + R"(,"model":{"vocab":{"a":0}}})").value() == expected,
             boost::test_tools::per_element());
  BOOST_TEST(parse_special_tokens(tokens + ",broken").value() == expected,
             boost::test_tools::per_element());
  BOOST_TEST(parse_special_tokens(R"({"added_tokens":[]})").value().empty());
  BOOST_TEST(parse_special_tokens(R"({"model":{"added_tokens":[{"content":"a","special":true}]}})")
                 .value()
                 .empty());
  BOOST_TEST(!parse_special_tokens("{").ok());
}

}  // namespace
}  // namespace troupe
