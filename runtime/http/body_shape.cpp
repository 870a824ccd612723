#include "runtime/http/body_shape.hpp"

#include <algorithm>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

thread_local BodyShape* current_shape = nullptr;

}  // namespace

BodyShape::BodyShape() = default;
BodyShape::~BodyShape() = default;
BodyShape::BodyShape(BodyShape&&) noexcept = default;
BodyShape& BodyShape::operator=(BodyShape&&) noexcept = default;

BodyField& BodyShape::field(std::string_view name) {
  for (const auto& each : fields)
    if (each->name == name) return *each;
  fields.push_back(std::make_unique<BodyField>());
  fields.back()->name = name;
  return *fields.back();
}

const BodyField* BodyShape::find(std::string_view name) const {
  for (const auto& each : fields)
    if (each->name == name) return each.get();
  return nullptr;
}

void BodyShape::read(std::string_view name, FieldType type, const Interval& range) {
  BodyField& read_field = field(name);
  if (std::find(read_field.types.begin(), read_field.types.end(), type) == read_field.types.end())
    read_field.types.push_back(type);
  if (type == FieldType::kInteger || type == FieldType::kNumber) read_field.range = range;
}

ShapeRecording::ShapeRecording(BodyShape& shape) {
  CHECK(current_shape == nullptr);
  current_shape = &shape;
}

ShapeRecording::~ShapeRecording() { current_shape = nullptr; }

BodyShape* recorded_shape() noexcept { return current_shape; }

}  // namespace troupe
