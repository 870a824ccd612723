#pragma once
// A value or an error. For failures of the environment; violated invariants of this program are
// CHECKed.

#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "messages/error.hpp"
#include "runtime/base/check.hpp"

namespace troupe {

/// Result<T> holds a T or an Error; Result<void> holds nothing or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  template <class U>
  requires(std::is_convertible_v<U, T> && !std::is_same_v<std::remove_cvref_t<U>, Result> &&
           !std::is_same_v<std::remove_cvref_t<U>, T> &&
           !std::is_same_v<std::remove_cvref_t<U>, Error>) Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}

  [[nodiscard]] bool ok() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return ok(); }
  /// Pre: ok().
  T& value() & {
    CHECK(ok(), error().message);
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok(), error().message);
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok(), error().message);
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  /// Pre: !ok().
  [[nodiscard]] const Error& error() const& { return std::get<1>(state_); }
  [[nodiscard]] Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), failed_(true) {}
  [[nodiscard]] bool ok() const noexcept { return !failed_; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const& { return error_; }
  [[nodiscard]] Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool failed_ = false;
};

[[nodiscard]] inline Error invalid_argument(std::string message, std::string param = {}) {
  return {ErrorCode::kInvalidArgument, std::move(message), std::move(param)};
}

}  // namespace troupe

#define TROUPE_CONCAT_(a, b) a##b
#define TROUPE_CONCAT(a, b) TROUPE_CONCAT_(a, b)

/// RETURN_IF_ERROR(expression): returns the Result's error from the function, if it has one.
#define RETURN_IF_ERROR(...)                                     \
  if (auto troupe_result_ = (__VA_ARGS__); !troupe_result_.ok()) \
  return std::move(troupe_result_).error()

/// ASSIGN_OR_RETURN(auto x, expression): assigns the Result's value to x, or returns its error from
/// the function.
#define ASSIGN_OR_RETURN(declaration, ...) \
  ASSIGN_OR_RETURN_(TROUPE_CONCAT(troupe_result_, __LINE__), declaration, __VA_ARGS__)
#define ASSIGN_OR_RETURN_(name, declaration, ...) \
  auto name = (__VA_ARGS__);                      \
  if (!name.ok()) return std::move(name).error(); \
  declaration = std::move(name).value()
