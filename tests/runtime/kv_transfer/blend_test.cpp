// CacheBlend: whole engines whose prompts have pieces of earlier ones in another order, and the
// parts that they are made of.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <numeric>

#include "runtime/kv_transfer/blend_connector.hpp"
#include "runtime/kv_transfer/blend_connector_worker.hpp"
#include "runtime/kv_transfer/blend_pieces.hpp"
#include "runtime/models/model.hpp"
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

/// Where every token is computed, prompts of reordered paragraphs give the bits of a full prefill.
void check_ratio_1(EngineSetup setup,
                   const std::string& extra = R"("blend_recompute_ratios":[1])") {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  const std::vector<Answer> expected = exact(setup, prompts);
  setup.transfer = blending(extra);
  setup.num_blocks = 100;
  TransferEngine engine(setup);
  const std::vector<Answer> answers = engine.run(prompts);
  BOOST_TEST((answers == expected));
  BOOST_TEST(answers[0].num_blended == 0);
  BOOST_TEST(answers[1].num_blended == num_tokens_of(kOther));
  BOOST_TEST(engine.connector<BlendConnector>().num_requests() == 0u);
}

BOOST_AUTO_TEST_CASE(a_share_of_1_gives_the_bits_of_a_full_prefill_in_every_family_it_is_for) {
  for (const std::string model :
       {"llama", "qwen2", "qwen3", "olmo2", "glm4", "phi3", "granite", "mixtral", "qwen2_moe"}) {
    BOOST_TEST_CONTEXT(model) { check_ratio_1({.model = model}); }
  }
}
BOOST_AUTO_TEST_CASE(so_it_does_on_two_ranks_with_steps_planned_ahead) {
  check_ratio_1({.tensor_parallel_size = 2, .async_scheduling = true});
}
BOOST_AUTO_TEST_CASE(so_it_does_in_two_stages_whichever_selects) {
  for (const std::string layer : {"1", "3"})
    check_ratio_1({.pipeline_parallel_size = 2},
                  R"("blend_recompute_ratios":[1],"blend_check_layers":[)" + layer + "]");
}
BOOST_AUTO_TEST_CASE(ratio_1_gives_the_same_bits_with_caches_of_8_bits) {
  check_ratio_1({.kv_cache_dtype = "int8"});
  check_ratio_1({.kv_cache_dtype = "fp8"});
}
BOOST_AUTO_TEST_CASE(so_it_does_where_pieces_end_by_their_content) {
  std::vector<std::vector<TokenId>> texts(3);
  std::uint32_t state = 1;
  for (std::vector<TokenId>& text : texts)
    for (int i = 0; i < 150; ++i) {
      state = state * 1664525U + 1013904223U;
      text.push_back(static_cast<TokenId>(10 + (state >> 16) % 500));
    }
  const auto joined = [&](std::initializer_list<std::size_t> order) {
    std::vector<TokenId> prompt;
    for (const std::size_t i : order) prompt.insert(prompt.end(), texts[i].begin(), texts[i].end());
    return prompt;
  };
  const std::vector<std::vector<TokenId>> prompts = {joined({0, 1, 2}), joined({2, 0, 1})};
  TransferEngine plain({.num_blocks = 300});
  TransferEngine engine(
      {.num_blocks = 300, .transfer = blending(R"("blend_recompute_ratios":[1])", "")});
  const std::vector<Answer> answers = engine.run(prompts);
  BOOST_TEST((answers == plain.run(prompts)));
  BOOST_TEST(answers[1].num_blended > 225);
}
BOOST_AUTO_TEST_CASE(so_it_does_where_several_layers_select) {
  check_ratio_1({}, R"("blend_check_layers":[1,2,3],"blend_recompute_ratios":[1,1,1])");
}
/// A prompt that comes again finds all of its tokens as they were behind the same prefix.
BOOST_AUTO_TEST_CASE(a_share_of_0_gives_the_same_bits_behind_the_same_prefix) {
  for (const auto& [tensor, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder)};
    const std::vector<Answer> expected = exact({}, prompts);
    TransferEngine engine({.tensor_parallel_size = tensor,
                           .num_blocks = 100,
                           .transfer = blending(R"("blend_recompute_ratios":[0])"),
                           .pipeline_parallel_size = stages});
    BOOST_TEST((engine.run(prompts) == expected));
    engine.reset_prefix_cache();
    const std::vector<Answer> again = engine.run(prompts);
    BOOST_TEST((again == expected));
    BOOST_TEST(again[0].num_blended == num_tokens_of(kOrder));
  }
}

