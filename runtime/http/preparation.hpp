#pragma once
// A request whose body is being parsed on another thread.

#include <atomic>
#include <memory>
#include <string>

#include "runtime/http/endpoints.hpp"

namespace troupe {

/// Waits for the parser, then becomes the endpoint's answer. If it is destroyed before, work in
/// progress is the only thing that remains.
class Preparation final : public Exchange {
 public:
  Preparation(ServiceContext& context, HttpRequest http, std::function<Prepare> prepare,
              ResponseSink& sink, const Dialect& dialect);
  ~Preparation() override;
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  void on_ready() override;
  void on_silence() override;
  [[nodiscard]] WorkDone work_done() const override;

 private:
  struct Job;
  void go_on(Job& job);

  ServiceContext& context_;
  const ExchangeCount count_;
  ResponseSink& sink_;
  const Dialect& dialect_;
  const std::shared_ptr<Preparation*> self_;
  const std::shared_ptr<std::atomic<bool>> wanted_;
  Answer answer_;
};

}  // namespace troupe
