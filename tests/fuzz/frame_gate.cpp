// Arbitrary bytes from a peer: what comes through the gate is the beginning of what came in, whole
// frames, the same in whatever pieces it comes, and passes again.
//
// Input: a byte that says which side the peer is on, then what it sends.
#include <cstdint>
#include <cstdlib>

#include "tests/support/basp_frames.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe;
  if (size == 0) return 0;
  const Session::Side side =
      (data[0] & 1) != 0 ? Session::Side::kConnects : Session::Side::kAccepts;
  const std::string_view input(reinterpret_cast<const char*>(data + 1), size - 1);
  const Passed passed = pass(input, side, input.size());
  if (!input.starts_with(passed.frames)) std::abort();
  const Passed small = pass(input, side, 7);
  // A frame that is bad ends all that has not been read, so that fewer may pass in one piece.
  if (!std::string_view(small.frames).starts_with(passed.frames)) std::abort();
  if (small.error != passed.error) std::abort();
  const Passed again = pass(passed.frames, side, 1 + passed.frames.size());
  if (again.frames != passed.frames || !again.error.empty()) std::abort();
  return 0;
}
