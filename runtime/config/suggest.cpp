#include "runtime/config/suggest.hpp"

#include <algorithm>
#include <vector>

namespace troupe {
namespace {

constexpr std::size_t kLongestWord = 64;  // longer words are not misspelt names

std::vector<std::string_view> words_of(std::string_view name) {
  std::vector<std::string_view> words;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find_first_of("-_"), name.size());
    if (end > 0) words.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return words;
}

bool has_all(const std::vector<std::string_view>& words,
             const std::vector<std::string_view>& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  });
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table: transpositions use the row before the previous one.
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

std::string closest(std::string_view word, std::span<const std::string> candidates) {
  if (word.empty() || word.size() > kLongestWord) return {};
  const std::vector<std::string_view> wanted = words_of(word);
  const std::string* best = nullptr;
  std::size_t best_cost = 0;
  for (const std::string& candidate : candidates) {
    std::size_t cost = edit_distance(word, candidate);
    bool likely = cost <= std::max<std::size_t>(word.size() / 3, 1);
    const std::vector<std::string_view> words = words_of(candidate);
    if (!wanted.empty() && has_all(words, wanted)) {
      cost = std::min(cost, words.size() - wanted.size());
      likely = true;
    }
    if (!likely || (best != nullptr && cost >= best_cost)) continue;
    best = &candidate;
    best_cost = cost;
  }
  return best == nullptr ? std::string() : *best;
}

}  // namespace troupe
