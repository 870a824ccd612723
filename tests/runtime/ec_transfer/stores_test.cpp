// The stores of EC connectors: files, memory, shared memory.

#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/ec_transfer/connectors.hpp"
#include "tests/runtime/ec_transfer/temporary_folder.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr OutputShape kShape{.num_rows = 3, .hidden_size = 5};

std::vector<float> numbers(const OutputShape& shape, float first) {
  std::vector<float> values(shape.num_values());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i) / 7;
  return values;
}

ECConnectorContext context_for(const std::string& extra, std::int64_t buffer_size = 1 << 20,
                               const std::string& encoder_key = "encoder") {
  return {.config = {.connector = "C", .buffer_size = buffer_size, .extra_config = extra},
          .encoder_key = encoder_key};
}

bool has_values(OutputStore& store, const std::string& identifier, const OutputShape& shape,
                const std::vector<float>& expected) {
  const auto found = store.load(identifier, shape);
  return found.ok() && found->values.size() == expected.size() &&
         std::memcmp(found->values.data(), expected.data(), shape.num_bytes()) == 0;
}

struct StoreCase {
  std::string name;
  OpenOutputStore open;
  ECConnectorContext context;
  ECConnectorContext other_encoder;
};

BOOST_AUTO_TEST_CASE(every_store_gives_back_the_bits_it_was_given_and_only_these) {
  const TransferFolder folder;
  const auto context = [&](const std::string& extra) {
    return std::pair(context_for(extra), context_for(extra, 1 << 20, "another"));
  };
  const auto files = context(folder.extra("shared_storage_path"));
  const auto memory = context(R"({"pool":"bits"})");
  const auto shared = context(folder.extra("directory"));
  const TransferFolder tier_folder;
  const auto tiers = context(tier_folder.extra("shared_storage_path"));
  for (const StoreCase& one :
       {StoreCase{"files", open_file_store, files.first, files.second},
        StoreCase{"memory", open_memory_store, memory.first, memory.second},
        StoreCase{"shared memory", open_shared_memory_store, shared.first, shared.second},
        StoreCase{"tiers", open_tiered_store, tiers.first, tiers.second}}) {
    BOOST_TEST_CONTEXT(one.name) {
      const auto store = one.open(one.context).value();
      const auto same = one.open(one.context).value();  // as another engine has it
      const auto other = one.open(one.other_encoder).value();
      BOOST_TEST(!store->has("a"));
      BOOST_TEST((store->load("a", kShape).error().code == ErrorCode::kNotFound));
      std::vector<float> values = numbers(kShape, 1);
      values[3] = -0.0f;
      values[4] = std::numeric_limits<float>::denorm_min();
      BOOST_TEST(store->save("a", kShape, values).ok());
      BOOST_TEST(same->has("a"));
      BOOST_TEST(has_values(*same, "a", kShape, values));
      BOOST_TEST(!same->has("b"));
      // Another shape is none, also with as many values.
      for (const OutputShape& shape : {OutputShape{5, 3}, OutputShape{3, 4}, OutputShape{4, 5}}) {
        const auto wrong = same->load("a", shape);
        BOOST_REQUIRE(!wrong.ok());
        BOOST_TEST((wrong.error().code == ErrorCode::kCorrupt), wrong.error().message);
      }
      BOOST_TEST(!other->load("a", kShape).ok());
      // What was loaded stays, whatever becomes of it in the store.
      const StoredOutput kept = same->load("a", kShape).value();
      const std::vector<float> newer = numbers(kShape, 9);
      BOOST_TEST(same->save("a", kShape, newer).ok());
      BOOST_TEST(std::memcmp(kept.values.data(), values.data(), kShape.num_bytes()) == 0);
      BOOST_TEST(has_values(*store, "a", kShape, newer));
    }
  }
}

