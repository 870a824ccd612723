#include "runtime/kv_transfer/lmcache/remote_store.hpp"

#include <charconv>

namespace troupe::lmcache {

Result<RemoteUrl> parse_remote_url(const std::string& url) {
  const auto bad = [&](const char* what) {
    return invalid_argument("remote_url is " + url + ": " + what, "remote_url");
  };
  const std::size_t mark = url.find("://");
  if (mark == std::string::npos || mark == 0) return bad("it has no scheme");
  RemoteUrl parsed;
  parsed.scheme = url.substr(0, mark);
  std::string rest = url.substr(mark + 3);
  const std::size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    parsed.path = rest.substr(slash);
    rest.resize(slash);
  }
  if (const std::size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string account = rest.substr(0, at);
    const std::size_t middle = account.find(':');
    parsed.user = account.substr(0, middle);
    if (middle != std::string::npos) parsed.password = account.substr(middle + 1);
    rest.erase(0, at + 1);
  }
  if (const std::size_t colon = rest.rfind(':'); colon != std::string::npos) {
    const std::string digits = rest.substr(colon + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), parsed.port);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size())
      return bad("the port is not a number");
    rest.resize(colon);
  }
  parsed.host = rest;
  return parsed;
}

std::string RemoteUrl::shown() const {
  return scheme + "://" + host + (port == 0 ? "" : ":" + std::to_string(port)) + path;
}

Result<std::unique_ptr<RemoteStore>> make_remote_store(const RemoteOptions& options) {
  ASSIGN_OR_RETURN(const RemoteUrl url, parse_remote_url(options.url));
  if (url.scheme == "lm" || url.scheme == "lms") return make_lm_store(url, options);
  if (url.scheme == "redis" || url.scheme == "resp" || url.scheme == "unix")
    return make_redis_store(url, options);
  if (url.scheme == "fs") return make_folder_store(url);
  if (url.scheme == "mp") return make_mp_store(url, options);
  return Error{ErrorCode::kUnsupported,
               "remote_url is " + url.shown() + ": there are lm, lms, mp, redis, resp, unix and fs",
               "remote_url"};
}

}  // namespace troupe::lmcache
