// Each way in which blended answers are known to be garbled elsewhere, and what rules it out here.

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "runtime/kv_transfer/blend_connector.hpp"
#include "runtime/kv_transfer/blend_pieces.hpp"
#include "tests/runtime/kv_transfer/blend_prompts.hpp"

namespace troupe {
namespace {

using testing::Answer;
using testing::blending;
using testing::blending_from;
using testing::EngineSetup;
using testing::exact;
using testing::first_token_distance;
using testing::kOrder;
using testing::kOther;
using testing::kSeparator;
using testing::num_tokens_of;
using testing::paragraph;
using testing::piece_files;
using testing::prompt_of;
using testing::TransferEngine;

std::string with_rule(const std::string& layers, const std::string& ratios) {
  return blending(R"("blend_check_layers":)" + layers + R"(,"blend_recompute_ratios":)" + ratios);
}

/// The answer to the second prompt once the first one's pieces are kept.
Answer blended(const std::string& transfer, const std::vector<std::vector<TokenId>>& prompts = {
                                                prompt_of(kOrder), prompt_of(kOther)}) {
  TransferEngine engine({.num_blocks = 100, .transfer = transfer});
  static_cast<void>(engine.run({prompts[0]}));
  engine.reset_prefix_cache();
  return engine.run({prompts[1]})[0];
}

/// Ends with its last paragraph.
std::vector<TokenId> without_question(const std::vector<std::int32_t>& paragraphs) {
  std::vector<TokenId> prompt = prompt_of(paragraphs, {});
  prompt.resize(prompt.size() - kSeparator.size());
  return prompt;
}

// The logits are those of the last token, which a selection by deviation may leave out.
BOOST_AUTO_TEST_CASE(a_prompt_of_kept_pieces_alone_computes_its_last_token) {
  const std::vector<TokenId> prompt = without_question(kOrder);
  const std::vector<TokenId> other = without_question(kOther);
  const std::vector<Answer> expected = exact({}, {prompt, other});
  // As they were, at a share of 0: what is kept is exact, and only the last token is computed.
  const Answer again = blended(with_rule("[1]", "[0]"), {prompt, prompt});
  BOOST_TEST((again == expected[0]));
  BOOST_TEST(again.num_blended == num_tokens_of(kOrder, /*num_others=*/1));
  // In another order, the last piece among them.
  const Answer moved = blended(with_rule("[1]", "[1]"), {prompt, other});
  BOOST_TEST((moved == expected[1]));
  BOOST_TEST(moved.num_blended == num_tokens_of(kOther, 1));
  const Answer near = blended(with_rule("[1]", "[0]"), {prompt, other});
  BOOST_TEST(!near.has_failed);
  BOOST_TEST(first_token_distance(near, expected[1]) < 2);
}

// Elsewhere the keys of what lies between pieces are zero, but for the tokens that are selected.
BOOST_AUTO_TEST_CASE(tokens_between_kept_pieces_are_computed_at_a_share_of_0) {
  // The first three are as they were; one is new, and so is the question.
  const std::vector<TokenId> question = {71, 72, 73, 74, 75, 76};
  const std::vector<std::vector<TokenId>> prompts = {prompt_of({0, 1, 2}),
                                                     prompt_of({0, 1, 2, 7}, question)};
  const Answer answer = blended(with_rule("[1]", "[0]"), prompts);
  BOOST_TEST((answer == exact({}, {prompts[1]})[0]));
  BOOST_TEST(answer.num_blended == num_tokens_of({0, 1, 2}, 1));
}

// Elsewhere a second check layer takes places among the selected tokens for places in the prompt.
BOOST_AUTO_TEST_CASE(check_layers_that_ask_for_as_many_tokens_select_the_same_ones) {
  const Answer once = blended(with_rule("[1]", "[0.5]"));
  BOOST_TEST((blended(with_rule("[1,2]", "[0.5,0.5]")) == once));
  BOOST_TEST((blended(with_rule("[1,2,3]", "[0.5,0.5,0.5]")) == once));
  const Answer expected = exact({}, {prompt_of(kOther)})[0];
  const Answer fewer = blended(with_rule("[1,2]", "[0.5,0.25]"));
  BOOST_TEST((fewer != once));
  BOOST_TEST(first_token_distance(fewer, expected) < 2);
}

// Elsewhere all check layers have the first one's ratio.
BOOST_AUTO_TEST_CASE(each_check_layer_has_a_ratio_of_its_own) {
  const Answer all = blended(with_rule("[1,2]", "[1,1]"));
  BOOST_TEST((all == exact({}, {prompt_of(kOther)})[0]));
  const Answer second = blended(with_rule("[1,2]", "[1,0]"));
  BOOST_TEST((second != all));
  // Layer 1 is computed for all tokens, and only those behind layer 2 are taken.
  BOOST_TEST((second == blended(with_rule("[2]", "[0]"))));
  BOOST_TEST((second != blended(with_rule("[1]", "[0]"))));
}

// Elsewhere they are read and have no effect.
BOOST_AUTO_TEST_CASE(thresholds_select_tokens) {
  BOOST_TEST((blended(blending(R"("blend_thresholds":[0])")) == exact({}, {prompt_of(kOther)})[0]));
  BOOST_TEST(
      (blended(blending(R"("blend_thresholds":[1e9])")) == blended(with_rule("[1]", "[0]"))));
}

// Elsewhere keys are taken back from their old positions by a rotation of whole heads without
// scaling, in rounded numbers. Kept keys have no rotation here: at the places where they were they
// get the same bits from the layer's own rotary embedding; which place a row gets is another test's
// (kept_rows_go_to_new_positions_and_what_is_not_kept_is_computed).
BOOST_AUTO_TEST_CASE(kept_keys_get_the_rotary_embedding_of_their_model) {
  // Scaled, plain, with norms of heads, of half and of three quarters of a head, by length.
  for (const std::string model : {"llama", "qwen2", "qwen3", "olmo2", "glm4", "phi3"}) {
    BOOST_TEST_CONTEXT(model) {
      TransferEngine engine(
          {.model = model, .num_blocks = 100, .transfer = with_rule("[1]", "[0]")});
      const Answer first = engine.run({prompt_of(kOrder)})[0];
      engine.reset_prefix_cache();
      const Answer again = engine.run({prompt_of(kOrder)})[0];
      BOOST_TEST((again == first));
      BOOST_TEST(first.num_blended == 0);
      BOOST_TEST(again.num_blended == num_tokens_of(kOrder));
    }
  }
}

// Elsewhere the positions at which keys were computed are known in memory only.
BOOST_AUTO_TEST_CASE(a_piece_from_disk_gives_the_bits_of_the_one_in_memory) {
  for (const std::string ratio : {"[0]", "[0.15]"}) {
    const BlockFolder folder;
    const EngineSetup setup{.num_blocks = 100, .transfer = blending_from(folder, ratio)};
    Answer in_memory;
    {
      TransferEngine engine(setup);
      static_cast<void>(engine.run({prompt_of(kOrder)}));
      engine.reset_prefix_cache();
      in_memory = engine.run({prompt_of(kOther)})[0];
    }
    TransferEngine restarted(setup);
    const Answer from_disk = restarted.run({prompt_of(kOther)})[0];
    BOOST_TEST((from_disk == in_memory));
    BOOST_TEST(from_disk.num_blended == in_memory.num_blended);
    BOOST_TEST(from_disk.num_blended == num_tokens_of(kOther));
  }
}

// Elsewhere files have no checksum.
BOOST_AUTO_TEST_CASE(a_piece_whose_file_has_a_flipped_bit_is_computed) {
  const BlockFolder folder;
  const EngineSetup setup{.num_blocks = 100, .transfer = blending_from(folder, "[0]")};
  static_cast<void>(TransferEngine(setup).run({prompt_of(kOrder)}));
  const auto blended_after = [&](auto&& damage) {
    damage(piece_files(folder).front());
    TransferEngine engine(setup);
    return engine.run({prompt_of(kOther)})[0];
  };
  const Answer flipped = blended_after([](const std::filesystem::path& file) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
    bytes.seekg(middle);
    const int byte = bytes.get();
    bytes.seekp(middle);
    bytes.put(static_cast<char>(byte ^ 4));
  });
  BOOST_TEST(!flipped.has_failed);
  BOOST_TEST(flipped.num_blended < num_tokens_of(kOther));
  BOOST_TEST(flipped.num_blended > 0);
}

// Elsewhere a request that finds pieces keeps nothing of the others, or keeps what it has blended
// in the place of what it found.
BOOST_AUTO_TEST_CASE(a_blended_request_keeps_what_is_new_and_changes_nothing_that_is_kept) {
  TransferEngine engine({.num_blocks = 100, .transfer = with_rule("[1]", "[0.15]")});
  static_cast<void>(engine.run({prompt_of({0, 1, 2, 3})}));
  const auto run = [&](const std::vector<std::int32_t>& order) {
    engine.reset_prefix_cache();
    return engine.run({prompt_of(order)})[0];
  };
  const Answer first = run({3, 1, 0, 2});
  BOOST_TEST(run({2, 7, 3}).num_blended == num_tokens_of({2, 3}));
  BOOST_TEST(run({7, 0, 1}).num_blended == num_tokens_of({7, 0, 1}));
  for (int round = 0; round < 3; ++round) BOOST_TEST((run({3, 1, 0, 2}) == first));
}

// Elsewhere a fingerprint of 64 bits, a polynomial in an odd base, decides that two texts are
// equal.
BOOST_AUTO_TEST_CASE(texts_with_equal_polynomial_fingerprints_share_no_piece) {
  // A Thue-Morse sequence and its complement: equal for each odd base.
  std::vector<TokenId> text;
  std::vector<TokenId> other;
  std::uint64_t fingerprint = 0;
  std::uint64_t other_fingerprint = 0;
  for (std::uint32_t i = 0; i < 2048; ++i) {
    const bool bit = __builtin_parity(i) != 0;
    text.push_back(bit ? 20 : 21);
    other.push_back(bit ? 21 : 20);
    constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15;
    fingerprint = fingerprint * kBase + static_cast<std::uint64_t>(text.back());
    other_fingerprint = other_fingerprint * kBase + static_cast<std::uint64_t>(other.back());
  }
  BOOST_REQUIRE(fingerprint == other_fingerprint);
  BOOST_TEST((piece_key(text, "") != piece_key(other, "")));
  // Whole texts as pieces between separators: the second one finds nothing of the first.
  const auto with_separators = [](const std::vector<TokenId>& tokens, std::size_t count) {
    std::vector<TokenId> prompt = {9, 5, 6};
    prompt.insert(prompt.end(), tokens.begin(),
                  tokens.begin() + static_cast<std::ptrdiff_t>(count));
    prompt.insert(prompt.end(), {5, 6, 91});
    return prompt;
  };
  TransferEngine engine({.num_blocks = 100, .transfer = with_rule("[1]", "[0]")});
  static_cast<void>(engine.run({with_separators(text, 128)}));
  engine.reset_prefix_cache();
  BOOST_TEST(engine.run({with_separators(other, 128)})[0].num_blended < 8);
  engine.reset_prefix_cache();
  BOOST_TEST(engine.run({with_separators(text, 128)})[0].num_blended > 128);
}

// Elsewhere one request's selection narrows the whole batch.
BOOST_AUTO_TEST_CASE(requests_beside_a_blended_one_keep_their_bits) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of({6, 7}), prompt_of({3, 1, 0, 2}),
                                                     prompt_of({8}), prompt_of({0, 9})};
  const std::vector<Answer> expected = exact({}, prompts);
  TransferEngine engine({.num_blocks = 200, .transfer = with_rule("[1]", "[0]")});
  static_cast<void>(engine.run({prompt_of({0, 1, 2, 3})}));
  engine.reset_prefix_cache();
  const Answer alone = engine.run({prompts[1]})[0];
  engine.reset_prefix_cache();
  const std::string off = R"({"enable_blending":false})";
  const std::vector<Answer> answers =
      engine.run(prompts, /*together=*/true, {}, {{0, off}, {2, off}, {3, off}});
  for (const std::size_t exact_one : {0U, 2U, 3U})
    BOOST_TEST((answers[exact_one] == expected[exact_one]));
  BOOST_TEST((answers[1] == alone));
  BOOST_TEST(answers[1].num_blended == num_tokens_of({3, 1, 0, 2}));
}

}  // namespace
}  // namespace troupe