BOOST_AUTO_TEST_CASE(damaged_files_are_errors_that_say_what_is_wrong) {
  const TransferFolder folder;
  const auto store = open_file_store(context_for(folder.extra("shared_storage_path"))).value();
  const std::vector<float> values = numbers(kShape, 1);
  BOOST_REQUIRE(store->save("a", kShape, values).ok());
  const fs::path path = folder.path() / "a" / "encoder_cache.safetensors";
  const std::string whole = read_file(path).value();
  BOOST_TEST(std::distance(fs::directory_iterator(path.parent_path()), {}) == 1);  // and no rest
  const auto error_of = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    const auto loaded = store->load("a", kShape);
    BOOST_REQUIRE(!loaded.ok());
    BOOST_TEST(loaded.error().message.find(path.string()) != std::string::npos);
    return loaded.error().message;
  };
  const auto says = [&](const std::string& content, const std::string& what) {
    const std::string message = error_of(content);
    BOOST_TEST(message.find(what) != std::string::npos, message);
  };
  // Cut anywhere.
  for (std::size_t size = 0; size < whole.size(); ++size)
    static_cast<void>(error_of(whole.substr(0, size)));
  static_cast<void>(error_of(whole + "x"));
  static_cast<void>(error_of(whole + std::string(std::size_t{2} << 20, 'x')));
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  says(flipped, "xxh3_128 of ec_cache is ");
  says("version https://git-lfs.github.com/spec/v1\n", "git-lfs");
  const auto file = [](std::string header, std::size_t num_bytes) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header +
           std::string(num_bytes, '\1');
  };
  says(file(R"({"ec_cache":{"dtype":"I32","shape":[3,5],"data_offsets":[0,60]}})", 60),
       "ec_cache has the type I32, expected F32, BF16 or F16");
  says(file(R"({"ec_cache":{"dtype":"F32","shape":[3,4],"data_offsets":[0,48]}})", 48),
       "ec_cache has the shape [3, 4], expected [3, 5]");
  says(file(R"({"cache":{"dtype":"F32","shape":[3,5],"data_offsets":[0,60]}})", 60),
       "there is no tensor ec_cache");
  says(file(R"({"__metadata__":{"encoder":"b"},"ec_cache":{"dtype":"F32","shape":[3,5],)"
            R"("data_offsets":[0,60]}})",
            60),
       "encoder is \"b\", expected \"encoder\"");
  // As another program writes it: it has no digest.
  std::ofstream(path, std::ios::binary)
      << file(R"({"ec_cache":{"dtype":"F32","shape":[3,5],"data_offsets":[0,60]}})", 60);
  BOOST_TEST(store->load("a", kShape).ok());
  // As vLLM writes it, in the type of its model.
  for (const auto& [type, value] :
       {std::pair{"BF16", 0x1.02p-125f}, std::pair{"F16", 257 * 0x1p-24f}}) {
    std::ofstream(path, std::ios::binary) << file(std::string(R"({"ec_cache":{"dtype":")") + type +
                                                      R"(","shape":[3,5],"data_offsets":[0,30]}})",
                                                  30);
    BOOST_TEST(has_values(*store, "a", kShape, std::vector<float>(15, value)), type);
  }
  BOOST_TEST(store->save("a", kShape, values).ok());
  BOOST_TEST(has_values(*store, "a", kShape, values));
}

BOOST_AUTO_TEST_CASE(identifiers_of_clients_do_not_lead_out_of_the_folder) {
  const TransferFolder folder;
  const fs::path inside = folder.path() / "store";
  const auto store =
      open_file_store(context_for("{\"shared_storage_path\":\"" + inside.string() + "\"}")).value();
  const std::vector<float> values = numbers(kShape, 1);
  for (const std::string& identifier :
       {std::string(), std::string("."), std::string(".."), std::string("../a"), std::string("a/b"),
        std::string("/etc"), std::string("a\0b", 3), std::string(300, 'a')}) {
    BOOST_TEST(!store->has(identifier));
    BOOST_TEST(!store->save(identifier, kShape, values).ok());
    BOOST_TEST(!store->load(identifier, kShape).ok());
  }
  BOOST_TEST(!fs::exists(inside));
  BOOST_TEST(store->save("..a", kShape, values).ok());
  BOOST_TEST(has_values(*store, "..a", kShape, values));
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_written_is_an_error_with_its_name) {
  const TransferFolder folder;
  const fs::path file = folder.path() / "file";
  std::ofstream(file) << "x";
  const auto store =
      open_file_store(context_for("{\"shared_storage_path\":\"" + file.string() + "\"}")).value();
  const auto saved = store->save("a", kShape, numbers(kShape, 1));
  BOOST_REQUIRE(!saved.ok());
  BOOST_TEST((saved.error().code == ErrorCode::kIo));
  BOOST_TEST(saved.error().message.find(file.string()) != std::string::npos);
  BOOST_TEST(!store->has("a"));
}

/// With room for three outputs.
void check_order_of_use(OutputStore& store) {
  const std::vector<float> values = numbers(kShape, 1);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  for (const char* identifier : {"a", "b", "c"}) {
    BOOST_TEST(store.save(identifier, kShape, values).ok());
    pause();  // the times of files tell them apart
  }
  BOOST_TEST(has_values(store, "a", kShape, values));
  pause();
  BOOST_TEST(store.save("d", kShape, values).ok());
  BOOST_TEST(store.has("a"));
  BOOST_TEST(!store.has("b"));
  BOOST_TEST(store.has("c"));
  BOOST_TEST(store.has("d"));
  const OutputShape large{.num_rows = 1000, .hidden_size = 5};
  BOOST_TEST((store.save("e", large, numbers(large, 1)).error().code == ErrorCode::kTooLarge));
  BOOST_TEST(store.has("a"));
}

