#include "runtime/http/gzip.hpp"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <memory>

namespace troupe {
namespace {

constexpr std::size_t kPieceBytes = 64 << 10;
constexpr int kGzipWindow = 15 + 16;  ///< maximum window, gzip format only

}  // namespace

Result<std::string> gunzip(std::string_view packed, std::uint64_t max_bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindow) != Z_OK)
    return Error{ErrorCode::kInternal, "zlib failed to initialise", ""};
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  const auto* next = reinterpret_cast<const Bytef*>(packed.data());
  std::size_t left = packed.size();
  std::string plain, piece(kPieceBytes, '\0');
  int status = Z_OK;
  do {
    if (status == Z_STREAM_END && inflateReset(&stream) != Z_OK) break;
    stream.next_in = const_cast<Bytef*>(next);  // zlib only reads it
    stream.avail_in =
        static_cast<uInt>(std::min<std::size_t>(left, std::numeric_limits<uInt>::max()));
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = kPieceBytes;
    const uInt before = stream.avail_in;
    status = inflate(&stream, Z_NO_FLUSH);
    next += before - stream.avail_in;
    left -= before - stream.avail_in;
    const std::size_t made = kPieceBytes - stream.avail_out;
    if (plain.size() + made > max_bytes) {
      return Error{
          ErrorCode::kTooLarge,
          "the decompressed request body exceeds max_body_bytes, " + std::to_string(max_bytes), ""};
    }
    plain.append(piece, 0, made);
  } while (status == Z_OK || (status == Z_STREAM_END && left > 0));
  if (status == Z_STREAM_END) return plain;
  return invalid_argument("the request body does not match Content-Encoding: " +
                              std::string(left == 0 ? "truncated gzip" : "not gzip, or corrupt"),
                          "Content-Encoding");
}

}  // namespace troupe
