#pragma once
// The fields that ask for structured output.

#include "messages/sampling_params.hpp"
#include "runtime/http/json_fields.hpp"

namespace troupe {

/// `response_format`, `structured_outputs`, and `guided_*` of vLLM's earlier versions; at most one
/// of them asks for something. Errors are recorded in `fields`; whether schema, pattern or grammar
/// are valid is the InputProcessor's to find out.
void read_structured_outputs(const JsonFields& fields, SamplingParams& params);

}  // namespace troupe
