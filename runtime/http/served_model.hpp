#pragma once
// What the names of models in requests stand for.

#include <optional>
#include <span>
#include <string>

#include "messages/request.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// What a request's `model` stands for.
struct ServedModel {
  std::string name;                 ///< as it is served
  std::optional<LoraRequest> lora;  ///< the adapter of that name; none: the base model
};

/// One of `names`, those of the base model, or of the adapters. Of an empty name: the first of
/// `names`. Errors: kNotFound, param model.
[[nodiscard]] Result<ServedModel> find_served_model(const std::string& model,
                                                    std::span<const std::string> names,
                                                    std::span<const LoraRequest> adapters);

}  // namespace troupe
