#include "runtime/kv_transfer/lmcache/lm_protocol.hpp"

#include <bit>
#include <cstring>

#include "runtime/base/check.hpp"

namespace troupe::lmcache {
namespace {

static_assert(std::endian::native == std::endian::little);
using Words = std::array<std::int32_t, 9>;

Error bad_word(const char* what, std::int32_t word) {
  return {ErrorCode::kCorrupt, std::string("lm: ") + what + " is " + std::to_string(word), {}};
}

TensorInfo tensor_info(std::int32_t format, std::int32_t dtype,
                       std::span<const std::int32_t> shape) {
  TensorInfo info{static_cast<MemoryFormat>(format), static_cast<TensorDtype>(dtype), {}};
  std::memcpy(info.shape.data(), shape.data(), sizeof(info.shape));
  return info;
}

}  // namespace

std::array<char, kLmRequestBytes> pack_lm_request(const LmRequest& request) {
  CHECK(request.key.size() <= kLmKeyBytes, request.key.size());
  const TensorInfo& info = request.info;
  const Words words = {static_cast<std::int32_t>(request.command),
                       request.length,
                       static_cast<std::int32_t>(info.format),
                       static_cast<std::int32_t>(info.dtype),
                       request.location,
                       info.shape[0],
                       info.shape[1],
                       info.shape[2],
                       info.shape[3]};
  std::array<char, kLmRequestBytes> bytes;
  bytes.fill(' ');
  std::memcpy(bytes.data(), words.data(), sizeof(words));
  std::memcpy(bytes.data() + sizeof(words), request.key.data(), request.key.size());
  return bytes;
}

std::array<char, kLmReplyBytes> pack_lm_reply(const LmReply& reply) {
  const TensorInfo& info = reply.info;
  const Words words = {static_cast<std::int32_t>(reply.code),
                       reply.length,
                       static_cast<std::int32_t>(info.format),
                       static_cast<std::int32_t>(info.dtype),
                       info.shape[0],
                       info.shape[1],
                       info.shape[2],
                       info.shape[3],
                       reply.location};
  return std::bit_cast<std::array<char, kLmReplyBytes>>(words);
}

Result<LmRequest> parse_lm_request(std::span<const char, kLmRequestBytes> bytes) {
  Words words;
  std::memcpy(words.data(), bytes.data(), sizeof(words));
  const auto command = static_cast<LmCommand>(words[0]);
  if (command != LmCommand::kAuth && (command < LmCommand::kPut || command > LmCommand::kHealth))
    return bad_word("the command", words[0]);
  if (words[1] < 0) return bad_word("the length", words[1]);
  std::string_view key(bytes.data() + sizeof(words), kLmKeyBytes);
  // What Python's str.strip() takes away, of the characters that occur.
  const std::size_t begin = key.find_first_not_of(' ');
  key = begin == std::string_view::npos ? std::string_view()
                                        : key.substr(begin, key.find_last_not_of(' ') - begin + 1);
  return LmRequest{command, words[1], tensor_info(words[2], words[3], std::span(words).subspan(5)),
                   words[4], std::string(key)};
}

Result<LmReply> parse_lm_reply(std::span<const char, kLmReplyBytes> bytes) {
  Words words;
  std::memcpy(words.data(), bytes.data(), sizeof(words));
  const auto code = static_cast<LmCode>(words[0]);
  if (code != LmCode::kSuccess && code != LmCode::kFail) return bad_word("the code", words[0]);
  if (words[1] < 0) return bad_word("the length", words[1]);
  return LmReply{code, words[1], tensor_info(words[2], words[3], std::span(words).subspan(4)),
                 words[8]};
}

}  // namespace troupe::lmcache