// ---- files --------------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(pieces_on_disk_are_found_after_a_restart_and_lost_ones_are_computed) {
  const std::vector<std::vector<TokenId>> first = {prompt_of(kOrder)};
  const std::vector<std::vector<TokenId>> other = {prompt_of(kOther)};
  for (const auto& [tensor, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
    EngineSetup setup{.tensor_parallel_size = tensor,
                      .num_blocks = 100,
                      .async_scheduling = tensor > 1,
                      .pipeline_parallel_size = stages};
    const std::vector<Answer> expected = exact(setup, other);
    const BlockFolder folder;
    setup.transfer = blending_from(folder);
    const auto blended = [&] {
      TransferEngine engine(setup);
      const std::vector<Answer> answers = engine.run(other);
      BOOST_TEST((answers == expected));
      BOOST_TEST(engine.connector<BlendConnector>().num_requests() == 0u);
      return answers[0].num_blended;
    };
    TransferEngine(setup).run(first);
    const auto num_ranks = static_cast<std::size_t>(tensor * stages);
    const auto files = piece_files(folder);
    BOOST_REQUIRE(files.size() == num_ranks * (kOrder.size() + 2));
    BOOST_TEST(blended() == num_tokens_of(kOther));
    // Of one rank a piece is gone, of the last one another is damaged.
    const auto size_of = [](const std::filesystem::path& file) {
      const std::string name = file.stem().string();
      return std::stoi(name.substr(name.rfind("_g") + 2));
    };
    std::filesystem::remove(files.front());
    std::filesystem::resize_file(files.back(), std::filesystem::file_size(files.back()) - 1);
    const std::int32_t num_lost =
        size_of(files.front()) +
        (files.front().filename() == files.back().filename() ? 0 : size_of(files.back()));
    BOOST_TEST(blended() >= num_tokens_of(kOther) - num_lost);
    BOOST_TEST(blended() == num_tokens_of(kOther));  // they have been written anew
  }
}

BOOST_AUTO_TEST_CASE(files_have_a_limit_and_are_removed_with_the_cache) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder)};
  const BlockFolder folder;
  // A token takes 4 KiB in this model: room for about 32.
  EngineSetup setup{.num_blocks = 100, .transfer = blending_from(folder)};
  setup.transfer.replace(setup.transfer.find("_size\":1"), 8, "_size\":0.000125");
  {
    TransferEngine engine(setup);
    static_cast<void>(engine.run(prompts));
    engine.reset_prefix_cache();
    static_cast<void>(engine.run(prompts));
  }
  BOOST_TEST(!piece_files(folder).empty());
  BOOST_TEST(piece_files(folder).size() < kOrder.size());
  {
    TransferEngine engine(setup);
    engine.reset_prefix_cache(/*connector_too=*/true);
    static_cast<void>(engine.run({{9, 10, 11}}));
    BOOST_TEST(engine.connector<BlendConnector>().index().size() <= 1u);
  }
  BOOST_TEST(piece_files(folder).size() <= 1u);
  for (const auto& [extra, part] :
       {std::pair<std::string, std::string>{R"("local_disk":"/tmp")", "need each other"},
        {R"("max_local_disk_size":1)", "need each other"},
        {R"("local_disk":7)", "local_disk"},
        {R"("load_timeout_s":0)", "load_timeout_s must be more than 0"}}) {
    const auto config =
        read_blend_config(parse_connector_config(ConnectorKind::kKV, blending(extra)).value());
    BOOST_REQUIRE(!config.ok());
    BOOST_TEST(config.error().message.find(part) != std::string::npos, config.error().message);
  }
}

