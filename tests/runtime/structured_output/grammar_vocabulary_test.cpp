// What the tokens of published tokenizers stand for.

#include "runtime/structured_output/grammar_vocabulary.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

constexpr std::string_view kTexts[] = {
    "{\"name\": \"a b\", \"list\": [1, 2.5, true, null]}",
    "a  b\tc\n\n  d",
    "zażółć gęślą jaźń, 東京, 😀😀",
    "Hello, world. It's I'm don't !?",
};

BOOST_AUTO_TEST_CASE(the_bytes_of_a_texts_tokens_are_the_text) {
  for (const std::string name : {"deepseek", "gemma", "gpt2", "llama2", "llama3", "metaspace",
                                 "o200k", "qwen2", "starcoder"}) {
    const auto tokenizer = Tokenizer::load(TROUPE_GOLDEN_DIR "/tokenizers/" + name);
    BOOST_REQUIRE(tokenizer.ok());
    const auto vocabulary =
        GrammarVocabulary::from_tokenizer(**tokenizer, (*tokenizer)->id_limit());
    for (const std::string_view text : kTexts) {
      BOOST_TEST_CONTEXT(name << ": " << text) {
        std::string bytes;
        const auto tokens = (*tokenizer)->encode(text, false).value();
        // These vocabularies are cuts: a text with unknown parts is none of theirs.
        if ((*tokenizer)->decode(tokens, false) != text) continue;
        for (const TokenId token : tokens) bytes += vocabulary->bytes(token);
        // In front of a text, some write a space that decoding leaves out.
        if (bytes.starts_with(' ')) bytes.erase(0, 1);
        BOOST_TEST(bytes == text);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(special_tokens_have_bytes_that_no_text_has) {
  const auto tokenizer = Tokenizer::load(TROUPE_GOLDEN_DIR "/tokenizers/llama3").value();
  const auto vocabulary = GrammarVocabulary::from_tokenizer(*tokenizer, tokenizer->id_limit());
  const auto special = vocabulary->special_tokens();
  BOOST_TEST((std::find(special.begin(), special.end(), "<|python_tag|>") != special.end()));
  std::size_t num_marked = 0;
  for (std::size_t id = 0; id < tokenizer->id_limit(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string_view bytes = vocabulary->bytes(token);
    if (bytes.find(GrammarVocabulary::kSpecialMark) == std::string_view::npos) continue;
    BOOST_TEST(tokenizer->is_special(token));
    BOOST_TEST(bytes == GrammarVocabulary::special_bytes(*tokenizer->id_to_token(token)));
    ++num_marked;
  }
  BOOST_TEST(num_marked == special.size());
}

}  // namespace
}  // namespace troupe
