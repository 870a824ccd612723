#include "runtime/http/cache_reset.hpp"

namespace troupe {

CacheReset::CacheReset(ServiceContext& context, ResponseSink& sink, const ResetCaches& what)
    : count_(context),
      sink_(sink),
      tells_success_(what.prefix_cache),
      self_(std::make_shared<CacheReset*>(this)) {
  context.port.reset_caches(what, [waiting = std::weak_ptr(self_),
                                   post = context.environment.post](Result<CachesReset> reply) {
    post([waiting, reply = std::move(reply)] {
      if (const auto self = waiting.lock()) (*self)->answer(reply);
    });
  });
}

void CacheReset::answer(const Result<CachesReset>& reply) {
  if (!reply.ok()) return sink_.respond(error_response(reply.error()));
  if (!tells_success_) return sink_.respond({});
  sink_.respond({.status = 200,
                 .content_type = "application/json",
                 .body = (*reply).ok ? R"({"success":true})" : R"({"success":false})"});
}

}  // namespace troupe
