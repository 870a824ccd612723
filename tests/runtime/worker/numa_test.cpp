#include "runtime/worker/numa.hpp"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <thread>

#include "kernels/thread_pool.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

std::vector<int> cores_of_this_thread() {
  cpu_set_t set;
  BOOST_REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

/// What the kernel would say of a machine.
struct Machine {
  fs::path folder = fs::temp_directory_path() / ("troupe_numa_test_" + std::to_string(getpid()));
  Machine(const std::string& online, const std::vector<std::string>& cpu_lists) {
    write("online", online);
    for (std::size_t id = 0; id < cpu_lists.size(); ++id)
      write("node" + std::to_string(id) + "/cpulist", cpu_lists[id]);
  }
  ~Machine() { fs::remove_all(folder); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
};

std::vector<NumaNode> four_nodes() { return {{0, {0, 1}}, {1, {2, 3}}, {2, {4, 5}}, {3, {6, 7}}}; }

std::vector<int> ids_of(const NumaShare& share) {
  std::vector<int> ids;
  for (const NumaNode& node : share.nodes) ids.push_back(node.id);
  return ids;
}

BOOST_AUTO_TEST_SUITE(numa)

BOOST_AUTO_TEST_CASE(nodes_have_the_cores_that_this_process_may_use) {
  const std::vector<int> usable = cores_of_this_thread();
  const std::string first = std::to_string(usable.front());
  // The second node has cores of no machine that a set of cores can describe, the third has none.
  const Machine machine("0-1,3\n", {first + "\n", "100000-4000000000,7-\n", "", "\n"});
  const std::vector<NumaNode> expected{{0, {usable.front()}}};
  BOOST_CHECK(numa_nodes(machine.folder) == expected);
}

BOOST_AUTO_TEST_CASE(lists_are_read_as_the_kernel_writes_them) {
  const std::vector<int> usable = cores_of_this_thread();
  const Machine machine("0\n", {"0-3,5," + std::to_string(usable.back()) + "-2047\n"});
  const std::vector<NumaNode> nodes = numa_nodes(machine.folder);
  BOOST_REQUIRE(nodes.size() == 1);
  BOOST_CHECK(std::find(nodes[0].cores.begin(), nodes[0].cores.end(), usable.back()) !=
              nodes[0].cores.end());
  for (const int core : nodes[0].cores) BOOST_CHECK(core < CPU_SETSIZE);
}

BOOST_AUTO_TEST_CASE(a_system_that_says_nothing_has_no_nodes) {
  BOOST_CHECK(numa_nodes("/no/such/folder").empty());
  BOOST_CHECK(numa_nodes(Machine("no list", {}).folder).empty());
}

BOOST_AUTO_TEST_CASE(workers_share_out_the_nodes) {
  const std::vector<NumaNode> nodes = four_nodes();
  // A worker alone has all, two have two each, of three the last has two, eight share by twos.
  BOOST_CHECK(numa_share(nodes, 0, 1).nodes == nodes);
  BOOST_CHECK((ids_of(numa_share(nodes, 0, 2)) == std::vector{0, 1}));
  BOOST_CHECK((ids_of(numa_share(nodes, 1, 2)) == std::vector{2, 3}));
  BOOST_CHECK((numa_share(nodes, 1, 2).cores() == std::vector{4, 5, 6, 7}));
  BOOST_CHECK((ids_of(numa_share(nodes, 0, 3)) == std::vector{0}));
  BOOST_CHECK((ids_of(numa_share(nodes, 2, 3)) == std::vector{2, 3}));
  for (std::int32_t worker = 0; worker < 8; ++worker) {
    const NumaShare share = numa_share(nodes, worker, 8);
    BOOST_CHECK((ids_of(share) == std::vector{worker / 2}));
    BOOST_TEST(share.num_workers == 2);
  }
}

BOOST_AUTO_TEST_CASE(every_node_and_every_worker_is_served) {
  const std::vector<NumaNode> nodes = four_nodes();
  for (std::int32_t count = 1; count <= 9; ++count) {
    std::vector<std::int32_t> workers_of(nodes.size());
    for (std::int32_t worker = 0; worker < count; ++worker) {
      for (const int id : ids_of(numa_share(nodes, worker, count)))
        ++workers_of[static_cast<std::size_t>(id)];
    }
    for (std::int32_t worker = 0; worker < count; ++worker) {
      const NumaShare share = numa_share(nodes, worker, count);
      for (const int id : ids_of(share))
        BOOST_TEST(workers_of[static_cast<std::size_t>(id)] == share.num_workers);
    }
    BOOST_CHECK(std::count(workers_of.begin(), workers_of.end(), 0) == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_core_is_left_only_where_there_are_enough) {
  BOOST_TEST(default_threads(1, 1) == 1);
  BOOST_TEST(default_threads(2, 1) == 2);
  BOOST_TEST(default_threads(15, 1) == 15);
  BOOST_TEST(default_threads(16, 1) == 15);
  BOOST_TEST(default_threads(64, 1) == 63);
  BOOST_TEST(default_threads(33, 2) == 16);
  BOOST_TEST(default_threads(8, 2) == 4);
  BOOST_TEST(default_threads(2, 4) == 1);
}

BOOST_AUTO_TEST_CASE(a_bound_thread_and_those_it_starts_stay_on_the_cores) {
  const std::vector<int> usable = cores_of_this_thread();
  std::vector<int> own;
  std::vector<int> of_child;
  std::string error;
  // A thread of its own: the others keep what they have.
  std::thread([&] {
    const auto bound = bind_this_thread({{.id = 0, .cores = {usable.back()}}});
    if (!bound.ok()) error = bound.error().message;
    own = cores_of_this_thread();
    std::thread([&] { of_child = cores_of_this_thread(); }).join();
  }).join();
  BOOST_TEST(error == "");
  BOOST_CHECK(own == std::vector{usable.back()});
  BOOST_CHECK(of_child == std::vector{usable.back()});
  BOOST_CHECK(cores_of_this_thread() == usable);
}

BOOST_AUTO_TEST_CASE(how_many_cores_there_are_does_not_depend_on_the_thread_that_asks) {
  int seen = 0;
  std::thread([&] {
    static_cast<void>(bind_this_thread({{.id = 0, .cores = {cores_of_this_thread().front()}}}));
    seen = ThreadPool::num_usable_cores();
  }).join();
  BOOST_TEST(seen == ThreadPool::num_usable_cores());
}

BOOST_AUTO_TEST_CASE(pages_of_a_worker_with_several_nodes_lie_on_them_in_turns) {
  // Twice the same node: more than one, and there is one everywhere.
  const NumaNode here{.id = 0, .cores = cores_of_this_thread()};
  int mode = -1;
  Result<void> bound;
  std::thread([&] {
    bound = bind_this_thread({here, here});
    syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0);
  }).join();
  // A container may forbid it, and says so.
  if (bound.ok())
    BOOST_TEST(mode == MPOL_INTERLEAVE);
  else
    BOOST_TEST(bound.error().message.starts_with("set_mempolicy: "), bound.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
