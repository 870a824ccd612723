// The order of admission under overload: bounded bypass and fair shares.

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>
#include <string>

#include "tests/runtime/scheduler/scheduler_fixture.hpp"
#include "tests/support/property_seed.hpp"

namespace troupe {
namespace {

// ---- bounded bypass -----------------------------------------------------------------------------

struct Bypass : SchedulerFixture {
  explicit Bypass(std::int32_t max_bypasses) : SchedulerFixture(with(max_bypasses), 10) {}
  static SchedulerConfig with(std::int32_t max_bypasses) {
    SchedulerConfig config = small();
    config.max_queue_bypasses = max_bypasses;
    return config;
  }
  /// Half of the blocks are taken for long, and the next in the queue needs more than the other
  /// half; small ones follow.
  void crowd() {
    resident = add(request(19, 40));
    step();
    large = add(request(24, 2));
    for (int i = 0; i < 6; ++i) small_ones.push_back(add(request(3, 2)));
  }
  RequestId resident{}, large{};
  std::vector<RequestId> small_ones;
};

BOOST_AUTO_TEST_CASE(without_bypass_no_request_overtakes_one_that_does_not_fit) {
  Bypass f(0);
  f.crowd();
  for (int i = 0; i < 4; ++i) BOOST_TEST(f.step().scheduled_ids.size() == 1u);
  BOOST_TEST(f.ended.empty());
}

BOOST_AUTO_TEST_CASE(so_many_pass_and_then_the_queue_waits) {
  Bypass f(3);
  f.crowd();
  for (int i = 0; i < 12; ++i) f.step();
  for (std::size_t i = 0; i < f.small_ones.size(); ++i)
    BOOST_TEST(f.ended.contains(f.small_ones[i]) == (i < 3));
  BOOST_TEST(!f.running(f.large));
  const RequestId resident = f.resident;
  static_cast<void>(
      f.scheduler->finish_requests(std::span(&resident, 1), RequestStatus::kFinishedAborted));
  BOOST_TEST((f.step().scheduled_ids[0] == f.large));
  while (f.scheduler->has_requests()) f.step();
  BOOST_TEST(f.ended.size() == 7u);
  BOOST_TEST(f.all_blocks_free());
}

BOOST_AUTO_TEST_CASE(several_that_do_not_fit_keep_their_order) {
  Bypass f(2);
  f.crowd();
  const RequestId other_large = f.add(f.request(24, 2));
  for (int i = 0; i < 8; ++i) f.step();
  const auto waiting = f.scheduler->waiting().list();
  BOOST_TEST((waiting.front()->id == f.large));
  BOOST_TEST((waiting.back()->id == other_large));
}

/// Whatever arrives, no request is bypassed more often than allowed, and all finish.
BOOST_AUTO_TEST_CASE(no_random_workload_passes_anybody_too_often) {
  const std::uint32_t first_seed = testing::property_seed();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  for (std::uint32_t seed = first_seed; seed < first_seed + 40; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto pick = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
      };
      SchedulerConfig config = SchedulerFixture::small();
      config.max_queue_bypasses = pick(1, 4);
      config.max_num_seqs = pick(2, 8);
      config.prefix_caching = pick(0, 1) == 1;
      SchedulerFixture f(config, pick(17, 30));
      std::map<RequestId, std::int32_t> passed;  // of those that wait for the first time
      for (int i = 0; i < 300 || f.scheduler->has_requests(); ++i) {
        BOOST_REQUIRE(i < 20000);
        if (i < 300 && pick(0, 1) == 1 && passed.size() < 20) {
          const bool is_large = pick(0, 3) == 0;
          EngineCoreRequest request =
              f.request(is_large ? pick(25, 40) : pick(1, 10), pick(1, is_large ? 24 : 12));
          passed[request.id] = 0;
          f.add(std::move(request));
        }
        const SchedulerOutput planned = f.step();
        for (const NewRequestData& data : planned.new_requests) passed.erase(data.id);
        // Resumed requests were admitted before, and stand in front.
        const std::size_t num_new =
            planned.new_requests.size() - static_cast<std::size_t>(planned.num_resumed_requests);
        for (std::size_t n = 0; n < num_new; ++n) {
          for (auto& [id, count] : passed) {
            if (id < planned.new_requests[n].id) ++count;
            BOOST_REQUIRE(count <= config.max_queue_bypasses);
          }
        }
      }
      BOOST_TEST(f.ended.size() == f.last_id);
      BOOST_TEST(f.all_blocks_free());
    }
  }
}

