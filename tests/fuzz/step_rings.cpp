// A worker's end of the rings, with arbitrary bytes as messages and with bytes of the segment
// changed by another process: errors or messages, and no access outside of the segment.
//
// Input: a count of changes, three bytes for each (where, little-endian; what), then the message.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "runtime/transport/step_rings.hpp"
#include "tests/fuzz/byte_changes.hpp"

namespace {

using namespace troupe;

Deadline now() { return std::chrono::steady_clock::now(); }

std::shared_ptr<SharedMemoryRing> small_ring() {
  return SharedMemoryRing::create(
             {.num_chunks = 4, .chunk_bytes = 256, .build_id = step_rings_build_id()})
      .value();
}

int file_of(const SharedMemoryRing& ring) {
  return std::atoi(ring.name().c_str() + ring.name().find(':', 5) + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto [changes, rest] = take_changes(data, size);

  const auto calls = small_ring(), answers = small_ring();
  const auto writer = RingWriter::attach(calls, 0).value();
  static_cast<void>(
      writer->write({reinterpret_cast<const char*>(rest.data()), rest.size()}, now()));
  for (std::size_t i = 0; i < changes.size(); i += 3) {
    const auto where = static_cast<off_t>(changes[i] | changes[i + 1] << 8);
    // The segment cannot grow: beyond its end this fails.
    if (::pwrite(file_of(*calls), &changes[i + 2], 1, where) < 0) continue;
  }
  auto worker = WorkerStepRings::open({.calls = calls->name(), .answers = answers->name()});
  if (!worker.ok()) return 0;
  for (int i = 0; i < 8; ++i) {
    const auto received = (*worker)->receive(now());
    if (!received.ok()) break;
    const char small[] = "x";
    static_cast<void>(writer->write(small, now()));
  }
  return 0;
}
