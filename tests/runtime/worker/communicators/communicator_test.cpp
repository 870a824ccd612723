#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/worker/communicators/create.hpp"
#include "tests/support/free_port.hpp"

namespace troupe {
namespace {

const std::vector<std::string> kKinds = {"shm", "tcp"};

using Clock = std::chrono::steady_clock;

/// Much longer than anything takes, however slow the machine is; what must not wait for it ends in
/// kSoon.
constexpr double kTimeout_s = 200;
constexpr auto kSoon = std::chrono::seconds(100);

CommunicatorOptions options_of(const std::string& kind, std::int32_t rank, std::int32_t size) {
  static std::uint32_t generation = 0;
  if (rank == 0) generation += 10;
  static const std::string tcp = "tcp:127.0.0.1:" + std::to_string(testing::free_port());
  return {.rendezvous = kind == "tcp" ? tcp : "shm:troupe-test-" + std::to_string(getpid()),
          .secret = "of this test",
          .generation = generation,
          .rank = rank,
          .size = size,
          .group_size = size,
          .timeout_s = kTimeout_s};
}

/// Runs body(communicator) on one thread per rank; an error to meet fails the test.
void with_ranks(const std::string& kind, std::int32_t size,
                const std::function<void(Communicator&)>& body, double timeout_s = kTimeout_s,
                std::int32_t group_size = 0) {
  std::vector<std::thread> threads;
  std::vector<CommunicatorOptions> options;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    options.push_back(options_of(kind, rank, size));
    options.back().timeout_s = timeout_s;
    if (group_size > 0) options.back().group_size = group_size;
    options.back().spin = size == 2;
  }
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  for (std::int32_t rank = size - 1; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      auto communicator = create_communicator(options[static_cast<std::size_t>(rank)]);
      if (!communicator.ok())
        errors[static_cast<std::size_t>(rank)] = communicator.error().message;
      else
        body(**communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) BOOST_TEST(error == "");
}

/// Numbers whose sum depends on the order of the additions.
std::vector<float> numbers(std::int32_t rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = std::sin(static_cast<float>(i * 7 + 1)) *
                std::pow(10.0f, static_cast<float>((static_cast<std::size_t>(rank) * 3 + i) % 5));
  return values;
}

BOOST_DATA_TEST_CASE(an_all_reduce_adds_in_the_canonical_tree, boost::unit_test::data::make(kKinds),
                     kind) {
  for (const std::int32_t size : {1, 2, 4}) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{200'001}}) {
      std::vector<float> expected = numbers(0, count);
      if (size == 2) {
        const auto b = numbers(1, count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = expected[i] + b[i];
      } else if (size == 4) {
        const auto b = numbers(1, count);
        const auto c = numbers(2, count);
        const auto d = numbers(3, count);
        for (std::size_t i = 0; i < count; ++i) expected[i] = (expected[i] + b[i]) + (c[i] + d[i]);
      }
      std::vector<int> equal(static_cast<std::size_t>(size));
      with_ranks(kind, size, [&](Communicator& group) {
        // More than once, as slots are used in turn.
        for (int round = 0; round < 3; ++round) {
          std::vector<float> data = numbers(group.rank(), count);
          group.all_reduce(data);
          equal[static_cast<std::size_t>(group.rank())] +=
              std::memcmp(data.data(), expected.data(), count * sizeof(float)) == 0 ? 1 : 0;
        }
      });
      for (const int times : equal) BOOST_TEST(times == 3);
    }
  }
}

BOOST_DATA_TEST_CASE(an_all_gather_puts_the_ranks_one_behind_the_other,
                     boost::unit_test::data::make(kKinds), kind) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{700'000}}) {
    std::vector<int> right(3);
    with_ranks(kind, 3, [&](Communicator& group) {
      const std::vector<std::byte> mine(count, static_cast<std::byte>(group.rank() + 1));
      std::vector<std::byte> all(3 * count);
      group.all_gather(mine, all);
      bool same = true;
      for (std::size_t i = 0; i < all.size(); ++i)
        same = same && all[i] == static_cast<std::byte>(i / count + 1);
      right[static_cast<std::size_t>(group.rank())] = same ? 1 : 0;
    });
    BOOST_TEST(std::accumulate(right.begin(), right.end(), 0) == 3);
  }
}

BOOST_DATA_TEST_CASE(what_is_sent_arrives_in_order_also_when_it_is_more_than_fits_under_way,
                     boost::unit_test::data::make(kKinds), kind) {
  constexpr std::size_t kBytes = 30 << 20;
  bool same = true;
  with_ranks(kind, 2, [&](Communicator& group) {
    std::vector<std::byte> data(kBytes + 5);
    if (group.rank() == 0) {
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31 >> 3);
      for (std::size_t begin = 0; begin < data.size(); begin += 1'000'003)
        group.send({data.data() + begin, std::min<std::size_t>(1'000'003, data.size() - begin)}, 1);
    } else {
      group.recv(data, 0);
      for (std::size_t i = 0; i < data.size(); ++i)
        same = same && data[i] == static_cast<std::byte>(i * 31 >> 3);
    }
  });
  BOOST_TEST(same);
}