BOOST_AUTO_TEST_CASE(the_share_decides_how_many_tokens_are_computed_on_every_topology_alike) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  const std::vector<Answer> expected = exact({}, prompts);
  for (const std::string ratio : {"0", "0.15", "0.5"}) {
    const std::string transfer = blending(R"("blend_recompute_ratios":)" + ratio);
    std::vector<Answer> one;
    for (const auto& [tensor, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}}) {
      TransferEngine engine({.tensor_parallel_size = tensor,
                             .num_blocks = 100,
                             .transfer = transfer,
                             .pipeline_parallel_size = stages});
      const std::vector<Answer> answers = engine.run(prompts);
      BOOST_TEST((answers[0] == expected[0]));
      BOOST_TEST((answers[1].logprobs != expected[1].logprobs));
      BOOST_TEST(first_token_distance(answers[1], expected[1]) < 2);
      if (one.empty()) one = answers;
      BOOST_TEST((answers == one));
    }
  }
}

BOOST_AUTO_TEST_CASE(blended_blocks_do_not_enter_the_prefix_cache) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  const std::vector<Answer> expected = exact({}, prompts);
  for (const bool async : {false, true}) {
    TransferEngine engine({.num_blocks = 100,
                           .async_scheduling = async,
                           .transfer = blending(R"("blend_recompute_ratios":[0])")});
    const Answer blended = engine.run(prompts)[1];
    BOOST_TEST(blended.num_blended > 0);
    const std::map<std::size_t, std::string> off = {{0, R"({"enable_blending":false})"}};
    const Answer plain = engine.run({prompts[1]}, false, {}, off)[0];
    BOOST_TEST((plain == expected[1]));
    BOOST_TEST(plain.num_local_cached < 8);  // what both prompts begin with
    // That one's may serve others, and takes precedence.
    const Answer cached = engine.run({prompts[1]})[0];
    BOOST_TEST((cached == expected[1]));
    BOOST_TEST(cached.num_local_cached > 100);
    BOOST_TEST(cached.num_blended == 0);
  }
}

BOOST_AUTO_TEST_CASE(blended_blocks_do_not_enter_the_stores_of_other_connectors) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  const std::vector<Answer> expected = exact({}, prompts);
  const std::string both = R"({"kv_connector":"MultiConnector","kv_role":"kv_both",)"
                           R"("kv_connector_extra_config":{"connectors":[)" +
                           blending(R"("blend_recompute_ratios":[0])") +
                           R"(,{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}]}})";
  for (const bool async : {false, true}) {
    TransferEngine engine({.num_blocks = 100, .async_scheduling = async, .transfer = both});
    const std::vector<Answer> answers = engine.run(prompts);
    BOOST_TEST((answers[0] == expected[0]));
    BOOST_TEST(answers[1].num_blended == num_tokens_of(kOther));
    BOOST_TEST(engine.num_external_hits() < 8u);
    engine.reset_prefix_cache();
    // What is exact is loaded; of what was blended there is nothing.
    BOOST_TEST((engine.run({prompts[0]})[0] == expected[0]));
    const std::uint64_t num_hits = engine.num_external_hits();
    BOOST_TEST(num_hits > 100u);
    engine.reset_prefix_cache();
    const std::map<std::size_t, std::string> off = {{0, R"({"enable_blending":false})"}};
    BOOST_TEST((engine.run({prompts[1]}, false, {}, off)[0] == expected[1]));
    BOOST_TEST(engine.num_external_hits() < num_hits + 8);
  }
}

