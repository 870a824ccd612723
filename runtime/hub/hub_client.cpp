#include "runtime/hub/hub_client.hpp"

#include <curl/curl.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

#include "runtime/base/clock.hpp"
#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/file_lock.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxAnswerBytes = 64 << 20;
constexpr std::size_t kMaxErrorBytes = 4096;
constexpr std::size_t kMaxTransfers = 8;
constexpr long kConnectTimeout_s = 10;
constexpr long kSilence_s = 30;  ///< after which a connection counts as broken
constexpr long kAnswerTimeout_s = 60;
constexpr int kMaxAttempts = 5;  ///< without a byte of progress
constexpr double kFirstPause_s = 0.2;
constexpr double kMaxPause_s = 60;
constexpr double kProgressInterval_s = 0.1;

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Easy = std::unique_ptr<CURL, EasyDeleter>;
struct MultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
struct HashDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

/// The hash by which the Hub names a content.
class ObjectHash {
 public:
  explicit ObjectHash(const HubFile& file)
      : is_git_(file.etag.size() == 40), num_bytes_(file.num_bytes) {
    restart();
  }
  void restart() {
    EVP_DigestInit_ex(context_.get(), is_git_ ? EVP_sha1() : EVP_sha256(), nullptr);
    if (!is_git_) return;
    const std::string header = "blob " + std::to_string(num_bytes_);
    add({header.c_str(), header.size() + 1});
  }
  void add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  [[nodiscard]] std::string finish() {
    std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    return to_hex(std::span(digest).first(size));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, HashDeleter> context_{EVP_MD_CTX_new()};
  bool is_git_;
  std::uint64_t num_bytes_;
};

/// The headers of the last response that say why a request failed.
struct Headers {
  std::string code, message;
  double retry_after_s = 0;

