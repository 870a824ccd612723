// Python's pprint.pformat with its defaults: the filter pprint.
#include <algorithm>

#include "runtime/chat/jinja/operations.hpp"
#include "runtime/chat/jinja/string_methods.hpp"
#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

constexpr std::size_t kWidth = 80;

/// The value with the entries of its dicts sorted by key; incomparable keys are sorted by type
/// name.
Value with_sorted_keys(const Value& value, Runtime& runtime) {
  const DepthGuard guard(runtime);
  runtime.budget.charge(8);  // each occurrence is copied
  if (const std::vector<Value>* items = value.items()) {
    std::vector<Value> sorted;
    for (const Value& item : *items) sorted.push_back(with_sorted_keys(item, runtime));
    return value.is_tuple() ? Value::tuple(std::move(sorted)) : Value::list(std::move(sorted));
  }
  if (!value.dict()) return value;
  std::vector<Dict::Entry> entries;
  for (const auto& [key, item] : value.dict()->entries()) {
    entries.emplace_back(key, with_sorted_keys(item, runtime));
  }
  std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
    const bool has_order = (a.first.is_string() && b.first.is_string()) ||
                           (a.first.is_number() && b.first.is_number());
    runtime.budget.charge();
    return has_order ? compare(Comparison::kLess, a.first, b.first, runtime.budget)
                     : type_name(a.first) < type_name(b.first);
  });
  Dict dict;
  for (auto& [key, item] : entries) dict.set(std::move(key), std::move(item), runtime.budget);
  return Value::dict(std::move(dict));
}

class PrettyPrinter {
 public:
  explicit PrettyPrinter(Runtime& runtime) : runtime_(runtime) {}

  /// `indent` columns precede the value, `allowance` columns follow it.
  void write(const Value& value, std::size_t indent, std::size_t allowance, int level) {
    const DepthGuard guard(runtime_);
    const std::string plain = repr(value, runtime_);
    runtime_.budget.check_text_size(out_.size() + plain.size());
    if (num_code_points(plain) + indent + allowance <= kWidth) {
      out_ += plain;
    } else if (value.is_string()) {
      write_string(value, indent, allowance, level + 1);
    } else if (value.items()) {
      const bool is_single = value.is_tuple() && value.items()->size() == 1;
      const std::string close = !value.is_tuple() ? "]" : is_single ? ",)" : ")";
      out_ += value.is_tuple() ? '(' : '[';
      write_rows(*value.items(), indent + 1, allowance + close.size(),
                 [&](const Value& item, std::size_t behind) {
                   write(item, indent + 1, behind, level + 1);
                 });
      out_ += close;
    } else if (value.dict()) {
      out_ += '{';
      write_rows(value.dict()->entries(), indent + 1, allowance + 1,
                 [&](const Dict::Entry& entry, std::size_t behind) {
                   const std::string key = repr(entry.first, runtime_);
                   out_ += key + ": ";
                   write(entry.second, indent + 1 + num_code_points(key) + 2, behind, level + 1);
                 });
      out_ += '}';
    } else {
      out_ += plain;
    }
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  void line_start(std::size_t indent) {
    runtime_.budget.charge_text(indent);
    out_ += '\n';
    out_.append(indent, ' ');
  }

  template <class Row, class Write>
  void write_rows(const Row& row, std::size_t indent, std::size_t allowance, Write write_one) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i > 0) {
        out_ += ',';
        line_start(indent);
      }
      write_one(row[i], i + 1 == row.size() ? allowance : 1);
    }
  }

  /// In parts that fit, each a separate literal.
  void write_string(const Value& value, std::size_t indent, std::size_t allowance, int level) {
    const bool is_alone = level == 1;
    if (is_alone) {
      ++indent;
      ++allowance;
    }
    const auto fits = [&](const std::string& literal, bool is_last) {
      return num_code_points(literal) + indent + (is_last ? allowance : 0) <= kWidth;
    };
    std::vector<std::string> literals;
    const Value lines = find_string_method("splitlines")(value, {{Value(true)}, {}}, runtime_);
    const std::vector<Value>& rows = *lines.items();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const bool is_last_line = i + 1 == rows.size();
      const std::string whole = repr(rows[i], runtime_);
      if (fits(whole, is_last_line)) {
        literals.push_back(whole);
        continue;
      }
      std::string current;
      const std::string& line = *rows[i].string();
      for (std::size_t begin = 0; begin < line.size();) {
        const std::size_t end = part_end(line, begin);
        const std::string part = line.substr(begin, end - begin);
        begin = end;
        const std::string literal = repr(Value(current + part), runtime_);
        if (fits(literal, is_last_line && begin == line.size())) {
          current += part;
          continue;
        }
        if (!current.empty()) literals.push_back(repr(Value(current), runtime_));
        current = part;
      }
      if (!current.empty()) literals.push_back(repr(Value(current), runtime_));
    }
    if (literals.size() == 1) {
      out_ += literals.front();
      return;
    }
    if (is_alone) out_ += '(';
    for (std::size_t i = 0; i < literals.size(); ++i) {
      if (i > 0) line_start(indent);
      out_ += literals[i];
    }
    if (is_alone) out_ += ')';
  }

  /// A word with the spaces after it.
  static std::size_t part_end(std::string_view line, std::size_t begin) {
    bool in_spaces = false;
    while (begin < line.size()) {
      std::size_t next = begin;
      const bool is_blank = is_space(decode_at(line, next));
      if (in_spaces && !is_blank) break;
      in_spaces |= is_blank;
      begin = next;
    }
    return begin;
  }

  Runtime& runtime_;
  std::string out_;
};

}  // namespace

std::string pretty_print(const Value& value, Runtime& runtime) {
  PrettyPrinter printer(runtime);
  printer.write(with_sorted_keys(value, runtime), 0, 0, 0);
  return printer.take();
}

}  // namespace troupe::jinja
