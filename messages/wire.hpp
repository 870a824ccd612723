#pragma once
// The binary form of messages between actors: little-endian, lengths as LEB128, floats bit for bit
// (infinities and NaN included), arrays of numbers as one copy. A reader never allocates more than
// its input could hold, and fields that an older writer did not send keep their defaults.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "messages/reflect.hpp"
#include "messages/shared_vector.hpp"

namespace troupe::wire {

static_assert(std::endian::native == std::endian::little);

/// Element types that are copied as one block of memory.
template <class T>
concept Plain = (std::is_arithmetic_v<T> || std::is_enum_v<T>)&&!std::is_same_v<T, bool>;

/// The output of a Writer, which writes each piece once.
template <class T>
concept Sink = requires(T& sink, const void* data, std::size_t size) {
  sink.append(data, size);
};

/// A SharedVector in a message starts with one byte: it is empty, its elements follow, or it shares
/// those of an earlier one, whose distance is the byte minus kSharedHere.
inline constexpr std::uint8_t kSharedEmpty = 0;
inline constexpr std::uint8_t kSharedHere = 1;
inline constexpr std::size_t kMaxSharedDistance = 64;

class VectorSink {
 public:
  explicit VectorSink(std::vector<char>& out) : out_(out) {}
  void append(const void* data, std::size_t size) {
    const std::size_t end = out_.size();
    out_.resize(end + size);
    if (size != 0) std::memcpy(out_.data() + end, data, size);
  }

 private:
  std::vector<char>& out_;
};

template <Sink Out>
class Writer {
 public:
  explicit Writer(Out& out) : out_(out) {}

  void raw(const void* data, std::size_t size) { out_.append(data, size); }
  void length(std::uint64_t n) {
    char bytes[10];
    std::size_t size = 0;
    for (; n > 0x7f; n >>= 7) bytes[size++] = static_cast<char>(n | 0x80);
    bytes[size++] = static_cast<char>(n);
    raw(bytes, size);
  }

  void put(bool x) { put(static_cast<std::uint8_t>(x ? 1 : 0)); }
  template <Plain T>
  void put(T x) {
    raw(&x, sizeof x);
  }
  void put(const std::string& x) { length(x.size()), raw(x.data(), x.size()); }
  template <Reflected T>
  void put(const T& x) {
    for_each_field(x, [this](const char*, const auto& field) { this->put(field); });
  }
  template <class T>
  void put(const std::vector<T>& x) {
    length(x.size());
    if constexpr (Plain<T>) {
      if (!x.empty()) raw(x.data(), x.size() * sizeof(T));
    } else {
      for (const T& element : x) put(element);
    }
  }
  template <class T>
  void put(const SharedVector<T>& x) {
    if (x.empty()) return put(kSharedEmpty);
    const void* const elements = x.share().get();
    const std::size_t num_near = std::min(shared_.size(), kMaxSharedDistance);
    for (std::size_t distance = 1; distance <= num_near; ++distance) {
      if (shared_[shared_.size() - distance] == elements)
        return put(static_cast<std::uint8_t>(kSharedHere + distance));
    }
    put(kSharedHere);
    put(x.get());
    shared_.push_back(elements);
  }
  template <class T, std::size_t n>
  void put(const std::array<T, n>& x) {
    for (const T& element : x) put(element);
  }
  template <class T>
  void put(const std::optional<T>& x) {
    put(x.has_value());
    if (x) put(*x);
  }
  template <class T>
  void put(const std::shared_ptr<const T>& x) {
    put(x != nullptr);
    if (x) put(*x);
  }
  template <class A, class B>
  void put(const std::pair<A, B>& x) {
    put(x.first), put(x.second);
  }
  template <class K, class V, class... R>
  void put(const std::map<K, V, R...>& x) {
    put_map(x);
  }
  template <class K, class V, class... R>
  void put(const std::unordered_map<K, V, R...>& x) {
    put_map(x);
  }
  template <class... Ts>
  void put(const std::variant<Ts...>& x) {
    put(static_cast<std::uint8_t>(x.index()));
    std::visit([this](const auto& alternative) { this->put(alternative); }, x);
  }
  void put(std::monostate) {}

 private:
  template <class M>
  void put_map(const M& x) {
    length(x.size());
    for (const auto& [key, value] : x) put(key), put(value);
  }
  Out& out_;
  std::vector<const void*> shared_;  // elements written so far
};

/// After malformed input ok() stays false, every further get leaves its argument unchanged, and
/// nothing throws.
class Reader {
 public:
  Reader(const char* data, std::size_t size) : next_(data), end_(data + size) {}

  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] bool done() const noexcept { return next_ == end_; }

