#include "runtime/chat/jinja/urlize.hpp"

#include <algorithm>

#include "runtime/chat/jinja/unicode.hpp"

namespace troupe::jinja {
namespace {

constexpr std::string_view kOpenTag = "&lt;";
constexpr std::string_view kCloseTag = "&gt;";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_letter(char c) { return lower(c) >= 'a' && lower(c) <= 'z'; }
bool is_hex(char c) { return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'f'); }

bool starts_with_ignoring_case(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.begin(),
                                                    [](char a, char b) { return a == lower(b); });
}

template <class Satisfies>
bool all_of(std::string_view text, Satisfies satisfies) {
  for (std::size_t i = 0; i < text.size();) {
    if (!satisfies(decode_at(text, i))) return false;
  }
  return true;
}

bool is_word_text(std::string_view text) { return !text.empty() && all_of(text, is_word); }

/// A part of a host's name between dots.
bool is_label(std::string_view text) {
  return !text.empty() &&
         all_of(text, [](char32_t c) { return is_word(c) || c == '%' || c == '-'; });
}

bool is_top_level(std::string_view label) {
  if (starts_with_ignoring_case(label, "xn--")) {
    label.remove_prefix(4);
    const std::size_t size = num_code_points(label);
    return size >= 2 && size <= 59 &&
           all_of(label, [](char32_t c) { return is_word(c) || c == '%'; });
  }
  return label.size() >= 2 && label.size() <= 63 &&
         std::all_of(label.begin(), label.end(), is_letter);
}

bool is_basic_top_level(std::string_view label) {
  static constexpr std::string_view kNames[] = {"com", "net", "int",  "edu",
                                                "gov", "org", "info", "mil"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view name) {
    return label.size() == name.size() && starts_with_ignoring_case(label, name);
  });
}

/// Whether all labels of a host name satisfy one predicate, and the last one another.
template <class IsLast>
bool is_host(std::string_view host, bool needs_dot, std::size_t min_size, std::size_t max_size,
             IsLast is_last) {
  const std::size_t dot = host.rfind('.');
  if (dot == std::string_view::npos) return !needs_dot && is_last(host);
  if (!is_last(host.substr(dot + 1))) return false;
  std::string_view rest = host.substr(0, dot);
  while (true) {
    const std::size_t end = std::min(rest.find('.'), rest.size());
    const std::string_view label = rest.substr(0, end);
    const std::size_t size = num_code_points(label);
    if (!is_label(label) || size < min_size || size > max_size) return false;
    if (end == rest.size()) return true;
    rest.remove_prefix(end + 1);
  }
}

bool is_ipv4(std::string_view host) {
  for (int i = 0; i < 4; ++i) {
    const std::size_t end = std::min(host.find('.'), host.size());
    const std::string_view number = host.substr(0, end);
    const std::size_t size = num_code_points(number);
    if (size < 1 || size > 3 || !all_of(number, is_decimal)) return false;
    if (i == 3) return end == host.size();
    if (end == host.size()) return false;
    host.remove_prefix(end + 1);
  }
  return false;
}

/// The size of an IPv6 address in brackets at the beginning; 0 if there is none. Two groups of up
/// to four digits with their colons, then up to six with or without one.
std::size_t size_of_ipv6(std::string_view text) {
  if (!text.starts_with('[')) return 0;
  std::size_t i = 1;
  for (int group = 0; group < 8; ++group) {
    if (group > 2 && i < text.size() && text[i] == ']') break;
    for (int digits = 0; digits < 4 && i < text.size() && is_hex(text[i]); ++digits) ++i;
    const bool has_colon = i < text.size() && text[i] == ':';
    if (group < 2 && !has_colon) return 0;
    if (has_colon) ++i;
  }
  return i < text.size() && text[i] == ']' ? i + 1 : 0;
}

/// What may follow a host: a port, then a path, a query or a fragment.
bool is_tail_of_page(std::string_view text) {
  if (text.starts_with(':')) {
    text.remove_prefix(1);
    std::size_t num_digits = 0;
    std::size_t end = 0;
    for (std::size_t i = 0; i < text.size() && num_digits < 5; end = i, ++num_digits) {
      if (!is_decimal(decode_at(text, i))) break;
    }
    if (num_digits == 0) return false;
    text.remove_prefix(end);
  }
  return text.empty() || text[0] == '/' || text[0] == '?' || text[0] == '#';
}

bool is_page(std::string_view word) {
  const bool is_www = starts_with_ignoring_case(word, "www.");
  const bool is_http = starts_with_ignoring_case(word, "http://");
  const bool is_https = starts_with_ignoring_case(word, "https://");
  const std::string_view rest = word.substr(is_www ? 4 : is_http ? 7 : is_https ? 8 : 0);
  if (is_http || is_https) {
    if (const std::size_t size = size_of_ipv6(rest)) return is_tail_of_page(rest.substr(size));
  }
  const std::size_t end = std::min(rest.find_first_of(":/?#"), rest.size());
  const std::string_view host = rest.substr(0, end);
  if (!is_tail_of_page(rest.substr(end))) return false;
  if (is_http || is_https) {
    return is_host(host, false, 1, ~std::size_t{0}, is_top_level) || is_ipv4(host);
  }
  if (is_www && is_host(host, false, 1, ~std::size_t{0}, is_top_level)) return true;
  return is_host(word.substr(0, word.size() - rest.size() + end), true, 2, 63, is_basic_top_level);
}

