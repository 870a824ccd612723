// Weights of torch.save: what it wrote is read, and what is damaged or no tensor is refused.
#include "runtime/models/torch_file.hpp"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/file.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// In memory, aligned as a mapping is.
struct TorchBytes {
  explicit TorchBytes(const std::string& text) : words(text.size() / 8 + 1), size(text.size()) {
    std::memcpy(words.data(), text.data(), text.size());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(words)).first(size);
  }
  std::vector<std::uint64_t> words;
  std::size_t size;
};

fs::path torch_golden(const std::string& name) {
  return fs::path(TROUPE_GOLDEN_DIR) / "torch" / name;
}

std::string torch_text(const std::string& name) { return read_file(torch_golden(name)).value(); }

std::string torch_error_of(const std::string& text) {
  const TorchBytes file(text);
  const auto parsed = parse_torch_file(file.bytes(), "w.bin");
  return parsed.ok() ? "" : parsed.error().message;
}

BOOST_AUTO_TEST_CASE(what_torch_saved_is_read_with_its_types_shapes_and_numbers) {
  const TorchBytes file(torch_text("tensors.bin"));
  const auto parsed = parse_torch_file(file.bytes(), "tensors.bin");
  BOOST_REQUIRE_MESSAGE(parsed.ok(), (parsed.ok() ? "" : parsed.error().message));
  BOOST_TEST(parsed->size() == 10u);
  const auto tensor = [&](const std::string& name, TensorType type,
                          const std::vector<std::int64_t>& shape) {
    const TensorView& view = parsed->at(name);
    BOOST_TEST((view.type == type && view.shape == shape), name);
    return view;
  };
  const auto numbers = tensor("f32", TensorType::kF32, {4, 6}).elements<float>();
  for (std::size_t i = 0; i < numbers.size(); ++i) BOOST_TEST(numbers[i] == static_cast<float>(i));
  BOOST_TEST(tensor("bf16", TensorType::kBF16, {4, 6}).elements<std::uint16_t>()[1] == 0x3f80);
  BOOST_TEST(tensor("f16", TensorType::kF16, {2, 6}).elements<std::uint16_t>()[0] == 0x4600);
  BOOST_TEST(tensor("i64", TensorType::kI64, {2}).elements<std::int64_t>()[1] == -4);
  BOOST_TEST(tensor("scalar", TensorType::kF32, {}).elements<float>()[0] == 2.5f);
  // Parts of one storage.
  BOOST_TEST(tensor("part", TensorType::kF32, {4}).elements<float>()[0] == 2);
  BOOST_TEST(tensor("rest", TensorType::kF32, {4}).elements<float>()[3] == 9);
  BOOST_TEST(tensor("parameter", TensorType::kF32, {2, 1, 3}).elements<float>()[5] == 1);
  BOOST_TEST(tensor("empty", TensorType::kF32, {0, 5}).bytes.empty());
  BOOST_TEST(tensor("flags", TensorType::kBool, {2}).bytes.size() == 2u);

  const auto module = SafetensorsFile::open(torch_golden("module.bin"));
  BOOST_REQUIRE(module.ok());
  BOOST_TEST(module->find("weight")->elements<float>()[5] == 0.5f);
  BOOST_TEST(module->find("bias")->elements<float>()[1] == -1.0f);
}

BOOST_AUTO_TEST_CASE(pickles_of_anything_else_are_refused_by_what_they_hold) {
  const auto has = [](const std::string& error, const std::string& part) {
    BOOST_TEST(error.find(part) != std::string::npos, error << " / " << part);
  };
  has(torch_error_of(torch_text("transposed.bin")), "shape [6, 4] do not follow each other");
  has(torch_error_of(torch_text("number.bin")), "\"a\" is not a tensor");
  has(torch_error_of(torch_text("object.bin")), "it calls \"pathlib.PurePosixPath\"");
  has(torch_error_of(torch_text("old.bin")), "since version 1.6");
  has(torch_error_of("PK"), "no directory of a ZIP archive");
}

BOOST_AUTO_TEST_CASE(damaged_files_are_refused_or_read_but_never_left) {
  const std::string whole = torch_text("module.bin");
  for (std::size_t size = 0; size < whole.size(); size += 7)
    BOOST_TEST(torch_error_of(whole.substr(0, size)).find("w.bin: ") == 0u);
  // Whatever a byte becomes: what is read lies in the file.
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    const TorchBytes file(damaged);
    const auto parsed = parse_torch_file(file.bytes(), "w.bin");
    if (!parsed.ok()) continue;
    for (const auto& [name, view] : *parsed)
      BOOST_REQUIRE((view.bytes.empty() || (view.bytes.data() >= file.bytes().data() &&
                                            view.bytes.data() + view.bytes.size() <=
                                                file.bytes().data() + file.bytes().size())));
  }
}

}  // namespace
}  // namespace troupe
