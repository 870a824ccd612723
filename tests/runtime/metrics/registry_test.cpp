#include "runtime/metrics/registry.hpp"

#include <boost/test/unit_test.hpp>
#include <thread>

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(metrics_are_written_as_prometheus_reads_them) {
  Registry registry;
  registry.counter("a:hits", "Hits\nin \\ lines.", {{"x", "q\"\\\n"}}).add(2);
  registry.gauge("a:level", "Level.", {}).set(0.25);
  registry.counter("a:hits", "Hits\nin \\ lines.", {{"x", "other"}}).add(1e20);
  BOOST_TEST(registry.text() ==
             "# HELP a:hits_total Hits\\nin \\\\ lines.\n"
             "# TYPE a:hits_total counter\n"
             "a:hits_total{x=\"q\\\"\\\\\\n\"} 2.0\n"
             "a:hits_total{x=\"other\"} 1e+20\n"
             "# HELP a:level Level.\n"
             "# TYPE a:level gauge\n"
             "a:level 0.25\n");
}

BOOST_AUTO_TEST_CASE(histogram_buckets_are_cumulative_and_their_bounds_inclusive) {
  Registry registry;
  Histogram& histogram = registry.histogram("h", "H.", {{"e", "0"}}, {1, 2.5});
  for (const double value : {0.5, 1.0, 2.0, 2.5, 3.0}) histogram.observe(value);
  BOOST_TEST(registry.text() ==
             "# HELP h H.\n# TYPE h histogram\n"
             "h_bucket{e=\"0\",le=\"1.0\"} 2.0\n"
             "h_bucket{e=\"0\",le=\"2.5\"} 4.0\n"
             "h_bucket{e=\"0\",le=\"+Inf\"} 5.0\n"
             "h_count{e=\"0\"} 5.0\n"
             "h_sum{e=\"0\"} 9.0\n");
}

BOOST_AUTO_TEST_CASE(nothing_is_lost_when_threads_count_together) {
  Registry registry;
  Metric& counter = registry.counter("c", "C.", {});
  Histogram& histogram = registry.histogram("h", "H.", {}, {1});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 10000; ++j) {
        counter.add();
        histogram.observe(j % 2 == 0 ? 0 : 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(counter.value() == 40000);
  BOOST_TEST(histogram.count(0) == 20000u);
  BOOST_TEST(histogram.count(1) == 20000u);
  BOOST_TEST(histogram.sum() == 40000);
}

}  // namespace
}  // namespace troupe
