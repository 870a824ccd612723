#pragma once
// Caches the decoded text of single tokens.

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "messages/ids.hpp"

namespace troupe {

/// A table of 8 bytes per id, and a text for each id that was requested. Lock-free and thread-safe.
class LoneTexts {
 public:
  explicit LoneTexts(std::size_t id_limit)
      : id_limit_(id_limit),
        texts_(std::make_unique<std::atomic<const std::string*>[]>(id_limit)) {}
  ~LoneTexts() {
    for (std::size_t i = 0; i < id_limit_; ++i) delete texts_[i].load(std::memory_order_relaxed);
  }
  LoneTexts(const LoneTexts&) = delete;
  LoneTexts& operator=(const LoneTexts&) = delete;

  /// The text of `id`, computed by make() on first use; empty for an id out of [0, id_limit). Valid
  /// during the lifetime of this object.
  template <class Make>
  [[nodiscard]] std::string_view get(TokenId id, const Make& make) const {
    if (id < 0 || static_cast<std::size_t>(id) >= id_limit_) return {};
    std::atomic<const std::string*>& text = texts_[static_cast<std::size_t>(id)];
    if (const std::string* known = text.load(std::memory_order_acquire)) return *known;
    auto made = std::make_unique<const std::string>(make());
    const std::string* known = nullptr;
    if (text.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) {
      return *made.release();
    }
    return *known;  // another thread was faster
  }

 private:
  std::size_t id_limit_ = 0;
  std::unique_ptr<std::atomic<const std::string*>[]> texts_;
};

}  // namespace troupe
