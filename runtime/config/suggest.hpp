#pragma once
// What somebody may have meant who wrote a name that does not exist.

#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`: the optimal string
/// alignment distance.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate that `word` is most likely meant to be: one that it differs from by a third of its
/// letters at most, or that has all of its words ("max-seqs" is "max-num-seqs"). Empty: none.
[[nodiscard]] std::string closest(std::string_view word, std::span<const std::string> candidates);

}  // namespace troupe
