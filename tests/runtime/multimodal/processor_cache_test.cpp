// The processor cache: what its two sides know, and the memory that processes share.
#include "runtime/multimodal/processor_cache.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/multimodal/byte_lru.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/transport/shared_items.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// Data that shows whose it is.
ItemData data_of(const std::string& name, std::size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += name + ";";
  return std::make_shared<const std::vector<char>>(
      text.begin(), text.begin() + static_cast<std::ptrdiff_t>(num_bytes));
}

MultiModalFeature item_of(std::string identifier, ItemData data = nullptr) {
  return {.modality = "image", .identifier = std::move(identifier), .data = std::move(data)};
}

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("images_" + std::to_string(::getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] SharedItems::Options items(std::size_t max_bytes) const {
    return {.file = path / "items", .max_bytes = max_bytes, .max_object_bytes = max_bytes};
  }
  fs::path path;
};

void keep(SharedItems& items, const std::string& name, const ItemData& data) {
  items.keep({&name, 1}, {&data, 1});
}

BOOST_AUTO_TEST_CASE(what_was_used_last_goes_last) {
  ByteLru<int> lru(10);
  lru.insert("a", 1, 4);
  lru.insert("b", 2, 4);
  BOOST_REQUIRE(lru.find("a") != nullptr);
  lru.insert("c", 3, 4);
  BOOST_TEST(lru.find("b") == nullptr);
  BOOST_TEST(*lru.find("a") == 1);
  BOOST_TEST(lru.num_bytes() == 8u);
  lru.insert("a", 5, 2);
  BOOST_TEST(*lru.find("a") == 5);
  BOOST_TEST(lru.num_bytes() == 6u);
  lru.insert("too large", 6, 11);
  BOOST_TEST(lru.find("too large") == nullptr);
  BOOST_TEST(*lru.find("c") == 3);
  lru.clear();
  BOOST_TEST(lru.find("a") == nullptr);
  BOOST_TEST(lru.num_bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(without_bytes_there_is_no_cache) {
  BOOST_TEST(processor_cache_kinds() == (std::vector<std::string>{"lru", "shm", "processor_only"}));
  for (const std::string& kind : processor_cache_kinds()) {
    BOOST_TEST(make_processor_cache({.kind = kind}).value() == nullptr);
    BOOST_TEST(make_item_cache({.kind = kind}).value() == nullptr);
  }
}

BOOST_AUTO_TEST_CASE(the_front_end_alone_keeps_the_data) {
  const ProcessorCacheOptions options{.kind = "processor_only", .max_bytes = 100};
  const auto cache = make_processor_cache(options).value();
  BOOST_TEST(make_item_cache(options).value() == nullptr);
  const ItemData data = data_of("p", 10);
  cache->keep("p", {data, data});
  BOOST_TEST((cache->find("p", false) == std::vector<ItemData>{data, data}));
  BOOST_TEST(!cache->leaves_out_data());
  const std::string gone = "p";
  cache->forget({&gone, 1});
  BOOST_TEST(cache->find("p", true).size() == 2u);
  cache->clear();
  BOOST_TEST(cache->find("p", false).empty());
}

BOOST_AUTO_TEST_CASE(both_sides_of_the_lru_agree_while_images_are_dropped) {
  const ProcessorCacheOptions options{.kind = "lru", .max_bytes = 1000};
  const auto front_end = make_processor_cache(options).value();
  const auto engine = make_item_cache(options).value();
  BOOST_TEST(front_end->leaves_out_data());
  std::minstd_rand random(7);
  int num_known = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = "p" + std::to_string(random() % 12);
    const std::size_t num_parts = 1 + std::hash<std::string>()(name) % 3;
    std::vector<ItemData> data = front_end->find(name, false);
    if (data.empty()) {
      for (std::size_t part = 0; part < num_parts; ++part)
        data.push_back(data_of(part_identifier(name, part), 60));
      front_end->keep(name, data);
    } else {
      BOOST_REQUIRE(data.size() == num_parts);
      ++num_known;
    }
    std::vector<MultiModalFeature> items;
    for (std::size_t part = 0; part < num_parts; ++part)
      items.push_back(item_of(part_identifier(name, part), data[part]));
    BOOST_REQUIRE(engine->complete(items).empty());
    for (const MultiModalFeature& item : items)
      BOOST_REQUIRE(*item.data == *data_of(item.identifier, 60));
  }
  BOOST_TEST(num_known > 500);
  BOOST_TEST(num_known < 1900);
}

BOOST_AUTO_TEST_CASE(what_the_engine_lacks_is_told_and_forgotten) {
  const ProcessorCacheOptions options{.kind = "lru", .max_bytes = 1000};
  const auto front_end = make_processor_cache(options).value();
  const auto engine = make_item_cache(options).value();
  front_end->keep("p", {data_of("p", 10), data_of("p~part1", 10)});
  std::vector<MultiModalFeature> items = {item_of("p"), item_of("p~part1")};
  std::vector<std::string> missing = engine->complete(items);
  BOOST_TEST(missing == (std::vector<std::string>{"p", "p~part1"}));
  BOOST_TEST(front_end->find("p", true).empty());
  missing.erase(missing.begin());
  front_end->forget(missing);  // a part of it is enough
  BOOST_TEST(front_end->find("p", false).empty());
  // The same image twice in a request: the second time without data.
  items = {item_of("q", data_of("q", 10)), item_of("q")};
  BOOST_TEST(engine->complete(items).empty());
  BOOST_TEST(items[0].data == items[1].data);
  engine->clear();
  items = {item_of("q")};
  BOOST_TEST(engine->complete(items).size() == 1u);
}

BOOST_AUTO_TEST_CASE(processes_share_the_items_of_a_segment) {
  const Folder folder;
  const ProcessorCacheOptions options{.kind = "shm",
                                      .max_bytes = 4 << 20,
                                      .max_object_bytes = 1 << 20,
                                      .key = "model",
                                      .directory = folder.path};
  auto front_end = make_processor_cache(options).value();
  const auto other_front_end = make_processor_cache(options).value();
  const auto engine = make_item_cache(options).value();
  front_end->keep("p", {data_of("p", 5000), data_of("p~part1", 1)});
  front_end->keep("large", {data_of("large", (1 << 20) + 1)});
  BOOST_TEST((other_front_end->find("p", false) == std::vector<ItemData>{nullptr, nullptr}));
  const std::vector<ItemData> copies = other_front_end->find("p", true);
  BOOST_REQUIRE(copies.size() == 2u);
  BOOST_TEST(*copies[0] == *data_of("p", 5000));
  BOOST_TEST(other_front_end->find("large", false).empty());
  std::vector<MultiModalFeature> items = {item_of("p"), item_of("p~part1"), item_of("large")};
  BOOST_TEST(engine->complete(items) == std::vector<std::string>{"large"});
  BOOST_TEST(*items[1].data == *data_of("p~part1", 1));
  front_end.reset();  // the others go on
  BOOST_TEST(other_front_end->find("p", false).size() == 2u);
  other_front_end->clear();
  BOOST_TEST(engine->complete(items = {item_of("p")}).size() == 1u);
}

BOOST_AUTO_TEST_CASE(the_oldest_items_of_a_full_segment_go_first) {
  const Folder folder;
  const auto items = SharedItems::open(folder.items(SharedItems::kMinBytes)).value();
  constexpr std::size_t kItemBytes = 70'001;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "p" + std::to_string(i);
    keep(*items, name, data_of(name, kItemBytes));
    BOOST_REQUIRE(items->num_parts(name) == 1u);
    int num_there = 0;
    for (int k = 0; k <= i; ++k) {
      const std::string other = "p" + std::to_string(k);
      const ItemData found = items->find(other);
      if (found == nullptr) {
        BOOST_REQUIRE(num_there == 0);
        continue;
      }
      ++num_there;
      BOOST_REQUIRE(*found == *data_of(other, kItemBytes));
    }
    BOOST_REQUIRE(num_there >= std::min(i + 1, 12));
  }
  keep(*items, "half", data_of("half", SharedItems::kMinBytes / 2 + 1));
  BOOST_TEST(items->num_parts("half") == 0u);
  BOOST_TEST(items->num_parts("p99") == 1u);
}

