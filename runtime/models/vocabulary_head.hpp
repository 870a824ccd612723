#pragma once
// The last matrix of a language model, from hidden states to logits, over the ranks of a stage.

#include <cstdint>
#include <string>

#include "runtime/models/layers.hpp"

namespace troupe {

/// Rows of the vocabulary, of this rank.
class VocabularyHead {
 public:
  /// None: of another stage.
  VocabularyHead() = default;
  /// `name`: of the matrix, [vocab_size, hidden_size].
  VocabularyHead(WeightLoader& loader, const std::string& name, std::int64_t vocab_size,
                 std::int64_t hidden_size);

  /// out = hidden W^T: [num_rows, vocab_size]. By all ranks of the stage; the first of them gets
  /// all columns, on the others `out` is not used. False: not the first, or a peer has failed.
  bool apply(Device& device, Scratch scratch, ConstMatrix hidden, Communicator* peers,
             Matrix out) const;
  /// For so many rows.
  [[nodiscard]] MixerMemory memory(Device& device, std::int64_t max_rows) const noexcept;

 private:
  Linear matrix_;
  std::int64_t vocab_size_ = 0;
  std::int32_t num_ranks_ = 1;
};

}  // namespace troupe
