#include "runtime/base/check.hpp"

namespace troupe::internal {

void check_failed(const char* expression, const char* file, int line, const std::string& values) {
  throw CheckFailure(std::string("check failed: ") + expression + values + " (" + file + ":" +
                     std::to_string(line) + ")");
}

}  // namespace troupe::internal