bool is_mailbox(std::string_view word) {
  const std::size_t at = word.rfind('@');
  if (at == std::string_view::npos || at == 0) return false;
  const std::string_view host = word.substr(at + 1);
  const std::size_t dot = host.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || !is_word_text(host.substr(dot + 1)))
    return false;
  std::size_t first = 0;
  return is_word(decode_at(host, first)) &&
         all_of(host.substr(0, dot), [](char32_t c) { return is_word(c) || c == '.' || c == '-'; });
}

/// Size of the opening brackets at the beginning of a word.
std::size_t size_of_head(std::string_view word) {
  std::size_t i = 0;
  while (i < word.size()) {
    if (word[i] == '(' || word[i] == '<') {
      ++i;
    } else if (word.substr(i).starts_with(kOpenTag)) {
      i += kOpenTag.size();
    } else {
      break;
    }
  }
  return i;
}

/// Size of the closing brackets and punctuation at its end.
std::size_t size_of_tail(std::string_view word) {
  std::size_t end = word.size();
  while (end > 0) {
    if (std::string_view(")>.,").find(word[end - 1]) != std::string_view::npos) {
      --end;
    } else if (word.substr(0, end).ends_with(kCloseTag)) {
      end -= kCloseTag.size();
    } else {
      break;
    }
  }
  return word.size() - end;
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t num = 0;
  for (std::size_t i = text.find(part); i != std::string_view::npos;
       i = text.find(part, i + part.size())) {
    ++num;
  }
  return num;
}

/// The start of the tail, without closing brackets that match opening ones before it.
std::size_t balanced_tail(std::string_view word, std::size_t tail) {
  static constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {"(", ")"}, {"<", ">"}, {kOpenTag, kCloseTag}};
  for (const auto& [open, close] : kPairs) {
    const std::size_t num_open = count(word.substr(0, tail), open);
    if (num_open <= count(word.substr(0, tail), close)) continue;
    const std::size_t num_moved = std::min(num_open, count(word.substr(tail), close));
    for (std::size_t i = 0; i < num_moved; ++i) tail = word.find(close, tail) + close.size();
  }
  return tail;
}

std::string shown(std::string_view address, const LinkStyle& style) {
  if (!style.max_shown) return std::string(address);
  const auto size = static_cast<std::int64_t>(num_code_points(address));
  if (size <= *style.max_shown) return std::string(address);
  // As in Python, a negative limit counts from the end.
  const std::int64_t kept =
      *style.max_shown < 0 ? std::max<std::int64_t>(size + *style.max_shown, 0) : *style.max_shown;
  return std::string(address.substr(0, byte_offset(address, static_cast<std::size_t>(kept)))) +
         "...";
}

std::string link(std::string_view target, std::string_view attributes, std::string_view text) {
  return "<a href=\"" + std::string(target) + "\"" + std::string(attributes) + ">" +
         std::string(text) + "</a>";
}

std::string linked(std::string_view address, const LinkStyle& style, Budget& budget) {
  if (is_page(address)) {
    const bool has_scheme = address.starts_with("https://") || address.starts_with("http://");
    return link((has_scheme ? "" : "https://") + std::string(address), style.attributes,
                shown(address, style));
  }
  constexpr std::string_view kMail = "mailto:";
  if (address.starts_with(kMail) && is_mailbox(address.substr(kMail.size()))) {
    return link(address, "", address.substr(kMail.size()));
  }
  if (!address.starts_with("www.") && !address.starts_with('@') &&
      address.find(':') == std::string_view::npos && is_mailbox(address)) {
    return link(std::string(kMail) + std::string(address), "", address);
  }
  std::string text(address);
  for (const std::string& scheme : style.other_schemes) {
    budget.charge_read(scheme.size());
    if (text == scheme || !text.starts_with(scheme)) continue;
    budget.charge_text(2 * text.size() + style.attributes.size());
    text = link(text, style.attributes, text);
  }
  return text;
}

}  // namespace

bool is_scheme(std::string_view scheme) {
  const std::size_t colon = scheme.find(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view slashes = scheme.substr(colon + 1);
  return num_code_points(scheme.substr(0, colon)) >= 2 &&
         all_of(scheme.substr(0, colon),
                [](char32_t c) { return is_word(c) || c == '.' || c == '+' || c == '-'; }) &&
         (slashes.empty() || slashes == "/" || slashes == "//");
}

std::string urlize(std::string_view text, const LinkStyle& style, Budget& budget) {
  budget.charge_characters(8 * text.size());
  std::string result;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    std::size_t next = begin;
    while (next < text.size() && !is_space(decode_at(text, next))) end = next;
    const std::string_view word = text.substr(begin, end - begin);
    const std::size_t head = size_of_head(word);
    const std::string_view rest = word.substr(head);
    const std::size_t tail = balanced_tail(rest, rest.size() - size_of_tail(rest));
    budget.charge_text(style.attributes.size());
    result += word.substr(0, head);
    result += linked(rest.substr(0, tail), style, budget);
    result += rest.substr(tail);
    result += text.substr(end, next - end);  // the space after it
    budget.check_text_size(result.size());
    begin = next;
  }
  return result;
}

}  // namespace troupe::jinja
