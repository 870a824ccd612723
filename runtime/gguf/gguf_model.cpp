#include "runtime/gguf/gguf_model.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "runtime/base/json.hpp"
#include "runtime/gguf/metadata.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigits = 5;
constexpr std::string_view kOf = "-of-";
constexpr std::string_view kExtension = ".gguf";

/// "x-00002-of-00003.gguf": {"x", 3}.
struct PartName {
  std::string prefix;
  std::int64_t count = 0;

  [[nodiscard]] std::string part(std::int64_t index) const {
    const auto digits = [](std::int64_t number) {
      const std::string text = std::to_string(number);
      return std::string(kDigits - std::min(kDigits, text.size()), '0') + text;
    };
    return prefix + "-" + digits(index + 1) + std::string(kOf) + digits(count) +
           std::string(kExtension);
  }
};

std::optional<PartName> parse_part_name(const std::string& name) {
  constexpr std::size_t kSuffix = 1 + kDigits + kOf.size() + kDigits + kExtension.size();
  if (name.size() <= kSuffix) return std::nullopt;
  PartName parsed{.prefix = name.substr(0, name.size() - kSuffix)};
  std::int64_t number = 0;
  const auto read = [&](std::size_t at, std::int64_t& value) {
    const char* begin = name.data() + at;
    return std::from_chars(begin, begin + kDigits, value).ptr == begin + kDigits;
  };
  const std::size_t first = parsed.prefix.size() + 1;
  if (!read(first, number) || !read(first + kDigits + kOf.size(), parsed.count) || number < 1 ||
      number > parsed.count || parsed.part(number - 1) != name)
    return std::nullopt;
  return parsed;
}

Error corrupt(const std::string& file_name, const std::string& reason) {
  return {ErrorCode::kCorrupt, file_name + ": " + reason};
}

/// Whether the file is that part, by its metadata. A model that was merged again has count 0.
Result<void> check_part(const GgufContents& part, const std::string& file_name, std::int64_t index,
                        std::int64_t count) {
  GgufMetadata metadata(*part.metadata, file_name);
  const std::int64_t found_count = metadata.integer("split.count", 1);
  const std::int64_t found_index = metadata.integer("split.no", 0);
  if (metadata.error()) return *metadata.error();
  if (count == 1 && found_count <= 1) return {};
  if (found_count == count && found_index == index) return {};
  return corrupt(file_name, "by its name it is part " + std::to_string(index + 1) + " of " +
                                std::to_string(count) + ", by split.no and split.count " +
                                std::to_string(found_index + 1) + " of " +
                                std::to_string(found_count) +
                                "; parts are found by names like x-00001-of-00002.gguf");
}

}  // namespace

std::vector<fs::path> gguf_paths(const fs::path& path) {
  const auto name = parse_part_name(path.filename().string());
  if (!name) return {path};
  std::vector<fs::path> paths;
  for (std::int64_t i = 0; i < name->count; ++i)
    paths.push_back(path.parent_path() / name->part(i));
  return paths;
}

Result<GgufModel> open_gguf_model(const fs::path& path, GgufKeys keys) {
  GgufModel model;
  const std::vector<fs::path> paths = gguf_paths(path);
  const auto count = static_cast<std::int64_t>(paths.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const fs::path& part_path = paths[static_cast<std::size_t>(i)];
    const std::string file_name = part_path.filename().string();
    auto file = MappedFile::open(part_path);
    if (!file.ok() && count > 1 && file.error().code == ErrorCode::kNotFound)
      return Error{ErrorCode::kNotFound, part_path.string() + " not found: part " +
                                             std::to_string(i + 1) + " of the model's " +
                                             std::to_string(count)};
    if (!file.ok()) return file.error();
    ASSIGN_OR_RETURN(GgufContents part, parse_gguf(file->bytes(), file_name, keys));
    RETURN_IF_ERROR(check_part(part, file_name, i, count));
    if (i == 0) model.contents.metadata = part.metadata;
    for (auto& [name, tensor] : part.tensors) {
      tensor.file = static_cast<std::size_t>(i);
      const auto [entry, added] = model.contents.tensors.emplace(name, std::move(tensor));
      if (!added)
        return corrupt(file_name, "tensor \"" + name + "\" is in " +
                                      model.file_names[entry->second.file] + " too");
    }
    model.files.push_back(std::move(file).value());
    model.file_names.push_back(file_name);
  }
  if (count > 1)
    if (const auto total = model.contents.metadata->find("split.tensors.count");
        total != model.contents.metadata->end() && *total != model.contents.tensors.size())
      return corrupt(model.file_names.front(),
                     "split.tensors.count is " + total->dump() + ", the parts hold " +
                         std::to_string(model.contents.tensors.size()) + " tensors");
  return model;
}

}  // namespace troupe
