#include "runtime/base/json.hpp"

namespace nlohmann {
namespace detail {
template class iter_impl<const json>;
}  // namespace detail
template class basic_json<>;
}  // namespace nlohmann