BOOST_AUTO_TEST_CASE(a_pinned_item_keeps_its_place_until_nobody_needs_it) {
  const Folder folder;
  const auto front_end = SharedItems::open(folder.items(SharedItems::kMinBytes)).value();
  const auto engine = SharedItems::open(folder.items(SharedItems::kMinBytes)).value();
  constexpr std::size_t kItemBytes = 100'000;
  keep(*front_end, "p", data_of("p", kItemBytes));
  auto pinned = engine->pin("p");
  BOOST_REQUIRE(pinned.has_value());
  BOOST_TEST(!engine->pin("unknown").has_value());
  // A worker reads it where it lies.
  SharedItemReader worker;
  auto read = worker.read(pinned->address).value();
  const auto is_whole = [&] {
    const ItemData expected = data_of("p", kItemBytes);
    return std::ranges::equal(read.bytes, *expected);
  };
  BOOST_TEST(is_whole());
  const auto fill = [&](int first) {
    for (int i = first; i < first + 20; ++i) {
      const std::string name = "n" + std::to_string(i);
      keep(*front_end, name, data_of(name, kItemBytes));
    }
  };
  fill(0);
  BOOST_TEST(is_whole());
  BOOST_TEST(front_end->num_parts("p") == 1u);
  BOOST_TEST(front_end->num_parts("n19") == 0u);  // there was no room
  front_end->clear();
  fill(20);
  BOOST_TEST(is_whole());
  BOOST_TEST(front_end->num_parts("p") == 0u);
  // The worker needs it still.
  const SharedItemAddress address = pinned->address;
  pinned.reset();
  fill(40);
  BOOST_TEST(is_whole());
  read = {};
  fill(60);
  BOOST_TEST(front_end->num_parts("n79") == 1u);
  BOOST_TEST(worker.read(address).error().message == "the shared image cache in " +
                                                         (folder.path / "items").string() +
                                                         " does not have it (any more)");
  // Half of the ring at most.
  std::vector<SharedItems::Pinned> held;
  for (int i = 60; i < 80; ++i)
    if (auto one = engine->pin("n" + std::to_string(i))) held.push_back(*std::move(one));
  BOOST_TEST(held.size() == 5u);
}

