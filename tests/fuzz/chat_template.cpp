// Arbitrary text as the messages of a conversation, and as a template, compiled and rendered for a
// fixed one: it must end with a text or an error, within its limits.
#include <cstdint>
#include <string>

#include "runtime/chat/chat_messages.hpp"
#include "runtime/chat/chat_template.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr troupe::ChatTemplateLimits kLimits{
      .max_source_bytes = 1 << 16, .max_output_bytes = 1 << 16, .max_steps = 20000};
  const std::string source(reinterpret_cast<const char*>(data), size);
  (void)troupe::normalize_messages(source, {});
  const auto compiled = troupe::ChatTemplate::compile(source, kLimits);
  if (!compiled.ok()) return 0;
  troupe::ChatTemplateInput input;
  input.messages_json =
      R"([{"role":"system","content":"Be kind."},{"role":"user","content":[{"type":"text","text":"\u00e9"}]},)"
      R"({"role":"assistant","content":"a","tool_calls":[{"function":{"name":"f","arguments":{"k":[1,null]}}}]}])";
  input.tools_json = R"([{"type":"function","function":{"name":"f","parameters":{"n":1.5}}}])";
  input.special_tokens = {{"bos_token", "<s>"}};
  input.add_generation_prompt = true;
  const auto rendered = compiled.value()->render(input);
  if (rendered.ok() && rendered->text.size() > kLimits.max_output_bytes) __builtin_trap();
  return 0;
}
