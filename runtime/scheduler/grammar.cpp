#include "runtime/scheduler/grammar.hpp"

#include <algorithm>
#include <utility>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

/// One row per draft and one more: tokens allowed in the position of each draft, and after the last
/// one. Sets `end` if a row allows nothing. Returns the likely tokens behind the drafts.
std::vector<TokenId> fill_rows(GrammarMasker& masker, std::span<const TokenId> drafts,
                               std::size_t width, std::size_t max_likely,
                               std::span<std::int32_t> rows, std::optional<GrammarEnd>& end) {
  std::size_t num_accepted = 0;
  bool placeholder = false;  // the state after one is unknown
  bool refused = false;
  for (std::size_t i = 0; i <= drafts.size(); ++i) {
    const auto row = rows.subspan(i * width, width);
    if (placeholder) {
      std::fill(row.begin(), row.end(), -1);
      continue;
    }
    if (refused) {  // the worker does not come here
      std::copy_n(row.begin() - static_cast<std::ptrdiff_t>(width), width, row.begin());
      continue;
    }
    masker.fill_bitmask(row);
    if (std::ranges::all_of(row, [](std::int32_t word) { return word == 0; }))
      end = GrammarEnd{.num_tokens = i, .error = masker.why_nothing_fits()};
    if (i == drafts.size()) continue;
    if (drafts[i] < 0)
      placeholder = true;
    else if (masker.accept(drafts[i]))
      ++num_accepted;
    else
      refused = true;
  }
  std::vector<TokenId> likely;
  if (max_likely > 0 && num_accepted == drafts.size() && !end)
    likely = masker.likely_tokens(max_likely);
  masker.rollback(num_accepted);
  return likely;
}

}  // namespace

GrammarMasks fill_masks(GrammarStep step) {
  GrammarMasks masks;
  GrammarOutput& output = masks.output;
  output.step = step.step;
  for (GrammarStep::Request& request : step.requests) {
    const std::size_t width = request.words_per_row;
    CHECK(output.ids.empty() || width == static_cast<std::size_t>(output.words_per_row), width,
          output.words_per_row);
    output.words_per_row = static_cast<std::int32_t>(width);
    const auto& drafts = request.drafts;
    output.ids.push_back(request.id);
    output.num_rows.push_back(static_cast<std::int32_t>(drafts.size()) + 1);
    output.num_acceptable_drafts.push_back(
        static_cast<std::int32_t>(std::find(drafts.begin(), drafts.end(), -1) - drafts.begin()));
    const std::size_t first = output.bitmask.size();
    output.bitmask.resize(first + (drafts.size() + 1) * width);
    std::optional<GrammarEnd> end;
    std::vector<TokenId> likely =
        fill_rows(*request.masker, drafts, width, request.max_proposed_tokens,
                  std::span(output.bitmask).subspan(first), end);
    if (!likely.empty())
      masks.proposals.push_back({.id = request.id,
                                 .sequence = request.sequence,
                                 .num_tokens = request.num_tokens + drafts.size(),
                                 .tokens = std::move(likely)});
    if (!end) continue;
    end->id = request.id;
    end->sequence = request.sequence;
    end->step = step.step;
    masks.ended.push_back(*std::move(end));
  }
  return masks;
}

}  // namespace troupe