BOOST_DATA_TEST_CASE(a_broadcast_does_not_wait_for_those_who_take_it_later,
                     boost::unit_test::data::make(kKinds), kind) {
  std::vector<int> sums(3);
  with_ranks(kind, 3, [&](Communicator& group) {
    std::int32_t sum = 0;
    // The root is done with all of them before the barrier, the others begin behind it.
    if (group.rank() != 2) group.barrier();
    for (std::int32_t i = 0; i < 100; ++i) {
      std::int32_t number = group.rank() == 2 ? i : 0;
      group.broadcast(std::as_writable_bytes(std::span(&number, 1)), 2);
      sum += number;
    }
    if (group.rank() == 2) group.barrier();
    sums[static_cast<std::size_t>(group.rank())] = sum;
  });
  for (const int sum : sums) BOOST_TEST(sum == 4950);
}

BOOST_DATA_TEST_CASE(each_stage_reduces_for_itself_and_sends_to_the_next,
                     boost::unit_test::data::make(kKinds), kind) {
  std::vector<float> results(4);
  with_ranks(
      kind, 4,
      [&](Communicator& group) {
        // Stages of different pace: the first is three steps ahead in its sums.
        float received = 0;
        for (int step = 0; step < 3; ++step) {
          float number = static_cast<float>(group.rank() + 1);
          group.all_reduce({&number, 1});
          const auto bytes = std::as_writable_bytes(std::span(&number, 1));
          if (group.group_begin() == 0) {
            group.send(bytes, group.rank() + 2);
          } else {
            float previous = 0;
            group.recv(std::as_writable_bytes(std::span(&previous, 1)), group.rank() - 2);
            received += previous * 10 + number;
          }
        }
        results[static_cast<std::size_t>(group.rank())] = received;
      },
      kTimeout_s, 2);
  BOOST_TEST(results[2] == 3 * (30 + 7));
  BOOST_TEST(results[3] == 3 * (30 + 7));
}

BOOST_DATA_TEST_CASE(an_abort_fails_every_rank_that_waits_with_the_first_reason,
                     boost::unit_test::data::make(kKinds), kind) {
  std::vector<std::string> reasons(3);
  const auto start = Clock::now();
  with_ranks(kind, 3, [&](Communicator& group) {
    if (group.rank() == 1) group.abort({ErrorCode::kInternal, "rank 1 made a mistake"});
    group.barrier();
    float number = 1;
    group.send(std::as_bytes(std::span(&number, 1)), 0);
    reasons[static_cast<std::size_t>(group.rank())] = group.status().error().message;
  });
  BOOST_TEST((Clock::now() - start < kSoon));
  for (const std::string& reason : reasons) BOOST_TEST(reason == "rank 1 made a mistake");
}

