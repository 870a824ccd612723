#include "runtime/structured_output/choice.hpp"

#include <vector>

namespace troupe {

Result<GrammarBuilder> choice_grammar(std::span<const std::string> choices,
                                      const GrammarLimits& limits) {
  if (choices.empty()) return invalid_argument("choice: there is nothing to choose from");
  try {
    GrammarBuilder builder(limits);
    const GrammarRuleId root = builder.add_rule();
    std::vector<GrammarNodeId> texts;
    for (const std::string& choice : choices) texts.push_back(builder.literal(choice));
    builder.set_body(root, builder.choice(texts));
    return builder;
  } catch (const GrammarRefused& refused) {
    return refused.error();
  }
}

}  // namespace troupe
