#include "runtime/http/preparation.hpp"

#include "runtime/base/memory.hpp"
#include "runtime/http/gzip.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::string_view kContentEncoding = "Content-Encoding";
/// Parsed in less time than a few thread wake-ups take.
constexpr std::size_t kMaxInlineBytes = 16 << 10;
/// Memory for parsing a body, relative to its size.
constexpr std::size_t kParsedFactor = 4;

bool is_packed(const HttpRequest& http) {
  const std::string_view encoding = http.header(kContentEncoding);
  return !encoding.empty() && !equal_ignoring_case(encoding, "identity");
}

/// Replaces the body by its decompressed form.
Result<void> unpack(HttpRequest& http, std::uint64_t max_body_bytes) {
  if (!is_packed(http)) return {};
  ASSIGN_OR_RETURN(http.body, gunzip(http.body, max_body_bytes));
  std::erase_if(http.headers, [](const auto& field) {
    return equal_ignoring_case(field.first, kContentEncoding);
  });
  return {};
}

Prepared read_body(HttpRequest& http, const std::function<Prepare>& prepare,
                   const ServiceConfig& config) {
  if (Result<void> unpacked = unpack(http, config.max_body_bytes); !unpacked.ok()) {
    return [error = unpacked.error()](auto&, auto&, auto&) -> Result<Answer> { return error; };
  }
  Prepared prepared = prepare(http.body, config.defaults);
  note_freed_memory(kParsedFactor * http.body.size());
  return prepared;
}

}  // namespace

/// Shared by both threads, one after the other.
struct Preparation::Job {
  HttpRequest http;
  std::function<Prepare> prepare;
  Prepared prepared;
  std::string failure;  ///< the exception of the parser
};

Answer answer_prepared(ServiceContext& context, HttpRequest http, std::function<Prepare> prepare,
                       ResponseSink& sink, const Dialect& dialect) {
  const bool is_short = http.body.size() <= kMaxInlineBytes && !is_packed(http);
  if (!is_short && context.environment.work) {
    return std::make_unique<Preparation>(context, std::move(http), std::move(prepare), sink,
                                         dialect);
  }
  const Prepared prepared = read_body(http, prepare, context.config);
  return answer_or_refuse(prepared(context, http, sink), sink, dialect);
}

Preparation::Preparation(ServiceContext& context, HttpRequest http, std::function<Prepare> prepare,
                         ResponseSink& sink, const Dialect& dialect)
    : context_(context),
      count_(context),
      sink_(sink),
      dialect_(dialect),
      self_(std::make_shared<Preparation*>(this)),
      wanted_(std::make_shared<std::atomic<bool>>(true)) {
  Work work{.tenant = context.tenant_of(http),
            .client = http.client_number(),
            .num_bytes = http.body.size()};
  auto job = std::make_shared<Job>(Job{.http = std::move(http), .prepare = std::move(prepare)});
  work.function = [job = std::move(job), wanted = wanted_, self = std::weak_ptr(self_),
                   &config = context.config, post = context.environment.post] {
    if (!*wanted) return;
    try {
      job->prepared = read_body(job->http, job->prepare, config);
    } catch (const std::exception& failure) {
      job->failure = failure.what();
    } catch (...) {
      job->failure = "unknown exception";
    }
    post([job, self] {
      const auto preparation = self.lock();
      if (!preparation) return;
      contain((*preparation)->sink_, [&] { (*preparation)->go_on(*job); });
    });
  };
  context.environment.work(std::move(work));
}

Preparation::~Preparation() { *wanted_ = false; }

void Preparation::go_on(Job& job) {
  if (!job.prepared) return sink_.fail(job.failure);
  answer_ = answer_or_refuse(job.prepared(context_, job.http, sink_), sink_, dialect_);
}

void Preparation::on_ready() {
  if (answer_) answer_->on_ready();
}

void Preparation::on_silence() {
  if (answer_) answer_->on_silence();
}

WorkDone Preparation::work_done() const { return answer_ ? answer_->work_done() : WorkDone{}; }

}  // namespace troupe
