#pragma once
// A request whose body is being read on another thread.

#include <atomic>
#include <memory>
#include <string>

#include "runtime/http/endpoints.hpp"

namespace troupe {

/// Waits for the reading, then becomes what the endpoint answers with. One that is destroyed before
/// leaves nothing behind but work that is under way.
class Preparation final : public Exchange {
 public:
  Preparation(ServiceContext& context, HttpRequest http, std::function<Prepare> prepare,
              ResponseSink& sink);
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
  const std::shared_ptr<Preparation*> self_;
  const std::shared_ptr<std::atomic<bool>> wanted_;
  Answer answer_;
};

}  // namespace troupe
