#include "runtime/chat/jinja/numbers.hpp"

#include <algorithm>
#include <array>
#include <boost/multiprecision/cpp_int.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "runtime/base/check.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {

using Integer = boost::multiprecision::cpp_int;
struct BigInt {
  Integer value;
};

namespace {

constexpr std::uint64_t kMaxBits = 16384;
constexpr std::uint64_t kMaxLimbs = kMaxBits / 64;
constexpr std::size_t kMaxDigits = 4300;  // Python's own limit for int <-> text

const BigInt* big(const Value& number) {
  const auto* pointer = number.get_if<std::shared_ptr<const BigInt>>();
  return pointer ? pointer->get() : nullptr;
}

Integer to_integer(const Value& number) {
  if (const BigInt* large = big(number)) return large->value;
  return Integer(*number.small_integer());
}

Value from_integer(const Integer& number) {
  if (number >= std::numeric_limits<std::int64_t>::min() &&
      number <= std::numeric_limits<std::int64_t>::max()) {
    return Value(static_cast<std::int64_t>(number));
  }
  const Integer magnitude = abs(number);
  if (msb(magnitude) >= kMaxBits) {
    fail_limit("an integer of the chat template has more than " + std::to_string(kMaxBits) +
               " bits");
  }
  return Value(std::make_shared<const BigInt>(BigInt{number}));
}

[[noreturn]] void fail_zero_division(const char* what) { fail_value(what); }

Integer floor_divide(const Integer& left, const Integer& right) {
  Integer quotient = left / right;
  if (left % right != 0 && (left < 0) != (right < 0)) --quotient;
  return quotient;
}

/// Python accepts the decimal digits of all scripts.
std::string with_ascii_digits(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::string digits;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    const int digit = decimal_value(decode_at(text, i));
    if (digit < 0) {
      digits += text.substr(begin, i - begin);
    } else {
      digits += static_cast<char>('0' + digit);
    }
  }
  return digits;
}

Value integer_power(const Value& left, const Value& right) {
  const std::optional<std::int64_t> exponent = right.small_integer();
  const Integer base = to_integer(left);
  if (base == 0 || base == 1) {
    return Value(std::int64_t{base == 1 || (exponent && *exponent == 0)});
  }
  if (base == -1 && exponent) return Value(std::int64_t{*exponent % 2 == 0 ? 1 : -1});
  const std::uint64_t bits = msb(Integer(abs(base)));
  if (!exponent ||
      (bits + 1) * std::min<std::uint64_t>(static_cast<std::uint64_t>(*exponent), 2 * kMaxBits) >
          2 * kMaxBits) {
    fail_limit("an integer of the chat template has more than " + std::to_string(kMaxBits) +
               " bits");
  }
  return from_integer(boost::multiprecision::pow(base, static_cast<unsigned>(*exponent)));
}

Value calculate_integers(Arithmetic operation, const Value& left, const Value& right) {
  const auto a = left.small_integer();
  const auto b = right.small_integer();
  std::int64_t result = 0;
  switch (operation) {
    case Arithmetic::kAdd:
      if (a && b && !__builtin_add_overflow(*a, *b, &result)) return Value(result);
      return from_integer(to_integer(left) + to_integer(right));
    case Arithmetic::kSubtract:
      if (a && b && !__builtin_sub_overflow(*a, *b, &result)) return Value(result);
      return from_integer(to_integer(left) - to_integer(right));
    case Arithmetic::kMultiply:
      if (a && b && !__builtin_mul_overflow(*a, *b, &result)) return Value(result);
      return from_integer(to_integer(left) * to_integer(right));
    case Arithmetic::kDivide:
      if (to_integer(right) == 0) fail_zero_division("division by zero");
      return Value(to_double(left) / to_double(right));
    case Arithmetic::kFloorDivide:
      if (to_integer(right) == 0) fail_zero_division("integer division or modulo by zero");
      return from_integer(floor_divide(to_integer(left), to_integer(right)));
    case Arithmetic::kModulo: {
      const Integer divisor = to_integer(right);
      if (divisor == 0) fail_zero_division("integer modulo by zero");
      const Integer dividend = to_integer(left);
      return from_integer(dividend - floor_divide(dividend, divisor) * divisor);
    }
    case Arithmetic::kPower:
      if (to_integer(right) >= 0) return integer_power(left, right);
      if (to_integer(left) == 0) {
        fail_zero_division("0.0 cannot be raised to a negative power");
      }
      return Value(std::pow(to_double(left), to_double(right)));
  }
  CHECK(false);
}