BOOST_AUTO_TEST_CASE(a_request_says_whether_and_how_it_is_blended) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  const std::vector<Answer> expected = exact({}, prompts);
  TransferEngine engine({.num_blocks = 100, .transfer = blending(R"("enable_blending":false)")});
  const auto params = [](const std::string& text) {
    return std::map<std::size_t, std::string>{{0, text}};
  };
  engine.run({prompts[0]});
  const auto blended = [&](const std::string& text) {
    engine.reset_prefix_cache();
    return engine.run({prompts[1]}, false, {}, params(text))[0];
  };
  BOOST_TEST(blended("").num_blended == 0);
  const Answer all = blended(R"({"enable_blending":true,"blend_recompute_ratios":1})");
  BOOST_TEST((all == expected[1]));
  BOOST_TEST(all.num_blended > 0);
  const Answer none = blended(R"({"enable_blending":true,"blend_recompute_ratios":[0]})");
  BOOST_TEST((none.logprobs != expected[1].logprobs));
  const Answer near = blended(R"({"enable_blending":true,"blend_thresholds":1e9})");
  BOOST_TEST((near == none));
  for (const std::string wrong :
       {R"({"enable_blending":1})", R"({"blend_recompute_ratios":1.5})",
        R"({"blend_recompute_ratios":[0.1,0.2]})", R"({"blend_recompute_ratios":[]})",
        R"({"blend_thresholds":"x"})", R"({"blend_recompute_ratios":0,"blend_thresholds":0})"})
    BOOST_TEST(!engine.connector<BlendConnector>().check_transfer_params(wrong).ok(), wrong);
}

BOOST_AUTO_TEST_CASE(other_tenants_find_no_piece) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther)};
  TransferEngine engine({.num_blocks = 100, .transfer = blending("")});
  engine.run({prompts[0]}, false, "one");
  BOOST_TEST(engine.run({prompts[1]}, false, "two")[0].num_blended == 0);
  BOOST_TEST(engine.run({prompts[1]}, false, "one")[0].num_blended > 0);
}

BOOST_AUTO_TEST_CASE(paragraphs_that_are_new_are_computed_and_kept) {
  TransferEngine engine({.num_blocks = 100, .transfer = blending("")});
  engine.run({prompt_of({0, 1, 2})});
  BOOST_TEST(engine.run({prompt_of({2, 7, 0})})[0].num_blended == num_tokens_of({2, 0}));
  BOOST_TEST(engine.run({prompt_of({7, 1, 8})})[0].num_blended == num_tokens_of({7, 1}));
  // Fewer than blend_min_tokens.
  BOOST_TEST(engine.run({{9, 5, 6, 11, 12, 5, 6, 13}})[0].num_blended == 0);
  BOOST_TEST(engine.run({{9, 8, 7, 5, 6, 11, 12, 5, 6, 13}})[0].num_blended == 0);
}

BOOST_AUTO_TEST_CASE(odd_separators_do_no_harm) {
  const auto joined = [](std::initializer_list<std::vector<TokenId>> parts) {
    std::vector<TokenId> prompt;
    for (const auto& part : parts) prompt.insert(prompt.end(), part.begin(), part.end());
    return prompt;
  };
  const std::vector<std::vector<TokenId>> prompts = {
      joined({paragraph(1), kSeparator, paragraph(2), kSeparator, paragraph(3)}),
      joined({kSeparator, kSeparator, paragraph(3), kSeparator, kSeparator, paragraph(2)}),
      joined({paragraph(2), kSeparator, paragraph(1), kSeparator}),
      joined({{5}, paragraph(3), {6, 5}, paragraph(1)}),  // halves of one
      {5},
      kSeparator,
  };
  const std::vector<Answer> expected = exact({}, prompts);
  TransferEngine engine(
      {.num_blocks = 100, .transfer = blending(R"("blend_recompute_ratios":[1])")});
  const std::vector<Answer> answers = engine.run(prompts);
  BOOST_TEST((answers == expected));
  BOOST_TEST(answers[1].num_blended == num_tokens_of({3, 2}, 0));
  BOOST_TEST(answers[2].num_blended == num_tokens_of({2, 1}, 0));
  BOOST_TEST(answers[3].num_blended == 0);
}