BOOST_AUTO_TEST_CASE(pins_of_a_killed_process_do_not_count) {
  const Folder folder;
  const SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  const auto items = SharedItems::open(options).value();
  constexpr std::size_t kItemBytes = 300'000;
  keep(*items, "p", data_of("p", kItemBytes));
  int ready[2];
  BOOST_REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto own = SharedItems::open(options);
    const auto pinned = own.ok() ? (*own)->pin("p") : std::nullopt;
    static_cast<void>(::write(ready[1], pinned ? "x" : "-", 1));
    while (true) ::pause();
  }
  char byte = 0;
  BOOST_REQUIRE(::read(ready[0], &byte, 1) == 1);
  BOOST_REQUIRE(byte == 'x');
  const auto fill = [&](const std::string& name) {
    for (int i = 0; i < 4; ++i)
      keep(*items, name + std::to_string(i), data_of(name + std::to_string(i), kItemBytes));
  };
  fill("a");
  BOOST_TEST(items->num_parts("p") == 1u);
  ::kill(child, SIGKILL);
  BOOST_REQUIRE(::waitpid(child, nullptr, 0) == child);
  ::close(ready[0]);
  ::close(ready[1]);
  fill("b");
  BOOST_TEST(items->num_parts("p") == 0u);
  BOOST_TEST(items->num_parts("b3") == 1u);
}

BOOST_AUTO_TEST_CASE(an_address_of_an_earlier_segment_is_refused) {
  const Folder folder;
  const SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  SharedItemAddress address;
  SharedItemReader reader;
  {
    const auto items = SharedItems::open(options).value();
    keep(*items, "p", data_of("p", 10));
    address = items->pin("p")->address;
  }
  BOOST_TEST((reader.read(address).error().code == ErrorCode::kIo));  // it has no file
  const auto items = SharedItems::open(options).value();
  keep(*items, "p", data_of("p", 10));
  BOOST_TEST((reader.read(address).error().code == ErrorCode::kNotFound));
  BOOST_TEST(fs::exists(options.file));
  const SharedItemAddress now = items->pin("p")->address;
  BOOST_TEST((unpack_shared_item(pack_shared_item(now)) == std::optional(now)));
  BOOST_TEST(reader.read(now).value().bytes.size() == 10u);
}

BOOST_AUTO_TEST_CASE(workers_of_the_host_are_given_where_items_lie) {
  const Folder folder;
  ProcessorCacheOptions options{.kind = "shm",
                                .max_bytes = 4 << 20,
                                .max_object_bytes = 2 << 20,
                                .key = "model",
                                .directory = folder.path,
                                .workers_share = true};
  const auto front_end = make_processor_cache(options).value();
  const auto engine = make_item_cache(options).value();
  front_end->keep("p", {data_of("p", 1'500'000)});
  front_end->keep("q", {data_of("q", 1'500'000)});
  SharedItemReader worker;
  {
    std::vector<MultiModalFeature> items = {item_of("p"), item_of("q"), item_of("p")};
    BOOST_TEST(engine->complete(items).empty());
    const auto address = unpack_shared_item(*items[0].data);
    BOOST_REQUIRE(address.has_value());
    BOOST_TEST(std::ranges::equal(worker.read(*address).value().bytes, *data_of("p", 1'500'000)));
    BOOST_TEST((*items[2].data == *items[0].data));
    // Of what is beyond half of the ring they are given the data.
    BOOST_TEST((*items[1].data == *data_of("q", 1'500'000)));
  }
  std::vector<MultiModalFeature> items = {item_of("q")};
  BOOST_TEST(engine->complete(items).empty());
  BOOST_TEST(unpack_shared_item(*items[0].data).has_value());
}

