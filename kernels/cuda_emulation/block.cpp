#include "kernels/cuda_emulation/block.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda_emulation/sanitizer.hpp"
#include "kernels/cuda_emulation/thread_order.hpp"

namespace troupe::cuda_emulation {
namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kWarpThreads = 32;
constexpr std::size_t kStackBytes = 256 * 1024;
constexpr std::size_t kMaxSharedBytes = 48 * 1024;
constexpr std::size_t kGuardBytes = 64;
constexpr std::size_t kMaxSharedVariables = 64;

/// Uninitialised memory: NaN, or an index far out of range.
constexpr std::byte kUnwritten{0xff};

/// Thrown through the kernel's frames to unwind a thread of a failed launch.
struct Abandoned {};

std::string place_name(const Place& place) {
  const std::string_view file = place.file_name();
  return std::string(file.substr(file.find_last_of('/') + 1)) + ":" + std::to_string(place.line());
}

bool is_same_place(const Place& a, const Place& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

/// Stacks whose frames the address sanitizer forgets when they are unmapped: it keeps them poisoned
/// otherwise, and reports memory that is mapped there later.
class FiberStacks {
 public:
  boost::context::stack_context allocate() { return stacks_.allocate(); }
  void deallocate(boost::context::stack_context& stack) noexcept {
    unpoison(static_cast<const std::byte*>(stack.sp) - stack.size, stack.size);
    stacks_.deallocate(stack);
  }

 private:
  boost::context::protected_fixedsize_stack stacks_{kStackBytes};
};

/// A stack, and what runs on it. The launching thread is one too, with its own stack.
struct Fiber {
  boost::context::fiber context;  ///< set while it does not run
  void* fake_stack = nullptr;     ///< the address sanitizer's
  const void* stack_bottom = nullptr;
  std::size_t stack_size = 0;
};

enum class Status : std::uint8_t { kNew, kReady, kAtBarrier, kInWarpOperation, kEnded };

struct Thread {
  uint3 index;
  Status status = Status::kNew;
  Fiber* fiber = nullptr;
  Place place;  ///< where it waits
  // Of the warp's operation.
  WarpOperation operation = WarpOperation::kSync;
  unsigned mask = 0;
  unsigned source = 0;
  std::uint64_t value = 0;
  std::uint64_t result = 0;
};

/// Lanes, as bits.
struct Warp {
  unsigned waiting = 0;
  unsigned ended = 0;  ///< or absent
};

struct SharedVariable {
  const void* key = nullptr;
  std::size_t offset = 0;
  std::size_t num_bytes = 0;
  std::int64_t block = -1;  ///< the block that it was initialised for
  Place place;
};

/// Threads that may run, by rank: the order in which they run.
class ReadySet {
 public:
  void insert(unsigned rank) noexcept { words_[rank / 64] |= std::uint64_t{1} << rank % 64; }
  void clear() noexcept { words_.fill(0); }
  /// Removes the first one; -1: empty.
  int take_first() noexcept {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == 0) continue;
      const int bit = std::countr_zero(words_[i]);
      words_[i] &= words_[i] - 1;
      return static_cast<int>(i) * 64 + bit;
    }
    return -1;
  }

 private:
  std::array<std::uint64_t, kMaxThreads / 64> words_{};
};

