#include "runtime/http/cache_control.hpp"

namespace troupe {

Result<double> parse_cache_control(std::string_view type, std::string_view ttl,
                                   const std::string& where) {
  if (type != "ephemeral")
    return invalid_argument(
        where + ".type: must be ephemeral, not '" + std::string(type.substr(0, 64)) + "'",
        where + ".type");
  if (ttl.empty() || ttl == "5m") return 300.0;
  if (ttl == "1h") return 3600.0;
  const std::string field = where.empty() ? "ttl" : where + ".ttl";
  return invalid_argument(
      field + ": must be 5m or 1h, not '" + std::string(ttl.substr(0, 64)) + "'", field);
}

std::optional<double> read_cache_control(const JsonFields& marked) {
  const auto control = marked.object("cache_control");
  if (!control) return std::nullopt;
  control->require("type");
  const auto type = control->text("type");
  const auto ttl = control->text("ttl");
  if (!type) return std::nullopt;
  const auto ttl_s = parse_cache_control(*type, ttl.value_or(""), "cache_control");
  if (ttl_s.ok()) return *ttl_s;
  control->fail(ttl_s.error());
  return std::nullopt;
}

Error too_many_breakpoints(std::size_t count) {
  return invalid_argument("cache_control: " + std::to_string(count) +
                              " places are marked, the limit is " +
                              std::to_string(kMaxCacheBreakpoints),
                          "cache_control");
}

}  // namespace troupe
