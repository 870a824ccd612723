#include "runtime/tokenizer/regex.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/base/json.hpp"
#include "runtime/tokenizer/splitters.hpp"

namespace troupe {
namespace {

/// `text` cut at the matches; what lies between two of them is a piece too.
template <typename Find>
std::vector<std::string> cut(const std::string& text, const Find& find) {
  std::vector<std::string> pieces;
  for (std::size_t from = 0; from < text.size();) {
    const std::optional<ByteRange> match = find(text, from);
    if (!match) {
      pieces.push_back(text.substr(from));
      break;
    }
    if (match->begin > from) pieces.push_back(text.substr(from, match->begin - from));
    BOOST_REQUIRE(match->end > match->begin);
    pieces.push_back(text.substr(match->begin, match->end - match->begin));
    from = match->end;
  }
  return pieces;
}

// The file is made by tests/support/make_expression_goldens.py.
BOOST_AUTO_TEST_CASE(expressions_cut_newer_characters_as_the_reference_does) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/expressions.jsonl");
  BOOST_REQUIRE(file.good());
  std::string line;
  std::size_t num_texts = 0;
  while (std::getline(file, line)) {
    const auto row = nlohmann::json::parse(line);
    const auto expression = row.at("expression").get<std::string>();
    const auto regex = Regex::compile(expression);
    BOOST_REQUIRE_MESSAGE(regex.ok(), expression);
    const Splitter splitter = splitter_for(expression);
    std::size_t num_different = 0;
    for (const auto& each : row.at("pieces")) {
      const auto pieces = each.get<std::vector<std::string>>();
      std::string text;
      for (const std::string& piece : pieces) text += piece;
      const auto engine = [&](const std::string& in, std::size_t from) {
        WorkBudget work;
        return (*regex)->find(in, from, work);
      };
      const auto ours = cut(text, engine);
      const bool is_same = ours == pieces && (splitter == nullptr || cut(text, splitter) == pieces);
      ++num_texts;
      if (!is_same && ++num_different == 1) {
        BOOST_TEST_MESSAGE(expression << ": " << nlohmann::json(ours).dump(-1, ' ', true)
                                      << ", expected "
                                      << nlohmann::json(pieces).dump(-1, ' ', true));
      }
    }
    BOOST_TEST(num_different == 0u, expression << ": " << num_different << " texts differ");
  }
  BOOST_TEST(num_texts >= 200u);
}

}  // namespace
}  // namespace troupe
