#pragma once

#include "runtime/base/json.hpp"

/// As json.hpp, for objects whose members keep their order.
namespace nlohmann::detail {
extern template class lexer<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
extern template class parser<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
extern template class lexer<ordered_json, iterator_input_adapter<const char*>>;
extern template class parser<ordered_json, iterator_input_adapter<const char*>>;
extern template class json_sax_dom_parser<ordered_json>;
extern template class json_sax_dom_callback_parser<ordered_json>;
extern template class serializer<ordered_json>;
}  // namespace nlohmann::detail