/// Owns the fibers of one launching thread. They are reused, and each runs one thread of a block
/// after the other: a thread that ends without waiting costs no switch.
class Runner {
 public:
  Runner() : shared_(new std::byte[kArenaBytes]), threads_(kMaxThreads) {
    unpoison(shared_.get(), kArenaBytes);
  }
  ~Runner() {
    closing_ = true;
    for (Fiber* fiber : idle_) switch_to(main_, *fiber);
    unpoison(shared_.get(), kArenaBytes);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void set_order(ThreadOrder order, std::uint32_t seed) noexcept {
    order_ = order;
    random_.seed(seed);
  }

  std::string run_grid(const LaunchShape& shape, const std::function<void()>& kernel) {
    kernel_ = &kernel;
    blockDim = shape.block;
    gridDim = shape.grid;
    num_threads_ = shape.block.x * shape.block.y * shape.block.z;
    dynamic_shared_bytes_ = shape.dynamic_shared_bytes;
    num_variables_ = 0;
    shared_end_ = 0;
    fault_.clear();
    set_indices();
    const std::int64_t num_blocks = std::int64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
    order_threads();
    for (std::int64_t i = 0; i < num_blocks && fault_.empty(); ++i) {
      const std::int64_t block = order_ == ThreadOrder::kForward ? i : num_blocks - 1 - i;
      blockIdx = {static_cast<unsigned>(block % shape.grid.x),
                  static_cast<unsigned>(block / shape.grid.x % shape.grid.y),
                  static_cast<unsigned>(block / shape.grid.x / shape.grid.y)};
      block_ = block;
      run_block();
    }
    unpoison(shared_.get(), kArenaBytes);
    return std::exchange(fault_, {});
  }

  void barrier(const Place& place) {
    Thread& thread = current();
    thread.status = Status::kAtBarrier;
    thread.place = place;
    if (++num_at_barrier_ == num_threads_ && all_at_one_place()) release_barrier();
    wait();
  }

  std::uint64_t exchange(WarpOperation operation, unsigned mask, std::uint64_t value,
                         unsigned source, const Place& place) {
    Thread& thread = current();
    const unsigned first = current_ / kWarpThreads * kWarpThreads;
    const unsigned lane = current_ % kWarpThreads;
    Warp& warp = warps_[current_ / kWarpThreads];
    if ((mask >> lane & 1u) == 0) fail(place, lane_name(lane) + " is not in its own mask");
    if (const unsigned dead = mask & warp.ended; dead != 0)
      fail(place, "the mask has " + lane_name(first_bit(dead)) + ", which has ended");
    if (operation == WarpOperation::kShuffle && (mask >> source & 1u) == 0)
      fail(place, lane_name(lane) + " reads " + lane_name(source) + ", which is not in the mask");
    if (const unsigned others = mask & warp.waiting; others != 0) {
      // Threads that wait for each other execute the same operation, so checking one is enough.
      const Thread& other = threads_[first + first_bit(others)];
      if (other.operation != operation || other.mask != mask || !is_same_place(other.place, place))
        fail(place, lane_name(first_bit(others)) + " of the mask does something else at " +
                        place_name(other.place));
    }
    thread.status = Status::kInWarpOperation;
    thread.place = place;
    thread.operation = operation;
    thread.mask = mask;
    thread.source = source;
    thread.value = value;
    warp.waiting |= 1u << lane;
    if ((warp.waiting & mask) == mask) finish_exchange(warp, first, mask, operation);
    wait();
    return thread.result;
  }

  void* shared_variable(const void* key, std::size_t num_bytes, const Place& place) {
    SharedVariable* variable = std::find_if(variables_.data(), variables_.data() + num_variables_,
                                            [&](const auto& known) { return known.key == key; });
    if (variable == variables_.data() + num_variables_) {
      if (key == nullptr) num_bytes = dynamic_shared_bytes_;
      const std::size_t padded = (num_bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
      if (num_variables_ == kMaxSharedVariables ||
          used_shared_bytes() + num_bytes > kMaxSharedBytes)
        fail(place, "shared memory of more than " + std::to_string(kMaxSharedBytes) + " bytes");
      *variable = {
          .key = key, .offset = shared_end_ + kGuardBytes, .num_bytes = num_bytes, .place = place};
      ++num_variables_;
      shared_end_ += kGuardBytes + padded;
    }
    std::byte* const data = shared_.get() + variable->offset;
    if (variable->block != block_) {
      variable->block = block_;
      const Guards guards = guards_of(*variable);
      unpoison(guards.before, guards.num_bytes());
      std::memset(guards.before, static_cast<int>(kUnwritten), guards.num_bytes());
      poison(guards.before, kGuardBytes);
      poison(guards.after, static_cast<std::size_t>(guards.end - guards.after));
    }
    return data;
  }

 private:
  static constexpr std::size_t kArenaBytes =
      kMaxSharedBytes + (2 * kMaxSharedVariables + 1) * kGuardBytes;

  /// Guard zones around a variable, which must not be written.
  struct Guards {
    std::byte* before;
    std::byte* after;
    std::byte* end;
    [[nodiscard]] std::size_t num_bytes() const { return static_cast<std::size_t>(end - before); }
  };

  static unsigned first_bit(unsigned bits) { return static_cast<unsigned>(std::countr_zero(bits)); }
  static std::string lane_name(unsigned lane) { return "lane " + std::to_string(lane); }

  Thread& current() { return threads_[current_]; }

  void set_indices() {
    for (unsigned t = 0; t < num_threads_; ++t)
      threads_[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                           t / blockDim.x / blockDim.y};
  }

  void order_threads() {
    std::iota(thread_of_rank_.begin(), thread_of_rank_.begin() + num_threads_, 0u);
    if (order_ == ThreadOrder::kReversed)
      std::reverse(thread_of_rank_.begin(), thread_of_rank_.begin() + num_threads_);
    if (order_ == ThreadOrder::kRandom)
      std::shuffle(thread_of_rank_.begin(), thread_of_rank_.begin() + num_threads_, random_);
    for (unsigned rank = 0; rank < num_threads_; ++rank)
      rank_of_thread_[thread_of_rank_[rank]] = rank;
  }

  void run_block() {
    if (order_ == ThreadOrder::kRandom) order_threads();
    num_at_barrier_ = 0;
    num_ended_ = 0;
    abandoned_ = false;
    for (unsigned t = 0; t < num_threads_; ++t) {
      threads_[t].status = Status::kNew;
      ready_.insert(t);
    }
    for (unsigned first = 0; first < num_threads_; first += kWarpThreads) {
      const unsigned lanes = std::min(kWarpThreads, num_threads_ - first);
      warps_[first / kWarpThreads] = {.ended = lanes == kWarpThreads ? 0u : ~0u << lanes};
    }
    run_ready(main_);
    if (num_ended_ < num_threads_) {
      if (fault_.empty()) fault_ = block_name() + ": threads wait for each other: " + who_waits();
      abandoned_ = true;
      for (unsigned t = 0; t < num_threads_; ++t) {
        const Status status = threads_[t].status;
        if (status == Status::kNew || status == Status::kEnded) continue;
        current_ = t;
        switch_to(main_, *threads_[t].fiber);
      }
    }
    if (fault_.empty()) check_guards();
  }

  /// Runs ready threads from this fiber on; returns when this one is resumed: the launching thread
  /// when no thread is ready.
  void run_ready(Fiber& from) {
    const int rank = ready_.take_first();
    if (rank < 0) return switch_to(from, main_);
    current_ = thread_of_rank_[static_cast<unsigned>(rank)];
    Thread& next = current();
    if (next.status == Status::kNew) next.fiber = &idle_fiber();
    threadIdx = next.index;
    switch_to(from, *next.fiber);
  }

  /// Runs others until this thread may continue.
  void wait() {
    Fiber& fiber = *current().fiber;
    run_ready(fiber);
    if (abandoned_) throw Abandoned();
  }

  void run_threads(Fiber& fiber) {
    while (!closing_) {
      run_thread(current());
      idle_.push_back(&fiber);
      run_ready(fiber);
    }
  }

  void run_thread(Thread& thread) {
    const unsigned t = current_;
    thread.status = Status::kReady;
    try {
      (*kernel_)();
    } catch (const Abandoned&) {
      ready_.clear();
    }
    thread.status = Status::kEnded;
    ++num_ended_;
    warps_[t / kWarpThreads].ended |= 1u << t % kWarpThreads;
  }

  void make_ready(unsigned t) {
    threads_[t].status = Status::kReady;
    ready_.insert(rank_of_thread_[t]);
  }

  bool all_at_one_place() const {
    return std::all_of(
        threads_.begin() + 1, threads_.begin() + num_threads_,
        [&](const Thread& thread) { return is_same_place(thread.place, threads_[0].place); });
  }

  void release_barrier() {
    num_at_barrier_ = 0;
    if (order_ == ThreadOrder::kRandom) order_threads();
    for (unsigned t = 0; t < num_threads_; ++t) make_ready(t);
  }

  void finish_exchange(Warp& warp, unsigned first, unsigned mask, WarpOperation operation) {
    warp.waiting &= ~mask;
    std::uint64_t ballot = 0;
    for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
      const unsigned lane = first_bit(lanes);
      if (threads_[first + lane].value != 0) ballot |= std::uint64_t{1} << lane;
    }
    for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
      Thread& thread = threads_[first + first_bit(lanes)];
      thread.result =
          operation == WarpOperation::kShuffle ? threads_[first + thread.source].value : ballot;
      make_ready(first + first_bit(lanes));
    }
  }

