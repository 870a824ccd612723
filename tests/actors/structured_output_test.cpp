// Structured requests: what their grammars allow follows each step to the workers, which compute
// meanwhile; all others get one message per step.
#include "tests/support/deterministic_engine.hpp"
#include "tests/support/fake_grammar.hpp"

namespace troupe::testing {
namespace {

constexpr std::int32_t kPrompt = 20;
const SpeculativeConfig kDraftModel{
    .num_draft_tokens = 3, .num_lookahead_tokens = 3, .draft_slots = 1};

struct StructuredEngine : DeterministicEngine {
  std::shared_ptr<FakeGrammarCompiler> compiler;

  explicit StructuredEngine(HarnessOptions harness_options = {})
      : StructuredEngine(std::move(harness_options), std::make_shared<FakeGrammarCompiler>()) {}

  void add(std::uint64_t id, std::int32_t max_tokens, SamplingParams params = {}) {
    engine->add(RequestId{id}, prompt(kPrompt, static_cast<TokenId>(40 * id)), max_tokens,
                std::move(params));
    coordinator.run();
  }
  void add_structured(std::uint64_t id, std::int32_t max_tokens) {
    add(id, max_tokens, structured(RequestId{id}, kPrompt));
  }
  void release_all() {
    while (!worker().held.empty()) release();
  }
  /// The request has the tokens that its grammar requires, and has ended once.
  void check_structured(std::uint64_t id, std::size_t count) const {
    const std::vector<TokenId>& tokens = frontend().token_ids[RequestId{id}];
    BOOST_REQUIRE_EQUAL(tokens.size(), count);
    for (std::size_t i = 0; i < count; ++i)
      BOOST_TEST(tokens[i] == grammar_token(RequestId{id}, kPrompt + static_cast<std::int32_t>(i)));
    BOOST_TEST(frontend().num_finished[RequestId{id}] == 1);
    BOOST_TEST(frontend().errors.empty());
  }

 private:
  StructuredEngine(HarnessOptions harness_options, std::shared_ptr<FakeGrammarCompiler> owned)
      : DeterministicEngine([&] {
          harness_options.grammar_compiler = owned;
          return harness_options;
        }()),
        compiler(std::move(owned)) {}
};

template <class Test>
void with_and_without_overlap_and_drafts(const Test& test) {
  for (const bool async : {false, true}) {
    for (const bool drafts : {false, true}) {
      BOOST_TEST_CONTEXT((async ? "overlapping steps" : "one step at a time")
                         << (drafts ? " with drafts" : "")) {
        StructuredEngine engine(
            {.async_scheduling = async, .speculative = drafts ? kDraftModel : SpeculativeConfig{}});
        test(engine);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_structured_request_gets_what_its_grammar_wants_and_its_neighbour_is_free) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    test.add_structured(1, 30);
    test.add(2, 40);
    test.check_structured(1, 30);
    test.check_tokens(RequestId{2}, kPrompt, 40);
    BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
    for (const GrammarOutput& grammar : test.worker().grammars)
      BOOST_TEST((grammar.ids.empty() || grammar.ids == std::vector{RequestId{1}}));
    // No message more than there are steps with the structured request.
    BOOST_TEST(test.worker().grammars.size() < test.worker().num_steps);
    const std::size_t num_grammars = test.worker().grammars.size();
    test.add(3, 10);
    test.check_tokens(RequestId{3}, kPrompt, 10);
    BOOST_TEST(test.worker().grammars.size() == num_grammars);
  });
}

BOOST_AUTO_TEST_CASE(steps_without_a_structured_request_are_one_message) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    test.add(1, 20);
    test.check_tokens(RequestId{1}, kPrompt, 20);
    BOOST_TEST(test.worker().grammars.empty());
  });
}

BOOST_AUTO_TEST_CASE(a_mask_is_with_the_worker_before_the_result_and_the_next_after_it) {
  StructuredEngine test({.async_scheduling = true});
  test.worker().hold = true;
  test.add_structured(1, 6);
  test.release();  // an empty step, planned while the grammar was made
  // The second one's mask needs the first one's token. The worker has the step all the same.
  BOOST_TEST(test.worker().num_steps == 3u);
  BOOST_REQUIRE_EQUAL(test.worker().grammars.size(), 1u);
  BOOST_TEST(test.worker().held.size() == 1u);
  for (std::uint64_t released = 1; released < 5; ++released) {
    test.release();
    BOOST_TEST(test.worker().num_steps == released + 3);
    BOOST_TEST(test.worker().grammars.size() == released + 1);
    BOOST_TEST(test.worker().held.size() == 1u);
  }
  test.release_all();
  test.check_structured(1, 6);
}

