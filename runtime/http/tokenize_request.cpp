#include "runtime/http/chat_fields.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe {

Result<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                               const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  TokenizeRequest request;
  request.model = fields.text("model").value_or("");
  request.render.return_token_strings = fields.boolean("return_token_strs").value_or(false);
  if (fields.has("messages")) {
    LastMessage last;
    request.render.prompt = read_chat_prompt(fields, defaults, last);
  } else {
    fields.require("prompt");
    request.render.prompt = TextPrompt{fields.text("prompt").value_or(""),
                                       fields.boolean("add_special_tokens").value_or(true)};
  }
  RETURN_IF_ERROR(fields.result());
  return request;
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                   const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  DetokenizeRequest request;
  request.model = fields.text("model").value_or("");
  fields.require("tokens");
  request.render.prompt =
      TokensPrompt{fields.tokens("tokens", defaults.vocab_size).value_or(std::vector<TokenId>{})};
  RETURN_IF_ERROR(fields.result());
  return request;
}

}  // namespace troupe