  void raw(void* data, std::size_t size) {
    if (!ok_ || size > remaining()) {
      ok_ = false;
      return;
    }
    if (size != 0) std::memcpy(data, next_, size);
    next_ += size;
  }
  /// A count of elements of at least min_bytes each; a count that exceeds the rest of the input is
  /// malformed.
  std::size_t length(std::size_t min_bytes) {
    std::uint64_t n = 0;
    for (unsigned shift = 0; ok_; shift += 7) {
      if (next_ == end_ || shift > 56) {
        ok_ = false;
        break;
      }
      const auto byte = static_cast<std::uint8_t>(*next_++);
      n |= std::uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) break;
    }
    if (n > remaining() / (min_bytes == 0 ? 1 : min_bytes)) ok_ = false;
    return ok_ ? static_cast<std::size_t>(n) : 0;
  }

  /// The minimal encoded size of a T.
  template <class T>
  static std::size_t least_bytes() {
    if constexpr (Plain<T>) {
      return sizeof(T);
    } else if constexpr (Reflected<T>) {
      static const std::size_t sum = [] {
        std::size_t bytes = 0;
        const T value{};
        for_each_field(value, [&]<class Field>(const char*, const Field&) {
          bytes += least_bytes<std::remove_cv_t<Field>>();
        });
        return bytes;
      }();
      return sum;
    } else {
      return 1;
    }
  }

  void get(bool& x) {
    std::uint8_t byte = 0;
    raw(&byte, 1);
    if (byte > 1) ok_ = false;
    x = byte == 1;
  }
  template <Plain T>
  void get(T& x) {
    raw(&x, sizeof x);
  }
  void get(std::string& x) {
    const std::size_t n = length(1);
    x.assign(next_, n);
    next_ += n;
  }
  template <Reflected T>
  void get(T& x) {
    for_each_field(x, [this](const char*, auto& field) {
      if (ok_ && !done()) get(field);
    });
  }
  template <class T>
  void get(std::vector<T>& x) {
    if constexpr (Plain<T>) {
      x.resize(length(sizeof(T)));
      if (!x.empty()) raw(x.data(), x.size() * sizeof(T));
    } else {
      const std::size_t n = length(1);
      x.clear();
      // The last one may lack fields that its writer did not know.
      ok_ = ok_ && (n == 0 || (n - 1) * least_bytes<T>() <= remaining());
      if (ok_) x.reserve(n);
      for (std::size_t i = 0; i < n && ok_; ++i) get(x.emplace_back());
    }
  }
  template <class T>
  void get(SharedVector<T>& x) {
    std::uint8_t place = kSharedEmpty;
    get(place);
    if (!ok_) return;
    if (place == kSharedEmpty) {
      x = {};
    } else if (place == kSharedHere) {
      auto elements = std::make_shared<std::vector<T>>();
      get(*elements);
      shared_.push_back({&kSharedType<T>, elements});
      x = SharedVector<T>::sharing(std::move(elements));
    } else {
      const std::size_t distance = std::size_t{place} - kSharedHere;
      ok_ =
          distance <= shared_.size() && shared_[shared_.size() - distance].type == &kSharedType<T>;
      if (!ok_) return;
      x = SharedVector<T>::sharing(std::static_pointer_cast<const std::vector<T>>(
          shared_[shared_.size() - distance].elements));
    }
  }
  template <class T, std::size_t n>
  void get(std::array<T, n>& x) {
    for (T& element : x) get(element);
  }
  template <class T>
  void get(std::optional<T>& x) {
    bool present = false;
    get(present);
    if (present)
      get(x.emplace());
    else
      x.reset();
  }
  template <class T>
  void get(std::shared_ptr<const T>& x) {
    bool present = false;
    get(present);
    if (!present) {
      x.reset();
      return;
    }
    auto value = std::make_shared<T>();
    get(*value);
    x = std::move(value);
  }
  template <class A, class B>
  void get(std::pair<A, B>& x) {
    get(x.first), get(x.second);
  }
  template <class K, class V, class... R>
  void get(std::map<K, V, R...>& x) {
    get_map(x);
  }
  template <class K, class V, class... R>
  void get(std::unordered_map<K, V, R...>& x) {
    get_map(x);
  }
  template <class... Ts>
  void get(std::variant<Ts...>& x) {
    std::uint8_t index = 0;
    get(index);
    get_alternative<0>(x, index);
  }
  void get(std::monostate&) {}

 private:
  [[nodiscard]] std::size_t remaining() const noexcept {
    return static_cast<std::size_t>(end_ - next_);
  }
  template <class M>
  void get_map(M& x) {
    const std::size_t n = length(1);
    x.clear();
    for (std::size_t i = 0; i < n && ok_; ++i) {
      typename M::key_type key{};
      typename M::mapped_type value{};
      get(key), get(value);
      x.emplace(std::move(key), std::move(value));
    }
  }
  template <std::size_t i, class V>
  void get_alternative(V& x, std::size_t index) {
    if constexpr (i == std::variant_size_v<V>) {
      ok_ = false;
    } else {
      if (i != index) return get_alternative<i + 1>(x, index);
      get(x.template emplace<i>());
    }
  }
  /// The elements read so far, with their types.
  struct Shared {
    const char* type;
    std::shared_ptr<const void> elements;
  };
  template <class T>
  static constexpr char kSharedType = 0;

  const char* next_;
  const char* end_;
  bool ok_ = true;
  std::vector<Shared> shared_;
};

template <Reflected T>
void encode(const T& message, std::vector<char>& out) {
  out.clear();
  VectorSink sink(out);
  Writer(sink).put(message);
}

/// False if the bytes are not a T or need more memory than available; message is then in some valid
/// state.
template <Reflected T>
[[nodiscard]] bool decode(const char* data, std::size_t size, T& message) {
  Reader reader(data, size);
  try {
    reader.get(message);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return reader.ok();
}

}  // namespace troupe::wire
