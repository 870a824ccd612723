#include <hiredis/hiredis.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "runtime/kv_transfer/lmcache/remote_metadata.hpp"
#include "runtime/kv_transfer/lmcache/remote_store.hpp"

namespace troupe::lmcache {
namespace {

using Clock = std::chrono::steady_clock;
using RedisReply = std::unique_ptr<redisReply, decltype(&::freeReplyObject)>;

constexpr std::uint16_t kRedisPort = 6379;

class RedisStore final : public RemoteStore {
 public:
  RedisStore(RemoteUrl url, std::string database, const RemoteOptions& options)
      : url_(std::move(url)),
        database_(std::move(database)),
        timeout_(options.timeout),
        ttl_(options.ttl_s == 0 ? "" : std::to_string(options.ttl_s)),
        has_metadata_(url_.scheme != "resp") {}

  Result<std::size_t> count_leading(std::span<const std::string> keys) override {
    RETURN_IF_ERROR(connect());
    for (const std::string& key : keys)
      append({"EXISTS", has_metadata_ ? redis_metadata_key(key) : key});
    std::size_t count = 0;
    bool all = true;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ASSIGN_OR_RETURN(const RedisReply reply, next_reply());
      all = all && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
      if (all) ++count;
    }
    return count;
  }

  Result<std::optional<std::vector<std::byte>>> get(const std::string& key,
                                                    std::size_t num_bytes) override {
    using Bytes = std::optional<std::vector<std::byte>>;
    RETURN_IF_ERROR(connect());
    if (has_metadata_) {
      ASSIGN_OR_RETURN(const RedisReply reply, command({"GET", redis_metadata_key(key)}));
      if (reply->type == REDIS_REPLY_NIL) return Bytes();
      const auto metadata = parse_remote_metadata({reply->str, reply->len});
      if (!metadata.ok()) return error(ErrorCode::kCorrupt, metadata.error().message);
      if (static_cast<std::size_t>(metadata->length) != num_bytes)
        return wrong_size(key, static_cast<std::size_t>(metadata->length), num_bytes);
    }
    ASSIGN_OR_RETURN(const RedisReply reply,
                     command({"GET", has_metadata_ ? redis_bytes_key(key) : key}));
    if (reply->type == REDIS_REPLY_NIL) {
      // Evicted by Redis: removes the metadata, so that it is not looked up any more.
      if (has_metadata_) RETURN_IF_ERROR(command({"DEL", redis_metadata_key(key)}));
      return Bytes();
    }
    if (reply->len != num_bytes) return wrong_size(key, reply->len, num_bytes);
    std::vector<std::byte> bytes(num_bytes);
    std::memcpy(bytes.data(), reply->str, num_bytes);
    return Bytes(std::move(bytes));
  }

  Result<void> put(const std::string& key, const TensorInfo& info,
                   std::span<const std::byte> bytes) override {
    RETURN_IF_ERROR(connect());
    const std::string_view value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    // The bytes first, so that the metadata implies them.
    RETURN_IF_ERROR(set(has_metadata_ ? redis_bytes_key(key) : key, value));
    if (!has_metadata_) return {};
    return set(redis_metadata_key(key),
               pack_remote_metadata({.length = static_cast<std::int32_t>(bytes.size()),
                                     .format = info.format,
                                     .groups = {{info.dtype, info.shape}}}));
  }

 private:
  [[nodiscard]] Error error(ErrorCode code, const std::string& reason) const {
    return {code, url_.shown() + ": " + reason, {}};
  }
  [[nodiscard]] Error wrong_size(const std::string& key, std::size_t found,
                                 std::size_t expected) const {
    return error(ErrorCode::kTooLarge, key + " has " + std::to_string(found) + " bytes, expected " +
                                           std::to_string(expected));
  }

