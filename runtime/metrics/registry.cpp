#include "runtime/metrics/registry.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "runtime/base/check.hpp"

namespace troupe {
namespace {

void append_number(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "NaN";
  } else if (std::isinf(value)) {
    text += value > 0 ? "+Inf" : "-Inf";
  } else {
    char digits[32];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
    CHECK(error == std::errc{});
    text.append(digits, end);
    // Bounds and values are always floats, also integral ones.
    if (std::string_view(digits, end).find_first_of(".e") == std::string_view::npos) text += ".0";
  }
}

void append_escaped(std::string& text, std::string_view value, bool quotes) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) text += '\\';
    text += c;
  }
}

void append_sample(std::string& text, std::string_view name, std::string_view labels,
                   double value) {
  text += name;
  if (!labels.empty()) text.append(1, '{').append(labels).append(1, '}');
  text += ' ';
  append_number(text, value);
  text += '\n';
}

void append_histogram(std::string& text, const std::string& name, const std::string& labels,
                      const Histogram& histogram) {
  const std::string separator = labels.empty() ? "" : ",";
  std::uint64_t total = 0;
  for (std::size_t i = 0; i <= histogram.bounds().size(); ++i) {
    total += histogram.count(i);
    std::string with_bound = labels + separator + "le=\"";
    append_number(with_bound, i < histogram.bounds().size() ? histogram.bounds()[i] : HUGE_VAL);
    append_sample(text, name + "_bucket", with_bound + '"', static_cast<double>(total));
  }
  append_sample(text, name + "_count", labels, static_cast<double>(total));
  append_sample(text, name + "_sum", labels, histogram.sum());
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {
  CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::observe(double value) noexcept {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.add(value);
}

std::uint64_t Histogram::count(std::size_t bucket) const noexcept {
  return counts_[bucket].load(std::memory_order_relaxed);
}

Registry::Series& Registry::add(const std::string& name, const std::string& help,
                                const Labels& labels, Type type) {
  std::string text;
  for (const auto& [label, value] : labels) {
    if (!text.empty()) text += ',';
    text.append(label).append("=\"");
    append_escaped(text, value, true);
    text += '"';
  }
  auto family = std::find_if(families_.begin(), families_.end(),
                             [&](const Family& known) { return known.name == name; });
  if (family == families_.end()) {
    family = families_.insert(families_.end(), Family{name, help, type, {}});
  }
  CHECK(family->type == type, name);
  for (const Series& series : family->series) CHECK(series.labels != text, name, text);
  return family->series.emplace_back(Series{std::move(text), nullptr, nullptr, nullptr});
}

Metric& Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = add(name, help, labels, Type::kCounter);
  series.metric = std::make_unique<Metric>();
  return *series.metric;
}

Metric& Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = add(name, help, labels, Type::kGauge);
  series.metric = std::make_unique<Metric>();
  return *series.metric;
}

Histogram& Registry::histogram(const std::string& name, const std::string& help,
                               const Labels& labels, const std::vector<double>& bounds) {
  const std::lock_guard lock(mutex_);
  Series& series = add(name, help, labels, Type::kHistogram);
  series.histogram = std::make_unique<Histogram>(bounds);
  return *series.histogram;
}

Summary& Registry::summary(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& series = add(name, help, labels, Type::kSummary);
  series.summary = std::make_unique<Summary>();
  return *series.summary;
}

void Registry::remove(const Metric& metric) {
  const std::lock_guard lock(mutex_);
  for (Family& family : families_)
    std::erase_if(family.series,
                  [&](const Series& series) { return series.metric.get() == &metric; });
}

std::string Registry::text() const {
  constexpr std::string_view kTypes[] = {"counter", "gauge", "histogram", "summary"};
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Family& family : families_) {
    const std::string name = family.type == Type::kCounter ? family.name + "_total" : family.name;
    text.append("# HELP ").append(name).append(1, ' ');
    append_escaped(text, family.help, false);
    text.append("\n# TYPE ").append(name).append(1, ' ');
    text.append(kTypes[static_cast<std::size_t>(family.type)]).append(1, '\n');
    for (const Series& series : family.series) {
      if (series.histogram) {
        append_histogram(text, name, series.labels, *series.histogram);
      } else if (series.summary) {
        append_sample(text, name + "_count", series.labels, series.summary->count());
        append_sample(text, name + "_sum", series.labels, series.summary->sum());
      } else {
        append_sample(text, name, series.labels, series.metric->value());
      }
    }
  }
  return text;
}

}  // namespace troupe
