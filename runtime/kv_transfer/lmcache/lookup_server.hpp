#pragma once
// Answers LMCache's lookup clients, which ask by ZeroMQ how many tokens of a prompt an engine has.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/kv_transfer/lmcache/chunk_board.hpp"

namespace troupe::lmcache {

/// The frames of a question: the hashes of a prompt's chunks, their numbers of tokens, an id, and
/// settings of the request as JSON, each as msgpack. The answer: the tokens of those chunks from
/// the first one on that are there, 4 bytes big endian. Errors: kCorrupt.
[[nodiscard]] Result<std::string> answer_lookup(std::span<const std::string> frames,
                                                ChunkBoard& board);

/// The same for an asynchronous client (LMCache's enable_async_loading), in one message: a
/// LookupRequestMsg, which is answered by a LookupResponseMsg, or a LookupCleanupMsg, which is not
/// (empty): nothing was reserved. Errors: kCorrupt.
[[nodiscard]] Result<std::string> answer_async_lookup(std::string_view bytes, ChunkBoard& board);

enum class LookupSocket : std::uint8_t {
  kRank,       ///< a rank's, for clients that wait for each answer
  kAsyncRank,  ///< a rank's, for those that do not
  kAnswers,    ///< such a client's, for the answers of all ranks
};
/// The path of a socket, as LMCache makes it of an engine's id and lmcache_rpc_port. Errors:
/// kInvalidArgument, the folder's name is too long.
[[nodiscard]] Result<std::string> lookup_socket_path(LookupSocket socket, const std::string& folder,
                                                     const std::string& engine_id,
                                                     std::int64_t port, std::int32_t rank);

/// One socket for each rank, all on a thread of their own. What an engine has in a remote store
/// only does not count. Chunks that are found are not pinned.
class LookupServer {
 public:
  /// `answers`: the path of kAnswers, for clients that do not wait; empty: they do. Errors: kIo, a
  /// socket cannot be bound. `board` outlives it.
  [[nodiscard]] static Result<std::unique_ptr<LookupServer>> open(
      std::span<const std::string> paths, const std::string& answers, ChunkBoard& board);
  ~LookupServer();
  LookupServer(const LookupServer&) = delete;
  LookupServer& operator=(const LookupServer&) = delete;

 private:
  class Thread;
  LookupServer() = default;
  std::unique_ptr<Thread> thread_;
};

}  // namespace troupe::lmcache