double float_modulo(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0) {
    if ((remainder < 0) != (b < 0)) remainder += b;
  } else {
    remainder = std::copysign(0.0, b);
  }
  return remainder;
}

double calculate_floats(Arithmetic operation, double a, double b) {
  switch (operation) {
    case Arithmetic::kAdd:
      return a + b;
    case Arithmetic::kSubtract:
      return a - b;
    case Arithmetic::kMultiply:
      return a * b;
    case Arithmetic::kDivide:
      if (b == 0) fail_zero_division("float division by zero");
      return a / b;
    case Arithmetic::kFloorDivide: {
      if (b == 0) fail_zero_division("float floor division by zero");
      const double quotient = (a - float_modulo(a, b)) / b;
      const double floored = std::floor(quotient);
      if (floored == 0) return std::copysign(0.0, a / b);
      return quotient - floored > 0.5 ? floored + 1 : floored;
    }
    case Arithmetic::kModulo:
      if (b == 0) fail_zero_division("float modulo");
      return float_modulo(a, b);
    case Arithmetic::kPower: {
      if (a == 0 && b < 0) fail_zero_division("0.0 cannot be raised to a negative power");
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) {
        fail_type("a negative number to a fractional power is not supported");
      }
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
        fail_value("Numerical result out of range");
      }
      return power;
    }
  }
  CHECK(false);
}

}  // namespace

Value calculate(Arithmetic operation, const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer()) return calculate_integers(operation, left, right);
  return Value(calculate_floats(operation, to_double(left), to_double(right)));
}

std::uint64_t cost_of_number(const Value& number) {
  const BigInt* large = big(number);
  return large ? 4 + large->value.backend().size() : 0;
}

std::uint64_t cost_of(Arithmetic operation, const Value& left, const Value& right) {
  const std::uint64_t linear = 1 + cost_of_number(left) + cost_of_number(right);
  switch (operation) {
    case Arithmetic::kPower: {
      // By squaring: costs less than twice the last multiplication.
      const auto exponent = right.small_integer();
      return linear == 1 && exponent && *exponent < 64 ? 1 : 2 * (kMaxLimbs * kMaxLimbs / 4);
    }
    case Arithmetic::kMultiply:
    case Arithmetic::kDivide:
    case Arithmetic::kFloorDivide:
    case Arithmetic::kModulo:
      return 1 + linear + cost_of_number(left) * cost_of_number(right) / 4;
    case Arithmetic::kAdd:
    case Arithmetic::kSubtract:
      return linear;
  }
  return linear;
}

std::uint64_t cost_of_digits(const Value& number) {
  const std::uint64_t limbs = cost_of_number(number);
  return 1 + limbs * limbs / 4;
}
std::uint64_t cost_of_digits(std::size_t num_digits) {
  const std::uint64_t limbs = std::min(num_digits, kMaxDigits) / 16;
  return 1 + num_digits / 4 + limbs * limbs / 4;
}

Value negate(const Value& number) {
  if (const double* value = number.get_if<double>()) return Value(-*value);
  return calculate(Arithmetic::kSubtract, Value(std::int64_t{0}), number);
}

std::partial_ordering compare_numbers(const Value& left, const Value& right) {
  if (left.is_integer() && right.is_integer()) {
    const auto a = left.small_integer();
    const auto b = right.small_integer();
    if (a && b) return *a <=> *b;
    const int sign = to_integer(left).compare(to_integer(right));
    return sign <=> 0;
  }
  // A long double holds every int64 exactly.
  const auto wide = [](const Value& number) {
    const auto small = number.small_integer();
    return small ? static_cast<long double>(*small) : static_cast<long double>(to_double(number));
  };
  return wide(left) <=> wide(right);
}

double to_double(const Value& number) {
  if (const double* value = number.get_if<double>()) return *value;
  if (const auto small = number.small_integer()) return static_cast<double>(*small);
  const double converted = static_cast<double>(to_integer(number));
  if (std::isinf(converted)) fail_value("int too large to convert to float");
  return converted;
}

std::string number_text(const Value& number) {
  if (const double* value = number.get_if<double>()) return float_repr(*value);
  if (const auto small = number.small_integer()) return std::to_string(*small);
  std::string digits = big(number)->value.str();
  if (digits.size() > kMaxDigits) {
    fail_value("an integer of more than " + std::to_string(kMaxDigits) + " digits");
  }
  return digits;
}

