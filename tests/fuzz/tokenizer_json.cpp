// Any bytes as tokenizer.json: they are refused or give a tokenizer that encodes and decodes.

#include <cstdint>

#include "runtime/tokenizer/incremental_decoder.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = troupe::Tokenizer::from_json(json, json);
  if (!tokenizer.ok()) return 0;
  for (const std::string_view text :
       {std::string_view(""),
        std::string_view("Hello  w\u00F6rld\n\u4E2D\u6587 <s>123 \u2581x\xFF"),
        json.substr(0, 256)}) {
    const auto encoded = (*tokenizer)->encode(text, true);
    static_cast<void>((*tokenizer)->encode_with_offsets(text, false));
    static_cast<void>((*tokenizer)->encode_pair(text, "b", true));
    if (!encoded.ok()) continue;  // components that do too much
    const auto& ids = *encoded;
    static_cast<void>((*tokenizer)->decode(ids, true));
    troupe::IncrementalDecoder decoder(*tokenizer, false, ids);
    for (const troupe::TokenId id : ids) static_cast<void>(decoder.step(id));
  }
  return 0;
}
