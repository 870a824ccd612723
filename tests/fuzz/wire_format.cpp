// Arbitrary bytes as each message that crosses between actors: refused, or read and written again
// to the same message.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "messages/cache.hpp"
#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "messages/scheduler_output.hpp"
#include "messages/wire.hpp"
#include "runtime/kv_transfer/peer_messages.hpp"

namespace {

template <class T>
void read_as(const char* data, std::size_t size) {
  T message;
  if (!troupe::wire::decode(data, size, message)) return;
  std::vector<char> first, second;
  troupe::wire::encode(message, first);
  T copy;
  if (!troupe::wire::decode(first.data(), first.size(), copy)) std::abort();
  troupe::wire::encode(copy, second);
  if (first != second) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const char* bytes = reinterpret_cast<const char*>(data + 1);
  using Read = void (*)(const char*, std::size_t);
  constexpr Read kReaders[] = {read_as<troupe::GenerateRequest>,
                               read_as<troupe::EngineCoreRequest>,
                               read_as<troupe::SchedulerOutput>,
                               read_as<troupe::ModelRunnerOutput>,
                               read_as<troupe::EngineCoreOutputs>,
                               read_as<troupe::RequestOutputs>,
                               read_as<troupe::AllocateSlots>,
                               read_as<troupe::KVCacheConfig>,
                               read_as<troupe::GrammarOutput>,
                               read_as<troupe::PeerMessage>,
                               read_as<troupe::PeerOps>};
  kReaders[data[0] % std::size(kReaders)](bytes, size - 1);
  return 0;
}