std::string float_repr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  // Shortest digits that round-trip, as d.ddde[+-]xx; then laid out by hand.
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific);
  std::string_view text(buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data()));
  std::string result;
  if (text.front() == '-') {
    result = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int num_digits = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    result += digits[0];
    if (num_digits > 1) result.append(1, '.').append(digits, 1);
    std::array<char, 16> power;
    std::snprintf(power.data(), power.size(), "e%c%02d", exponent < 0 ? '-' : '+',
                  std::abs(exponent));
    return result + power.data();
  }
  if (exponent < 0) {
    return result + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  }
  if (num_digits <= exponent + 1) {
    return result + digits + std::string(static_cast<std::size_t>(exponent + 1 - num_digits), '0') +
           ".0";
  }
  const auto point = static_cast<std::size_t>(exponent) + 1;
  return result + digits.substr(0, point) + "." + digits.substr(point);
}

std::optional<Value> parse_integer(std::string_view given, int base) {
  const std::string digits = with_ascii_digits(strip(given));
  std::string_view text = digits;
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    const int prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  if (text.empty() || text.size() > kMaxDigits || base < 2 || base > 36) return std::nullopt;
  Integer number = 0;
  std::uint64_t part = 0;  // the latest digits, not yet appended to `number`
  std::uint64_t scale = 1;
  const auto flush = [&] {
    number = number * scale + part;
    part = 0;
    scale = 1;
  };
  bool after_digit = false;
  for (const char c : text) {
    if (c == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    const char lower = static_cast<char>(c | 0x20);
    const int digit = c >= '0' && c <= '9'           ? c - '0'
                      : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10
                                                     : 99;
    if (digit >= base) return std::nullopt;
    part = part * static_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(digit);
    scale *= static_cast<std::uint64_t>(base);
    if (scale > (std::uint64_t{1} << 58)) flush();
    after_digit = true;
  }
  if (!after_digit) return std::nullopt;
  flush();
  if (negative) number = -number;
  return from_integer(number);
}

std::optional<double> parse_float(std::string_view given) {
  const std::string plain = with_ascii_digits(strip(given));
  std::string_view text = plain;
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_number = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] == '_') {
      if (i == 0 || !is_number(i - 1) || !is_number(i + 1)) return std::nullopt;
      continue;
    }
    digits += text[i];
  }
  if (!digits.empty() && digits[0] == '+') digits.erase(0, 1);
  if (digits.empty() || digits[0] == '+') return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end != digits.data() + digits.size()) return std::nullopt;
  // Too large or too small for from_chars; strtod gives infinity or zero as Python does.
  if (error == std::errc::result_out_of_range) return std::strtod(digits.c_str(), nullptr);
  if (error != std::errc() || digits.find('(') != std::string::npos) return std::nullopt;
  return number;
}

Value truncate(double number) {
  if (std::isnan(number)) fail_value("cannot convert float NaN to integer");
  if (std::isinf(number)) fail_value("cannot convert float infinity to integer");
  const double whole = std::trunc(number);
  if (std::abs(whole) < 9.2e18) return Value(static_cast<std::int64_t>(whole));
  return from_integer(Integer(whole));
}

double round_half_even(double number, std::int64_t num_digits) {
  if (!std::isfinite(number) || num_digits > 323) return number;
  if (num_digits < -308) return std::copysign(0.0, number);
  if (num_digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-num_digits));
    return std::nearbyint(number / scale) * scale;
  }
  // printf rounds the exact binary value, as Python does.
  std::array<char, 700> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", static_cast<int>(num_digits), number);
  return std::strtod(buffer.data(), nullptr);
}

std::string integer_digits(const Value& number, int base) {
  if (base == 10) return number_text(number);
  const Integer value = to_integer(number);
  const Integer magnitude = abs(value);
  std::string digits;
  if (base == 2) {
    const unsigned num_bits = magnitude == 0 ? 1 : msb(magnitude) + 1;
    for (unsigned i = num_bits; i > 0; --i) digits += bit_test(magnitude, i - 1) ? '1' : '0';
  } else {
    digits = magnitude.str(0, base == 16 ? std::ios_base::hex : std::ios_base::oct);
    // The library writes upper case.
    for (char& c : digits) c = static_cast<char>(c >= 'A' && c <= 'F' ? c | 0x20 : c);
  }
  return value < 0 ? "-" + digits : digits;
}

}  // namespace troupe::jinja
