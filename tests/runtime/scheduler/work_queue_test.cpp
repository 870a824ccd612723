#include "runtime/scheduler/work_queue.hpp"

#include <array>
#include <boost/test/unit_test.hpp>
#include <random>

namespace troupe {
namespace {

constexpr std::size_t kShort = 100;
constexpr std::size_t kLong = WorkQueue::kLongBytes;

struct Fixture {
  WorkQueue queue{2};
  double now = 1000;
  std::uint64_t next = 0;

  std::uint64_t add(std::size_t num_bytes, std::uint32_t tenant = 1) {
    queue.add({.number = next, .tenant = tenant, .num_bytes = num_bytes}, now);
    return next++;
  }
  /// What begins now, in order.
  std::vector<std::uint64_t> start() {
    std::vector<std::uint64_t> numbers;
    while (const auto started = queue.start_next(now)) numbers.push_back(started->number);
    return numbers;
  }
  using Numbers = std::vector<std::uint64_t>;
};

BOOST_FIXTURE_TEST_SUITE(work_queue, Fixture)

BOOST_AUTO_TEST_CASE(a_worker_is_reserved_for_short_work) {
  const auto a = add(kLong), b = add(20 * kLong);
  BOOST_TEST((start() == Numbers{a}));
  for (int i = 0; i < 10; ++i) {  // many short ones while the long one runs
    const auto small = add(kShort);
    BOOST_TEST((start() == Numbers{small}));
    BOOST_TEST(queue.finish(1, now) == small);
  }
  BOOST_TEST(start().empty());
  BOOST_TEST(queue.finish(0, now) == a);
  BOOST_TEST((start() == Numbers{b}));
}

BOOST_AUTO_TEST_CASE(long_work_is_not_starved_by_short_work) {
  add(kShort);
  add(kShort);
  start();
  const auto big = add(kLong);
  for (int i = 0; i < 5; ++i) add(kShort);
  queue.finish(1, now);
  BOOST_TEST((start() == Numbers{big}));
}

BOOST_AUTO_TEST_CASE(the_tenant_that_was_served_least_comes_first) {
  Numbers first;
  for (int i = 0; i < 5; ++i) first.push_back(add(kLong, 1));
  start();
  const auto other = add(50 * kLong, 2);
  now += 3;
  queue.finish(0, now);
  BOOST_TEST((start() == Numbers{other}));
  now += 1;
  queue.finish(0, now);
  BOOST_TEST((start() == Numbers{first[1]}));
}

BOOST_AUTO_TEST_CASE(work_in_progress_of_a_tenant_already_counts) {
  WorkQueue many(3);
  many.add({.number = 0, .tenant = 1, .num_bytes = kLong}, 0);
  BOOST_TEST(many.start_next(0).has_value());
  many.add({.number = 1, .tenant = 1, .num_bytes = kLong}, 1);
  many.add({.number = 2, .tenant = 2, .num_bytes = 9 * kLong}, 2);
  BOOST_TEST(many.start_next(5)->number == 2u);
}

BOOST_AUTO_TEST_CASE(of_one_tenant_the_shorter_goes_first_but_not_for_ever) {
  WorkQueue one_long_at_a_time(2);
  queue.add({.number = 100, .tenant = 1, .num_bytes = kLong}, now);
  start();
  const auto big = add(10 * kLong);  // ten seconds' worth
  const auto small = add(kLong);
  now += 9.5;
  const auto late = add(kLong);
  Numbers order;
  for (std::uint64_t done = 100; order.size() < 3;) {
    BOOST_TEST(queue.finish(0, now) == done);
    order.push_back(done = start().at(0));
  }
  BOOST_TEST((order == Numbers{small, big, late}));
}

BOOST_AUTO_TEST_CASE(one_worker_keeps_the_order) {
  WorkQueue single(1);
  const std::size_t sizes[] = {kLong, kShort, 2 * kLong, kShort};
  for (std::uint64_t i = 0; i < 4; ++i)
    single.add({.number = i, .tenant = 0, .num_bytes = sizes[i]}, 1);
  for (std::uint64_t i = 0; i < 4; ++i) {
    BOOST_TEST(single.start_next(2)->number == i);
    BOOST_TEST(!single.start_next(2).has_value());
    BOOST_TEST(single.finish(0, 3) == i);
  }
}

BOOST_AUTO_TEST_CASE(queued_work_can_be_removed_and_running_work_stays) {
  const auto a = add(kShort), b = add(kShort), c = add(kShort);
  start();
  BOOST_TEST(queue.num_waiting() == 1u);
  BOOST_TEST(queue.remove(c));
  BOOST_TEST(!queue.remove(c));
  BOOST_TEST(!queue.remove(a));
  BOOST_TEST(!queue.remove(77));
  BOOST_TEST(queue.finish(0, now) == a);
  BOOST_TEST(start().empty());
  BOOST_TEST(queue.finish(1, now) == b);
}

BOOST_AUTO_TEST_CASE(in_any_order_all_work_runs_once_and_none_is_starved) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      std::mt19937 random(seed);
      const auto pick = [&](std::size_t below) {
        return static_cast<std::size_t>(random()) % below;
      };
      const std::size_t num_workers = 2 + pick(4);
      WorkQueue queue(num_workers);
      struct Known {
        bool is_long;
        bool gone;
      };
      std::vector<Known> known;
      std::vector<std::optional<std::uint64_t>> workers(num_workers);
      std::size_t num_short = 0, num_long = 0;  // wait
      double now = 0;
      const auto check_start = [&] {
        for (;;) {
          const auto running_long = static_cast<std::size_t>(
              std::count_if(workers.begin(), workers.end(),
                            [&](const auto& at) { return at && known[*at].is_long; }));
          const auto idle =
              static_cast<std::size_t>(std::count(workers.begin(), workers.end(), std::nullopt));
          const auto started = queue.start_next(now);
          const bool can =
              idle > 0 && (num_short > 0 || (num_long > 0 && running_long + 1 < num_workers));
          BOOST_REQUIRE(started.has_value() == can);
          if (!started) return;
          BOOST_REQUIRE(!workers[started->worker].has_value());
          Known& item = known[started->number];
          BOOST_REQUIRE(!item.gone);
          item.gone = true;
          workers[started->worker] = started->number;
          if (num_long > 0 && running_long == 0) BOOST_TEST(item.is_long);
          BOOST_TEST((!item.is_long || running_long + 2 <= num_workers));
          --(item.is_long ? num_long : num_short);
        }
      };
      for (int step = 0; step < 300; ++step) {
        now += 0.01 * static_cast<double>(pick(10));
        const std::size_t action = pick(step < 200 ? 8 : 4);
        if (action >= 4) {
          const bool is_long = pick(4) == 0;
          queue.add({.number = known.size(),
                     .tenant = static_cast<std::uint32_t>(pick(3)),
                     .num_bytes = is_long ? kLong + pick(1 << 20) : pick(kLong)},
                    now);
          known.push_back({is_long, false});
          ++(is_long ? num_long : num_short);
        } else if (action == 3 && !known.empty()) {
          const std::size_t number = pick(known.size());
          const bool waits = !known[number].gone;
          BOOST_TEST(queue.remove(number) == waits);
          if (waits) --(known[number].is_long ? num_long : num_short);
          known[number].gone = true;
        } else if (const std::size_t worker = pick(num_workers); workers[worker]) {
          BOOST_TEST(queue.finish(worker, now) == *workers[worker]);
          workers[worker].reset();
        }
        if (pick(2) == 0) check_start();
      }
      check_start();
      while (std::count(workers.begin(), workers.end(), std::nullopt) <
             static_cast<std::ptrdiff_t>(num_workers)) {
        for (std::size_t worker = 0; worker < num_workers; ++worker) {
          if (!workers[worker]) continue;
          now += 0.1;
          BOOST_TEST(queue.finish(worker, now) == *workers[worker]);
          workers[worker].reset();
          check_start();
        }
      }
      BOOST_TEST(queue.num_waiting() == 0u);
      BOOST_TEST((num_short + num_long == 0));
    }
  }
}

