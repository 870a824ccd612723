#include "runtime/kv_transfer/lmcache/lmcache_config.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "runtime/base/ascii.hpp"
#include "runtime/base/file.hpp"

namespace troupe::lmcache {
namespace {

constexpr std::string_view kPrefix = "LMCACHE_";
constexpr std::size_t kMaxFileBytes = 1 << 20;

/// One setting as it was found.
struct Setting {
  std::string key;
  std::string value;
  std::string where;  ///< for errors: "LMCACHE_CHUNK_SIZE", "file.yaml: chunk_size"
};

Error bad_value(const Setting& setting, const std::string& what) {
  return invalid_argument(setting.where + " is '" + setting.value + "', " + what,
                          "kv-transfer-config");
}

Result<bool> to_bool(const Setting& setting) {
  if (const auto flag = parse_flag(setting.value)) return *flag;
  return bad_value(setting, "it must be true or false");
}

Result<std::int32_t> to_number(const Setting& setting, std::int32_t least) {
  std::int32_t number = 0;
  const std::string& text = setting.value;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || number < least)
    return bad_value(setting, "it must be a whole number from " + std::to_string(least) + " on");
  return number;
}

Result<double> to_gibibytes(const Setting& setting) {
  double number = 0;
  const std::string& text = setting.value;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || !(number >= 0) ||
      number > 1e6)
    return bad_value(setting, "it must be a number of GiB");
  return number;
}