  static std::size_t read(char* data, std::size_t size, std::size_t count, void* self) {
    static_cast<Headers*>(self)->add({data, size * count});
    return size * count;
  }
  void add(std::string_view line) {
    while (line.ends_with('\r') || line.ends_with('\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) *this = {};  // of a redirect, until now
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string name(line.substr(0, colon));
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    const auto is = [&](const char* other) { return strcasecmp(name.c_str(), other) == 0; };
    if (is("X-Error-Code")) code = value;
    if (is("X-Error-Message")) message = value;
    if (is("Retry-After")) {
      std::from_chars(value.data(), value.data() + value.size(), retry_after_s);
      retry_after_s = std::clamp(retry_after_s, 0.0, kMaxPause_s);
    }
  }
};

Easy new_request(const HubSettings& settings, const std::string& url, Headers& headers) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  Easy easy(curl_easy_init());
  CURL* const handle = easy.get();
  curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
  curl_easy_setopt(handle, CURLOPT_USERAGENT, "troupe/" TROUPE_VERSION);
  curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(handle, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(handle, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(handle, CURLOPT_REDIR_PROTOCOLS_STR,
                   url.starts_with("https:") ? "https" : "http,https");
  curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT, kConnectTimeout_s);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(handle, CURLOPT_LOW_SPEED_TIME, kSilence_s);
  curl_easy_setopt(handle, CURLOPT_HEADERFUNCTION, Headers::read);
  curl_easy_setopt(handle, CURLOPT_HEADERDATA, &headers);
  if (!settings.token.empty()) {
    // Not sent to the host to which a download is redirected.
    curl_easy_setopt(handle, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(handle, CURLOPT_XOAUTH2_BEARER, settings.token.c_str());
  }
  return easy;
}

long status_of(CURL* handle) {
  long status = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

bool is_transient(CURLcode code, long status) {
  switch (code) {
    case CURLE_OK:
      return status == 408 || status == 429 || status >= 500;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

Error unreachable(const HubSettings& settings, const std::string& why) {
  return {ErrorCode::kUnavailable, settings.endpoint + " cannot be reached: " + why, "model"};
}

/// The error for an unsuccessful response.
Error refusal(const HubSettings& settings, const std::string& what, long status,
              const Headers& headers) {
  const std::string said = headers.message.empty() ? "" : " (" + headers.message + ")";
  const std::string token = settings.token.empty() ? "set HF_TOKEN to a token that may read it"
                                                   : "the token in HF_TOKEN may not read it";
  if (headers.code == "GatedRepo")
    return {
        ErrorCode::kUnauthorized,
        what + " is gated: accept its conditions at " + settings.endpoint + ", and " + token + said,
        "model"};
  // The Hub does not tell strangers that a repository is private.
  if (headers.code == "RepoNotFound" || status == 401)
    return {ErrorCode::kNotFound,
            what + " does not exist at " + settings.endpoint + ", or is private: " + token,
            "model"};
  if (headers.code == "RevisionNotFound" || headers.code == "EntryNotFound" || status == 404)
    return {ErrorCode::kNotFound, what + " does not exist at " + settings.endpoint + said, "model"};
  if (status == 403) return {ErrorCode::kUnauthorized, what + ": " + token + said, "model"};
  return {
      ErrorCode::kUnavailable,
      settings.endpoint + " answered with status " + std::to_string(status) + " for " + what + said,
      "model"};
}

std::string escaped(const std::string& text, bool with_slashes) {
  std::string result;
  for (const char c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || std::strchr("-_.~", c) != nullptr ||
                          (c == '/' && !with_slashes);
    if (is_plain) {
      result += c;
    } else {
      const auto byte = static_cast<std::uint8_t>(c);
      result += "%" + to_hex(std::span(&byte, 1));
    }
  }
  return result;
}

std::size_t append_answer(char* data, std::size_t size, std::size_t count, void* to) {
  auto& text = *static_cast<std::string*>(to);
  if (text.size() + size * count > kMaxAnswerBytes) return 0;
  text.append(data, size * count);
  return size * count;
}

Error disk_error(const fs::path& path) {
  return {ErrorCode::kIo, path.string() + ": " + std::strerror(errno)};
}

/// One content on its way.
class Transfer {
 public:
  Transfer(const HubSettings& settings, const HubTransfer& wanted)
      : settings_(settings), wanted_(wanted), hash_(wanted.file) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  [[nodiscard]] const HubTransfer& wanted() const noexcept { return wanted_; }
  [[nodiscard]] std::uint64_t num_bytes() const noexcept { return num_bytes_; }
  [[nodiscard]] bool is_done() const noexcept { return done_; }
  [[nodiscard]] double again_at() const noexcept { return again_at_; }
  [[nodiscard]] CURL* handle() const noexcept { return easy_.get(); }

  /// False: another process downloads it.
  Result<bool> begin() {
    std::error_code code;
    fs::create_directories(wanted_.blob.parent_path(), code);
    fs::create_directories(wanted_.lock.parent_path(), code);
    if (!lock_.valid()) {
      FileDescriptor lock(open(wanted_.lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
      if (!lock.valid()) return disk_error(wanted_.lock);
      if (!lock_file(lock, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK) return disk_error(wanted_.lock);
        return false;
      }
      lock_ = std::move(lock);
    }
    if (fs::exists(wanted_.blob, code)) {
      num_bytes_ = wanted_.file.num_bytes;
      finish();
      return true;
    }
    if (!output_.valid()) RETURN_IF_ERROR(open_output());
    if (num_bytes_ == wanted_.file.num_bytes) {
      RETURN_IF_ERROR(complete());
      if (done_) return true;
    }
    headers_ = {};
    refusal_.clear();
    easy_ = new_request(settings_, wanted_.url, headers_);
    curl_easy_setopt(handle(), CURLOPT_WRITEFUNCTION, write);
    curl_easy_setopt(handle(), CURLOPT_WRITEDATA, this);
    curl_easy_setopt(handle(), CURLOPT_PRIVATE, this);
    begin_ = num_bytes_;
    if (begin_ > 0)
      curl_easy_setopt(handle(), CURLOPT_RANGE, (std::to_string(begin_) + "-").c_str());
    return true;
  }

  /// Its request has ended.
  Result<void> end(CURLcode code) {
    const long status = status_of(handle());
    const std::uint64_t progress = num_bytes_ - std::min(begin_, num_bytes_);
    easy_.reset();
    if (error_) return *error_;
    if (code == CURLE_OK && (status == 200 || status == 206)) {
      if (num_bytes_ == wanted_.file.num_bytes) return complete();
      code = CURLE_PARTIAL_FILE;
    }
    if (!is_transient(code, status)) {
      if (code == CURLE_OK) return refusal(settings_, wanted_.file.path, status, headers_);
      return unreachable(settings_, curl_easy_strerror(code));
    }
    num_attempts_ = progress > 0 ? 1 : num_attempts_ + 1;
    const std::string why =
        code == CURLE_OK ? "status " + std::to_string(status) : curl_easy_strerror(code);
    if (num_attempts_ >= kMaxAttempts)
      return unreachable(settings_, why + ", in " + std::to_string(kMaxAttempts) +
                                        " attempts for " + wanted_.file.path);
    const double pause_s =
        std::max(headers_.retry_after_s, kFirstPause_s * (1 << (num_attempts_ - 1)));
    again_at_ = now_seconds() + pause_s;
    log_warning("download interrupted", kv("file", wanted_.file.path), kv("reason", why),
                kv("bytes", num_bytes_), kv("again_in_ms", static_cast<int>(1000 * pause_s)));
    return {};
  }

 private:
  [[nodiscard]] fs::path incomplete() const { return wanted_.blob.string() + ".incomplete"; }

  /// Continues behind what is on the disk.
  Result<void> open_output() {
    output_ = FileDescriptor(open(incomplete().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!output_.valid()) return disk_error(incomplete());
    struct stat status {};
    if (fstat(output_.get(), &status) != 0) return disk_error(incomplete());
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size > wanted_.file.num_bytes) return restart();
    std::vector<char> piece(1 << 20);
    while (num_bytes_ < size) {
      const ssize_t count =
          pread(output_.get(), piece.data(), piece.size(), static_cast<off_t>(num_bytes_));
      if (count <= 0) return disk_error(incomplete());
      hash_.add({piece.data(), static_cast<std::size_t>(count)});
      num_bytes_ += static_cast<std::uint64_t>(count);
    }
    return {};
  }

  Result<void> restart() {
    num_bytes_ = begin_ = 0;
    hash_.restart();
    if (ftruncate(output_.get(), 0) != 0) return disk_error(incomplete());
    return {};
  }

  /// All bytes are there: they are right, or asked for once more.
  Result<void> complete() {
    const std::string found = hash_.finish();
    if (found != wanted_.file.etag) {
      if (std::exchange(was_wrong_, true)) {
        unlink(incomplete().c_str());
        return Error{ErrorCode::kCorrupt,
                     wanted_.file.path + ": downloaded twice with a wrong hash, expected " +
                         wanted_.file.etag + ", got " + found,
                     "model"};
      }
      log_warning("downloaded with a wrong hash, again", kv("file", wanted_.file.path));
      again_at_ = now_seconds();
      return restart();
    }
    if (fsync(output_.get()) != 0) return disk_error(incomplete());
    if (rename(incomplete().c_str(), wanted_.blob.c_str()) != 0) return disk_error(wanted_.blob);
    finish();
    return {};
  }

  /// Two processes that kept the locks of what is done could wait for each other forever.
  void finish() {
    done_ = true;
    output_ = FileDescriptor();
    lock_ = FileDescriptor();
  }

  static std::size_t write(char* data, std::size_t size, std::size_t count, void* self) {
    return static_cast<Transfer*>(self)->take({data, size * count}) ? size * count : 0;
  }
  bool take(std::string_view bytes) {
    const long status = status_of(handle());
    if (status != 200 && status != 206) {
      refusal_.append(bytes.substr(0, kMaxErrorBytes - std::min(kMaxErrorBytes, refusal_.size())));
      return true;
    }
    if (status == 200 && begin_ > 0) {  // a server that knows no ranges
      if (auto restarted = restart(); !restarted.ok()) return fail(restarted.error());
    }
    if (bytes.size() > wanted_.file.num_bytes - num_bytes_)
      return fail({ErrorCode::kCorrupt,
                   wanted_.file.path + ": the Hub sent more than the " +
                       std::to_string(wanted_.file.num_bytes) + " bytes that it has announced",
                   "model"});
    if (!write_all(output_.get(), std::as_bytes(std::span(bytes)), num_bytes_))
      return fail(disk_error(incomplete()));
    hash_.add(bytes);
    num_bytes_ += bytes.size();
    return true;
  }
  bool fail(Error error) {
    error_ = std::move(error);
    return false;
  }

  const HubSettings& settings_;
  const HubTransfer& wanted_;
  ObjectHash hash_;
  Easy easy_;
  Headers headers_;
  std::string refusal_;
  std::optional<Error> error_;
  FileDescriptor lock_, output_;
  std::uint64_t num_bytes_ = 0;
  std::uint64_t begin_ = 0;  ///< of the request's range
  int num_attempts_ = 0;
  double again_at_ = 0;
  bool was_wrong_ = false;
  bool done_ = false;
};

}  // namespace

Result<HubSnapshot> HubClient::snapshot(const HubReference& reference) {
  const std::string revision = reference.revision.empty() ? "main" : reference.revision;
  const std::string url = settings_.endpoint + "/api/models/" + reference.repository +
                          "/revision/" + escaped(revision, true) + "?blobs=true";
  const std::string what =
      reference.repository + (reference.revision.empty() ? "" : "@" + reference.revision);
  for (int attempt = 1;; ++attempt) {
    Headers headers;
    std::string text;
    const Easy easy = new_request(settings_, url, headers);
    curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT, kAnswerTimeout_s);
    curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, append_answer);
    curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &text);
    const CURLcode code = curl_easy_perform(easy.get());
    const long status = status_of(easy.get());
    if (code == CURLE_OK && status == 200) return parse_hub_snapshot(text, what);
    if (!is_transient(code, status) || attempt == 3) {
      if (code == CURLE_OK) return refusal(settings_, what, status, headers);
      return unreachable(settings_, curl_easy_strerror(code));
    }
    usleep(static_cast<useconds_t>(
        1e6 * std::max(headers.retry_after_s, kFirstPause_s * (1 << attempt))));
  }
}

std::string HubClient::file_url(const HubReference& reference, const std::string& commit,
                                const std::string& path) const {
  return settings_.endpoint + "/" + reference.repository + "/resolve/" + commit + "/" +
         escaped(path, false);
}

Result<void> HubClient::download(std::span<const HubTransfer> transfers,
                                 const std::function<void(const HubProgress&)>& on_progress) {
  std::deque<Transfer> all;
  for (const HubTransfer& wanted : transfers) all.emplace_back(settings_, wanted);
  std::deque<Transfer*> waiting;
  for (Transfer& transfer : all) waiting.push_back(&transfer);
  const std::unique_ptr<CURLM, MultiDeleter> multi(curl_multi_init());
  std::vector<Transfer*> running;
  // The handles that are left when an error ends this.
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    for (const Transfer* transfer : running)
      curl_multi_remove_handle(multi.get(), transfer->handle());
  });
  double told_at = 0;
  const auto tell = [&](const std::string& what) {
    HubProgress progress{.what = what};
    for (const Transfer& transfer : all) progress.num_bytes += transfer.num_bytes();
    on_progress(progress);
  };
  while (!waiting.empty() || !running.empty()) {
    const double now = now_seconds();
    for (std::size_t left = waiting.size(); left > 0 && running.size() < kMaxTransfers; --left) {
      Transfer* const next = waiting.front();
      waiting.pop_front();
      ASSIGN_OR_RETURN(const bool begun,
                       now < next->again_at() ? Result<bool>(false) : next->begin());
      if (!begun) {
        waiting.push_back(next);
      } else if (!next->is_done()) {
        running.push_back(next);
        curl_multi_add_handle(multi.get(), next->handle());
      }
    }
    int num_running = 0;
    curl_multi_perform(multi.get(), &num_running);
    int num_left = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi.get(), &num_left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      Transfer* transfer = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
      curl_multi_remove_handle(multi.get(), message->easy_handle);
      std::erase(running, transfer);
      RETURN_IF_ERROR(transfer->end(code));
      if (!transfer->is_done()) waiting.push_back(transfer);
    }
    if (const double time = now_seconds(); time >= told_at + kProgressInterval_s) {
      told_at = time;
      tell(running.empty() ? "waiting for another download" : running.front()->wanted().file.path);
    }
    if (!waiting.empty() || !running.empty())
      curl_multi_poll(multi.get(), nullptr, 0, 100, nullptr);
  }
  if (!all.empty()) tell("");
  return {};
}

}  // namespace troupe
