#pragma once
// Python's numbers: integers of any size (up to a limit), floats, and their text forms.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/chat/jinja/value.hpp"

namespace troupe::jinja {

enum class Arithmetic { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };

/// Pre: both are numbers. Fails as Python does, and for results of more than 16384 bits.
[[nodiscard]] Value calculate(Arithmetic operation, const Value& left, const Value& right);
/// Cost of calculate(operation, left, right).
[[nodiscard]] std::uint64_t cost_of(Arithmetic operation, const Value& left, const Value& right);
/// Cost of reading a number's digits once: 0 for a small one.
[[nodiscard]] std::uint64_t cost_of_number(const Value& number);
/// Cost of converting a number to text or back; quadratic in the digits.
[[nodiscard]] std::uint64_t cost_of_digits(const Value& number);
[[nodiscard]] std::uint64_t cost_of_digits(std::size_t num_digits);
[[nodiscard]] Value negate(const Value& number);
[[nodiscard]] std::partial_ordering compare_numbers(const Value& left, const Value& right);
[[nodiscard]] double to_double(const Value& number);
/// An integer or a float as printed by Python; a bool is printed as 1 or 0.
[[nodiscard]] std::string number_text(const Value& number);
[[nodiscard]] std::string float_repr(double number);
/// int(text, base): surrounding spaces, a sign, underscores between digits, a prefix that matches
/// the base.
[[nodiscard]] std::optional<Value> parse_integer(std::string_view text, int base = 10);
/// float(text).
[[nodiscard]] std::optional<double> parse_float(std::string_view text);
/// int(number) of a finite float.
[[nodiscard]] Value truncate(double number);
/// round(number, num_digits): half to even.
[[nodiscard]] double round_half_even(double number, std::int64_t num_digits);
/// `number` in base 2, 8, 10 or 16, without prefix.
[[nodiscard]] std::string integer_digits(const Value& number, int base);

}  // namespace troupe::jinja
