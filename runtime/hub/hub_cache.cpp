#include "runtime/hub/hub_cache.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <map>
#include <set>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/hub/hub_snapshot.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "models--";
constexpr std::size_t kMaxIndexBytes = 64 << 20;

Error io_error(const fs::path& path, const std::error_code& code) {
  return {ErrorCode::kIo, path.string() + ": " + code.message()};
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

std::string_view base_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_in_folder_of(std::string_view path, std::initializer_list<std::string_view> folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](std::string_view folder) { return path.starts_with(folder); });
}

/// Whether it describes the model, its tokenizer or its prompts.
bool is_description(std::string_view path) {
  // Other formats of the same model.
  if (is_in_folder_of(path, {"original/", "onnx/", "openvino/", "metal/", "coreml/", "flax/"}))
    return false;
  return path.ends_with(".json") || path.ends_with(".jinja") || path.ends_with(".model") ||
         path.ends_with(".tiktoken") || base_name(path) == "vocab.txt" ||
         base_name(path) == "merges.txt";
}

/// "x-00001-of-00003.gguf": "x"; other names without their ending.
std::string_view without_part(std::string_view path) {
  path.remove_suffix(std::string_view(".gguf").size());
  const std::size_t dash = path.size() < 15 ? std::string_view::npos : path.size() - 15;
  if (dash == std::string_view::npos || path[dash] != '-' || path.substr(dash + 6, 4) != "-of-")
    return path;
  const auto are_digits = [&](std::size_t at) {
    return std::all_of(path.begin() + static_cast<std::ptrdiff_t>(at),
                       path.begin() + static_cast<std::ptrdiff_t>(at + 5),
                       [](char c) { return c >= '0' && c <= '9'; });
  };
  return are_digits(dash + 1) && are_digits(dash + 10) ? path.substr(0, dash) : path;
}

