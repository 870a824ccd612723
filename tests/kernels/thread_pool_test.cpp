#include "kernels/thread_pool.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

namespace troupe {
namespace {

BOOST_AUTO_TEST_SUITE(thread_pool)

BOOST_AUTO_TEST_CASE(every_chunk_runs_once_and_its_writes_are_seen) {
  for (const int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    BOOST_TEST(pool.num_threads() == num_threads);
    std::vector<int> runs(1000);
    for (int round = 0; round < 2000; ++round) {
      const auto num_chunks = static_cast<std::int64_t>(round % 1000);
      pool.parallel_for(num_chunks, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    }
    // Chunk i ran in the rounds with more than i chunks, twice for each such size.
    for (std::size_t i = 0; i < runs.size(); ++i) {
      BOOST_REQUIRE(runs[i] == 2 * (999 - static_cast<int>(i)));
    }
  }
}

BOOST_AUTO_TEST_CASE(jobs_follow_each_other_without_mixing) {
  ThreadPool pool(4);
  std::int64_t total = 0;
  for (std::int64_t round = 1; round <= 20000; ++round) {
    std::int64_t values[5] = {};
    pool.parallel_for(1 + round % 5, [&, round](std::int64_t i) { values[i] = round; });
    total += std::accumulate(values, values + 5, std::int64_t{0}) - round * (1 + round % 5);
  }
  BOOST_TEST(total == 0);
}

BOOST_AUTO_TEST_CASE(threads_that_went_to_sleep_wake_for_the_next_job) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    // Much longer than threads spin: the time passes in the work of a single chunk.
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
    pool.parallel_for(1, [&](std::int64_t) {
      while (std::chrono::steady_clock::now() < until) {
      }
    });
    std::atomic<int> num_run{0};
    pool.parallel_for(8, [&](std::int64_t) { ++num_run; });
    BOOST_REQUIRE(num_run == 8);
  }
}

BOOST_AUTO_TEST_CASE(a_slow_chunk_does_not_delay_the_others) {
  ThreadPool pool(2);
  std::atomic<int> num_quick{0};
  // The slow chunk ends only when all others have run: static shares would never end.
  pool.parallel_for(64, [&](std::int64_t i) {
    if (i > 0) {
      ++num_quick;
    } else {
      while (num_quick < 63) std::this_thread::yield();
    }
  });
  BOOST_TEST(num_quick == 63);
}

BOOST_AUTO_TEST_CASE(a_pool_can_be_made_and_dropped_at_once) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) pool.parallel_for(3, [](std::int64_t) {});
  }
  BOOST_TEST(ThreadPool(0).num_threads() >= 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