Result<std::vector<std::int32_t>> to_numbers(const Setting& setting, std::int32_t most) {
  std::vector<std::int32_t> numbers;
  Setting one = setting;
  for (std::size_t begin = 0; begin < setting.value.size();) {
    const std::size_t end = std::min(setting.value.find(',', begin), setting.value.size());
    one.value = setting.value.substr(begin, end - begin);
    std::erase_if(one.value, [](char c) { return c == ' ' || c == '[' || c == ']'; });
    ASSIGN_OR_RETURN(const std::int32_t number, to_number(one, 0));
    if (number > most)
      return bad_value(setting, "its numbers must be at most " + std::to_string(most));
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

bool is_none(const std::string& value) {
  return value.empty() || value == "null" || value == "None" || value == "none" || value == "~";
}

/// "file:///a,/b" or "/a".
std::vector<std::string> to_folders(const std::string& value) {
  constexpr std::string_view kScheme = "file://";
  std::vector<std::string> folders;
  for (std::size_t begin = 0; begin < value.size();) {
    const std::size_t end = std::min(value.find(',', begin), value.size());
    std::string folder = value.substr(begin, end - begin);
    folder.erase(0, folder.find_first_not_of(" '\"[]"));
    while (!folder.empty() && std::string_view(" '\"[]/").find(folder.back()) != std::string::npos)
      folder.pop_back();
    if (folder.starts_with(kScheme)) folder.erase(0, kScheme.size());
    if (!folder.empty()) folders.push_back(std::move(folder));
    begin = end + 1;
  }
  return folders;
}

/// What LMCache has and this does not: only with what means that it is off.
struct Unsupported {
  std::string_view key;
  std::string_view off;  ///< besides false, none and 0
};
constexpr std::array kUnsupported = {
    Unsupported{"enable_blending", ""},
    Unsupported{"enable_pd", ""},
    Unsupported{"enable_kv_events", ""},
    Unsupported{"enable_scheduler_bypass_lookup", ""},
    Unsupported{"external_lookup_client", ""},
    Unsupported{"internal_api_server_enabled", ""},
    Unsupported{"gds_path", ""},
    Unsupported{"numa_mode", ""},
    Unsupported{"remote_config_url", ""},
    Unsupported{"remote_serde", "naive"},
    Unsupported{"retrieve_locations", ""},
    Unsupported{"store_location", ""},
    Unsupported{"hit_miss_ratio", ""},
    Unsupported{"enable_chunk_statistics", ""},
    Unsupported{"enable_hidden_state_cache", ""},
    Unsupported{"storage_plugins", ""},
    Unsupported{"remote_storage_plugins", ""},
    Unsupported{"local_disk_path_sharding", "by_gpu"},
    Unsupported{"reserve_local_cpu_size", "0.0"},
    Unsupported{"local_cpu_use_hugepages", ""},
    Unsupported{"enable_lazy_memory_allocator", ""},
    Unsupported{"run_script_api_enabled", ""},
    Unsupported{"runtime_plugin_locations", ""},
    Unsupported{"use_gpu_connector_v3", ""},
    Unsupported{"audit_actual_remote_url", ""},
    Unsupported{"lookup_server_worker_ids", ""},
    Unsupported{"app_id", ""},
    Unsupported{"maru_path", ""},
    Unsupported{"mp_host", ""},
    Unsupported{"p2p_host", ""},
    Unsupported{"p2p_init_ports", ""},
    Unsupported{"p2p_lookup_ports", ""},
    Unsupported{"transfer_channel", ""},
};

/// Parameters of what can only be off here, so that they have no effect, as in LMCache.
constexpr auto kWithoutEffect = std::to_array<std::string_view>({
    "chunk_statistics_auto_start_statistics",
    "chunk_statistics_auto_exit_timeout_hours",
    "chunk_statistics_auto_exit_target_unique_chunks",
    "chunk_statistics_strategy",
    "blend_recompute_ratios",
    "blend_thresholds",
    "blend_check_layers",
    "blend_min_tokens",
    "blend_special_str",
    "mp_port",
    "pd_role",
    "pd_buffer_size",
    "pd_buffer_device",
    "pd_peer_host",
    "pd_peer_init_port",
    "pd_peer_alloc_port",
    "pd_peer_query_port",
    "pd_proxy_host",
    "pd_proxy_port",
    "pd_allocation_timeout_sec",
    "pd_shutdown_timeout_sec",
    "pd_condition_poll_interval_sec",
    "pd_max_prefill_len",
    "pd_backend_mode",
    "pd_skip_proxy_notification",
    "pd_bidirectional",
    "nixl_backends",
    "nixl_buffer_size",
    "nixl_buffer_device",
    "gds_path_sharding",
    "gds_buffer_size",
    "gds_backend",
    "use_gds",
    "maru_pool_size",
    "internal_api_server_host",
    "internal_api_server_port_start",
    "internal_api_server_include_index_list",
    "internal_api_server_socket_path_prefix",
    "script_allowed_imports",
    "lazy_memory_initial_ratio",
    "lazy_memory_expand_trigger_ratio",
    "lazy_memory_step_ratio",
    "lazy_memory_safe_size",
    "max_hidden_state_cpu_size",
    "hidden_state_layers",
    "hidden_states_retrieve_mode",
    "pin_check_interval_sec",  // pins end in time
    "py_enable_gc",            // of Python
});

/// Of LMCache's own processes: nothing of ours.
constexpr std::array<std::string_view, 5> kForeignVariables = {
    "LMCACHE_CONFIG_FILE", "LMCACHE_LOG_LEVEL", "LMCACHE_TRACK_USAGE", "LMCACHE_USE_UPSTREAM_MP",
    "LMCACHE_USE_EXPERIMENTAL"};

/// False: the setting is none of the controller's.
Result<bool> apply_controller_setting(ControllerOptions& options, const Setting& setting) {
  const std::string& key = setting.key;
  const std::string text = is_none(setting.value) ? "" : setting.value;
  if (key == "enable_controller") {
    ASSIGN_OR_RETURN(options.is_enabled, to_bool(setting));
  } else if (key == "enable_p2p") {
    ASSIGN_OR_RETURN(options.moves_chunks, to_bool(setting));
  } else if (key == "lmcache_instance_id") {
    options.instance_id = text;
  } else if (key == "controller_pull_url") {
    options.pull_url = text;
  } else if (key == "controller_reply_url") {
    options.reply_url = text;
  } else if (key == "lmcache_worker_ports") {
    ASSIGN_OR_RETURN(options.worker_ports, to_numbers({key, text, setting.where}, 65535));
  } else if (key == "lmcache_worker_ids") {
    ASSIGN_OR_RETURN(options.worker_ids, to_numbers({key, text, setting.where}, INT32_MAX));
  } else if (key == "lmcache_worker_heartbeat_delay_time") {
    ASSIGN_OR_RETURN(const std::int32_t seconds, to_number(setting, 0));
    options.heartbeat_delay = std::chrono::seconds(seconds);
  } else if (key == "lmcache_worker_heartbeat_time") {
    options.heartbeat_time.reset();
    if (text.empty() || text == "0") return true;
    ASSIGN_OR_RETURN(const std::int32_t seconds, to_number(setting, 1));
    options.heartbeat_time = std::chrono::seconds(seconds);
  } else if (key == "extra_config.worker_socket_recv_timeout_ms") {
    ASSIGN_OR_RETURN(const std::int32_t milliseconds, to_number(setting, 1));
    options.timeout = std::chrono::milliseconds(milliseconds);
  } else if (key == "pin_timeout_sec") {
    ASSIGN_OR_RETURN(const std::int32_t seconds, to_number(setting, 1));
    options.pin_time = std::chrono::seconds(seconds);
  } else {
    return false;
  }
  return true;
}

Result<void> apply_setting(LMCacheConfig& config, HashEnvironment& hashing,
                           const Setting& setting) {
  ASSIGN_OR_RETURN(const bool is_controllers, apply_controller_setting(config.controller, setting));
  if (is_controllers) return {};
  const std::string& key = setting.key;
  if (key == "chunk_size") {
    ASSIGN_OR_RETURN(config.chunk_size, to_number(setting, 1));
  } else if (key == "local_cpu") {
    ASSIGN_OR_RETURN(config.local_cpu, to_bool(setting));
  } else if (key == "max_local_cpu_size") {
    ASSIGN_OR_RETURN(config.max_local_cpu_size, to_gibibytes(setting));
  } else if (key == "local_disk") {
    config.local_disk =
        is_none(setting.value) ? std::vector<std::string>() : to_folders(setting.value);
  } else if (key == "max_local_disk_size") {
    ASSIGN_OR_RETURN(config.max_local_disk_size, to_gibibytes(setting));
  } else if (key == "remote_url") {
    config.remote.url = is_none(setting.value) ? "" : setting.value;
  } else if (key == "cache_policy") {
    auto policy = parse_cache_policy(setting.value);
    if (!policy.ok()) return bad_value(setting, "it must be LRU, LFU, FIFO or MRU");
    config.cache_policy = *policy;
  } else if (key == "pre_caching_hash_algorithm") {
    auto algorithm = parse_chunk_hash_algorithm(setting.value);
    if (!algorithm.ok()) return bad_value(setting, "it must be sha256_cbor or builtin");
    config.hash_algorithm = *algorithm;
  } else if (key == "save_decode_cache") {
    ASSIGN_OR_RETURN(config.save_decode_cache, to_bool(setting));
  } else if (key == "save_unfull_chunk") {
    ASSIGN_OR_RETURN(config.save_unfull_chunk, to_bool(setting));
  } else if (key == "min_retrieve_tokens") {
    ASSIGN_OR_RETURN(config.min_retrieve_tokens, to_number(setting, 0));
  } else if (key == "priority_limit") {
    config.priority_limit.reset();
    if (!is_none(setting.value)) {
      ASSIGN_OR_RETURN(config.priority_limit, to_number(setting, INT32_MIN));
    }
  } else if (key == "blocking_timeout_secs") {
    ASSIGN_OR_RETURN(const std::int32_t seconds, to_number(setting, 1));
    config.remote.timeout = std::chrono::seconds(seconds);
  } else if (key == "lookup_timeout_ms") {
    ASSIGN_OR_RETURN(config.lookup_timeout_ms, to_number(setting, 1));
  } else if (key == "enable_async_loading") {
    ASSIGN_OR_RETURN(config.async_lookups, to_bool(setting));
  } else if (key == "use_layerwise") {
    ASSIGN_OR_RETURN(config.use_layerwise, to_bool(setting));
  } else if (key == "force_skip_save") {
    ASSIGN_OR_RETURN(config.force_skip_save, to_bool(setting));
  } else if (key == "skip_last_n_tokens") {
    ASSIGN_OR_RETURN(config.skip_last_n_tokens, to_number(setting, 0));
  } else if (key == "extra_config.remote_ttl_s") {
    ASSIGN_OR_RETURN(config.remote.ttl_s, to_number(setting, 0));
  } else if (key == "extra_config.troupe_token_file") {
    config.remote.token_file = setting.value;
  } else if (key == "extra_config.troupe_ca_file") {
    config.remote.ca_file = setting.value;
  } else if (key == "extra_config.troupe_vllm_hashes") {
    // Where it cannot import vLLM, LMCache hashes the first chunk otherwise.
    ASSIGN_OR_RETURN(hashing.has_vllm, to_bool(setting));
  } else if (key == "extra_config") {
    if (!is_none(setting.value)) return bad_value(setting, "it must be an object");
  } else {
    for (const Unsupported& other : kUnsupported) {
      if (other.key != key) continue;
      if (is_none(setting.value) || setting.value == other.off || setting.value == "0") return {};
      const auto on = to_bool(setting);
      if (on.ok() && !*on) return {};
      return Error{ErrorCode::kUnsupported,
                   setting.where + " is '" + setting.value + "': this is not offered here",
                   "kv-transfer-config"};
    }
    if (std::ranges::find(kWithoutEffect, key) == kWithoutEffect.end())
      return invalid_argument(setting.where + " is unknown", "kv-transfer-config");
  }
  return {};
}

/// Without the quotes around it, which LMCache takes off a variable's value.
std::string unquoted(std::string text) {
  const bool is_quoted = text.size() >= 2 && text.front() == text.back() &&
                         (text.front() == '\'' || text.front() == '"');
  return is_quoted ? text.substr(1, text.size() - 2) : text;
}

/// A value of YAML, or of JSON, which is a part of it.
void collect(const YAML::Node& node, const std::string& key, const std::string& where,
             std::vector<Setting>& settings) {
  if (node.IsMap()) {
    for (const auto& entry : node) {
      const auto name = entry.first.as<std::string>();
      collect(entry.second, key.empty() ? name : key + "." + name,
              where + (key.empty() ? "" : ".") + name, settings);
    }
    return;
  }
  Setting setting{key, {}, where};
  if (node.IsSequence()) {
    for (const YAML::Node& element : node)
      setting.value += (setting.value.empty() ? "" : ",") + element.as<std::string>();
  } else if (node.IsScalar()) {
    setting.value = node.Scalar();
  }
  settings.push_back(std::move(setting));
}

Result<std::vector<Setting>> parse_settings(const std::string& text, const std::string& name,
                                            const std::string& key) {
  try {
    std::vector<Setting> settings;
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return settings;
    if (!root.IsMap())
      return invalid_argument(name + " holds no object of keys and values", "kv-transfer-config");
    collect(root, key, name + (key.empty() ? ": " : ""), settings);
    return settings;
  } catch (const YAML::Exception& error) {
    return invalid_argument(name + ": " + error.what(), "kv-transfer-config");
  }
}

const std::string* find_variable(std::span<const std::string> environment, std::string_view name,
                                 std::string& value) {
  for (const std::string& entry : environment) {
    if (!entry.starts_with(name) || entry.size() <= name.size() || entry[name.size()] != '=')
      continue;
    value = entry.substr(name.size() + 1);
    return &value;
  }
  return nullptr;
}

Result<void> apply_all(LMCacheConfig& config, HashEnvironment& hashing,
                       const std::vector<Setting>& settings) {
  for (const Setting& setting : settings) RETURN_IF_ERROR(apply_setting(config, hashing, setting));
  return {};
}

Result<void> apply_environment(LMCacheConfig& config, HashEnvironment& hashing,
                               std::span<const std::string> environment) {
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!name.starts_with(kPrefix) || name.size() == entry.size() ||
        std::ranges::find(kForeignVariables, name) != kForeignVariables.end())
      continue;
    const Setting setting{lower_ascii(name.substr(kPrefix.size())),
                          unquoted(entry.substr(name.size() + 1)), name};
    if (setting.key == "extra_config") {
      ASSIGN_OR_RETURN(const auto settings, parse_settings(setting.value, name, setting.key));
      RETURN_IF_ERROR(apply_all(config, hashing, settings));
    } else {
      RETURN_IF_ERROR(apply_setting(config, hashing, setting));
    }
  }
  return {};
}