BOOST_DATA_TEST_CASE(a_rank_that_does_not_do_its_part_fails_the_group_at_the_deadline,
                     boost::unit_test::data::make(kKinds), kind) {
  std::atomic<bool> over{false};
  std::vector<std::string> reasons(2);
  with_ranks(
      kind, 2,
      [&](Communicator& group) {
        if (group.rank() == 0) {
          std::vector<float> data(10, 2.0f);
          group.all_reduce(data);
          BOOST_TEST(data[0] == 2.0f);
          over.store(true);
        } else {
          while (!over.load()) std::this_thread::yield();
          std::byte nothing{};
          BOOST_TEST(!group.recv({&nothing, 1}, 0));
        }
        reasons[static_cast<std::size_t>(group.rank())] = group.status().error().message;
      },
      4);  // they have to meet within it, too
  for (const std::string& reason : reasons)
    BOOST_TEST(reason.starts_with("rank 0 waited 4"), reason);
}

BOOST_DATA_TEST_CASE(who_does_not_come_is_named, boost::unit_test::data::make(kKinds), kind) {
  CommunicatorOptions options = options_of(kind, 0, 3);
  options.timeout_s = 0.1;
  const auto alone = create_communicator(options);
  BOOST_REQUIRE(!alone.ok());
  BOOST_TEST(
      alone.error().message.starts_with("rank 1, 2 did not connect to " + options.rendezvous),
      alone.error().message);
  options.rank = 1;
  const auto without_host = create_communicator(options);
  BOOST_REQUIRE(!without_host.ok());
  BOOST_TEST(without_host.error().message.starts_with("rank 0 did not "),
             without_host.error().message);
}

BOOST_DATA_TEST_CASE(who_waits_in_an_older_meeting_gives_it_up,
                     boost::unit_test::data::make(kKinds), kind) {
  const CommunicatorOptions newer = [&] {
    CommunicatorOptions options = options_of(kind, 0, 2);
    options.generation += 1;
    return options;
  }();
  for (const bool host_is_late : {true, false}) {
    CommunicatorOptions late = newer;
    --late.generation;
    late.rank = host_is_late ? 0 : 1;
    CommunicatorOptions other = newer;
    other.rank = 1 - late.rank;
    std::string error;
    bool met = false;
    std::thread thread([&] { met = create_communicator(other).ok(); });
    const auto start = Clock::now();
    const auto given_up = create_communicator(late);
    if (!given_up.ok()) error = given_up.error().message;
    ++late.generation;
    const auto second = create_communicator(late);
    thread.join();
    BOOST_TEST(error == "the other ranks of " + newer.rendezvous + " meet anew");
    BOOST_TEST((Clock::now() - start < kSoon));
    BOOST_TEST((met && second.ok()));
  }
}

/// Waits until a rank listens there.
void wait_for_listener(const std::string& rendezvous) {
  const std::string where = rendezvous.substr(rendezvous.rfind(':') + 1);
  sockaddr_in port{};
  port.sin_family = AF_INET;
  port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const bool is_tcp = rendezvous.starts_with("tcp:");
  if (is_tcp) port.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where)));
  std::copy(rendezvous.begin(), rendezvous.end(), name.sun_path + 1);
  const auto name_size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + rendezvous.size());
  for (bool listens = false; !listens;) {
    const FileDescriptor visitor(is_tcp ? ::socket(AF_INET, SOCK_STREAM, 0)
                                        : ::socket(AF_UNIX, SOCK_SEQPACKET, 0));
    listens =
        connect(visitor.get(),
                is_tcp ? reinterpret_cast<sockaddr*>(&port) : reinterpret_cast<sockaddr*>(&name),
                is_tcp ? sizeof port : name_size) == 0;
  }
}

BOOST_DATA_TEST_CASE(a_meeting_takes_the_place_of_an_older_one_of_the_same_rank,
                     boost::unit_test::data::make(kKinds), kind) {
  CommunicatorOptions older = options_of(kind, 0, 2);
  CommunicatorOptions host = older, guest = older;
  host.generation = guest.generation = older.generation + 1;
  guest.rank = 1;
  std::string error;
  std::thread waiting([&] {
    const auto given_up = create_communicator(older);
    if (!given_up.ok()) error = given_up.error().message;
  });
  wait_for_listener(older.rendezvous);
  bool host_met = false;
  std::thread meeting([&] { host_met = create_communicator(host).ok(); });
  const bool guest_met = create_communicator(guest).ok();
  meeting.join();
  waiting.join();
  BOOST_TEST(host_met);
  BOOST_TEST(guest_met);
  BOOST_TEST(error == "the other ranks of " + older.rendezvous + " meet anew");
}

