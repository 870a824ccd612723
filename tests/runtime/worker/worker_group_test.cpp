#include "runtime/worker/worker_group.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

constexpr ParallelConfig two_by_two() {
  return {.tensor_parallel_size = 2, .pipeline_parallel_size = 2};
}

ModelRunnerOutput answer(std::uint64_t step, std::int32_t rank) {
  ModelRunnerOutput output{.step = step};
  output.rank = rank;
  output.sampled_token_ids = {rank};
  return output;
}

BOOST_AUTO_TEST_CASE(ranks_are_counted_stage_by_stage) {
  ParallelConfig parallel = two_by_two();
  parallel.rank = 3;
  BOOST_TEST(parallel.world_size() == 4);
  BOOST_TEST(parallel.stage() == 1);
  BOOST_TEST(parallel.tensor_rank() == 1);
  BOOST_TEST(parallel.output_rank() == 2);
  for (parallel.rank = 0; parallel.rank < 4; ++parallel.rank) {
    BOOST_TEST(parallel.is_first_stage() == (parallel.rank < 2));
    BOOST_TEST(parallel.is_last_stage() == (parallel.rank >= 2));
  }
  const ParallelConfig alone;
  BOOST_TEST((alone.is_first_stage() && alone.is_last_stage()));
}

BOOST_AUTO_TEST_CASE(a_step_has_a_result_when_all_ranks_have_answered_and_it_is_the_output_ranks) {
  StepAnswers answers(two_by_two());
  answers.begin(7);
  answers.begin(8);
  BOOST_TEST(!answers.add(answer(7, 2)).has_value());
  BOOST_TEST(!answers.add(answer(8, 0)).has_value());
  BOOST_TEST(!answers.add(answer(7, 0)).has_value());
  BOOST_TEST(!answers.add(answer(7, 1)).has_value());
  const auto result = answers.add(answer(7, 3));
  BOOST_REQUIRE(result.has_value());
  BOOST_TEST(result->step == 7u);
  BOOST_TEST(result->sampled_token_ids.at(0) == 2);
}

BOOST_AUTO_TEST_CASE(the_first_failure_ends_every_open_step_and_later_answers_do_not_count) {
  StepAnswers answers(two_by_two());
  answers.begin(1);
  answers.begin(2);
  BOOST_TEST(!answers.fail(3));
  BOOST_TEST(answers.fail(2));
  BOOST_TEST(!answers.fail(2));
  BOOST_TEST(!answers.fail(1));
  for (std::int32_t rank = 0; rank < 4; ++rank)
    BOOST_TEST(!answers.add(answer(1, rank)).has_value());
  answers.begin(3);
  for (std::int32_t rank = 0; rank < 3; ++rank)
    BOOST_TEST(!answers.add(answer(3, rank)).has_value());
  BOOST_TEST(answers.add(answer(3, 3)).has_value());
}

BOOST_AUTO_TEST_CASE(a_transfer_has_finished_when_every_rank_has_reported_it) {
  StepAnswers answers({.tensor_parallel_size = 2});
  /// The step's result; the ranks' reports come with their answers, the output rank's last.
  const auto run = [&](std::uint64_t step, const KVConnectorOutput& first,
                       const KVConnectorOutput& second) {
    answers.begin(step);
    for (const std::int32_t rank : {1, 0}) {
      ModelRunnerOutput output = answer(step, rank);
      output.kv_connector = rank == 0 ? first : second;
      if (auto result = answers.add(std::move(output))) return result->kv_connector;
    }
    BOOST_FAIL("the step has no result");
    return KVConnectorOutput{};
  };
  const std::vector<RequestId> a = {RequestId{1}}, b = {RequestId{2}};
  BOOST_TEST(run(1, {}, {.finished_sending = a, .finished_recving = a}).empty());
  BOOST_TEST((run(2, {.finished_recving = b}, {.finished_recving = b, .failed_recving = b}) ==
              KVConnectorOutput{.finished_recving = b, .failed_recving = b}));
  BOOST_TEST(run(3, {}, {}).empty());
  BOOST_TEST((run(4, {.finished_sending = a, .finished_recving = a}, {}) ==
              KVConnectorOutput{.finished_sending = a, .finished_recving = a}));
  // An id may come again.
  BOOST_TEST(run(5, {.finished_sending = a}, {}).empty());
  BOOST_TEST((run(6, {.invalid_block_ids = {4, 5}}, {.invalid_block_ids = {5, 6}}) ==
              KVConnectorOutput{.invalid_block_ids = {5, 6, 4}}));
}