  [[noreturn]] void fail(const Place& place, const std::string& what) {
    fault_ = block_name() + ", thread " + std::to_string(current_) + ", " + place_name(place) +
             ": " + what;
    abandoned_ = true;
    throw Abandoned();
  }

  static std::string block_name() {
    return "block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
           std::to_string(blockIdx.z) + ")";
  }

  static std::string thread_range(unsigned first, unsigned last) {
    if (first == last) return "thread " + std::to_string(first);
    return "threads " + std::to_string(first) + " to " + std::to_string(last);
  }

  std::string status_of(unsigned t) const {
    const Thread& thread = threads_[t];
    return thread.status == Status::kEnded ? "ended" : "at " + place_name(thread.place);
  }

  /// The positions of all threads, in ranges of those at the same one.
  std::string who_waits() const {
    std::string text;
    for (unsigned first = 0; first < num_threads_;) {
      unsigned last = first;
      while (last + 1 < num_threads_ && status_of(last + 1) == status_of(first)) ++last;
      text += (text.empty() ? "" : ", ") + thread_range(first, last) + " " + status_of(first);
      first = last + 1;
    }
    return text;
  }

  std::size_t used_shared_bytes() const {
    return std::accumulate(
        variables_.begin(), variables_.begin() + static_cast<std::ptrdiff_t>(num_variables_),
        std::size_t{0},
        [](std::size_t sum, const SharedVariable& known) { return sum + known.num_bytes; });
  }

