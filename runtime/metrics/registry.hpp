#pragma once
// Counters, gauges and histograms with labels, in Prometheus text format.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

/// A counter or gauge. Thread-safe.
class Metric {
 public:
  void add(double amount = 1) noexcept { value_.fetch_add(amount, std::memory_order_relaxed); }
  void set(double value) noexcept { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] double value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// A histogram. Thread-safe; a reader may see an observation's count before its sum.
class Histogram {
 public:
  /// `bounds`: inclusive upper bounds, ascending; a last bucket without bound is added.
  explicit Histogram(std::vector<double> bounds);
  void observe(double value) noexcept;

  [[nodiscard]] const std::vector<double>& bounds() const noexcept { return bounds_; }
  /// Observations in bucket i only, i in [0, bounds().size()].
  [[nodiscard]] std::uint64_t count(std::size_t bucket) const noexcept;
  [[nodiscard]] double sum() const noexcept { return sum_.value(); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> counts_;
  Metric sum_;
};

/// Count and sum of observations. Thread-safe.
class Summary {
 public:
  void observe(double value) noexcept { count_.add(), sum_.add(value); }
  [[nodiscard]] double count() const noexcept { return count_.value(); }
  [[nodiscard]] double sum() const noexcept { return sum_.value(); }

 private:
  Metric count_, sum_;
};

using Labels = std::vector<std::pair<std::string, std::string>>;

/// Owns metrics, grouped by name in registration order. Thread-safe: registration and export take a
/// lock, updates do not.
class Registry {
 public:
  /// The export adds `_total` to a counter's name. Pre, for all: a name is registered with one type
  /// only, and each set of labels once.
  Metric& counter(const std::string& name, const std::string& help, const Labels& labels);
  Metric& gauge(const std::string& name, const std::string& help, const Labels& labels);
  Histogram& histogram(const std::string& name, const std::string& help, const Labels& labels,
                       const std::vector<double>& bounds);
  Summary& summary(const std::string& name, const std::string& help, const Labels& labels);
  /// Destroys it: it must not be updated any more. Pre: a counter or gauge of this registry.
  void remove(const Metric& metric);

  /// Prometheus text format 0.0.4.
  [[nodiscard]] std::string text() const;

 private:
  enum class Type : std::uint8_t { kCounter, kGauge, kHistogram, kSummary };
  struct Series {
    std::string labels;  ///< a="b",c="d"
    std::unique_ptr<Metric> metric;
    std::unique_ptr<Histogram> histogram;
    std::unique_ptr<Summary> summary;
  };
  struct Family {
    std::string name;
    std::string help;
    Type type;
    std::vector<Series> series;
  };
  /// Pre: the lock is held.
  Series& add(const std::string& name, const std::string& help, const Labels& labels, Type type);

  mutable std::mutex mutex_;  ///< guards the families, not the values
  std::deque<Family> families_;
};

}  // namespace troupe
