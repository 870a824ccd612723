#pragma once
// The protocol of LMCache's remote server (lm://): headers of fixed size, little endian, over TCP.
//
//   PUT     request, `length` bytes                no reply
//   GET     request                                reply 200, `length` bytes; or 400
//   EXIST, HEALTH  request                         reply 200 or 400
//   LIST    request                                no reply: not implemented anywhere
//   AUTH    request, the token in `length` bytes   reply 200 or 400; of Troupe only

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/base/result.hpp"

namespace troupe::lmcache {

enum class LmCommand : std::int32_t { kPut = 1, kGet, kExist, kList, kHealth, kAuth = 0x54525054 };
enum class LmCode : std::int32_t { kSuccess = 200, kFail = 400 };

/// How the numbers of a tensor lie.
enum class MemoryFormat : std::int32_t {
  kUndefined = 0,
  kKv2Ltd = 1,  ///< [2, layers, tokens, hidden]
  kKvT2d = 2,   ///< [tokens, 2, hidden]
  kKv2Td = 3,   ///< [2, tokens, hidden]
  kBinary = 4,
  kBinaryBuffer = 5,
  kKvMla = 6,  ///< [1, layers, tokens, hidden]
  kEcTd = 7,
  kHsTd = 8,
};
enum class TensorDtype : std::int32_t {
  kNone = 0,
  kHalf = 1,  ///< a second name of kFloat16, never sent
  kFloat16 = 2,
  kBfloat16 = 3,
  kFloat32 = 4,
  kFloat64 = 5,
  kUint8 = 6,
  kFloat8E4m3 = 7,
  kFloat8E5m2 = 8,
};

/// Of what is stored under a key. Servers give it back as it came, whatever it is.
struct TensorInfo {
  MemoryFormat format = MemoryFormat::kKv2Ltd;
  TensorDtype dtype = TensorDtype::kFloat16;
  std::array<std::int32_t, 4> shape{};  ///< 0 behind the last dimension
  bool operator==(const TensorInfo&) const = default;
};

/// Of an array of bytes: of what describes itself.
[[nodiscard]] constexpr TensorInfo bytes_info(std::size_t num_bytes) noexcept {
  return {MemoryFormat::kBinaryBuffer,
          TensorDtype::kUint8,
          {static_cast<std::int32_t>(num_bytes), 0, 0, 0}};
}

inline constexpr std::size_t kLmKeyBytes = 150;
inline constexpr std::size_t kLmRequestBytes = 9 * sizeof(std::int32_t) + kLmKeyBytes;
inline constexpr std::size_t kLmReplyBytes = 9 * sizeof(std::int32_t);

struct LmRequest {
  LmCommand command = LmCommand::kGet;
  std::int32_t length = 0;  ///< bytes that follow
  TensorInfo info;
  std::int32_t location = 0;
  std::string key;
  bool operator==(const LmRequest&) const = default;
};
struct LmReply {
  LmCode code = LmCode::kFail;
  std::int32_t length = 0;
  TensorInfo info;
  std::int32_t location = 0;
  bool operator==(const LmReply&) const = default;
};

/// Pre: the key has at most kLmKeyBytes.
[[nodiscard]] std::array<char, kLmRequestBytes> pack_lm_request(const LmRequest& request);
[[nodiscard]] std::array<char, kLmReplyBytes> pack_lm_reply(const LmReply& reply);
/// Errors: kCorrupt, a command or code that there is not, or a negative length.
[[nodiscard]] Result<LmRequest> parse_lm_request(std::span<const char, kLmRequestBytes> bytes);
[[nodiscard]] Result<LmReply> parse_lm_reply(std::span<const char, kLmReplyBytes> bytes);

}  // namespace troupe::lmcache