BOOST_AUTO_TEST_CASE(what_was_used_last_stays_within_the_limit) {
  const auto memory =
      open_memory_store(context_for(R"({"pool":"limit"})",
                                    3 * static_cast<std::int64_t>(kShape.num_bytes()) + 59))
          .value();
  check_order_of_use(*memory);
  const TransferFolder folder;
  // A segment has a header, the key and values at a multiple of 64.
  const auto shared = open_shared_memory_store(
                          context_for(folder.extra("directory"),
                                      3 * static_cast<std::int64_t>(kShape.num_bytes() + 64) + 100))
                          .value();
  check_order_of_use(*shared);
}

BOOST_AUTO_TEST_CASE(what_the_memory_drops_is_fetched_from_the_files) {
  const TransferFolder folder;
  const auto tiers = open_tiered_store(context_for(folder.extra("shared_storage_path"),
                                                   static_cast<std::int64_t>(kShape.num_bytes())))
                         .value();
  const auto files = open_file_store(context_for(folder.extra("shared_storage_path"))).value();
  const auto remove = [&](const char* identifier) { fs::remove_all(folder.path() / identifier); };
  BOOST_TEST(tiers->needs_fetch());
  const std::vector<float> a = numbers(kShape, 1), b = numbers(kShape, 2);
  BOOST_TEST(tiers->save("a", kShape, a).ok());
  BOOST_TEST(tiers->save("b", kShape, b).ok());  // takes the place of a
  BOOST_TEST(has_values(*files, "a", kShape, a));
  BOOST_TEST(has_values(*files, "b", kShape, b));
  remove("b");
  BOOST_TEST(tiers->has("b"));
  BOOST_TEST(has_values(*tiers, "b", kShape, b));
  BOOST_TEST(tiers->has("a"));
  BOOST_TEST(has_values(*tiers, "a", kShape, a));  // from its file, which leaves b where it is
  BOOST_TEST(has_values(*tiers, "b", kShape, b));
  BOOST_TEST(tiers->fetch("a", kShape).ok());
  BOOST_TEST(!tiers->has("b"));
  remove("a");
  BOOST_TEST(tiers->fetch("a", kShape).ok());  // it is there
  BOOST_TEST(has_values(*tiers, "a", kShape, a));
  BOOST_TEST((tiers->fetch("b", kShape).error().code == ErrorCode::kNotFound));
  // Larger than the memory.
  const OutputShape large{.num_rows = 6, .hidden_size = 5};
  BOOST_TEST(tiers->save("large", large, numbers(large, 3)).ok());
  BOOST_TEST(tiers->fetch("large", large).ok());
  BOOST_TEST(has_values(*tiers, "large", large, numbers(large, 3)));
}

BOOST_AUTO_TEST_CASE(engines_of_a_process_share_a_pool_by_name_until_the_last_has_gone) {
  const auto context = [](const std::string& pool) {
    return context_for(R"({"pool":")" + pool + "\"}");
  };
  const std::vector<float> values = numbers(kShape, 2);
  auto first = open_memory_store(context("one")).value();
  auto second = open_memory_store(context("one")).value();
  const auto other = open_memory_store(context("two")).value();
  BOOST_TEST(first->save("a", kShape, values).ok());
  first.reset();
  BOOST_TEST(has_values(*second, "a", kShape, values));
  BOOST_TEST(!other->has("a"));
  second.reset();
  BOOST_TEST(!open_memory_store(context("one")).value()->has("a"));
}

fs::path pool_folder(const TransferFolder& folder) {
  return folder.path() / ("troupe-ec-" + std::to_string(geteuid()) + "-default");
}
std::size_t num_segments(const TransferFolder& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(pool_folder(folder)))
    count += entry.file_size() > 0 ? 1 : 0;  // locks are empty
  return count;
}