std::string joined(const std::set<std::string>& names) {
  constexpr std::size_t kMaxNames = 20;
  std::string text;
  std::size_t count = 0;
  for (const std::string& name : names) {
    if (count++ == kMaxNames)
      return text + " and " + std::to_string(names.size() - kMaxNames) + " more";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

Result<std::vector<std::string>> gguf_parts(const HubReference& reference,
                                            const std::vector<std::string>& files) {
  std::map<std::string, std::vector<std::string>> models;  // without ending and part
  for (const std::string& path : files)
    if (path.ends_with(".gguf") && !lower(base_name(path)).starts_with("mmproj"))
      models[std::string(without_part(path))].push_back(path);
  std::set<std::string> names, chosen;
  for (const auto& [name, parts] : models) {
    names.insert(parts.front());
    const bool is_named = std::find(parts.begin(), parts.end(), reference.file) != parts.end();
    const std::string wanted = lower(reference.file);
    const std::string last = lower(base_name(name));
    // Q4_K_M is not Q4_K_M_L: a quantisation stands at the end.
    const bool is_quantisation =
        last.size() > wanted.size() && last.ends_with(wanted) &&
        std::isalnum(static_cast<unsigned char>(last[last.size() - wanted.size() - 1])) == 0;
    if (is_named || (!reference.file.ends_with(".gguf") && is_quantisation)) chosen.insert(name);
  }
  if (chosen.size() == 1) return models[*chosen.begin()];
  return Error{ErrorCode::kNotFound,
               reference.repository + " has " +
                   (chosen.empty() ? "no GGUF file '" : "several GGUF files '") + reference.file +
                   "'; it has " + (names.empty() ? "none at all" : joined(names)),
               "model"};
}

/// The files with weights that the index of a model in several parts names.
std::optional<std::set<std::string>> files_of_index(const fs::path& index) {
  const auto text = read_file(index, kMaxIndexBytes);
  if (!text.ok()) return std::nullopt;
  const auto json = parse_bounded_json<nlohmann::json>(*text);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return std::nullopt;
  std::set<std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items())
    if (file.is_string()) files.insert(file.get<std::string>());
  return files;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (auto entry = fs::recursive_directory_iterator(folder, ignored);
       entry != fs::recursive_directory_iterator(); entry.increment(ignored)) {
    if (entry->is_regular_file(ignored))  // also through its link
      files.push_back(entry->path().lexically_relative(folder).generic_string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Weights of torch.save, which are read where there are none as safetensors.
bool is_torch_file(std::string_view name) {
  return name.starts_with("pytorch_model") && name.ends_with(".bin") &&
         name.find('/') == std::string_view::npos;
}

/// Whether a snapshot holds all that a model in a folder needs. What an interrupted download has
/// left, or a program that wanted the tokenizer only, does not.
bool is_whole(const fs::path& folder) {
  const auto has = [&](const std::string& name) {
    std::error_code ignored;
    return fs::is_regular_file(folder / name, ignored);
  };
  constexpr std::array kTokenizers = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                      "vocab.txt", "tokenizer_config.json"};
  if (!has("config.json") || std::none_of(kTokenizers.begin(), kTokenizers.end(),
                                          [&](const char* name) { return has(name); }))
    return false;
  for (const char* const index : {"model.safetensors.index.json", "pytorch_model.bin.index.json"})
    if (const auto parts = files_of_index(folder / index))
      return std::all_of(parts->begin(), parts->end(), has);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if ((entry.path().extension() == ".safetensors" ||
         is_torch_file(entry.path().filename().string())) &&
        entry.is_regular_file(ignored))
      return true;
  return false;
}

std::optional<std::string> read_commit(const fs::path& path) {
  constexpr std::size_t kMaxCommit = 128;
  auto text = read_file(path, kMaxCommit);
  if (!text.ok()) return std::nullopt;
  while (!text->empty() && std::isspace(static_cast<unsigned char>(text->back())) != 0)
    text->pop_back();
  return is_object_hash(*text) ? std::optional(*text) : std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> files_to_load(const HubReference& reference,
                                               const std::vector<std::string>& files) {
  if (!reference.file.empty()) return gguf_parts(reference, files);
  std::vector<std::string> chosen;
  std::set<std::string> gguf;
  bool has_parts = false, has_weights = false;
  for (const std::string& path : files) has_parts |= path == "model.safetensors.index.json";
  for (const std::string& path : files) {
    if (path.ends_with(".gguf")) gguf.insert(path);
    if (is_description(path)) chosen.push_back(path);
    // Mistral's checkpoints come twice; the other one is called consolidated.
    if (path.ends_with(".safetensors") && path.find('/') == std::string::npos &&
        (path.starts_with("model") ||
         (!has_parts && std::find(files.begin(), files.end(), "model.safetensors") == files.end())))
      chosen.push_back(path), has_weights = true;
  }
  if (!has_weights && gguf.empty())
    for (const std::string& path : files)
      if (is_torch_file(path)) chosen.push_back(path), has_weights = true;
  if (has_weights) return chosen;
  return Error{ErrorCode::kNotFound,
               reference.repository + " has no weights as safetensors" +
                   (gguf.empty() ? std::string("; Troupe reads safetensors and GGUF files")
                                 : "; name one of its GGUF files as " + reference.repository +
                                       ":FILE: " + joined(gguf)),
               "model"};
}

fs::path HubCache::repository(const std::string& repository) const {
  std::string name(kPrefix);
  for (const char c : repository) name += c == '/' ? "--" : std::string(1, c);
  return folder_ / name;
}

fs::path HubCache::blob(const std::string& repository, const std::string& etag) const {
  return this->repository(repository) / "blobs" / etag;
}

fs::path HubCache::snapshot(const std::string& repository, const std::string& commit) const {
  return this->repository(repository) / "snapshots" / commit;
}

fs::path HubCache::lock(const std::string& repository, const std::string& etag) const {
  return folder_ / ".locks" / this->repository(repository).filename() / (etag + ".lock");
}

std::optional<std::string> HubCache::commit_of(const HubReference& reference) const {
  const std::string revision = reference.revision.empty() ? "main" : reference.revision;
  if (auto commit = read_commit(repository(reference.repository) / "refs" / revision))
    return commit;
  return is_object_hash(revision) ? std::optional(revision) : std::nullopt;
}

std::optional<fs::path> HubCache::find(const HubReference& reference) const {
  const auto commit = commit_of(reference);
  if (!commit) return std::nullopt;
  const fs::path folder = snapshot(reference.repository, *commit);
  if (reference.file.empty()) return is_whole(folder) ? std::optional(folder) : std::nullopt;
  const auto parts = files_to_load(reference, files_in(folder));
  if (!parts.ok()) return std::nullopt;
  // "x-00001-of-00003.gguf" needs three parts.
  const std::string& first = parts->front();
  const std::string_view stem = without_part(first);
  const bool has_parts = stem.size() + std::string_view(".gguf").size() != first.size();
  if (has_parts && std::stoul(first.substr(stem.size() + 10, 5)) != parts->size())
    return std::nullopt;
  return folder / first;
}

std::string HubCache::commit_of_path(const fs::path& path) {
  bool is_next = false;
  for (const fs::path& part : path) {
    if (is_next && is_object_hash(part.string())) return part.string();
    is_next = part == "snapshots";
  }
  return "";
}

std::vector<CachedModel> HubCache::list() const {
  std::vector<CachedModel> models;
  std::error_code ignored;
  for (const auto& repository : fs::directory_iterator(folder_, ignored)) {
    std::string name = repository.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    name.erase(0, kPrefix.size());
    const std::size_t dashes = name.find("--");
    if (dashes == std::string::npos) continue;  // of the time before owners
    name.replace(dashes, 2, "/");
    std::map<std::string, std::string> revisions;  // commit -> branch or tag
    const fs::path refs = repository.path() / "refs";
    for (const std::string& revision : files_in(refs))
      if (const auto commit = read_commit(refs / revision)) revisions[*commit] = revision;
    for (const auto& snapshot : fs::directory_iterator(repository.path() / "snapshots", ignored)) {
      CachedModel model{.reference = {.repository = name},
                        .commit = snapshot.path().filename().string(),
                        .folder = snapshot.path(),
                        .files = files_in(snapshot.path())};
      const auto named = revisions.find(model.commit);
      model.reference.revision = named == revisions.end() ? model.commit : named->second;
      for (const std::string& path : model.files)
        model.num_bytes += fs::file_size(model.folder / path, ignored);
      models.push_back(std::move(model));
    }
  }
  std::sort(models.begin(), models.end(), [](const CachedModel& one, const CachedModel& other) {
    return one.reference.text() < other.reference.text();
  });
  return models;
}

Result<void> HubCache::link(const std::string& repository, const std::string& commit,
                            const std::string& path, const std::string& etag) const {
  const fs::path link = snapshot(repository, commit) / path;
  std::error_code code;
  fs::create_directories(link.parent_path(), code);
  if (code) return io_error(link.parent_path(), code);
  const fs::path target = blob(repository, etag).lexically_relative(link.parent_path());
  // Another process may do the same: the new link takes the place of the old one in one step.
  const fs::path next = link.string() + "." + std::to_string(getpid()) + ".new";
  fs::remove(next, code);
  fs::create_symlink(target, next, code);
  if (!code) fs::rename(next, link, code);
  if (code) return io_error(link, code);
  return {};
}

Result<void> HubCache::set_revision(const HubReference& reference,
                                    const std::string& commit) const {
  const std::string revision = reference.revision.empty() ? "main" : reference.revision;
  if (revision == commit) return {};
  const fs::path path = repository(reference.repository) / "refs" / revision;
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) return io_error(path.parent_path(), code);
  const fs::path next = path.string() + "." + std::to_string(getpid()) + ".new";
  {
    std::ofstream file(next, std::ios::binary);
    file << commit;
    if (!file.flush()) return Error{ErrorCode::kIo, next.string() + ": cannot be written"};
  }
  fs::rename(next, path, code);
  if (code) return io_error(path, code);
  return {};
}

}  // namespace troupe
