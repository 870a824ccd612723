#pragma once

#include <istream>
#include <nlohmann/json.hpp>
#include <string>

/// nlohmann's JSON library, included through this header only. Its parser, serializer and values
/// are instantiated in json.cpp and json_parser.cpp: in each file that uses them they would take 2
/// s to compile, and 8 s with the address sanitizer.
namespace nlohmann {
namespace detail {
// What json::parse reads: a std::string, a std::string_view or a range of chars, and a stream.
extern template class lexer<json, iterator_input_adapter<std::string::const_iterator>>;
extern template class parser<json, iterator_input_adapter<std::string::const_iterator>>;
extern template class lexer<json, iterator_input_adapter<const char*>>;
extern template class parser<json, iterator_input_adapter<const char*>>;
extern template class lexer<json, input_stream_adapter>;
extern template class parser<json, input_stream_adapter>;
extern template class json_sax_dom_parser<json>;
extern template class json_sax_dom_callback_parser<json>;
extern template class serializer<json>;
extern template class iter_impl<const json>;
}  // namespace detail
extern template class basic_json<>;
}  // namespace nlohmann
