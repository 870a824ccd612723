#include "runtime/kv_transfer/lmcache/remote_threads.hpp"

#include "runtime/base/log.hpp"

namespace troupe::lmcache {

using Clock = std::chrono::steady_clock;

// ---- RemoteLookup -------------------------------------------------------------------------------

RemoteLookup::RemoteLookup(std::unique_ptr<RemoteStore> store, std::chrono::milliseconds timeout)
    : store_(std::move(store)), timeout_(timeout) {
  thread_ = std::thread([this] { run(); });
}

RemoteLookup::~RemoteLookup() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::optional<std::size_t> RemoteLookup::count(std::uint64_t request,
                                               const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  const auto [answer, is_new] = answers_.try_emplace(request);
  if (is_new) {
    answer->second.deadline = Clock::now() + timeout_;
    questions_.push_back({request, keys});
    changed_.notify_all();
  }
  if (answer->second.count || Clock::now() < answer->second.deadline) return answer->second.count;
  log_warning("a lookup in the remote store takes too long", kv("request", request));
  answer->second.count = 0;
  return 0;
}

void RemoteLookup::forget(std::uint64_t request) {
  const std::lock_guard lock(mutex_);
  answers_.erase(request);
  std::erase_if(questions_,
                [request](const Question& question) { return question.request == request; });
}

void RemoteLookup::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !questions_.empty(); });
    if (ends_) return;
    const Question question = std::move(questions_.front());
    questions_.pop_front();
    lock.unlock();
    const auto count = store_->count_leading(question.keys);
    if (!count.ok())
      log_warning("the remote store cannot be asked", kv("reason", count.error().message));
    lock.lock();
    const auto answer = answers_.find(question.request);
    if (answer != answers_.end() && !answer->second.count)
      answer->second.count = count.ok() ? *count : 0;
  }
}

// ---- RemoteWriter -------------------------------------------------------------------------------

RemoteWriter::RemoteWriter(std::unique_ptr<RemoteStore> store) : store_(std::move(store)) {
  thread_ = std::thread([this] { run(); });
}

RemoteWriter::~RemoteWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RemoteWriter::put(std::string key, Bytes bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ != 0 && waiting_bytes_ + bytes->size() > kMaxWaitingBytes) {
      log_warning("a value for the remote store is dropped: too much waits", kv("key", key));
      return;
    }
    waiting_bytes_ += bytes->size();
    waiting_.emplace_back(std::move(key), std::move(bytes));
  }
  changed_.notify_all();
}

void RemoteWriter::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto [key, bytes] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const auto done = store_->put(key, bytes_info(bytes->size()), *bytes);
    if (!done.ok())
      log_warning("a value cannot be put into the remote store", kv("key", key),
                  kv("reason", done.error().message));
    lock.lock();
    waiting_bytes_ -= bytes->size();
    if (ends_ && !done.ok()) waiting_.clear();
  }
}

}  // namespace troupe::lmcache