Result<void> apply_extra_config(LMCacheConfig& config, HashEnvironment& hashing,
                                const std::string& text) {
  constexpr std::string_view kOwn = "lmcache.";
  const std::string name = "kv_connector_extra_config";
  ASSIGN_OR_RETURN(std::vector<Setting> settings, parse_settings(text, name, ""));
  for (Setting& setting : settings) {
    // vLLM's own, of LMCache's connector.
    if (setting.key == "lmcache_rpc_port") {
      ASSIGN_OR_RETURN(config.rpc_port, to_number(setting, 0));
      continue;
    }
    if (setting.key.starts_with(kOwn))
      setting.key.erase(0, kOwn.size());
    else if (setting.key != "skip_last_n_tokens")
      return invalid_argument(setting.where + " is unknown", "kv-transfer-config");
    RETURN_IF_ERROR(apply_setting(config, hashing, setting));
  }
  return {};
}

}  // namespace

Result<LMCacheConfig> read_lmcache_config(std::span<const std::string> environment,
                                          const std::string& extra_config) {
  LMCacheConfig config;
  HashEnvironment hashing;
  std::string value;
  if (find_variable(environment, "LMCACHE_CONFIG_FILE", value) != nullptr && !value.empty()) {
    const std::string file = value;
    ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxFileBytes));
    ASSIGN_OR_RETURN(const auto settings, parse_settings(text, file, ""));
    RETURN_IF_ERROR(apply_all(config, hashing, settings));
  }
  RETURN_IF_ERROR(apply_environment(config, hashing, environment));
  RETURN_IF_ERROR(apply_extra_config(config, hashing, extra_config));
  config.rpc_folder =
      find_variable(environment, "VLLM_RPC_BASE_PATH", value) != nullptr && !value.empty()
          ? value
          : "/tmp/vllm_rpc";
  if (find_variable(environment, "PYTHONHASHSEED", value) != nullptr && !value.empty() &&
      value != "random")
    hashing.seed = value;
  ASSIGN_OR_RETURN(config.none_hash, none_hash(config.hash_algorithm, hashing));
  if (!config.local_disk.empty() && config.max_local_disk_size == 0)
    return invalid_argument("local_disk needs max_local_disk_size, in GiB", "kv-transfer-config");
  if (config.local_cpu && config.max_local_cpu_size == 0)
    return invalid_argument("local_cpu needs max_local_cpu_size, in GiB", "kv-transfer-config");
  if (!config.local_cpu && config.local_disk.empty() && config.remote.url.empty())
    return invalid_argument("LMCache has nowhere to store: set local_cpu, local_disk or remote_url",
                            "kv-transfer-config");
  if (!config.remote.url.empty()) {
    ASSIGN_OR_RETURN(const RemoteUrl url, parse_remote_url(config.remote.url));
    if (url.scheme == "resp" && config.save_unfull_chunk)
      return invalid_argument(
          "save_unfull_chunk is true, and remote_url " + url.shown() + " keeps full chunks only",
          "kv-transfer-config");
    if (url.scheme == "lm" || url.scheme == "lms") config.controller.store_url = config.remote.url;
  }
  if (!config.controller.moves_chunks) config.controller.store_url.clear();
  if (config.controller.moves_chunks &&
      (!config.controller.is_enabled || config.controller.store_url.empty()))
    return invalid_argument(
        "enable_p2p needs enable_controller and an lm:// or lms:// remote_url: chunks are moved "
        "between such stores, LMCache's own transport between instances (NIXL) is not offered",
        "kv-transfer-config");
  return config;
}

}  // namespace troupe::lmcache
