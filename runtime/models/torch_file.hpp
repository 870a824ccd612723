#pragma once
// Reading weights as torch.save writes them (pytorch_model.bin): a ZIP archive, without
// compression, of one entry per storage beside data.pkl, a Python pickle that says which tensors
// lie where.

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/models/safetensors.hpp"

namespace troupe {

/// The tensors of a file that is in memory; they are views of it. `file_name` is for errors only.
///
/// A pickle is a program. Only the instructions that a dictionary of tensors needs are followed,
/// and of what they may call, only what makes dictionaries, storages and tensors, none of which
/// runs anything here. Checked, as a file may be damaged or hostile: every length and offset of the
/// archive, the pickle's stack and memo, and that each tensor lies in its storage.
/// Errors: kCorrupt; kUnsupported (an archive that is compressed or encrypted, a pickle of anything
/// but tensors by name, an element type, a tensor whose elements do not follow each other, the
/// format of torch before 1.6), naming file and tensor.
Result<TensorMap> parse_torch_file(std::span<const std::byte> bytes, std::string_view file_name);

}  // namespace troupe
