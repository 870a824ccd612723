#include "runtime/multimodal/media_loader.hpp"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/guard.hpp"
#include "runtime/multimodal/data_url.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRedirects = 5;
constexpr std::size_t kMaxShownBytes = 200;

std::string shown(std::string_view url) {
  return std::string(url.substr(0, kMaxShownBytes)) + (url.size() > kMaxShownBytes ? "..." : "");
}

Error too_large(std::size_t max_bytes) {
  return invalid_argument("it has more than " + std::to_string(max_bytes) + " bytes, the limit");
}

bool is_in(const std::array<std::uint8_t, 4>& address, std::array<std::uint8_t, 4> network,
           int num_bits) {
  const auto number = [](const std::array<std::uint8_t, 4>& bytes) {
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
           std::uint32_t{bytes[2]} << 8 | bytes[3];
  };
  return number(address) >> (32 - num_bits) == number(network) >> (32 - num_bits);
}

/// RFC 6890: this host, private networks, link local and the like.
bool is_public(const std::array<std::uint8_t, 4>& address) {
  struct Network {
    std::array<std::uint8_t, 4> first;
    int num_bits;
  };
  static constexpr Network kSpecial[] = {
      {{0, 0, 0, 0}, 8},     {{10, 0, 0, 0}, 8},      {{100, 64, 0, 0}, 10},
      {{127, 0, 0, 0}, 8},   {{169, 254, 0, 0}, 16},  {{172, 16, 0, 0}, 12},
      {{192, 0, 0, 0}, 24},  {{192, 0, 2, 0}, 24},    {{192, 168, 0, 0}, 16},
      {{198, 18, 0, 0}, 15}, {{198, 51, 100, 0}, 24}, {{203, 0, 113, 0}, 24},
      {{224, 0, 0, 0}, 3}};
  return std::ranges::none_of(kSpecial, [&](const Network& network) {
    return is_in(address, network.first, network.num_bits);
  });
}

bool is_public(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof(v4));
    std::array<std::uint8_t, 4> bytes{};
    std::memcpy(bytes.data(), &v4.sin_addr, bytes.size());
    return is_public(bytes);
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof(v6));
  const std::uint8_t* bytes = v6.sin6_addr.s6_addr;
  const auto v4_at = [&](int first) {
    return std::array<std::uint8_t, 4>{bytes[first], bytes[first + 1], bytes[first + 2],
                                       bytes[first + 3]};
  };
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return is_public(v4_at(12));
  if (bytes[0] == 0x20 && bytes[1] == 0x02) return is_public(v4_at(2));  // 6to4
  // Of the rest only global unicast, without documentation and Teredo.
  const bool is_global = bytes[0] >> 5 == 1;
  const bool is_2001_0 = bytes[0] == 0x20 && bytes[1] == 0x01 && bytes[2] == 0 && bytes[3] == 0;
  const bool is_example =
      bytes[0] == 0x20 && bytes[1] == 0x01 && bytes[2] == 0x0d && bytes[3] == 0xb8;
  return is_global && !is_2001_0 && !is_example;
}

