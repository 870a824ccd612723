#pragma once
// What the tests of request bodies complete and check them with.

#include "runtime/http/openai_request.hpp"

namespace troupe {

inline ServerDefaults defaults() {
  ServerDefaults defaults;
  defaults.max_model_len = 1000;
  defaults.vocab_size = 100;
  defaults.by_priority = true;
  return defaults;
}

}  // namespace troupe