BOOST_AUTO_TEST_CASE(two_tenants_with_work_waiting_get_the_same_time) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    WorkQueue queue(3);
    double now = 0, spent[2] = {0, 0}, longest = 0;
    std::vector<std::uint32_t> tenant_of;
    struct Job {
      std::uint64_t number;
      double end;
      double seconds;
    };
    std::vector<std::optional<Job>> workers(3);
    const auto add = [&](std::uint32_t tenant) {
      queue.add({.number = tenant_of.size(), .tenant = tenant, .num_bytes = kLong}, now);
      tenant_of.push_back(tenant);
    };
    for (int i = 0; i < 400; ++i) add(0);
    for (int i = 0; i < 400; ++i) add(1);
    for (int done = 0; done < 300;) {
      while (const auto started = queue.start_next(now)) {
        // One sends what takes longer.
        const double seconds = (tenant_of[started->number] == 0 ? 5 : 1) * 0.01 *
                               static_cast<double>(1 + random() % 100);
        longest = std::max(longest, seconds);
        workers[started->worker] = Job{started->number, now + seconds, seconds};
      }
      std::size_t first = 3;
      for (std::size_t worker = 0; worker < 3; ++worker) {
        if (workers[worker] && (first == 3 || workers[worker]->end < workers[first]->end))
          first = worker;
      }
      now = workers[first]->end;
      spent[tenant_of[queue.finish(first, now)]] += workers[first]->seconds;
      workers[first].reset();
      ++done;
      BOOST_TEST(std::abs(spent[0] - spent[1]) <= 3 * longest + 1, "seed " << seed);
    }
  }
}

