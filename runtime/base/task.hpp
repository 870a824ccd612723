#pragma once
// Sequential code that sends requests to other actors and continues with their replies: Task<T> is
// a coroutine, Reply<T> is what it awaits. All on one thread.
//
//   Task<int> sum(Port& port) {
//     const int a = co_await port.ask(1);   // an answer that is there already does not suspend
//     co_return a + 1;
//   }
//
// A suspended Task may be destroyed: the coroutine's locals are destroyed, and a later reply is
// dropped.

// Clang 14 implements C++20 coroutines but does not yet announce them as libstdc++ expects.
#if defined(__clang__) && !defined(__cpp_impl_coroutine)
#define __cpp_impl_coroutine 201902L
#endif
#include <coroutine>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/base/check.hpp"

namespace troupe {

template <class T>
class Reply;

namespace internal {
template <class T>
struct ReplyState {
  std::optional<T> value;
  std::coroutine_handle<> waiter;
};
}  // namespace internal

/// The producer's end of a pending Reply. Copies share the same Reply.
template <class T>
class ReplySetter {
 public:
  /// Delivers the value and runs the waiting task until it awaits again or ends. Only the first
  /// call counts; without a waiter it does nothing.
  void set(T value) const {
    const auto state = state_;
    if (state->value) return;
    state->value = std::move(value);
    if (const auto waiter = std::exchange(state->waiter, nullptr)) waiter.resume();
  }

 private:
  friend class Reply<T>;
  explicit ReplySetter(std::shared_ptr<internal::ReplyState<T>> state) : state_(std::move(state)) {}
  std::shared_ptr<internal::ReplyState<T>> state_;
};

/// A value that is available (no allocation), or pending. Awaited once.
template <class T>
class [[nodiscard]] Reply {
 public:
  Reply(T value) : answer_(std::in_place_index<0>, std::move(value)) {}
  Reply(Reply&&) noexcept = default;
  Reply& operator=(Reply&&) = delete;
  ~Reply() {
    if (State* state = pending_state()) state->waiter = nullptr;
  }

  [[nodiscard]] static std::pair<Reply, ReplySetter<T>> pending() {
    auto state = std::make_shared<internal::ReplyState<T>>();
    return {Reply(state), ReplySetter<T>(state)};
  }

  [[nodiscard]] bool await_ready() const noexcept {
    const State* state = pending_state();
    return state == nullptr || state->value.has_value();
  }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { pending_state()->waiter = waiter; }
  T await_resume() {
    State* state = pending_state();
    return state == nullptr ? std::get<0>(std::move(answer_)) : std::move(*state->value);
  }

 private:
  using State = internal::ReplyState<T>;
  explicit Reply(std::shared_ptr<State> state)
      : answer_(std::in_place_index<1>, std::move(state)) {}
  [[nodiscard]] State* pending_state() const noexcept {
    const auto* state = std::get_if<1>(&answer_);
    return state == nullptr ? nullptr : state->get();
  }
  std::variant<T, std::shared_ptr<State>> answer_;
};

/// A coroutine that returns a T (not void). It starts when it is awaited or start()ed; an exception
/// that leaves it is rethrown by result() or the await.
template <class T>
class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~Task() { reset(); }

  /// Runs until the first pending reply, or to the end. on_done is called once, at the end (perhaps
  /// before start() returns); it may take the result and destroy the task.
  void start(std::function<void()>&& on_done = {}) {
    handle_.promise().on_done = std::move(on_done);
    handle_.resume();
  }
  [[nodiscard]] bool valid() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] bool done() const noexcept { return handle_ && handle_.done(); }
  /// Pre: done(). Takes the value, or rethrows the coroutine's exception.
  [[nodiscard]] T result() {
    CHECK(done());
    return handle_.promise().take();
  }
  /// Destroys the coroutine at its suspension point.
  void reset() noexcept {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }

  bool await_ready() const noexcept { return false; }
  Handle await_suspend(std::coroutine_handle<> caller) noexcept {
    handle_.promise().caller = caller;
    return handle_;
  }
  T await_resume() { return handle_.promise().take(); }

  struct promise_type {
    std::optional<T> value;
    std::exception_ptr error;
    std::coroutine_handle<> caller;
    std::function<void()> on_done;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    struct Final {
      bool await_ready() noexcept { return false; }
      std::coroutine_handle<> await_suspend(Handle self) noexcept {
        // on_done may destroy this coroutine: the promise is not touched after the call.
        const std::coroutine_handle<> caller = self.promise().caller;
        const std::function<void()> on_done = std::move(self.promise().on_done);
        if (on_done) on_done();
        return caller ? caller : std::coroutine_handle<>(std::noop_coroutine());
      }
      void await_resume() noexcept {}
    };
    Final final_suspend() noexcept { return {}; }
    void return_value(T result) { value = std::move(result); }
    void unhandled_exception() { error = std::current_exception(); }
    T take() {
      if (error) std::rethrow_exception(error);
      return std::move(*value);
    }
  };

 private:
  explicit Task(Handle handle) : handle_(handle) {}
  Handle handle_;
};

/// Runs a task whose replies are all available. Pre: it does not suspend.
template <class T>
[[nodiscard]] T run_now(Task<T> task) {
  task.start();
  CHECK(task.done());
  return task.result();
}

}  // namespace troupe
