#pragma once
// Values by their names, up to a number of bytes: what was used last goes last.

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace troupe {

/// Not thread-safe.
template <class Value>
class ByteLru {
 public:
  explicit ByteLru(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Null: it is not there. Valid until the next call of another function.
  const Value* find(std::string_view name) {
    const auto found = index_.find(name);
    if (found == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->value;
  }
  /// Replaces what has the name. A value that is larger than all may be is not kept.
  void insert(std::string name, Value value, std::size_t num_bytes) {
    erase(name);
    if (num_bytes > max_bytes_) return;
    entries_.push_front({std::move(name), std::move(value), num_bytes});
    index_.emplace(entries_.front().name, entries_.begin());
    num_bytes_ += num_bytes;
    while (num_bytes_ > max_bytes_) erase(std::string(entries_.back().name));
  }
  void erase(std::string_view name) {
    const auto found = index_.find(name);
    if (found == index_.end()) return;
    const auto entry = found->second;
    num_bytes_ -= entry->num_bytes;
    index_.erase(found);
    entries_.erase(entry);
  }
  void clear() {
    index_.clear();
    entries_.clear();
    num_bytes_ = 0;
  }
  [[nodiscard]] std::size_t num_bytes() const noexcept { return num_bytes_; }

 private:
  struct Entry {
    std::string name;
    Value value;
    std::size_t num_bytes = 0;
  };
  std::size_t max_bytes_;
  std::size_t num_bytes_ = 0;
  std::list<Entry> entries_;  // latest first
  std::unordered_map<std::string_view, typename std::list<Entry>::iterator> index_;
};

}  // namespace troupe
