#pragma once
// How the ranks that share a model talk to each other while they compute.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "runtime/base/result.hpp"

namespace troupe {

/// One rank's end of what connects all ranks. Those of one stage, [group_begin, group_begin +
/// group_size), form a group: they do the same collective operations in the same order. send and
/// recv are between any two, and pair up. One thread uses it; only abort may come from any.
///
/// All implementations give the same bits: all_reduce adds as the tree ((r0 + r1) + (r2 + r3)), the
/// order of WeightSpec::k_shards.
///
/// Errors stick: after the first one every operation returns at once and leaves its data as they
/// are, and the other ranks fail as well; whoever computes asks status() before a result counts. A
/// communicator that has failed is of no further use. Every wait ends: with the peer's part, with
/// its death where that can be seen, with abort, or with the deadline.
class Communicator {
 public:
  /// Pre: group_size divides size.
  Communicator(std::int32_t rank, std::int32_t size, std::int32_t group_size)
      : rank_(rank), size_(size), group_size_(group_size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept { return size_; }

  [[nodiscard]] std::int32_t group_size() const noexcept { return group_size_; }
  [[nodiscard]] std::int32_t group_begin() const noexcept {
    return rank_ / group_size_ * group_size_;
  }
  [[nodiscard]] std::int32_t group_rank() const noexcept { return rank_ % group_size_; }

  /// data = the sum over the group, element by element. Pre: group_size() is 1, 2 or 4.
  virtual void all_reduce(std::span<float> data) = 0;
  /// `all` = the data of the group, one rank behind the other. Pre: all.size() == group_size() *
  /// data.size().
  virtual void all_gather(std::span<const std::byte> data, std::span<std::byte> all) = 0;
  /// All ranks get root's data; false: it did not come. Root does not wait for those who take it,
  /// unless they are megabytes behind.
  bool broadcast(std::span<std::byte> data, std::int32_t root);
  /// In order, between each pair of ranks. send does not wait for recv, unless it is megabytes
  /// behind. recv is false if the data did not come; what was sent before a failure still does.
  virtual void send(std::span<const std::byte> data, std::int32_t to) = 0;
  virtual bool recv(std::span<std::byte> data, std::int32_t from) = 0;
  /// Returns when every rank of the group has come so far.
  virtual void barrier() = 0;

  /// Fails all ranks, also those that wait. The first reason is kept. From any thread.
  virtual void abort(const Error& reason) = 0;
  /// kUnavailable or kTimeout, naming the rank that did not do its part; or the reason of abort.
  [[nodiscard]] virtual Result<void> status() const = 0;

 private:
  std::int32_t rank_;
  std::int32_t size_;
  std::int32_t group_size_;
};

inline bool Communicator::broadcast(std::span<std::byte> data, std::int32_t root) {
  if (rank_ != root) return recv(data, root);
  for (std::int32_t peer = 0; peer < size_; ++peer)
    if (peer != root) send(data, peer);
  return true;
}

}  // namespace troupe
