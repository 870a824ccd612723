#include "runtime/structured_output/unicode_sets.hpp"

#include <unicode/uchar.h>

#include <string>

namespace troupe {
namespace {

/// The code points of the categories whose bits are set in `mask`.
CodePointSet of_categories(std::uint32_t mask) {
  struct Context {
    std::uint32_t mask;
    CodePointSet set;
  } context{mask, {}};
  u_enumCharTypes(
      [](const void* data, UChar32 start, UChar32 limit, UCharCategory type) -> UBool {
        auto& to = *static_cast<Context*>(const_cast<void*>(data));
        if ((to.mask >> type & 1) != 0)
          to.set.add(static_cast<std::uint32_t>(start), static_cast<std::uint32_t>(limit - 1));
        return true;
      },
      &context);
  return std::move(context.set);
}

}  // namespace

const CodePointSet& python_digits() {
  static const CodePointSet set = of_categories(U_GC_ND_MASK);
  return set;
}

const CodePointSet& python_word_characters() {
  // str.isalnum() or '_': letters, and what has a numeric value.
  static const CodePointSet set = [] {
    CodePointSet word = of_categories(U_GC_L_MASK | U_GC_N_MASK);
    word.add('_', '_');
    return word;
  }();
  return set;
}

const CodePointSet& python_spaces() {
  static const CodePointSet set{
      {0x09, 0x0D},     {0x1C, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  return set;
}

const CodePointSet& ecma_spaces() {
  static const CodePointSet set{
      {0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
      {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}

std::optional<CodePointSet> general_category(std::string_view name) {
  const int32_t mask =
      u_getPropertyValueEnum(UCHAR_GENERAL_CATEGORY_MASK, std::string(name).c_str());
  if (mask == UCHAR_INVALID_CODE) return std::nullopt;
  return of_categories(static_cast<std::uint32_t>(mask));
}

}  // namespace troupe