  Guards guards_of(const SharedVariable& variable) const {
    std::byte* const data = shared_.get() + variable.offset;
    const std::size_t padded = (variable.num_bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
    return {data - kGuardBytes, data + variable.num_bytes, data + padded + kGuardBytes};
  }

  /// With the address sanitizer, a write there is found at once.
  void check_guards() {
    if constexpr (kHasAddressSanitizer) return;
    for (std::size_t i = 0; i < num_variables_; ++i) {
      const SharedVariable& variable = variables_[i];
      if (variable.block != block_) continue;
      const Guards guards = guards_of(variable);
      const auto is_written = [](std::byte value) { return value != kUnwritten; };
      if (std::any_of(guards.before, guards.before + kGuardBytes, is_written) ||
          std::any_of(guards.after, guards.end, is_written))
        fault_ = block_name() + ": a write outside of the shared variable at " +
                 place_name(variable.place);
    }
  }

  Fiber& idle_fiber() {
    if (idle_.empty()) make_fiber();
    Fiber& fiber = *idle_.back();
    idle_.pop_back();
    return fiber;
  }

  void make_fiber() {
    Fiber& fiber = *fibers_.emplace_back(std::make_unique<Fiber>());
    FiberStacks stacks;
    const boost::context::stack_context stack = stacks.allocate();
    fiber.stack_size = stack.size;
    fiber.stack_bottom = static_cast<const std::byte*>(stack.sp) - stack.size;
    fiber.context = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), stacks,
        [this, &fiber](boost::context::fiber&& previous) {
          arrive(fiber, std::move(previous));
          run_threads(fiber);
          start_switch_fiber(nullptr, main_.stack_bottom, main_.stack_size);
          switched_from_ = &fiber;
          return std::move(main_.context);
        });
    idle_.push_back(&fiber);
  }

  void switch_to(Fiber& from, Fiber& to) {
    if (&from == &to) return;
    switched_from_ = &from;
    start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_size);
    arrive(from, std::move(to.context).resume());
  }

  /// Runs on a fiber that was resumed by another one.
  void arrive(Fiber& fiber, boost::context::fiber&& previous) {
    const void* old_bottom = nullptr;
    std::size_t old_size = 0;
    finish_switch_fiber(fiber.fake_stack, &old_bottom, &old_size);
    if (switched_from_ == &main_) {
      main_.stack_bottom = old_bottom;
      main_.stack_size = old_size;
    }
    switched_from_->context = std::move(previous);
  }

  ThreadOrder order_ = ThreadOrder::kForward;
  std::mt19937 random_;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* switched_from_ = nullptr;
  bool closing_ = false;

  // Of the launch.
  const std::function<void()>* kernel_ = nullptr;
  unsigned num_threads_ = 0;
  std::size_t dynamic_shared_bytes_ = 0;
  std::string fault_;
  std::array<unsigned, kMaxThreads> thread_of_rank_{};
  std::array<unsigned, kMaxThreads> rank_of_thread_{};
  std::unique_ptr<std::byte[]> shared_;
  std::array<SharedVariable, kMaxSharedVariables + 1> variables_;
  std::size_t num_variables_ = 0;
  std::size_t shared_end_ = 0;

  // Of the block.
  std::int64_t block_ = 0;
  std::vector<Thread> threads_;
  std::array<Warp, kMaxThreads / kWarpThreads> warps_;
  ReadySet ready_;
  unsigned current_ = 0;
  unsigned num_at_barrier_ = 0;
  unsigned num_ended_ = 0;
  bool abandoned_ = false;
};

Runner& runner() {
  thread_local Runner runner;
  return runner;
}

}  // namespace

void set_thread_order(ThreadOrder order, std::uint32_t seed) noexcept {
  runner().set_order(order, seed);
}

std::string run_grid(const LaunchShape& shape, const std::function<void()>& kernel) {
  return runner().run_grid(shape, kernel);
}

void block_barrier(const Place& place) { runner().barrier(place); }

std::uint64_t warp_exchange(WarpOperation operation, unsigned mask, std::uint64_t value,
                            unsigned source, const Place& place) {
  return runner().exchange(operation, mask, value, source, place);
}

void* shared_variable(const void* key, std::size_t num_bytes, const Place& place) {
  return runner().shared_variable(key, num_bytes, place);
}

}  // namespace troupe::cuda_emulation