BOOST_AUTO_TEST_CASE(memory_has_a_limit_and_what_requests_use_stays) {
  // Of about 60 tokens: of a piece 2 numbers of 4 layers with 2 heads of 16 or so.
  TransferEngine engine(
      {.num_blocks = 100, .transfer = blending(R"("max_local_cpu_size":0.0001)")});
  for (std::int32_t i = 0; i + 2 < 12; ++i) engine.run({prompt_of({i, i + 1, i + 2})});
  const PieceIndex& index = engine.connector<BlendConnector>().index();
  BOOST_TEST(index.num_bytes() <= 107374);
  BOOST_TEST(index.size() > 0u);
  engine.reset_prefix_cache(/*connector_too=*/true);
  BOOST_TEST(index.size() == 0u);
  BOOST_TEST(engine.run({prompt_of({9, 10, 11})})[0].num_blended == 0);
}

BOOST_AUTO_TEST_CASE(a_request_goes_on_after_preemptions_and_failed_steps) {
  const std::vector<std::vector<TokenId>> prompts = {prompt_of(kOrder), prompt_of(kOther),
                                                     prompt_of({1, 0, 3, 2})};
  const std::vector<Answer> expected = exact({}, prompts);
  const std::string all = blending(R"("blend_recompute_ratios":[1])");
  // Blocks for one and a half of them.
  TransferEngine small({.num_blocks = 56, .transfer = all});
  small.run({prompts[0]});
  BOOST_TEST((small.run(prompts, /*together=*/true) == expected));
  BOOST_TEST(small.num_free_blocks() == 55);

  for (const std::string& transfer : {all, blending(R"("blend_recompute_ratios":[0])")}) {
    for (int count = 1; count < 9; count += 2) {
      TransferEngine engine({.num_blocks = 100, .transfer = transfer});
      engine.run({prompts[0]});
      engine.lose_steps(count);
      const Answer answer = engine.run({prompts[1]})[0];
      BOOST_TEST(!answer.has_failed);
      BOOST_TEST(answer.tokens.size() == 7u);
      // What is kept on both sides is forgotten: it is computed exactly.
      BOOST_TEST((answer == expected[1]));
      BOOST_TEST(engine.run({prompts[2]})[0].num_blended > 0);
    }
  }
}

std::string refusal(const std::string& model) {
  const ConnectorConfig config =
      parse_connector_config(ConnectorKind::kKV, blending("", "")).value();
  auto runner = ModelRunner::load({.model = TROUPE_GOLDEN_DIR "/models/models/" + model,
                                   .dtype = "float32",
                                   .device = "cpu",
                                   .threads = 1,
                                   .block_size = 4,
                                   .max_num_seqs = 1,
                                   .max_num_batched_tokens = 16},
                                  {})
                    .value();
  const ModelLoaded loaded = runner->describe();
  const KVCacheConfig cache = plan_cache(loaded.layer_specs(), 60);
  KVCacheSettings settings;
  const auto made = make_blend_connector({config, "", {}, cache, settings});
  if (!made.ok()) return made.error().message;
  runner->add_extension(
      make_connector_extension(make_blend_connector_worker({.config = config}).value()));
  const auto initialized = runner->initialize_kv_cache(cache);
  return initialized.ok() ? "" : initialized.error().message;
}

