// troupe cache-server: an LMCache remote store (lm://).
#include <malloc.h>

#include <csignal>
#include <cstdio>

#include "runtime/cache_server/cache_server.hpp"
#include "runtime/config/option_set.hpp"
#include "tools/commands.hpp"

namespace troupe::tools {
namespace {

constexpr const char* kCacheServerUsage =
    "usage: troupe cache-server [options]\n\n"
    "Stores KV caches for engines: LMCache's remote_url lm://HOST:PORT, of vLLM or Troupe, with\n"
    "memory and disk limits and LRU eviction. Values on disk survive kill -9 of the server.\n"
    "LMCache's own client supports neither TLS nor tokens: these require Troupe's client (lms://,\n"
    "troupe_token_file in LMCACHE_EXTRA_CONFIG).\n";

struct CacheServerOptions {
  std::string host = "127.0.0.1";
  std::int64_t port = 65432;
  std::string http_host = "127.0.0.1";
  std::int64_t http_port = -1;
  std::int64_t threads = 2;
  std::int64_t max_connections = 16384;
  double timeout = 60;
  std::int64_t max_memory_bytes = std::int64_t{4} << 30;
  std::string directory;
  std::int64_t max_disk_bytes = std::int64_t{64} << 30;
  std::int64_t max_value_bytes = std::int64_t{1} << 30;
  std::string tenant_tag = "tenant";
  std::int64_t tenant_memory_bytes = 0;
  std::int64_t tenant_disk_bytes = 0;
  std::string token_file;
  std::string ssl_certfile;
  std::string ssl_keyfile;
  std::string log_level = "info";
};

void bind(OptionSet& set, CacheServerOptions& options) {
  set.section("cache-server")
      .add("host", options.host, "address to listen on; 0.0.0.0: all")
      .add("port", options.port, "port of lm://; 0: the system chooses", 0, 65535)
      .add("http-host", options.http_host, "address of /metrics and /health")
      .add("http-port", options.http_port, "port of /metrics and /health", 0, 65535, {{"none", -1}})
      .add("threads", options.threads, "threads that serve connections", 1, 256)
      .add("max-connections", options.max_connections, "further ones are closed", 1, 1 << 20)
      .add("timeout", options.timeout,
           "seconds until a connection is closed whose client does not finish a request, or does "
           "not read the reply",
           0.1, 86400)
      .add("max-memory-bytes", options.max_memory_bytes, "of the values in memory", 1)
      .add("directory", options.directory,
           "folder for values on disk, used by this server only; empty: none")
      .add("max-disk-bytes", options.max_disk_bytes, "of the files in directory; 0: no limit", 0)
      .add("max-value-bytes", options.max_value_bytes, "of one value; larger ones are dropped", 1,
           INT32_MAX)
      .add("tenant-tag", options.tenant_tag,
           "tag of LMCache's keys that names the tenant, lmcache.tag.NAME of a request; empty: "
           "none does")
      .add("tenant-memory-bytes", options.tenant_memory_bytes,
           "of each tenant in memory; 0: no limit", 0)
      .add("tenant-disk-bytes", options.tenant_disk_bytes, "of each tenant on disk; 0: no limit", 0)
      .add("token-file", options.token_file,
           "file of client tokens, one per line: TOKEN [name=NAME] [max-memory-bytes=N] "
           "[max-disk-bytes=N]; clients of different tokens have separate values")
      .add("ssl-certfile", options.ssl_certfile, "PEM file: lm:// is served over TLS (lms://)")
      .add("ssl-keyfile", options.ssl_keyfile,
           "PEM file with the key of ssl-certfile; default: in the same file")
      .add("log-level", options.log_level, "lines below it are dropped",
           {"trace", "debug", "info", "warning", "error", "off"});
}

Result<CacheServerConfig> make_config(const CacheServerOptions& options) {
  CacheServerConfig config{
      .host = options.host,
      .port = static_cast<std::uint16_t>(options.port),
      .http_host = options.http_host,
      .http_port = static_cast<std::int32_t>(options.http_port),
      .num_threads = static_cast<std::int32_t>(options.threads),
      .max_connections = static_cast<std::int32_t>(options.max_connections),
      .timeout_s = options.timeout,
      .directory = options.directory,
      .store = {.total = {options.max_memory_bytes, options.max_disk_bytes},
                .tenant = {options.tenant_memory_bytes, options.tenant_disk_bytes},
                .tenant_tag = options.tenant_tag,
                .max_value_bytes = options.max_value_bytes}};
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(config.tokens, ClientTokens::read(options.token_file));
  }
  if (options.ssl_certfile.empty() && !options.ssl_keyfile.empty())
    return invalid_argument("ssl-keyfile needs ssl-certfile", "ssl-keyfile");
  if (!options.ssl_certfile.empty()) {
    ASSIGN_OR_RETURN(
        config.tls,
        TlsSource::open(
            {.certificate = options.ssl_certfile,
             .key = options.ssl_keyfile.empty() ? options.ssl_certfile : options.ssl_keyfile,
             .ca = {}},
            [](const TlsFiles& files) { return TlsContext::load_for_http(files, {}); }));
  }
  return config;
}

/// Values are of a few sizes, megabytes each: returned to the system and mapped again, all of
/// their pages would be zeroed before they are received.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_ARENA_MAX, 1);
}

}  // namespace

int cache_server(Arguments arguments) {
  OptionSet set;
  CacheServerOptions options;
  bind(set, options);
  if (help_request(arguments)) {
    std::printf("%s%s\n", kCacheServerUsage, set.help().c_str());
    return kExitOk;
  }
  const auto given = set.parse_command_line(arguments);
  if (!given.ok()) return fail(given.error());
  if (const auto applied = set.apply(given->assignments); !applied.ok())
    return fail(applied.error());
  if (!given->positionals.empty())
    return fail(invalid_argument("unexpected argument '" + given->positionals[0] + "'"));
  set_log_level(options.log_level);
  auto config = make_config(options);
  if (!config.ok()) return fail(config.error());
  keep_freed_memory();
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to connections that have ended
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto server = CacheServer::start(std::move(*config));
  if (!server.ok()) return fail(server.error());
  std::printf("Serving lm%s://%s:%u\n", options.ssl_certfile.empty() ? "" : "s",
              options.host.c_str(), unsigned{(*server)->port()});
  if ((*server)->http_port() != 0)
    std::printf("Metrics at http://%s:%u/metrics\n", options.http_host.c_str(),
                unsigned{(*server)->http_port()});
  std::fflush(stdout);
  int signal = 0;
  sigwait(&signals, &signal);
  return kExitOk;
}

}  // namespace troupe::tools