BOOST_AUTO_TEST_CASE(an_encoder_output_is_loaded_if_no_rank_has_failed_to_load_it) {
  StepAnswers answers({.tensor_parallel_size = 2});
  answers.begin(1);
  ModelRunnerOutput first = answer(1, 1);
  first.ec_connector = {.loaded = {"a", "b"}, .failed = {"c"}};
  BOOST_TEST(!answers.add(std::move(first)).has_value());
  ModelRunnerOutput second = answer(1, 0);
  second.ec_connector = {
      .saved = {"c"}, .loaded = {"a"}, .failed = {"b", "c"}, .finished_sending = {RequestId{3}}};
  const auto result = answers.add(std::move(second));
  BOOST_REQUIRE(result.has_value());
  BOOST_TEST((result->ec_connector == ECConnectorOutput{.saved = {"c"},
                                                        .loaded = {"a"},
                                                        .failed = {"c", "b"},
                                                        .finished_sending = {RequestId{3}}}));
  answers.begin(2);
  BOOST_TEST(!answers.add(answer(2, 1)).has_value());
  BOOST_TEST(answers.add(answer(2, 0))->ec_connector.empty());
  // A fetch has ended when it has on both.
  answers.begin(3);
  first = answer(3, 0);
  first.ec_connector = {.failed = {"d"}, .fetched = {"d", "e"}};
  BOOST_TEST(!answers.add(std::move(first)).has_value());
  second = answer(3, 1);
  second.ec_connector = {.fetched = {"d"}};
  BOOST_TEST((answers.add(std::move(second))->ec_connector ==
              ECConnectorOutput{.failed = {"d"}, .fetched = {"d"}}));
  answers.begin(4);
  BOOST_TEST(!answers.add(answer(4, 0)).has_value());
  second = answer(4, 1);
  second.ec_connector = {.fetched = {"e"}};
  BOOST_TEST((answers.add(std::move(second))->ec_connector == ECConnectorOutput{.fetched = {"e"}}));
}

BOOST_AUTO_TEST_CASE(the_report_of_a_rank_whose_step_fails_on_another_one_is_kept) {
  StepAnswers answers({.tensor_parallel_size = 2});
  const auto sent = [](std::uint64_t step, std::int32_t rank) {
    ModelRunnerOutput output = answer(step, rank);
    output.kv_connector.finished_sending = {RequestId{1}};
    return output;
  };
  answers.begin(1);
  BOOST_TEST(answers.fail(1));
  BOOST_TEST(!answers.add(sent(1, 1)).has_value());
  answers.begin(2);
  BOOST_TEST(!answers.add(answer(2, 1)).has_value());
  const auto result = answers.add(sent(2, 0));
  BOOST_REQUIRE(result.has_value());
  BOOST_TEST((result->kv_connector.finished_sending == std::vector{RequestId{1}}));
}

BOOST_AUTO_TEST_CASE(errors_of_requests_come_from_all_ranks_one_for_each_request) {
  StepAnswers answers({.tensor_parallel_size = 2});
  answers.begin(1);
  ModelRunnerOutput other = answer(1, 1);
  other.request_errors = {{RequestId{1}, {ErrorCode::kIo, "lost"}},
                          {RequestId{2}, {ErrorCode::kIo, "lost"}}};
  BOOST_TEST(!answers.add(std::move(other)).has_value());
  ModelRunnerOutput own = answer(1, 0);
  own.request_errors = {{RequestId{1}, {ErrorCode::kInternal, "not finite"}}};
  const auto result = answers.add(std::move(own));
  BOOST_REQUIRE(result.has_value());
  BOOST_REQUIRE_EQUAL(result->request_errors.size(), 2u);
  BOOST_TEST(result->request_errors[0].second.message == "not finite");
  BOOST_TEST((result->request_errors[1].first == RequestId{2}));
}

BOOST_AUTO_TEST_CASE(workers_that_do_not_fit_together_are_told_in_what) {
  ModelLoaded first{
      .architecture = "A", .cpu_isa = "avx512", .weight_bytes = 5, .available_bytes = 10};
  ModelLoaded second = first;
  second.rank = 1;
  second.available_bytes = 4;
  const std::vector<ModelLoaded> same = {first, second};
  const auto joined = join_loaded(same);
  BOOST_REQUIRE(joined.ok());
  BOOST_TEST(joined->weight_bytes == 10);
  BOOST_TEST(joined->available_bytes == 4);

  second.cpu_isa = "avx2";
  const std::vector<ModelLoaded> different = {first, second};
  const auto refused = join_loaded(different);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message ==
             "the workers do not fit together: cpu_isa is avx512 on rank 0, avx2 on rank 1");
}

BOOST_AUTO_TEST_CASE(the_layers_of_all_stages_are_joined_in_order) {
  const auto layer = [](std::int32_t number, std::int32_t head_dim) {
    return LayerCacheSpec{number, {.kind = FullAttentionSpec{{.head_dim = head_dim}}}};
  };
  const auto joined = [](const std::vector<std::vector<LayerCacheSpec>>& of_ranks) {
    std::vector<ModelLoaded> loaded;
    for (const auto& layers : of_ranks)
      loaded.push_back(
          {.rank = static_cast<std::int32_t>(loaded.size()), .kv_cache_specs = layers});
    return join_loaded(loaded);
  };
  // Two stages of two ranks each.
  const std::vector<LayerCacheSpec> first = {layer(0, 8), layer(1, 16)};
  const std::vector<LayerCacheSpec> second = {layer(2, 32)};
  const auto all = joined({first, first, second, second});
  BOOST_REQUIRE(all.ok());
  BOOST_TEST((all->layer_specs() == std::vector{first[0].spec, first[1].spec, second[0].spec}));
  BOOST_TEST(joined({first, {layer(0, 8), layer(1, 8)}}).error().message ==
             "the workers do not fit together: the KV cache of layer 1 is one on rank 0, another "
             "on rank 1");
  BOOST_TEST(joined({first, {layer(3, 8)}}).error().message ==
             "the workers do not fit together: none of them has layer 2 of the KV cache, there is "
             "a layer 3");
}

}  // namespace
}  // namespace troupe