BOOST_AUTO_TEST_CASE(models_that_it_is_not_for_are_refused_by_the_kind_of_their_layers) {
  const auto says = [](const std::string& model, const std::string& text) {
    const std::string message = refusal(model);
    BOOST_TEST(message.find(text) != std::string::npos, model << ": " << message);
  };
  says("gemma3_text", "sliding_window");
  says("gemma2", "sliding_window");
  says("deepseek_v3", "mla_attention");
  says("mamba2", "mamba");
  says("falcon_h1", "mamba");
  says("llama4_text", "chunked_local_attention");
  says("gpt_oss", "sliding_window");
  says("smollm3", "no rotary embedding");
  BOOST_TEST(refusal("llama") == "");
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_the_configuration_is_told) {
  const auto error_of = [](const std::string& extra) {
    const auto config = parse_connector_config(ConnectorKind::kKV, blending(extra, ""));
    const auto read = read_blend_config(config.value());
    return read.ok() ? std::string() : read.error().message;
  };
  BOOST_TEST(error_of("") == "");
  for (const auto& [extra, text] :
       {std::pair{R"("blend_recompute_ratios":[0.1,2])", "blend_recompute_ratios must be numbers"},
        {R"("blend_recompute_ratios":[0.1,0.2])", "has 2 numbers for 1 blend_check_layers"},
        {R"("blend_check_layers":[0])", "ascending numbers from 1 on"},
        {R"("blend_check_layers":[3,2])", "ascending numbers from 1 on"},
        {R"("blend_check_layers":[])", "blend_check_layers must not be empty"},
        {R"("max_local_cpu_size":0)", "must be greater than 0"},
        {R"("blend_special_str":"")", "blend_special_str must be a string"},
        {R"("blend_ratio":1)", "blend_ratio is unknown"}}) {
    const std::string message = error_of(extra);
    BOOST_TEST(message.find(text) != std::string::npos, extra << ": " << message);
  }
}

// ---- the parts ----------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(pieces_that_end_by_their_content_are_found_at_any_place) {
  std::vector<TokenId> text;
  for (std::int32_t i = 0; i < 1200; ++i)
    text.push_back(static_cast<TokenId>((i * 2654435761U + (i * i) % 977U) % 50000U));
  const auto keys_of = [](const std::vector<TokenId>& tokens) {
    std::vector<BlockHash> keys;
    std::int32_t end = 0;
    for (const TokenSpan piece : pieces_by_content(tokens)) {
      BOOST_TEST(piece.begin == end);
      end = piece.end;
      BOOST_TEST(piece.end - piece.begin <= kMaxPiece);
      if (std::cmp_less(piece.end, tokens.size())) BOOST_TEST(piece.end - piece.begin >= kMinPiece);
      keys.push_back(
          piece_key(std::span(tokens).subspan(static_cast<std::size_t>(piece.begin),
                                              static_cast<std::size_t>(piece.end - piece.begin)),
                    ""));
    }
    BOOST_TEST(end == std::ssize(tokens));
    return keys;
  };
  const std::vector<BlockHash> keys = keys_of(text);
  BOOST_TEST(keys.size() > 12u);
  BOOST_TEST(keys.size() < 76u);
  for (const std::size_t shift : {1U, 7U, 100U, 333U}) {
    std::vector<TokenId> moved(shift, 77);
    moved.insert(moved.end(), text.begin(), text.end());
    const std::vector<BlockHash> others = keys_of(moved);
    const auto num_same = std::ranges::count_if(
        keys, [&](const BlockHash& key) { return std::ranges::count(others, key) > 0; });
    BOOST_TEST(num_same + 4 >= std::ssize(keys));
  }
  keys_of(std::vector<TokenId>(1000, 3));  // of one token, of none
  BOOST_TEST(pieces_by_content({}).empty());
}

BOOST_AUTO_TEST_CASE(keys_tell_tenants_apart) {
  const std::vector<TokenId> tokens = {1, 2, 3};
  BOOST_TEST((piece_key(tokens, "") == piece_key(tokens, "")));
  BOOST_TEST((piece_key(tokens, "a") != piece_key(tokens, "b")));
  BOOST_TEST(
      (piece_key(std::vector<TokenId>{'a'}, "") != piece_key({}, std::string("a\0\0\0", 4))));
}

