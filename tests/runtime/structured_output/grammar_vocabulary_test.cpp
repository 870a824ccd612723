// What the tokens of published tokenizers stand for.

#include "runtime/structured_output/grammar_vocabulary.hpp"

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

}  // namespace
}  // namespace troupe