// ---- bounded bypass of adapters -----------------------------------------------------------------

/// A model that serves adapters; the load keeps all slots busy.
struct AdapterBypass : SchedulerFixture {
  explicit AdapterBypass(std::int32_t max_bypasses, std::int32_t max_loras = 2)
      : SchedulerFixture(with(max_bypasses, max_loras)) {}
  static SchedulerConfig with(std::int32_t max_bypasses, std::int32_t max_loras) {
    SchedulerConfig config = small();
    config.max_loras = max_loras;
    config.max_lora_bypasses = max_bypasses;
    return config;
  }
  /// adapter 0: none.
  RequestId add_for(std::int32_t adapter, std::int32_t max_tokens) {
    EngineCoreRequest wanted = request(3, max_tokens);
    const std::string name = "adapter-" + std::to_string(adapter);
    if (adapter > 0) wanted.lora = LoraRequest{name, adapter, name};
    adapters[wanted.id] = adapter;
    return add(std::move(wanted));
  }
  /// Two requests of adapter 1 and two of adapter 2 at any time, whose ends do not coincide.
  SchedulerOutput loaded_step() {
    std::map<std::int32_t, int> unfinished;
    for (const auto& [id, adapter] : adapters)
      if (!ended.contains(id)) ++unfinished[adapter];
    for (const std::int32_t adapter : {1, 2})
      for (int n = unfinished[adapter]; n < 2; ++n) add_for(adapter, n == 0 ? 2 : 4);
    SchedulerOutput planned = step();
    for (const NewRequestData& data : planned.new_requests) admitted.push_back(data.id);
    return planned;
  }
  [[nodiscard]] std::int64_t num_admitted_after(RequestId id) const {
    return std::ranges::count_if(admitted, [&](RequestId other) { return other > id; });
  }
  std::map<RequestId, std::int32_t> adapters;
  std::vector<RequestId> admitted;
};

BOOST_AUTO_TEST_CASE(without_a_bound_an_adapter_waits_as_long_as_others_hold_the_slots) {
  AdapterBypass f(0);
  f.loaded_step();
  const RequestId third = f.add_for(3, 2);
  for (int i = 0; i < 300; ++i) f.loaded_step();
  BOOST_TEST(!f.running(third));
  BOOST_TEST(f.num_tokens[third] == 0u);
  BOOST_TEST(f.num_admitted_after(third) > 100);
}

BOOST_AUTO_TEST_CASE(so_many_with_other_adapters_pass_and_then_a_slot_is_freed) {
  for (const std::int32_t bound : {1, 5, 20}) {
    AdapterBypass f(bound);
    f.loaded_step();
    const RequestId third = f.add_for(3, 2);
    for (int i = 0; i < 300 && !f.running(third); ++i) f.loaded_step();
    BOOST_REQUIRE(f.running(third));
    f.admitted.erase(std::ranges::find(f.admitted, third), f.admitted.end());
    BOOST_TEST(f.num_admitted_after(third) == bound);
  }
}

BOOST_AUTO_TEST_CASE(requests_without_an_adapter_pass_one_that_waits_for_a_slot) {
  AdapterBypass f(1);
  const RequestId resident = f.add_for(1, 40);
  f.add_for(2, 40);
  f.step();
  const RequestId third = f.add_for(3, 2);
  const RequestId passes = f.add_for(1, 2);
  const RequestId waits = f.add_for(1, 2);
  f.step();
  BOOST_TEST(f.running(passes));
  for (int i = 0; i < 3; ++i) f.step();
  const RequestId plain = f.add_for(0, 2);
  f.step();
  BOOST_TEST(f.running(plain));
  BOOST_TEST(!f.running(third));
  BOOST_TEST(!f.running(waits));
  static_cast<void>(
      f.scheduler->finish_requests(std::span(&resident, 1), RequestStatus::kFinishedAborted));
  f.step();
  BOOST_TEST(f.running(third));
  BOOST_TEST(!f.running(waits));  // its adapter has no slot any more
  while (f.scheduler->has_requests()) f.step();
  BOOST_TEST(f.num_tokens[waits] == 2u);
  BOOST_TEST(f.all_blocks_free());
}

