#pragma once
// A /reset_prefix_cache or /reset_encoder_cache request while the engine is at it.

#include <memory>

#include "runtime/http/service_context.hpp"

namespace troupe {

/// A reply that comes when it is gone finds nobody.
class CacheReset : public Exchange {
 public:
  CacheReset(ServiceContext& context, ResponseSink& sink, const ResetCaches& what);

 private:
  void answer(const Result<CachesReset>& reply);

  const ExchangeCount count_;
  ResponseSink& sink_;
  const bool tells_success_;
  const std::shared_ptr<CacheReset*> self_;
};

}  // namespace troupe
