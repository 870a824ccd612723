#pragma once
// Fields that describe a conversation, shared by chat and /tokenize.

#include <string>
#include <vector>

#include "messages/request.hpp"
#include "runtime/http/json_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

/// The last message, as far as responses need it, and the places of all that are marked.
struct LastMessage {
  std::string role;
  std::string text;                          ///< empty if the content is not a string
  std::vector<CacheBreakpoint> breakpoints;  ///< by cache_control
};

/// Reads messages, tools, documents and template settings; errors are recorded in `fields`.
ChatPrompt read_chat_prompt(const JsonFields& fields, const ServerDefaults& defaults,
                            LastMessage& last);

}  // namespace troupe