/// Whatever arrives, a request with an adapter is overtaken for a slot no more often than allowed.
BOOST_AUTO_TEST_CASE(no_random_workload_of_adapters_passes_anybody_too_often) {
  const std::uint32_t first_seed = testing::property_seed();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  for (std::uint32_t seed = first_seed; seed < first_seed + 40; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto pick = [&](int low, int high) {
        return std::uniform_int_distribution<int>(low, high)(random);
      };
      const std::int32_t bound = pick(1, 6);
      AdapterBypass f(bound, pick(1, 3));
      std::map<RequestId, std::int32_t> passed;  // of those that wait
      for (int i = 0; i < 400 || f.scheduler->has_requests(); ++i) {
        BOOST_REQUIRE(i < 20000);
        if (i < 400 && passed.size() < 8) {
          const RequestId id = f.add_for(pick(0, 5), pick(1, 8));
          if (f.adapters[id] > 0) passed[id] = 0;
        }
        const SchedulerOutput planned = f.step();
        for (const NewRequestData& data : planned.new_requests) passed.erase(data.id);
        for (const NewRequestData& data : planned.new_requests) {
          if (f.adapters[data.id] == 0) continue;
          for (auto& [id, count] : passed) {
            if (id < data.id) ++count;
            BOOST_REQUIRE(count <= bound);
          }
        }
      }
      BOOST_TEST(f.ended.size() == f.last_id);
      BOOST_TEST(f.all_blocks_free());
    }
  }
}

// ---- fair shares --------------------------------------------------------------------------------

BOOST_AUTO_TEST_CASE(a_tenant_that_returns_has_no_credit_for_idle_time) {
  FairShare share;
  share.enter(1);
  share.serve(1, 100, 50);
  BOOST_TEST(share.served(1) == 200);
  share.enter(2);  // level with the least served that is active
  BOOST_TEST(share.served(2) == 200);
  share.serve(2, 10, 0);
  share.leave(2);
  share.serve(1, 0, 1000);
  share.enter(2);
  BOOST_TEST(share.served(2) == 2200);
  share.leave(1);
  share.leave(2);
  share.enter(3);  // none is active: level with the last one
  BOOST_TEST(share.served(3) == 2200);
}

BOOST_AUTO_TEST_CASE(a_tenant_that_was_served_much_keeps_its_counter_when_it_returns) {
  FairShare share;
  share.enter(1);
  share.enter(2);
  share.serve(1, 500, 0);
  share.leave(1);
  share.enter(1);
  BOOST_TEST(share.served(1) == 500);
}

struct Fair : SchedulerFixture {
  explicit Fair(std::int32_t max_num_seqs = 1, std::int32_t num_blocks = 100)
      : SchedulerFixture(with(max_num_seqs), num_blocks) {}
  static SchedulerConfig with(std::int32_t max_num_seqs) {
    SchedulerConfig config = small();
    config.policy = SchedulingPolicy::kFair;
    config.max_num_seqs = max_num_seqs;
    return config;
  }
  RequestId add_for(std::uint32_t tenant, std::int32_t num_prompt_tokens, std::int32_t max_tokens) {
    EngineCoreRequest wanted = request(num_prompt_tokens, max_tokens);
    wanted.tenant = tenant;
    tenants[wanted.id] = tenant;
    return add(std::move(wanted));
  }
  /// Steps until all has ended; the tenants in the order of the ends.
  std::vector<std::uint32_t> order_of_ends() {
    std::vector<std::uint32_t> order;
    while (scheduler->has_requests()) {
      const auto before = ended;
      step();
      for (const auto& [id, output] : ended)
        if (!before.contains(id)) order.push_back(tenants[id]);
    }
    return order;
  }
  std::map<RequestId, std::uint32_t> tenants;
};