/// The lock of a segment, as a stopped process has it: it follows five numbers of the header.
struct HeldLock {
  explicit HeldLock(const fs::path& path)
      : file(::open(path.c_str(), O_RDWR | O_CLOEXEC)),
        memory(static_cast<char*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0))) {
    BOOST_REQUIRE(memory != MAP_FAILED);
    BOOST_REQUIRE(pthread_mutex_lock(mutex()) == 0);
  }
  ~HeldLock() {
    pthread_mutex_unlock(mutex());
    ::munmap(memory, kBytes);
  }
  [[nodiscard]] pthread_mutex_t* mutex() const {
    return reinterpret_cast<pthread_mutex_t*>(memory + 5 * sizeof(std::uint64_t));
  }
  static constexpr std::size_t kBytes = 4096;
  FileDescriptor file;
  char* memory;
};

BOOST_AUTO_TEST_CASE(while_a_stopped_process_has_the_lock_items_are_misses_and_pinned_ones_copied) {
  const Folder folder;
  const SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  const auto items = SharedItems::open(options).value();
  keep(*items, "p", data_of("p", 1000));
  keep(*items, "q", data_of("q", 2000));
  const auto pinned = items->pin("q");
  BOOST_REQUIRE(pinned.has_value());
  SharedItemAddress other = pinned->address;
  other.position += 64;
  {
    const HeldLock lock(options.file);
    BOOST_TEST(!items->has("p"));
    BOOST_TEST(items->find("p") == nullptr);
    BOOST_TEST(items->num_parts("p") == 0u);
    keep(*items, "r", data_of("r", 1000));
    SharedItemReader worker;  // which opens the segment only now
    BOOST_TEST(std::ranges::equal(worker.read(pinned->address).value().bytes, *data_of("q", 2000)));
    BOOST_TEST((worker.read(other).error().code == ErrorCode::kNotFound));
  }
  BOOST_TEST(items->has("p"));
  BOOST_TEST(!items->has("r"));
}

BOOST_AUTO_TEST_CASE(the_last_one_removes_the_segment_and_what_others_left_is_not_found) {
  const Folder folder;
  const SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  std::ofstream(options.file) << std::string(SharedItems::kMinBytes, 'x');
  fs::permissions(options.file, fs::perms::owner_read | fs::perms::owner_write);
  {
    const auto items = SharedItems::open(options).value();
    BOOST_TEST(items->num_parts("p") == 0u);
    keep(*items, "p", data_of("p", 10));
    const auto others = SharedItems::open(options).value();
    BOOST_TEST(others->num_parts("p") == 1u);
  }
  BOOST_TEST(!fs::exists(options.file));
  BOOST_TEST(SharedItems::open(options).value()->num_parts("p") == 0u);
}

BOOST_AUTO_TEST_CASE(files_that_others_may_change_and_too_small_segments_are_refused) {
  const Folder folder;
  SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  std::ofstream(options.file) << "x";
  fs::permissions(options.file, fs::perms::all);
  BOOST_TEST(SharedItems::open(options).error().message ==
             options.file.string() + " is not a file of this user that is closed to others");
  BOOST_TEST(fs::exists(options.file));
  options.max_bytes = 1000;
  BOOST_TEST(SharedItems::open(options).error().param == "mm-processor-cache-gb");
}

BOOST_AUTO_TEST_CASE(a_killed_process_neither_blocks_nor_spoils_the_segment) {
  const Folder folder;
  const SharedItems::Options options = folder.items(SharedItems::kMinBytes);
  const auto items = SharedItems::open(options).value();
  constexpr std::size_t kItemBytes = 100'000;
  std::minstd_rand random(11);
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    BOOST_REQUIRE(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto own = SharedItems::open(options);
      for (int i = 0; own.ok(); ++i) {
        const std::string name = "c" + std::to_string(i % 30);
        keep(**own, name, data_of(name, kItemBytes));
        static_cast<void>((*own)->find(name));
        if (i % 7 == 6) (*own)->clear();
        static_cast<void>(::write(ready[1], "x", 1));
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    for (unsigned i = 0; i < 1 + random() % 5; ++i) {
      char byte = 0;
      BOOST_REQUIRE(::read(ready[0], &byte, 1) == 1);
    }
    ::kill(child, SIGKILL);
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    ::close(ready[0]);
    BOOST_TEST(WIFSIGNALED(status));
    keep(*items, "p", data_of("p", kItemBytes));
    const ItemData found = items->find("p");
    BOOST_REQUIRE(found != nullptr);
    BOOST_TEST((*found == *data_of("p", kItemBytes)));
    for (int i = 0; i < 30; ++i) {
      const std::string name = "c" + std::to_string(i);
      if (const ItemData left = items->find(name))
        BOOST_TEST((*left == *data_of(name, kItemBytes)));
    }
  }
}

}  // namespace
}  // namespace troupe