BOOST_AUTO_TEST_CASE(processes_share_memory_and_nothing_is_left_of_them_even_if_killed) {
  const TransferFolder folder;
  const auto context = context_for(folder.extra("directory"));
  const std::vector<float> values = numbers(kShape, 3);
  // What a killed process alone has left.
  const auto save_and_die = [&](const char* identifier) {
    const pid_t child = fork();
    if (child == 0) {
      const auto store = open_shared_memory_store(context);
      const bool saved = store.ok() && (*store)->save(identifier, kShape, values).ok();
      std::ofstream(pool_folder(folder) / "unfinished-output-x") << "half";
      if (saved) raise(SIGKILL);
      _exit(1);
    }
    int status = 0;
    BOOST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  };
  save_and_die("a");
  BOOST_TEST(num_segments(folder) == 2u);
  {
    const auto store = open_shared_memory_store(context).value();
    BOOST_TEST(!store->has("a"));
    BOOST_TEST(num_segments(folder) == 0u);
    // What it leaves while others live.
    save_and_die("b");
    BOOST_TEST(has_values(*store, "b", kShape, values));
    BOOST_TEST(store->save("c", kShape, values).ok());
    BOOST_TEST(num_segments(folder) == 2u);  // the unfinished one has gone
    const auto second = open_shared_memory_store(context).value();
    BOOST_TEST(has_values(*second, "c", kShape, values));
  }
  BOOST_TEST(!fs::exists(pool_folder(folder)));
}

BOOST_AUTO_TEST_CASE(stores_open_and_close_at_once_and_those_that_are_open_share_one_folder) {
  const TransferFolder folder;
  const auto context = context_for(folder.extra("directory"));
  const std::vector<float> values = numbers(kShape, 3);
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        const auto first = open_shared_memory_store(context);
        const auto second = open_shared_memory_store(context);
        const std::string identifier = std::to_string(i);
        if (!first.ok() || !second.ok() || !(*first)->save(identifier, kShape, values).ok() ||
            !has_values(**second, identifier, kShape, values))
          ++num_wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(num_wrong == 0);
  BOOST_TEST(!fs::exists(pool_folder(folder)));
}

BOOST_AUTO_TEST_CASE(segments_that_are_not_what_their_names_say_are_errors) {
  const TransferFolder folder;
  const auto store = open_shared_memory_store(context_for(folder.extra("directory"))).value();
  BOOST_REQUIRE(store->save("a", kShape, numbers(kShape, 3)).ok());
  fs::path segment;
  for (const auto& entry : fs::directory_iterator(pool_folder(folder)))
    if (entry.file_size() > 0) segment = entry.path();
  const std::string whole = read_file(segment).value();
  const auto code_of = [&](const std::string& content) {
    std::ofstream(segment, std::ios::binary) << content;
    return store->load("a", kShape).error().code;
  };
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{8}, whole.size() / 2, whole.size() - 1})
    BOOST_TEST((code_of(whole.substr(0, size)) == ErrorCode::kCorrupt));
  for (const std::size_t place :
       {std::size_t{0}, std::size_t{8}, std::size_t{16}, std::size_t{24}, std::size_t{33}}) {
    std::string changed = whole;
    changed[place] = static_cast<char>(changed[place] ^ 1);
    BOOST_TEST((code_of(changed) == ErrorCode::kCorrupt), place);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_others_may_write_to_is_not_used) {
  const TransferFolder folder;
  fs::create_directories(pool_folder(folder));
  fs::permissions(pool_folder(folder), fs::perms::all);
  const auto opened = open_shared_memory_store(context_for(folder.extra("directory")));
  BOOST_REQUIRE(!opened.ok());
  BOOST_TEST(opened.error().message ==
             pool_folder(folder).string() +
                 " is not a folder of this user that is closed to others");
}

BOOST_AUTO_TEST_CASE(what_a_connector_does_not_know_is_refused_by_name) {
  const auto message = [](OpenOutputStore open, const std::string& extra) {
    return open(context_for(extra)).error().message;
  };
  const std::string begin = "ec-transfer-config: ec_connector_extra_config: ";
  BOOST_TEST(message(open_file_store, R"({"storage_path":"/x"})") ==
             begin + "storage_path is unknown");
  BOOST_TEST(message(open_file_store, R"({"shared_storage_path":7})") ==
             begin + "shared_storage_path must be a string that is not empty, it is 7");
  BOOST_TEST(message(open_memory_store, R"({"pool":""})") ==
             begin + "pool must be a string that is not empty, it is \"\"");
  for (const OpenOutputStore open : {open_memory_store, open_tiered_store})
    BOOST_TEST(message(open, R"({"directory":"/dev/shm"})") == begin + "directory is unknown");
  BOOST_TEST(message(open_shared_memory_store, R"({"pool":"../x"})") ==
             begin + "pool must be at most 64 letters, digits, - and _, it is \"../x\"");
  BOOST_TEST(message(open_shared_memory_store, R"({"lookup_timeout_s":-1})") ==
             begin + "lookup_timeout_s must be a number of seconds from 0 to 86400, it is -1");
}

}  // namespace
}  // namespace troupe
