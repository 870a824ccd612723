#include "runtime/models/safetensors.hpp"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "runtime/gguf/model_files.hpp"
#include "runtime/models/model_config.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A file in memory, aligned as a mapping is.
struct File {
  explicit File(const std::string& header, std::size_t num_data_bytes = 0) {
    const std::uint64_t length = header.size();
    num_bytes = sizeof length + header.size() + num_data_bytes;
    words.resize(num_bytes / 8 + 1);
    auto* to = reinterpret_cast<char*>(words.data());
    std::memcpy(to, &length, sizeof length);
    std::memcpy(to + sizeof length, header.data(), header.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(words)).first(num_bytes);
  }
  std::vector<std::uint64_t> words;
  std::size_t num_bytes = 0;
};

/// Padded to a multiple of 8, so that data is aligned.
std::string padded(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

std::string error_of(const std::string& header, std::size_t num_data_bytes) {
  const File file(padded(header), num_data_bytes);
  const auto parsed = parse_safetensors(file.bytes(), "w.safetensors");
  return parsed.ok() ? "" : parsed.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() /
              ("troupe_test_" + std::to_string(std::random_device()()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  void write(const std::string& name, std::span<const std::byte> bytes) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void write(const std::string& name, const std::string& text) const {
    write(name, std::as_bytes(std::span(text)));
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

BOOST_AUTO_TEST_CASE(tensors_are_views_of_the_file) {
  const File file(padded(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"I32","shape":[2],"data_offsets":[8,16]},
      "a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},
      "none":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},
      "scalar":{"dtype":"F32","shape":[],"data_offsets":[16,20]}})"),
                  20);
  const auto parsed = parse_safetensors(file.bytes(), "w.safetensors");
  BOOST_REQUIRE(parsed.ok());
  BOOST_TEST(parsed->size() == 4u);
  const TensorView& a = parsed->at("a");
  BOOST_TEST((a.shape == std::vector<std::int64_t>{2, 2}));
  BOOST_TEST((a.type == TensorType::kBF16));
  BOOST_TEST(a.bytes.data() == file.bytes().data() + file.num_bytes - 20);
  BOOST_TEST(parsed->at("b").elements<std::int32_t>().size() == 2u);
  BOOST_TEST(parsed->at("none").num_elements() == 0);
  BOOST_TEST(parsed->at("scalar").num_elements() == 1);
}

BOOST_AUTO_TEST_CASE(a_wrong_header_is_refused_with_file_tensor_and_reason) {
  const auto entry = [](const std::string& fields) { return R"({"t":{)" + fields + "}}"; };
  const std::pair<std::string, std::string> cases[] = {
      {"[1]", "not a JSON object"},
      {"{", "not a JSON object"},
      {R"({"t":5})", "its entry is not an object"},
      {entry(R"("shape":[2],"data_offsets":[0,8])"), "dtype is missing"},
      {entry(R"("dtype":"F4","shape":[2],"data_offsets":[0,8])"), "dtype \"F4\""},
      {entry(R"("dtype":"F32","data_offsets":[0,8])"), "shape is missing"},
      {entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "not a size"},
      {entry(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), "not a size"},
      {entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), "overflows"},
      {entry(R"("dtype":"F32","shape":[2])"), "data_offsets is not a pair"},
      {entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "do not lie"},
      {entry(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), "do not lie in the file's 8"},
      {entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "takes 12 bytes"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "starts at byte 4"},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "4 bytes at the end"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "starts at byte 4"},
  };
  for (const auto& [header, reason] : cases) {
    const std::string error = error_of(header, 8);
    BOOST_TEST(contains(error, reason), header << " gave: " << error);
    BOOST_TEST(error.starts_with("w.safetensors: "));
  }
}

BOOST_AUTO_TEST_CASE(a_header_length_beyond_file_or_limit_is_refused) {
  for (const std::uint64_t length :
       {std::uint64_t{9}, std::uint64_t{100'000'001}, ~std::uint64_t{0}}) {
    const std::uint64_t words[] = {length, 0};
    const auto parsed = parse_safetensors(std::as_bytes(std::span(words)), "w.safetensors");
    BOOST_REQUIRE(!parsed.ok());
    BOOST_TEST(contains(parsed.error().message, "the header claims " + std::to_string(length)));
  }
  BOOST_TEST(!parse_safetensors({}, "empty").ok());
}

BOOST_AUTO_TEST_CASE(data_that_is_not_aligned_to_its_elements_is_refused) {
  const File file(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )", 4);
  const auto parsed = parse_safetensors(file.bytes(), "w.safetensors");
  BOOST_REQUIRE(!parsed.ok());
  BOOST_TEST(contains(parsed.error().message, "not aligned"));
}

const std::string kOneTensor = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

BOOST_AUTO_TEST_CASE(a_folder_without_index_is_all_its_files) {
  const Folder folder;
  folder.write("a.safetensors", File(padded(kOneTensor), 4).bytes());
  folder.write(
      "b.safetensors",
      File(padded(R"({"u":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"), 4).bytes());
  const auto checkpoint = Checkpoint::open(folder.path());
  BOOST_REQUIRE(checkpoint.ok());
  BOOST_TEST(checkpoint->find("t")->file == "a.safetensors");
  BOOST_TEST(checkpoint->find("u")->file == "b.safetensors");
  BOOST_TEST(checkpoint->find("v") == nullptr);
  BOOST_TEST(checkpoint->num_bytes() == 8);
  folder.write("c.safetensors", File(padded(kOneTensor), 4).bytes());
  const auto twice = Checkpoint::open(folder.path());
  BOOST_REQUIRE(!twice.ok());
  BOOST_TEST(contains(twice.error().message, "\"t\" is in a.safetensors and in c.safetensors"));
}