BOOST_AUTO_TEST_CASE(clients_of_one_tenant_get_the_same_time) {
  // One has sent a hundred prompts before the other, as much again behind each of that one's.
  const auto send = [&](std::uint32_t client) {
    queue.add({.number = next, .tenant = 0, .client = client, .num_bytes = kShort}, now);
    return next++;
  };
  for (int i = 0; i < 100; ++i) send(1);
  now += 1;
  const std::uint64_t first = next;
  for (int i = 0; i < 10; ++i) send(2);
  std::array<double, 2> spent{};
  std::size_t num_started = 0;
  for (int turn = 0; turn < 20; ++turn) {
    for (const std::uint64_t number : start()) {
      if (number >= first) ++num_started;
    }
    now += 1;
    for (std::size_t worker = 0; worker < 2; ++worker)
      spent[queue.finish(worker, now) >= first ? 1 : 0] += 1;
    if (num_started == 10) break;
    BOOST_TEST(std::abs(spent[0] - spent[1]) <= 2);
  }
  BOOST_TEST(num_started == 10u);
}

BOOST_AUTO_TEST_CASE(many_clients_of_a_tenant_take_nothing_from_another_tenant) {
  for (std::uint32_t client = 1; client <= 50; ++client)
    queue.add({.number = next++, .tenant = 1, .client = client, .num_bytes = kShort}, now);
  start();
  const auto other = add(kShort, 2);
  now += 1;
  queue.finish(0, now);
  BOOST_TEST((start() == Numbers{other}));
}

BOOST_AUTO_TEST_CASE(a_client_that_returns_has_no_credit_for_idle_time) {
  const auto send = [&](std::uint32_t client) {
    queue.add({.number = next, .tenant = 0, .client = client, .num_bytes = kShort}, now);
    return next++;
  };
  for (int i = 0; i < 50; ++i) send(1);
  for (int turn = 0; turn < 10; ++turn) {
    start();
    now += 1;
    queue.finish(0, now);
    queue.finish(1, now);
  }
  for (int i = 0; i < 50; ++i) send(2);
  int num_of_second = 0;
  for (int turn = 0; turn < 10; ++turn) {
    start();
    now += 1;
    for (std::size_t worker = 0; worker < 2; ++worker)
      num_of_second += queue.finish(worker, now) >= 50 ? 1 : 0;
  }
  BOOST_TEST(num_of_second >= 9);
  BOOST_TEST(num_of_second <= 11);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