BOOST_AUTO_TEST_CASE(the_index_drops_what_was_used_least_lately_and_is_not_pinned) {
  const auto key = [](std::uint8_t number) { return BlockHash{{number}}; };
  PieceIndex index(100);
  std::vector<BlockHash> removed;
  for (std::uint8_t i = 0; i < 4; ++i) {
    BOOST_TEST(index.begin(key(i), 25, removed));
    BOOST_TEST(!index.has(key(i)));
    index.complete(key(i));
  }
  index.pin(key(0));
  BOOST_TEST(index.begin(key(4), 25, removed));
  BOOST_TEST((removed == std::vector{key(1)}));
  // 0 is pinned, 4 is not whole.
  BOOST_TEST(!index.begin(key(5), 60, removed));
  BOOST_TEST(removed.size() == 1u);
  BOOST_TEST(index.begin(key(5), 50, removed));
  BOOST_TEST((removed == std::vector{key(1), key(2), key(3)}));
  index.unpin(key(0));
  index.complete(key(4));
  BOOST_TEST(index.begin(key(6), 25, removed));
  BOOST_TEST(!index.has(key(0)));
  BOOST_TEST(index.has(key(4)));
  index.clear();
  index.unpin(key(4));
  BOOST_TEST(index.num_bytes() == 0);
}

/// A worker's side with two heads of four elements, and batches of one sequence.
struct OneWorker {
  static constexpr std::int64_t kHeads = 2;
  static constexpr std::int64_t kDim = 4;
  std::unique_ptr<Device> device = Device::create({.name = "cpu", .num_threads = 1}).value();
  BlendConnectorWorker worker;
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> slots;
  std::vector<TokenId> ids;
  std::vector<std::int32_t> starts;
  std::vector<std::int32_t> outputs = {0, 1};
  std::vector<ForwardBatch::Group> groups;
  ForwardBatch batch;

  explicit OneWorker(BlendConfig config) : worker(std::move(config), KVConnectorWorkerContext{}) {
    KVCacheMemory memory{.device = device.get(), .config = {}, .groups = {}};
    memory.config.groups.push_back(
        {.spec = {.kind = FullAttentionSpec{{.num_kv_heads = 2, .head_dim = 4}}, .block_size = 4},
         .layers = {0, 1, 2},
         .layer_specs = {}});
    BOOST_REQUIRE(worker.register_kv_caches(memory).ok());
  }
  void begin(std::int32_t first, std::int32_t count, const BlendOps& ops) {
    positions.resize(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), first);
    slots.assign(positions.begin(), positions.end());
    for (std::int64_t& slot : slots) slot += 1000;
    ids.assign(static_cast<std::size_t>(count), 1);
    starts = {0, count};
    groups = {{.slots = slots.data(), .num_slots = slots.size()}};
    batch = {.token_ids = ids,
             .positions = positions,
             .query_start_loc = starts,
             .output_start_loc = outputs,
             .groups = groups};
    worker.start_step();
    worker.start_load_kv(pack_blend_ops(ops));
    worker.begin(batch);
  }
  /// Row t has the elements value(t) + 0, 1, 2, ...; its value has 100 more.
  void take(std::int32_t layer, const std::vector<float>& rows) {
    constexpr std::int64_t kSize = kHeads * kDim;
    std::vector<float> kv;
    for (const float row : rows)
      for (std::int64_t i = 0; i < 2 * kSize; ++i)
        kv.push_back(row + static_cast<float>(i % kSize) + (i < kSize ? 0.0f : 100.0f));
    const auto count = static_cast<std::int64_t>(rows.size());
    worker.take(layer, ConstHeads(kv.data(), count, kHeads, kDim, 2 * kSize),
                ConstHeads(kv.data() + kSize, count, kHeads, kDim, 2 * kSize), false);
  }
};

std::vector<std::int32_t> list(std::span<const std::int32_t> span) {
  return {span.begin(), span.end()};
}

