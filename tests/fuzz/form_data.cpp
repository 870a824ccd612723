// A body of multipart/form-data: its first byte is the size of the pieces in which it arrives. It
// must say the same as when it arrives at once. As a request to write down a sound it is accepted,
// or refused with a reason.
#include <algorithm>
#include <cstdint>
#include <string>

#include "runtime/http/multipart.hpp"
#include "runtime/http/speech.hpp"

namespace {

std::string parts_of(std::string_view body, std::size_t size) {
  std::string parts;
  troupe::MultipartParser parser("b", {.begin =
                                           [&](const troupe::FormPart& part) {
                                             parts += "\n[" + part.name + "|" + part.filename + "]";
                                           },
                                       .content = [&](std::string_view bytes) { parts += bytes; }});
  for (std::size_t at = 0; at < body.size(); at += size) parser.feed(body.substr(at, size));
  const auto ended = parser.finish();
  // Of a body that breaks off, what has been read of its last content depends on the pieces.
  return ended.ok() ? parts : "";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.empty()) return 0;
  const std::string_view body = text.substr(1);
  const auto piece = static_cast<std::size_t>(data[0] % 64) + 1;
  if (parts_of(body, piece) != parts_of(body, std::max<std::size_t>(body.size(), 1)))
    __builtin_trap();
  (void)troupe::MultipartParser::boundary_of(body);
  const auto speech = troupe::parse_speech_request("multipart/form-data; boundary=b", body, false);
  if (!speech.ok() && speech.error().message.empty()) __builtin_trap();
  return 0;
}