/// Three steps may be open: the mask of the last one is made of the results of both before it.
BOOST_AUTO_TEST_CASE(with_a_pipeline_a_mask_waits_for_all_results_that_it_needs) {
  StructuredEngine test({.async_scheduling = true, .pipeline_parallel_size = 2});
  test.worker().hold = true;
  test.add_structured(1, 10);
  test.add(2, 10);
  test.add_structured(3, 10);
  test.release_all();
  test.check_structured(1, 10);
  test.check_tokens(RequestId{2}, kPrompt, 10);
  test.check_structured(3, 10);
}

BOOST_AUTO_TEST_CASE(the_workers_have_a_step_while_its_mask_is_filled) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    test.compiler->hold_masks = true;
    test.add_structured(1, 12);
    test.add(2, 12);
    for (int i = 0; i < 200 && test.compiler->num_held_masks() > 0; ++i) {
      BOOST_TEST(test.worker().num_steps > test.worker().grammars.size());
      test.compiler->release_masks();
      test.coordinator.run();
    }
    BOOST_TEST(test.compiler->num_held_masks() == 0u);
    test.check_structured(1, 12);
    test.check_tokens(RequestId{2}, kPrompt, 12);
  });
}

BOOST_AUTO_TEST_CASE(the_mask_of_a_step_that_has_failed_meanwhile_is_dropped) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    test.compiler->hold_masks = true;
    test.add_structured(1, 12);
    BOOST_REQUIRE_EQUAL(test.compiler->num_held_masks(), 1u);
    const std::uint64_t step = test.worker().last_step;
    post(test.engine->scheduler, StepFailed{step, {ErrorCode::kInternal, "made to fail"}});
    test.coordinator.run();
    BOOST_REQUIRE(!test.worker().grammars.empty());
    BOOST_TEST(test.worker().grammars.back().step == step);
    BOOST_TEST(test.worker().grammars.back().ids.empty());
    test.compiler->hold_masks = false;
    while (test.compiler->num_held_masks() > 0) {
      test.compiler->release_masks();
      test.coordinator.run();
    }
    test.check_structured(1, 12);
  });
}

/// The texts of these grammars have no end token.
BOOST_AUTO_TEST_CASE(a_request_ends_where_nothing_can_follow_and_keeps_what_it_has) {
  for (const bool is_error : {false, true}) {
    with_and_without_overlap_and_drafts([&](StructuredEngine& test) {
      test.compiler->last_position = kPrompt + 7;
      if (is_error) test.compiler->why_nothing_fits = invalid_argument("nothing fits");
      test.add_structured(1, 12);
      test.compiler->last_position.reset();
      test.add(2, 12);
      // An error is not told behind tokens of the same step.
      const std::size_t num_tokens = test.frontend().token_ids[RequestId{1}].size();
      BOOST_TEST((num_tokens == 7u || (is_error && num_tokens == 5u)));
      BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
      BOOST_TEST(test.frontend().errors.contains(RequestId{1}) == is_error);
      if (!is_error)
        BOOST_TEST((test.frontend().finish_reasons[RequestId{1}] == FinishReason::kStop));
      test.check_tokens(RequestId{2}, kPrompt, 12);
      BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
    });
  }
}

BOOST_AUTO_TEST_CASE(a_failed_step_takes_its_mask_along_and_costs_no_token) {
  for (const bool async : {false, true}) {
    for (const std::uint64_t at : {1, 2, 3, 4, 7}) {
      BOOST_TEST_CONTEXT((async ? "overlapping steps, " : "one step at a time, ") << at) {
        StructuredEngine test({.async_scheduling = async});
        test.worker().fails = [&](const SchedulerOutput&) { return test.worker().num_steps == at; };
        test.add_structured(1, 12);
        test.add(2, 12);
        test.check_structured(1, 12);
        test.check_tokens(RequestId{2}, kPrompt, 12);
        BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
      }
    }
  }
}

/// The worker has computed the younger step and waits for its mask. The older one's failure takes
/// both back: the worker is told, or the next step would fail as well, through no fault of its own.
BOOST_AUTO_TEST_CASE(the_failure_of_the_step_before_gives_up_a_step_that_waits_for_its_mask) {
  StructuredEngine test({.async_scheduling = true});
  test.worker().hold = true;
  test.add_structured(1, 12);
  test.release();
  BOOST_REQUIRE_EQUAL(test.worker().held.size(), 1u);
  const std::uint64_t older = std::get<ModelRunnerOutput>(test.worker().held[0]).step;
  test.worker().held[0] = StepFailed{older, {ErrorCode::kInternal, "made to fail"}};
  test.release();
  while (!test.worker().held.empty()) {
    BOOST_TEST(std::holds_alternative<ModelRunnerOutput>(test.worker().held.front()));
    test.release();
  }
  test.check_structured(1, 12);
}

