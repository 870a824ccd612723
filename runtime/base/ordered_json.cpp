#include "runtime/base/ordered_json.hpp"

namespace nlohmann::detail {
template class lexer<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
template class parser<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
template class lexer<ordered_json, iterator_input_adapter<const char*>>;
template class parser<ordered_json, iterator_input_adapter<const char*>>;
template class json_sax_dom_parser<ordered_json>;
template class json_sax_dom_callback_parser<ordered_json>;
template class serializer<ordered_json>;
}  // namespace nlohmann::detail
