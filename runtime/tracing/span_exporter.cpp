#include "runtime/tracing/span_exporter.hpp"

#include <curl/curl.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "runtime/base/clock.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr std::size_t kMaxQueued = 4096;
constexpr std::size_t kMaxBatch = 512;
constexpr auto kInterval = 500ms;
constexpr long kTimeout_ms = 5000;
constexpr long kLastTimeout_ms = 2000;
constexpr double kComplaintInterval_s = 60;
constexpr int kServerKind = 2, kErrorStatus = 2;  // of OTLP

std::string nanoseconds(double seconds) {
  return std::to_string(static_cast<std::uint64_t>(seconds * 1e9));
}

Json attribute(const std::string& key, const std::string& text) {
  return {{"key", key}, {"value", {{"stringValue", text}}}};
}
Json attribute(const std::string& key, std::int64_t number) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(number)}}}};
}
Json attribute(const std::string& key, double number) {
  return {{"key", key}, {"value", {{"doubleValue", number}}}};
}

std::size_t ignore_answer(char*, std::size_t size, std::size_t count, void*) {
  return size * count;
}

}  // namespace

std::string otlp_json(const std::vector<Span>& spans, const std::string& service_name,
                      const std::string& version) {
  Json list = Json::array();
  for (const Span& span : spans) {
    Json attributes = Json::array();
    for (const auto& [key, value] : span.attributes) {
      attributes.push_back(
          std::visit([&key = key](const auto& each) { return attribute(key, each); }, value));
    }
    Json json = {{"traceId", span.context.trace_id},
                 {"spanId", span.id},
                 {"name", span.name},
                 {"kind", kServerKind},
                 {"startTimeUnixNano", nanoseconds(span.start)},
                 {"endTimeUnixNano", nanoseconds(span.end)},
                 {"attributes", std::move(attributes)},
                 {"status", Json::object()}};
    if (!span.context.parent_id.empty()) json["parentSpanId"] = span.context.parent_id;
    if (span.is_error) json["status"]["code"] = kErrorStatus;
    list.push_back(std::move(json));
  }
  const Json all = {
      {"resourceSpans",
       {{{"resource",
          {{"attributes",
            {attribute("service.name", service_name), attribute("service.version", version)}}}},
         {"scopeSpans",
          {{{"scope", {{"name", "troupe"}, {"version", version}}}, {"spans", list}}}}}}}};
  // A name that is no UTF-8 comes from a client.
  return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct SpanExporter::Work {
  explicit Work(Options given) : options(std::move(given)) {}

  void run() {
    std::unique_lock lock(mutex);
    while (!stopping || !queue.empty()) {
      if (!stopping) wake.wait_for(lock, kInterval, [&] { return stopping; });
      while (!queue.empty()) {
        const std::size_t count = std::min(queue.size(), kMaxBatch);
        std::vector<Span> batch(
            std::make_move_iterator(queue.begin()),
            std::make_move_iterator(queue.begin() + static_cast<std::ptrdiff_t>(count)));
        queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
        const bool is_last = stopping;
        lock.unlock();
        const bool is_sent = send(batch, is_last ? kLastTimeout_ms : kTimeout_ms);
        lock.lock();
        if (is_sent) continue;
        complain(batch.size());
        if (stopping) return;
        break;
      }
    }
  }

  bool send(const std::vector<Span>& batch, long timeout_ms) {
    const std::string body = otlp_json(batch, options.service_name, options.version);
    const std::unique_ptr<CURL, void (*)(CURL*)> easy(curl_easy_init(), curl_easy_cleanup);
    const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(
        curl_slist_append(nullptr, "Content-Type: application/json"), curl_slist_free_all);
    curl_easy_setopt(easy.get(), CURLOPT_URL, options.endpoint.c_str());
    curl_easy_setopt(easy.get(), CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDS, body.data());
    curl_easy_setopt(easy.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(easy.get(), CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy.get(), CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, ignore_answer);
    const CURLcode code = curl_easy_perform(easy.get());
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    reason = code == CURLE_OK ? "status " + std::to_string(status) : curl_easy_strerror(code);
    return code == CURLE_OK && status >= 200 && status < 300;
  }

  /// Under the lock.
  void complain(std::size_t count) {
    num_lost += count;
    if (now_seconds() < complained_at + kComplaintInterval_s) return;
    complained_at = now_seconds();
    log_warning("spans are lost", kv("endpoint", options.endpoint), kv("reason", reason),
                kv("spans", num_lost));
    num_lost = 0;
  }

  const Options options;
  std::mutex mutex;
  std::condition_variable wake;
  std::vector<Span> queue;
  std::string reason;
  std::size_t num_lost = 0;
  double complained_at = -kComplaintInterval_s;
  bool stopping = false;
  std::thread thread;
};

SpanExporter::SpanExporter(Options options) : work_(std::make_unique<Work>(std::move(options))) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  work_->thread = std::thread([work = work_.get()] { work->run(); });
}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(work_->mutex);
    work_->stopping = true;
  }
  work_->wake.notify_all();
  work_->thread.join();
}

void SpanExporter::add(Span span) {
  const std::lock_guard lock(work_->mutex);
  if (work_->queue.size() < kMaxQueued) {
    work_->queue.push_back(std::move(span));
  } else {
    ++work_->num_lost;
  }
}

}  // namespace troupe