/// An address literal in the list of allowed hosts is allowed explicitly.
bool names_an_address(std::string_view host) {
  const std::string text(host);
  std::array<std::uint8_t, 16> address{};
  return host == "localhost" || inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

struct EasyCloser {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
struct UrlCloser {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

/// Lower case, without the brackets of an IPv6 address; empty: the URL has none.
std::string host_of(const std::string& url) {
  const std::unique_ptr<CURLU, UrlCloser> parsed(curl_url());
  if (parsed == nullptr || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK)
    return {};
  char* part = nullptr;
  if (curl_url_get(parsed.get(), CURLUPART_HOST, &part, 0) != CURLUE_OK) return {};
  std::string host(part);
  curl_free(part);
  std::ranges::transform(host, host.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

/// Counts bytes among those that are held in all, as long as it is there.
class HeldBytes {
 public:
  HeldBytes(std::shared_ptr<std::atomic<std::size_t>> num_held, std::size_t max_held)
      : num_held_(std::move(num_held)), max_held_(max_held) {}
  ~HeldBytes() { *num_held_ -= num_bytes_; }
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  /// False: there is no room.
  [[nodiscard]] bool add(std::size_t num_bytes) {
    num_bytes_ += num_bytes;
    return (*num_held_ += num_bytes) <= max_held_;
  }

 private:
  std::shared_ptr<std::atomic<std::size_t>> num_held_;
  std::size_t max_held_;
  std::size_t num_bytes_ = 0;
};

/// One answer.
struct Fetch {
  std::vector<std::byte> body;
  std::shared_ptr<HeldBytes> held;
  std::size_t max_bytes = 0;
  bool is_too_large = false;
  std::size_t max_in_all = 0;
  std::atomic<std::size_t>* num_in_all = nullptr;  ///< bytes of all answers of the request
  bool are_too_large = false;
  bool has_no_room = false;
  bool any_address = false;
  bool refused_address = false;
  const WorkLimits* limits = nullptr;
};

std::size_t append_body(char* data, std::size_t size, std::size_t count, void* to) {
  auto& fetch = *static_cast<Fetch*>(to);
  const std::size_t num_bytes = size * count;
  if (fetch.body.size() + num_bytes > fetch.max_bytes) {
    fetch.is_too_large = true;
    return 0;
  }
  if ((*fetch.num_in_all += num_bytes) > fetch.max_in_all) {
    fetch.are_too_large = true;
    return 0;
  }
  if (!fetch.held->add(num_bytes)) {
    fetch.has_no_room = true;
    return 0;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  fetch.body.insert(fetch.body.end(), bytes, bytes + num_bytes);
  return num_bytes;
}

curl_socket_t open_socket(void* of, curlsocktype, curl_sockaddr* address) {
  auto& fetch = *static_cast<Fetch*>(of);
  if (!fetch.any_address && !is_public(address->addr)) {
    fetch.refused_address = true;
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

int look_at_limits(void* of, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const WorkLimits& limits = *static_cast<Fetch*>(of)->limits;
  const bool cancelled = limits.cancelled != nullptr && limits.cancelled->load();
  const bool late = limits.deadline && std::chrono::steady_clock::now() >= *limits.deadline;
  return cancelled || late ? 1 : 0;
}

bool is_remote(std::string_view url) {
  return url.starts_with("http://") || url.starts_with("https://");
}

}  // namespace

Result<MediaLoader> MediaLoader::create(MediaLoaderOptions options) {
  static std::once_flag initialised;
  std::call_once(initialised, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (!options.local_folder.empty()) {
    std::error_code error;
    const fs::path folder = fs::canonical(options.local_folder, error);
    if (error || !fs::is_directory(folder, error))
      return Error{ErrorCode::kNotFound,
                   "allowed-local-media-path " + options.local_folder.string() + " is not a folder",
                   "allowed-local-media-path"};
    options.local_folder = folder;
  }
  return MediaLoader(std::move(options));
}

Result<std::vector<std::byte>> MediaLoader::load(std::string_view url,
                                                 const WorkLimits& limits) const {
  if (url.starts_with("data:")) return decode_data_url(url, options_.max_bytes);
  if (url.starts_with("file:")) return read_file_url(url);
  if (is_remote(url)) {
    std::atomic<std::size_t> num_fetched = 0;
    ASSIGN_OR_RETURN(const File file, fetch(std::string(url), limits, num_fetched));
    return *file;
  }
  return invalid_argument("the URL " + shown(url) +
                          " is not supported, only data:, http:, https: and file: ones");
}

Result<std::vector<std::byte>> MediaLoader::read_file_url(std::string_view url) const {
  if (options_.local_folder.empty())
    return invalid_argument("files may not be named (allowed-local-media-path)");
  constexpr std::string_view kScheme = "file://";
  if (!url.starts_with(kScheme) || url.substr(kScheme.size(), 1) != "/")
    return invalid_argument("the URL " + shown(url) +
                            " names no file, as file:///folder/name does");
  const std::string encoded(url.substr(kScheme.size()));
  int size = 0;
  char* const unescaped =
      curl_easy_unescape(nullptr, encoded.data(), static_cast<int>(encoded.size()), &size);
  if (unescaped == nullptr) return invalid_argument("the URL " + shown(url) + " is malformed");
  const std::string path(unescaped, static_cast<std::size_t>(size));
  curl_free(unescaped);
  std::error_code error;
  const fs::path file = fs::weakly_canonical(path, error);
  const auto [rest, unused] = std::ranges::mismatch(options_.local_folder, file);
  if (error || path.find('\0') != std::string::npos || rest != options_.local_folder.end())
    return invalid_argument("the file is not below allowed-local-media-path");
  const FileDescriptor descriptor(
      ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  struct stat status {};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return invalid_argument("the file " + file.filename().string() + " cannot be read");
  if (static_cast<std::size_t>(status.st_size) > options_.max_bytes)
    return too_large(options_.max_bytes);
  std::vector<std::byte> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t num_read = 0;
  while (num_read < bytes.size()) {
    const ssize_t count =
        ::read(descriptor.get(), bytes.data() + num_read, bytes.size() - num_read);
    if (count <= 0)
      return invalid_argument("the file " + file.filename().string() + " cannot be read");
    num_read += static_cast<std::size_t>(count);
  }
  return bytes;
}

Result<MediaLoader::File> MediaLoader::Batch::take(std::size_t index) {
  const std::string_view url = urls_[index];
  if (url.empty()) return std::make_shared<const std::vector<std::byte>>();
  const auto fetched = fetched_.find(url);
  if (fetched == fetched_.end()) {
    ASSIGN_OR_RETURN(std::vector<std::byte> bytes, loader_->load(url, limits_));
    return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  }
  Result<File> file = fetched->second;
  // Its memory is needed no longer than the image is decoded.
  if (std::ranges::find(urls_.subspan(index + 1), url) == urls_.end()) fetched_.erase(fetched);
  return file;
}

MediaLoader::Batch MediaLoader::load_all(std::span<const std::string_view> urls,
                                         const WorkLimits& limits,
                                         std::optional<FetchedFiles> fetched) const {
  Batch batch;
  batch.loader_ = this;
  batch.urls_ = urls;
  batch.limits_ = limits;
  batch.fetched_ = fetched ? *std::move(fetched) : fetch_all(urls, limits);
  return batch;
}

std::vector<std::string> MediaLoader::remote_of(std::span<const std::string_view> urls) const {
  std::set<std::string_view> remote;
  for (const std::string_view url : urls)
    if (fetches() && is_remote(url)) remote.insert(url);
  return {remote.begin(), remote.end()};
}

MediaLoader::FetchedFiles MediaLoader::fetch_all(std::span<const std::string_view> urls,
                                                 const WorkLimits& limits) const {
  FetchedFiles files;
  for (const std::string_view url : urls)
    if (is_remote(url)) files.try_emplace(std::string(url), File());
  std::vector<FetchedFiles::value_type*> wanted;
  for (auto& entry : files) wanted.push_back(&entry);
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> num_fetched = 0;
  const auto fetch_some = [&] {
    for (std::size_t i = next++; i < wanted.size(); i = next++) {
      FetchedFiles::value_type& entry = *wanted[i];
      auto thrown = guard([&] { entry.second = fetch(entry.first, limits, num_fetched); });
      if (thrown) entry.second = *std::move(thrown);
    }
  };
  const std::size_t num_threads = std::min(wanted.size(), options_.max_fetches);
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < num_threads; ++i) threads.emplace_back(fetch_some);
  fetch_some();
  threads.clear();  // waits for them
  return files;
}

Result<MediaLoader::File> MediaLoader::fetch(std::string url, const WorkLimits& limits,
                                             std::atomic<std::size_t>& num_fetched) const {
  if (options_.domains.empty())
    return invalid_argument("images may not be fetched from other hosts (allowed-media-domains)");
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::milliseconds(std::int64_t(options_.timeout_s * 1000));
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    const std::string host = host_of(url);
    if (std::ranges::find(options_.domains, host) == options_.domains.end())
      return invalid_argument("the host " + (host.empty() ? "of " + shown(url) : shown(host)) +
                              " may not be asked (allowed-media-domains)");
    const std::unique_ptr<CURL, EasyCloser> easy(curl_easy_init());
    if (easy == nullptr) return Error{ErrorCode::kInternal, "no HTTP client"};
    Fetch answer{.body = {},
                 .held = std::make_shared<HeldBytes>(num_held_, options_.max_held_bytes),
                 .max_bytes = options_.max_bytes,
                 .max_in_all = options_.max_fetched_bytes,
                 .num_in_all = &num_fetched,
                 .any_address = names_an_address(host),
                 .limits = &limits};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                          deadline - std::chrono::steady_clock::now())
                          .count();
    const auto set = [&](CURLoption option, auto value) {
      curl_easy_setopt(easy.get(), option, value);
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_USERAGENT, "troupe/" TROUPE_VERSION);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_PROXY, "");  // it would connect to any address
    set(CURLOPT_TIMEOUT_MS, std::max<long>(1, static_cast<long>(left)));
    set(CURLOPT_WRITEFUNCTION, append_body);
    set(CURLOPT_WRITEDATA, &answer);
    set(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    set(CURLOPT_OPENSOCKETDATA, &answer);
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, look_at_limits);
    set(CURLOPT_XFERINFODATA, &answer);
    const CURLcode code = curl_easy_perform(easy.get());
    if (answer.is_too_large) return too_large(options_.max_bytes);
    if (answer.are_too_large)
      return invalid_argument("the images of the request that are on other hosts have more than " +
                              std::to_string(options_.max_fetched_bytes) +
                              " bytes in all, the limit");
    if (answer.has_no_room)
      return Error{ErrorCode::kUnavailable, "the images that are fetched at once have more than " +
                                                std::to_string(options_.max_held_bytes) +
                                                " bytes in all, the limit"};
    if (answer.refused_address)
      return invalid_argument("the host " + host + " has an address that is not public");
    if (code == CURLE_OPERATION_TIMEDOUT) {
      std::ostringstream limit;
      limit << options_.timeout_s << " s, the limit (image-fetch-timeout-s)";
      return Error{ErrorCode::kUnprocessable,
                   "the host " + host + " did not answer in " + limit.str()};
    }
    if (code == CURLE_ABORTED_BY_CALLBACK)
      return Error{ErrorCode::kUnprocessable,
                   "the host " + host + " did not answer in the time that the request has left"};
    if (code != CURLE_OK)
      return Error{ErrorCode::kUnprocessable,
                   "the host " + host + " cannot be asked: " + curl_easy_strerror(code)};
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    if (status == 200) {
      struct Held {
        std::vector<std::byte> body;
        std::shared_ptr<HeldBytes> held;
      };
      const auto file =
          std::make_shared<const Held>(Held{std::move(answer.body), std::move(answer.held)});
      return File(file, &file->body);
    }
    char* next = nullptr;
    curl_easy_getinfo(easy.get(), CURLINFO_REDIRECT_URL, &next);
    if (next == nullptr)
      return Error{ErrorCode::kUnprocessable,
                   "the host " + host + " answered with status " + std::to_string(status)};
    url = next;
  }
  return Error{ErrorCode::kUnprocessable,
               "it was redirected more than " + std::to_string(kMaxRedirects) + " times"};
}

}  // namespace troupe