BOOST_AUTO_TEST_CASE(an_index_names_the_files_and_must_be_right) {
  const Folder folder;
  folder.write("a.safetensors", File(padded(kOneTensor), 4).bytes());
  folder.write("stray.safetensors", std::string("not opened"));
  const auto open_with = [&](const std::string& index) {
    folder.write("model.safetensors.index.json", index);
    const auto checkpoint = Checkpoint::open(folder.path());
    return checkpoint.ok() ? std::string() : checkpoint.error().message;
  };
  BOOST_TEST(open_with(R"({"weight_map":{"t":"a.safetensors"}})") == "");
  BOOST_TEST(contains(open_with(R"({"weight_map":{"t":"a.safetensors","u":"a.safetensors"}})"),
                      "a.safetensors: tensor \"u\" is missing"));
  BOOST_TEST(contains(open_with(R"({"weight_map":{"t":"../a.safetensors"}})"),
                      "is not a file name in this folder"));
  BOOST_TEST(contains(open_with(R"({"weight_map":{"t":"b.safetensors"}})"), "b.safetensors"));
  BOOST_TEST(contains(open_with(R"({"weight_map":{"t":1}})"), "names no file"));
  BOOST_TEST(contains(open_with("{}"), "no weight_map"));
  BOOST_TEST(contains(open_with(""), "not a JSON object"));
}

BOOST_AUTO_TEST_CASE(a_folder_without_weights_is_refused) {
  const Folder folder;
  const auto checkpoint = Checkpoint::open(folder.path());
  BOOST_REQUIRE(!checkpoint.ok());
  BOOST_TEST((checkpoint.error().code == ErrorCode::kNotFound));
}

/// Pages of files that this process holds in memory (/proc/self/statm, third number).
std::int64_t num_file_pages() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return shared;
}

BOOST_AUTO_TEST_CASE(weights_in_other_files_are_named_and_what_to_do_about_them) {
  const auto error_with = [](const std::string& name) {
    const Folder folder;
    folder.write("config.json", "{}");
    folder.write(name, "x");
    return Checkpoint::open(folder.path()).error().message;
  };
  for (const std::string name :
       {"training_args.bin", "optimizer.bin", "consolidated.00.pth", "model.pt"}) {
    BOOST_TEST(contains(error_with(name), "no *.safetensors files; " + name + " has weights as a"),
               error_with(name));
    BOOST_TEST(contains(error_with(name), "convert it with transformers"));
  }
  BOOST_TEST(contains(error_with("model.gguf"), "model.gguf is a model of its own: name the file"));
}

BOOST_AUTO_TEST_CASE(a_pointer_of_git_lfs_is_called_one_whatever_it_stands_for) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const auto is_told = [](const Error& error, const std::string& name) {
    BOOST_TEST((contains(error.message, name + " is a git-lfs pointer") &&
                contains(error.message, "git lfs pull")),
               error.message);
  };
  const Folder folder;
  folder.write("model.safetensors", pointer);
  is_told(Checkpoint::open(folder.path()).error(), "model.safetensors");
  folder.write("model.safetensors.index.json", pointer);
  is_told(Checkpoint::open(folder.path()).error(), "model.safetensors.index.json");
  for (const std::string name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    folder.write(name, pointer);
    is_told(read_model_text(folder.path(), name).error(), name);
  }
  is_told(load_model_config(folder.path()).error(), "config.json");
  folder.write("model.gguf", pointer);
  is_told(load_model_config(folder.path() / "model.gguf").error(), "model.gguf");
  const GgufArchitecture architecture;
  is_told(Checkpoint::open(folder.path() / "model.gguf", &architecture).error(), "model.gguf");
}

BOOST_AUTO_TEST_CASE(a_tensor_that_was_read_gives_its_memory_back_and_can_be_read_again) {
  constexpr std::size_t kNumBytes = std::size_t{32} << 20;
  const Folder folder;
  const std::string header = R"({"t":{"dtype":"U8","shape":[)" + std::to_string(kNumBytes) +
                             R"(],"data_offsets":[0,)" + std::to_string(kNumBytes) + "]}}";
  File file(padded(header), kNumBytes);
  for (std::size_t i = 100; i < file.words.size(); ++i) file.words[i] = i;
  folder.write("a.safetensors", file.bytes());
  const auto checkpoint = Checkpoint::open(folder.path());
  BOOST_REQUIRE(checkpoint.ok());
  const Checkpoint::Tensor& tensor = *checkpoint.value().find("t");
  const auto sum = [&] {
    std::uint64_t total = 0;
    for (const std::byte byte : tensor.view.bytes) total += std::to_integer<std::uint64_t>(byte);
    return total;
  };
  const std::uint64_t before = sum();
  const std::int64_t pages_read = num_file_pages();
  checkpoint.value().drop_pages(tensor);
  const std::int64_t pages_dropped = pages_read - num_file_pages();
  BOOST_TEST(pages_dropped > static_cast<std::int64_t>(kNumBytes / 4096 / 2));
  BOOST_TEST(sum() == before);
}

}  // namespace
}  // namespace troupe
