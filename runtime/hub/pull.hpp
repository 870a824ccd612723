#pragma once

#include <filesystem>
#include <functional>

#include "runtime/hub/hub_client.hpp"

namespace troupe {

/// Brings a model of the Hub into the cache: asks the Hub what the revision stands for, and
/// downloads the files that Troupe loads and the cache lacks. `on_progress` gets the fraction of
/// the bytes and the file. Returns the snapshot's folder, or the GGUF file. Errors: those of
/// HubClient and files_to_load, and kIo (too little space, with both numbers).
[[nodiscard]] Result<std::filesystem::path> pull_model(
    const HubReference& reference, const HubSettings& settings,
    const std::function<void(double fraction, const std::string& what)>& on_progress);

/// The model's place in the cache; if it is not there, it is pulled. Error: as pull_model; or
/// offline or without a network kUnavailable, with advice.
[[nodiscard]] Result<std::filesystem::path> find_or_pull_model(
    const HubReference& reference, const HubSettings& settings,
    const std::function<void(double fraction, const std::string& what)>& on_progress);

/// "1.4 GB"
[[nodiscard]] std::string bytes_text(std::uint64_t num_bytes);

}  // namespace troupe