BOOST_AUTO_TEST_CASE(tenants_take_turns_although_one_came_first_with_all_of_its_requests) {
  Fair f;
  for (int i = 0; i < 4; ++i) f.add_for(1, 8, 4);
  for (int i = 0; i < 4; ++i) f.add_for(2, 8, 4);
  const std::vector<std::uint32_t> expected{1, 2, 1, 2, 1, 2, 1, 2};
  BOOST_TEST(f.order_of_ends() == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(one_with_long_requests_gets_fewer_turns) {
  Fair f;
  for (int i = 0; i < 6; ++i) f.add_for(2, 8, 4);
  for (int i = 0; i < 3; ++i) f.add_for(1, 40, 20);
  const std::vector<std::uint32_t> order = f.order_of_ends();
  const auto second_long =
      std::find(std::find(order.begin(), order.end(), 1u) + 1, order.end(), 1u);
  BOOST_TEST(std::count(order.begin(), second_long, 2u) >= 5);
}

BOOST_AUTO_TEST_CASE(slots_of_one_step_are_shared_too) {
  Fair f(4);
  for (int i = 0; i < 8; ++i) f.add_for(1, 6, 10);
  for (int i = 0; i < 8; ++i) f.add_for(2, 6, 10);
  std::map<std::uint32_t, int> admitted;
  for (const NewRequestData& data : f.step().new_requests) ++admitted[f.tenants[data.id]];
  BOOST_TEST(admitted[1] == 2);
  BOOST_TEST(admitted[2] == 2);
}

BOOST_AUTO_TEST_CASE(when_blocks_run_out_the_most_served_tenant_is_preempted) {
  Fair f(4, 12);
  const RequestId modest = f.add_for(2, 16, 24);
  for (int i = 0; i < 2; ++i) f.add_for(1, 12, 24);
  SchedulerOutput planned;
  for (int i = 0; i < 20 && planned.preempted_ids.empty(); ++i) planned = f.step();
  BOOST_REQUIRE(!planned.preempted_ids.empty());
  BOOST_TEST(f.tenants[planned.preempted_ids[0]] == 1u);
  BOOST_TEST(f.running(modest));
  while (f.scheduler->has_requests()) f.step();
  for (const auto& [id, output] : f.ended) BOOST_TEST(f.num_tokens[id] == 24u);
}

BOOST_AUTO_TEST_CASE(a_preempted_request_is_paid_for_once) {
  Fair f;
  f.add_for(2, 30, 30);  // 88 to pay; the others 38 each
  for (int i = 0; i < 3; ++i) f.add_for(1, 20, 10);
  f.add_for(2, 20, 10);
  for (int i = 0; i < 38; ++i) f.step();
  BOOST_TEST(f.running(RequestId{2}));
  BOOST_TEST(f.num_tokens[RequestId{2}] == 8u);
  BOOST_TEST(run_now(f.scheduler->reset_prefix_cache(/*preempt_running=*/true, f.now)));
  const std::vector<std::uint32_t> expected{1, 1, 1, 2};
  BOOST_TEST(f.order_of_ends() == expected, boost::test_tools::per_element());
}

/// Two tenants that always want more get the same, whatever the sizes of their requests.
BOOST_AUTO_TEST_CASE(the_service_of_two_busy_tenants_stays_close) {
  const std::uint32_t first_seed = testing::property_seed();
  BOOST_TEST_MESSAGE("first seed " << first_seed);
  for (std::uint32_t seed = first_seed; seed < first_seed + 20; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      Fair f(std::uniform_int_distribution<int>(1, 4)(random), 80);
      const int sizes[] = {std::uniform_int_distribution<int>(2, 40)(random),
                           std::uniform_int_distribution<int>(2, 40)(random)};
      std::map<std::uint32_t, double> served;
      for (int i = 0; i < 600; ++i) {
        std::map<std::uint32_t, int> waiting;
        for (const RequestState* request : f.scheduler->waiting().list())
          ++waiting[request->tenant];
        for (const std::uint32_t tenant : {1u, 2u})
          for (int n = waiting[tenant]; n < 5; ++n)
            f.add_for(tenant, sizes[tenant - 1], 1 + static_cast<int>(random() % 20));
        const SchedulerOutput planned = f.step();
        for (std::size_t n = 0; n < planned.scheduled_ids.size(); ++n) {
          const RequestId id = planned.scheduled_ids[n];
          const bool is_prompt = planned.num_scheduled_tokens[n] > 1;
          served[f.tenants[id]] +=
              planned.num_scheduled_tokens[n] * (is_prompt ? 1 : FairShare::kOutputTokenWeight);
        }
        // A running request each may be ahead by all it can get, whatever is decided meanwhile.
        BOOST_REQUIRE(std::abs(served[1] - served[2]) <= 2.0 * 4 * (40 + 2 * 20));
      }
    }
  }
}

}  // namespace
}  // namespace troupe