BOOST_AUTO_TEST_CASE(kept_rows_go_to_new_positions_and_what_is_not_kept_is_computed) {
  const BlockHash key{{7}};
  BlendConfig config;
  config.rule = {.check_layers = {1, 2}, .ratios = {0.5, 0.25}};
  OneWorker one(config);
  // A piece of 8 tokens in two steps.
  one.begin(3, 6, {.ops = {{PieceOp::Kind::kSave, {key, 0, 1, 5}, 8}}});
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    BOOST_TEST(!one.worker.selects_at(layer));
    BOOST_TEST(one.worker.put(layer, 2, 4) == nullptr);
    one.take(layer, {-1, 0, 1, 2, 3, 4});
  }
  one.begin(9, 4, {.ops = {{PieceOp::Kind::kSave, {key, 5, 0, 3}, 8}}});
  for (std::int32_t layer = 0; layer < 3; ++layer) one.take(layer, {5, 6, 7, -1});

  // It stands at 102 to 109 now; 100, 101, 110, 111 are new, and 111 is the last one.
  one.begin(100, 12,
            {.blends = {{.parts = {{key, 0, 2, 8}}, .ratios = {0.5, 0.25}, .thresholds = {}}}});
  BOOST_TEST(!one.worker.selects_at(0));
  BOOST_TEST(one.worker.put(0, 2, 4) == nullptr);
  one.take(0, std::vector<float>(12, 50));
  BOOST_REQUIRE(one.worker.selects_at(1));
  BOOST_TEST(one.worker.put(1, 2, 4) == nullptr);
  // Tokens 3, 5, 7 and 9 of the batch differ, by 1, 4, 3 and 2.
  one.take(1, {70, 70, 0, 2, 2, 7, 4, 8, 6, 9, 70, 70});
  BOOST_TEST(
      list(one.worker.select(1, nullptr)) == (std::vector<std::int32_t>{0, 1, 3, 5, 7, 9, 10, 11}),
      boost::test_tools::per_element());
  BOOST_TEST(!one.worker.selects_at(1));
  const KvBlend::Rows* rows = one.worker.put(1, 2, 4);
  BOOST_REQUIRE(rows != nullptr);
  BOOST_REQUIRE(rows->k.num_tokens == 4);
  // Tokens 0, 2, 4, 6 of the piece.
  for (std::int32_t i = 0; i < 4; ++i) {
    BOOST_TEST(rows->positions[i] == 102 + 2 * i);
    BOOST_TEST(rows->slots[i] == 1102 + 2 * i);
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t e = 0; e < 4; ++e) {
        const float expected = static_cast<float>(2 * i) + static_cast<float>(4 * head + e);
        BOOST_TEST(rows->k.row(i, head)[e] == expected);
        BOOST_TEST(rows->v.row(i, head)[e] == 100 + expected);
      }
  }
  // A quarter of the eight, among those that are left, by their own places.
  BOOST_REQUIRE(one.worker.selects_at(2));
  one.take(2, {70, 70, 1.5f, 3, 9, 7.25f, 70, 70});
  BOOST_TEST(list(one.worker.select(2, nullptr)) == (std::vector<std::int32_t>{0, 1, 3, 7, 10, 11}),
             boost::test_tools::per_element());
  rows = one.worker.put(2, 2, 4);
  BOOST_REQUIRE(rows != nullptr);
  BOOST_REQUIRE(rows->k.num_tokens == 6);
  BOOST_TEST(rows->positions[5] == 109);
}

BOOST_AUTO_TEST_CASE(a_threshold_is_relative_to_the_length_of_a_key) {
  const BlockHash key{{7}};
  OneWorker one(BlendConfig{});
  one.begin(0, 4, {.ops = {{PieceOp::Kind::kSave, {key, 0, 0, 3}, 3}}});
  for (std::int32_t layer = 0; layer < 3; ++layer) one.take(layer, {0, 1000, 10, 0});
  one.begin(7, 4, {.blends = {{.parts = {{key, 0, 0, 3}}, .ratios = {}, .thresholds = {0.01}}}});
  one.take(0, {0, 0, 0, 0});
  // Each differs by 4, which is little of the second one.
  one.take(1, {4, 1004, 14, 0});
  BOOST_TEST(list(one.worker.select(1, nullptr)) == (std::vector<std::int32_t>{0, 2, 3}),
             boost::test_tools::per_element());
}

}  // namespace
}  // namespace troupe