  Result<void> connect() {
    if (context_ != nullptr) return {};
    if (Clock::now() < next_attempt_)
      return error(ErrorCode::kUnavailable, "it could not be reached a moment ago");
    next_attempt_ = Clock::now() + kReconnectInterval;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout_);
    const timeval timeout{.tv_sec = seconds.count(),
                          .tv_usec = std::chrono::microseconds(timeout_ - seconds).count()};
    context_.reset(url_.scheme == "unix"
                       ? ::redisConnectUnixWithTimeout(url_.path.c_str(), timeout)
                       : ::redisConnectWithTimeout(url_.host.c_str(), url_.port, timeout));
    if (context_ == nullptr) return error(ErrorCode::kUnavailable, "out of memory");
    if (context_->err != 0) return failed();
    ::redisSetTimeout(context_.get(), timeout);
    if (!url_.password.empty()) {
      RETURN_IF_ERROR(url_.user.empty() ? command({"AUTH", url_.password})
                                        : command({"AUTH", url_.user, url_.password}));
    }
    if (!database_.empty()) RETURN_IF_ERROR(command({"SELECT", database_}));
    next_attempt_ = {};
    return {};
  }
  /// And is not connected any more.
  [[nodiscard]] Error failed() {
    const bool timed_out = context_->err == REDIS_ERR_IO && (errno == EAGAIN || errno == ETIMEDOUT);
    Error error =
        this->error(timed_out ? ErrorCode::kTimeout : ErrorCode::kUnavailable, context_->errstr);
    if (timed_out) next_attempt_ = Clock::now() + kReconnectInterval;
    context_.reset();
    return error;
  }

  void append(const std::vector<std::string_view>& words) {
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const std::string_view word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    ::redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), texts.data(),
                             sizes.data());
  }
  Result<RedisReply> next_reply() {
    void* reply = nullptr;
    if (::redisGetReply(context_.get(), &reply) != REDIS_OK) return failed();
    RedisReply owned(static_cast<redisReply*>(reply), &::freeReplyObject);
    if (owned->type == REDIS_REPLY_ERROR) {
      Error error = this->error(ErrorCode::kIo, {owned->str, owned->len});
      context_.reset();  // further replies may be on their way
      return error;
    }
    return owned;
  }
  Result<RedisReply> command(const std::vector<std::string>& words) {
    append({words.begin(), words.end()});
    return next_reply();
  }
  Result<void> set(const std::string& key, std::string_view value) {
    if (ttl_.empty())
      append({"SET", key, value});
    else
      append({"SET", key, value, "EX", ttl_});
    const auto reply = next_reply();
    if (!reply.ok()) return reply.error();
    return {};
  }

  const RemoteUrl url_;
  const std::string database_;
  const std::chrono::milliseconds timeout_;
  const std::string ttl_;
  const bool has_metadata_;
  std::unique_ptr<redisContext, decltype(&::redisFree)> context_{nullptr, &::redisFree};
  Clock::time_point next_attempt_;
};

}  // namespace

Result<std::unique_ptr<RemoteStore>> make_redis_store(const RemoteUrl& url,
                                                      const RemoteOptions& options) {
  const auto bad = [&](const char* form) {
    return invalid_argument("remote_url is " + url.shown() + ", it must be " + form, "remote_url");
  };
  RemoteUrl complete = url;
  if (url.scheme == "unix") {
    if (!url.host.empty() || url.path.empty()) return bad("unix:///PATH");
    return std::unique_ptr<RemoteStore>(std::make_unique<RedisStore>(complete, "", options));
  }
  if (complete.port == 0) complete.port = kRedisPort;
  std::string database = url.path.empty() ? "" : url.path.substr(1);
  int number = 0;
  const auto read = std::from_chars(database.data(), database.data() + database.size(), number);
  if (url.host.empty() || (!database.empty() && (read.ec != std::errc() ||
                                                 read.ptr != database.data() + database.size())))
    return bad("SCHEME://[USER:PASSWORD@]HOST:PORT[/DATABASE]");
  return std::unique_ptr<RemoteStore>(
      std::make_unique<RedisStore>(std::move(complete), std::move(database), options));
}

}  // namespace troupe::lmcache
