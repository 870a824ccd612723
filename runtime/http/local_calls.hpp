#pragma once
// Requests that come from inside the server: answered by the service, as if over a connection.

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "runtime/http/service.hpp"

namespace troupe {

/// Owns the calls of one service; everything runs on its thread.
class LocalCalls {
 public:
  using Done = std::function<void(HttpResponse)>;

  /// `post` runs a function later on the thread, while this exists.
  LocalCalls(Service& service, std::function<void(std::function<void()>)> post);
  ~LocalCalls();
  LocalCalls(const LocalCalls&) = delete;
  LocalCalls& operator=(const LocalCalls&) = delete;

  /// `done` is called once with the complete response, unless the call is aborted.
  void start(std::uint64_t id, HttpRequest request, Done done);
  void abort(std::uint64_t id);
  void abort_all();

 private:
  class Call;
  void finish(std::uint64_t id);

  Service& service_;
  const std::function<void(std::function<void()>)> post_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Call>> calls_;
};

}  // namespace troupe
