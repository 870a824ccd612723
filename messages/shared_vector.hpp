#pragma once
// Stores what the samples of a request have in common once.

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace troupe {

/// A vector whose copies share its elements, which may be read from any thread. An empty one
/// allocates nothing. The elements are sent once per message (wire.hpp).
template <class T>
class SharedVector {
 public:
  using value_type = T;
  using size_type = std::size_t;
  using const_iterator = typename std::vector<T>::const_iterator;
  using iterator = const_iterator;

  SharedVector() = default;
  SharedVector(std::vector<T> elements) {  // NOLINT(google-explicit-constructor): a vector is one
    if (!elements.empty()) elements_ = std::make_shared<std::vector<T>>(std::move(elements));
  }
  SharedVector(std::initializer_list<T> elements) : SharedVector(std::vector<T>(elements)) {}

  [[nodiscard]] const std::vector<T>& get() const noexcept {
    static const std::vector<T> kNone;
    return elements_ ? *elements_ : kNone;
  }
  operator const std::vector<T>&() const noexcept { return get(); }  // NOLINT: as above
  /// The elements for modification, copied if shared.
  [[nodiscard]] std::vector<T>& edit() {
    if (elements_.use_count() != 1) elements_ = std::make_shared<std::vector<T>>(get());
    return *elements_;
  }

  [[nodiscard]] const_iterator begin() const noexcept { return get().begin(); }
  [[nodiscard]] const_iterator end() const noexcept { return get().end(); }
  [[nodiscard]] const T* data() const noexcept { return get().data(); }
  [[nodiscard]] std::size_t size() const noexcept { return elements_ ? elements_->size() : 0; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  [[nodiscard]] const T& operator[](std::size_t index) const noexcept { return get()[index]; }
  [[nodiscard]] const T& front() const noexcept { return get().front(); }
  [[nodiscard]] const T& back() const noexcept { return get().back(); }

  /// The identity of the elements, independent of their type.
  [[nodiscard]] std::shared_ptr<const std::vector<T>> share() const noexcept { return elements_; }
  [[nodiscard]] static SharedVector sharing(std::shared_ptr<const std::vector<T>> elements) {
    SharedVector shared;
    // Elements are never modified in place while shared.
    shared.elements_ = std::const_pointer_cast<std::vector<T>>(std::move(elements));
    return shared;
  }

  friend bool operator==(const SharedVector& a, const SharedVector& b) {
    return a.elements_ == b.elements_ || a.get() == b.get();
  }

 private:
  std::shared_ptr<std::vector<T>> elements_;
};

}  // namespace troupe