BOOST_AUTO_TEST_CASE(an_abort_while_a_mask_is_owed_ends_only_its_request) {
  StructuredEngine test({.async_scheduling = true});
  test.worker().hold = true;
  test.add_structured(1, 100);
  test.add(2, 12);
  test.release();
  test.engine->abort(RequestId{1});
  test.coordinator.run();
  test.release_all();
  BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
  test.check_tokens(RequestId{2}, kPrompt, 12);
  BOOST_TEST(test.worker().grammars.back().ids.empty());  // the worker was waiting for it
  BOOST_TEST(test.frontend().stats.kv_cache_usage == 0);
}

BOOST_AUTO_TEST_CASE(a_reset_of_the_caches_while_a_mask_is_owed_costs_no_token) {
  StructuredEngine test({.async_scheduling = true});
  test.worker().hold = true;
  test.add_structured(1, 12);
  test.release();
  post(test.engine->scheduler, ResetCaches{.prefix_cache = true, .preempt_running = true});
  test.coordinator.run();
  test.release_all();
  test.check_structured(1, 12);
}

BOOST_AUTO_TEST_CASE(others_run_while_a_grammar_is_made) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    test.compiler->hold = true;
    test.add_structured(1, 12);
    test.add(2, 12);
    test.check_tokens(RequestId{2}, kPrompt, 12);
    BOOST_TEST(test.frontend().token_ids[RequestId{1}].empty());
    test.compiler->release();
    test.coordinator.run();
    test.check_structured(1, 12);
  });
}

BOOST_AUTO_TEST_CASE(what_is_no_grammar_ends_its_request_with_the_reason) {
  with_and_without_overlap_and_drafts([](StructuredEngine& test) {
    SamplingParams params;
    params.structured_outputs.emplace().texts = {"nonsense"};
    test.add(1, 12, params);
    test.add(2, 12);
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
    BOOST_TEST(test.frontend().errors[RequestId{1}].message == "not a grammar: nonsense");
    test.check_tokens(RequestId{2}, kPrompt, 12);
  });
}

BOOST_AUTO_TEST_CASE(without_a_compiler_a_structured_request_ends_with_an_error) {
  with_and_without_overlap({}, [](DeterministicEngine& test) {
    test.engine->add(RequestId{1}, test.prompt(20), 12, structured(RequestId{1}, kPrompt));
    test.coordinator.run();
    BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 1);
    BOOST_TEST((test.frontend().errors[RequestId{1}].code == ErrorCode::kUnsupported));
  });
}

/// The id comes again, with another grammar: the first one's comes last.
BOOST_AUTO_TEST_CASE(a_grammar_that_comes_after_its_requests_end_is_dropped) {
  StructuredEngine test;
  test.compiler->hold = true;
  test.add(1, 12, structured(RequestId{99}, kPrompt));
  test.engine->abort(RequestId{1});
  test.coordinator.run();
  test.add_structured(1, 12);
  BOOST_REQUIRE_EQUAL(test.compiler->num_held(), 2u);
  test.compiler->release();
  test.coordinator.run();
  BOOST_TEST(test.frontend().token_ids[RequestId{1}].empty());
  test.compiler->release();
  test.coordinator.run();
  BOOST_TEST(test.frontend().token_ids[RequestId{1}].size() == 12u);
  for (std::size_t i = 0; i < 12; ++i)
    BOOST_TEST(test.frontend().token_ids[RequestId{1}][i] ==
               grammar_token(RequestId{1}, kPrompt + static_cast<std::int32_t>(i)));
  BOOST_TEST(test.frontend().num_finished[RequestId{1}] == 2);
  BOOST_TEST(test.frontend().errors.empty());
}

BOOST_AUTO_TEST_CASE(masks_travel_through_rings) {
  for (const bool async : {false, true}) {
    SystemConfig config;
    caf::actor_system system{config};
    EngineHarness engine(system, demo_tokenizer(),
                         {.async_scheduling = async,
                          .speculative = kDraftModel,
                          .through_rings = true,
                          .grammar_compiler = std::make_shared<FakeGrammarCompiler>()});
    constexpr std::uint64_t kRequests = 8;
    const auto is_structured = [](std::uint64_t id) { return id % 2 == 0; };
    for (std::uint64_t id = 1; id <= kRequests; ++id) {
      engine.add(RequestId{id}, DeterministicEngine::prompt(kPrompt), 40,
                 is_structured(id) ? structured(RequestId{id}, kPrompt) : SamplingParams{});
    }
    engine.frontend_log->wait_for(kRequests);
    for (std::uint64_t id = 1; id <= kRequests; ++id) {
      const auto& tokens = engine.frontend_log->token_ids[RequestId{id}];
      BOOST_REQUIRE_EQUAL(tokens.size(), 40u);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto position = kPrompt + static_cast<std::int32_t>(i);
        BOOST_TEST(tokens[i] == (is_structured(id) ? grammar_token(RequestId{id}, position)
                                                   : fake_token(RequestId{id}, position)));
      }
    }
  }
}

}  // namespace
}  // namespace troupe::testing
