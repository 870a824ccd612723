#pragma once
// What a parser reads of a JSON body: recorded while it runs, so that the description of the API
// is made of the code that reads requests.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/http/json_fields.hpp"

namespace troupe {

enum class FieldType : std::uint8_t {
  kBoolean,
  kInteger,
  kNumber,
  kString,
  kStrings,       ///< an array
  kIntegers,      ///< an array
  kIntegerLists,  ///< an array of arrays
  kNumbers,       ///< an object of numbers
  kObject,
  kObjects,  ///< an array
  kArray,    ///< of anything
};

struct BodyField;

/// The fields of an object, in the order in which they are read first.
struct BodyShape {
  BodyShape();
  ~BodyShape();
  BodyShape(BodyShape&&) noexcept;
  BodyShape& operator=(BodyShape&&) noexcept;

  /// The field of this name, made if there is none. The reference stays valid.
  BodyField& field(std::string_view name);
  [[nodiscard]] const BodyField* find(std::string_view name) const;
  /// Adds this type; the range of numbers is that which was read last.
  void read(std::string_view name, FieldType type, const Interval& range = {});

  std::vector<std::unique_ptr<BodyField>> fields;
  std::size_t num_reads = 0;  ///< of such objects
};

struct BodyField {
  std::string name;
  std::size_t num_required = 0;  ///< objects that had to have it
  std::vector<FieldType> types;
  Interval range;                    ///< of numbers
  std::vector<std::string> choices;  ///< of strings; empty: any
  BodyShape members;                 ///< of kObject, and of the elements of kObjects
};

/// While this exists, JsonFields::parse on this thread records in `shape` what is read of the body.
/// Objects that a body lacks are read as empty ones then, so that their fields are recorded too.
class ShapeRecording {
 public:
  explicit ShapeRecording(BodyShape& shape);
  ~ShapeRecording();
  ShapeRecording(const ShapeRecording&) = delete;
  ShapeRecording& operator=(const ShapeRecording&) = delete;
};

/// The shape that ShapeRecording has set on this thread; null: none.
[[nodiscard]] BodyShape* recorded_shape() noexcept;

}  // namespace troupe
