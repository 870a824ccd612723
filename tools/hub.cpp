// troupe pull, troupe list: models of the Hugging Face Hub.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>

#include "runtime/hub/hub_cache.hpp"
#include "runtime/hub/pull.hpp"
#include "tools/commands.hpp"
#include "tools/progress.hpp"

namespace troupe::tools {
namespace {

constexpr const char* kPullUsage =
    "usage: troupe pull NAME [--revision REVISION] [--download-dir FOLDER]\n\n"
    "Downloads a model of the Hugging Face Hub, or its changed files, and prints its "
    "folder.\n"
    "NAME is OWNER/NAME, OWNER/NAME@REVISION, or for a GGUF file OWNER/NAME:FILE.gguf or\n"
    "OWNER/NAME:Q4_K_M. Other commands accept the same names, and download missing models; they\n"
    "load cached models without a request to the Hub.\n\n"
    "  --revision REVISION    branch, tag or commit; default: main\n"
    "  --download-dir FOLDER  instead of the cache, which is shared with other programs\n\n"
    "The environment variables are those of the Python package: HF_HOME, HF_HUB_CACHE (default:\n"
    "~/.cache/huggingface/hub), HF_TOKEN (for private and gated models), HF_ENDPOINT (a mirror),\n"
    "HF_HUB_OFFLINE (1: never download). An interrupted download is resumed.\n";

constexpr const char* kListUsage =
    "usage: troupe list [--download-dir FOLDER]\n\n"
    "Lists the models of the Hugging Face Hub that are in the cache: name, size and folder.\n";

struct HubArguments {
  std::string revision, download_dir;
  std::vector<std::string> positionals;
};

Result<HubArguments> parse(Arguments arguments, bool has_revision) {
  HubArguments parsed;
  OptionSet set;
  if (has_revision) set.section("").add("revision", parsed.revision, "");
  set.section("").add("download-dir", parsed.download_dir, "");
  ASSIGN_OR_RETURN(auto given, set.parse_command_line(arguments));
  RETURN_IF_ERROR(set.apply(given.assignments));
  parsed.positionals = std::move(given.positionals);
  return parsed;
}

}  // namespace

int pull(Arguments arguments) {
  if (help_request(arguments)) {
    std::cout << kPullUsage;
    return kExitOk;
  }
  const auto given = parse(arguments, true);
  if (!given.ok()) return fail(given.error());
  if (given->positionals.size() != 1) {
    std::cerr << kPullUsage;
    return kExitUsage;
  }
  auto reference = parse_hub_reference(given->positionals[0]);
  if (!reference) {
    return fail(invalid_argument("'" + given->positionals[0] +
                                 "' is not a name of the Hugging Face Hub: OWNER/NAME, "
                                 "OWNER/NAME@REVISION or OWNER/NAME:FILE.gguf"));
  }
  if (!given->revision.empty()) reference->revision = given->revision;
  const HubSettings settings = hub_settings_of(given->download_dir);
  if (settings.offline)
    return fail(
        {ErrorCode::kUnavailable,
         "HF_HUB_OFFLINE is set: nothing is downloaded; unset it where there is a network"});
  ProgressBar progress("downloading");
  const auto place =
      pull_model(*reference, settings,
                 [&](double fraction, const std::string& what) { progress.show(fraction, what); });
  if (!place.ok()) {
    progress.finish();
    Error error = place.error();
    if (error.code == ErrorCode::kUnavailable)
      error.message += "; HF_ENDPOINT names a mirror, https_proxy a proxy";
    return fail(error);
  }
  progress.complete(reference->text());
  std::printf("%s\n", place->c_str());
  return kExitOk;
}

int list(Arguments arguments) {
  if (help_request(arguments)) {
    std::cout << kListUsage;
    return kExitOk;
  }
  const auto given = parse(arguments, false);
  if (!given.ok()) return fail(given.error());
  if (!given->positionals.empty()) {
    std::cerr << kListUsage;
    return kExitUsage;
  }
  const HubCache cache(hub_settings_of(given->download_dir).cache);
  const auto models = cache.list();
  if (models.empty()) {
    std::fprintf(stderr, "No models in %s; troupe pull OWNER/NAME downloads one.\n",
                 cache.folder().c_str());
    return kExitOk;
  }
  std::size_t width = 4;
  const auto name_of = [](const CachedModel& model) {
    const std::string& revision = model.reference.revision;
    constexpr std::size_t kShort = 12;
    return model.reference.repository +
           (revision == "main"
                ? ""
                : "@" + (revision == model.commit ? revision.substr(0, kShort) : revision));
  };
  for (const CachedModel& model : models) width = std::max(width, name_of(model).size());
  std::printf("%-*s  %8s  %s\n", static_cast<int>(width), "NAME", "SIZE", "FOLDER");
  for (const CachedModel& model : models)
    std::printf("%-*s  %8s  %s\n", static_cast<int>(width), name_of(model).c_str(),
                bytes_text(model.num_bytes).c_str(), model.folder.c_str());
  return kExitOk;
}

}  // namespace troupe::tools
