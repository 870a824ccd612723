#include "runtime/tokenizer/vocabulary.hpp"

#include "runtime/base/check.hpp"

namespace troupe {

void Vocabulary::add(std::string token, TokenId id) {
  CHECK(id >= 0 && id <= kMaxId, id);
  const auto [it, is_new] = ids_.insert_or_assign(std::move(token), id);
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1, nullptr);
  tokens_[index] = &it->first;
}

std::optional<TokenId> Vocabulary::id_of(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::optional<std::string_view> Vocabulary::token_of(TokenId id) const {
  const auto index = static_cast<std::size_t>(id);
  if (id < 0 || index >= tokens_.size() || tokens_[index] == nullptr) return std::nullopt;
  return *tokens_[index];
}

}  // namespace troupe
