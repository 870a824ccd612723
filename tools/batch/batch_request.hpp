#pragma once
// One line of `troupe generate`: a request body in, an output line out.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/engine_output.hpp"
#include "messages/request.hpp"
#include "runtime/http/openai_request.hpp"

namespace troupe::tools {

/// A completion or chat body, as one engine request per prompt. Owns the prompts until they are
/// taken, and the outputs.
class BatchRequest {
 public:
  /// Parses a body: a chat if it has "messages", else a completion. Fields for the transport of
  /// responses (stream, return_token_ids) have no effect. Errors: those of the parsers.
  [[nodiscard]] static Result<BatchRequest> parse(std::string_view body,
                                                  const ServerDefaults& defaults);

  /// `model` of the body; empty: none.
  [[nodiscard]] const std::string& model() const noexcept { return fields_.model; }
  /// All prompts run with this adapter; none: with the base model.
  void set_adapter(std::optional<LoraRequest> adapter) { fields_.lora = std::move(adapter); }

  /// Where the requests are to run.
  [[nodiscard]] const Placement& placement() const noexcept { return fields_.placement; }

  /// The engine requests, one per prompt; call once.
  [[nodiscard]] std::vector<GenerateRequest> take_requests();

  /// Adds the final output of prompt `index`. Pre: called once per prompt.
  void add(std::size_t index, RequestOutput output);
  /// All prompts have finished, or one has failed: then the others need not run.
  [[nodiscard]] bool done() const noexcept { return error_.has_value() || num_missing_ == 0; }
  [[nodiscard]] bool failed() const noexcept { return error_.has_value(); }

  /// The output line: {"index", "choices", "prompt_token_ids", "usage"}, or {"index", "error"}.
  /// Choice index = prompt * n + sample; with several prompts prompt_token_ids is a list of lists.
  /// Pre: done().
  [[nodiscard]] std::string answer_json(std::size_t line_index) const;

 private:
  BatchRequest() = default;

  std::vector<Prompt> prompts_;
  GenerationFields fields_;
  bool echo_prompt_ = false;            ///< texts begin with the prompt's
  bool echo_only_ = false;              ///< and end with it
  std::string echo_text_;               ///< of a chat
  std::vector<RequestOutput> outputs_;  ///< by prompt
  std::size_t num_missing_ = 0;
  std::optional<Error> error_;
};

/// {"index", "error": {"message", "type", "param", "code"}}
[[nodiscard]] std::string batch_error_json(std::size_t line_index, const Error& error);

}  // namespace troupe::tools