BOOST_AUTO_TEST_CASE(who_does_not_know_the_secret_is_not_let_in) {
  auto first = options_of("tcp", 0, 2), second = options_of("tcp", 1, 2);
  first.timeout_s = second.timeout_s = 0.5;
  second.secret = "of another";
  std::string error;
  std::thread stranger([&] { error = create_communicator(second).error().message; });
  BOOST_TEST(create_communicator(first).error().message.starts_with("rank 1 did not connect to "));
  stranger.join();
  BOOST_TEST(error.ends_with("within 0.500000 s; who did is not of this engine"), error);
}

BOOST_AUTO_TEST_CASE(a_hello_that_was_overheard_is_of_no_use) {
  // Who repeats the bytes of a rank that was let in does not know how to answer the new challenge.
  auto first = options_of("tcp", 0, 2);
  first.timeout_s = 0.5;
  ssize_t sent = 0, received = 0;
  std::thread replay([&] {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(first.rendezvous.substr(14))));
    while (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      socket = FileDescriptor(::socket(AF_INET, SOCK_STREAM, 0));
    struct {
      std::uint32_t magic = 0x54726f76, version = 2, generation, size = 2, rank = 1, lane = 0, port;
      std::uint8_t nonce[32] = {};
      std::uint8_t proof[32] = {};
    } said{.generation = first.generation, .port = 1};
    sent = send(socket.get(), &said, sizeof said, MSG_NOSIGNAL);
    std::array<char, 100> answer;
    received = recv(socket.get(), answer.data(), answer.size(), MSG_WAITALL);
  });
  BOOST_TEST(create_communicator(first).error().message.starts_with("rank 1 did not connect to "));
  replay.join();
  BOOST_TEST(sent == 7 * 4 + 64);
  BOOST_TEST(received == 68);  // the challenge, and then the end: no word of welcome
}

BOOST_AUTO_TEST_CASE(a_rendezvous_that_is_none_is_refused) {
  CommunicatorOptions options = options_of("shm", 0, 2);
  options.rendezvous = "pigeon";
  BOOST_TEST(!create_communicator(options).ok());
  options.rendezvous = "shm:" + std::string(200, 'x');
  BOOST_TEST(!create_communicator(options).ok());
  options.rendezvous = "tcp:nowhere";
  BOOST_TEST(!create_communicator(options).ok());
}

BOOST_DATA_TEST_CASE(processes_share_the_memory_and_a_killed_one_fails_the_others_at_once,
                     boost::unit_test::data::make(kKinds), kind) {
  CommunicatorOptions options = options_of(kind, 0, 3);
  std::vector<pid_t> children;
  for (std::int32_t rank = 1; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      options.rank = rank;
      auto communicator = create_communicator(options);
      if (!communicator.ok()) _exit(1);
      const std::vector<std::byte> mine(3, static_cast<std::byte>(rank));
      std::vector<std::byte> all(9);
      (*communicator)->all_gather(mine, all);
      if (rank == 1) raise(SIGKILL);
      (*communicator)->barrier();
      _exit((*communicator)->status().ok() ? 2 : 0);
    }
    children.push_back(child);
  }
  auto communicator = create_communicator(options);
  BOOST_REQUIRE(communicator.ok());
  std::vector<std::byte> mine(3);
  std::vector<std::byte> all(9);
  (*communicator)->all_gather(mine, all);
  BOOST_TEST((all[8] == std::byte{2}));
  const auto start = Clock::now();
  (*communicator)->barrier();
  BOOST_TEST((Clock::now() - start < kSoon));
  BOOST_REQUIRE(!(*communicator)->status().ok());
  BOOST_TEST((*communicator)->status().error().message.starts_with("rank 1 is gone"),
             (*communicator)->status().error().message);
  int status = 0;
  waitpid(children[0], &status, 0);
  BOOST_TEST(WIFSIGNALED(status));
  waitpid(children[1], &status, 0);
  BOOST_TEST(status == 0);
}

}  // namespace
}  // namespace troupe
