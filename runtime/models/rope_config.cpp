#include "runtime/models/rope_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe {
namespace {

using nlohmann::json;

RopeKind parse_kind(ConfigFields& scaling) {
  // "type" is the older spelling of "rope_type".
  const std::string name = scaling.text("rope_type", scaling.text("type", "default"));
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "dynamic") return RopeKind::kDynamic;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  scaling.fail(ErrorCode::kUnsupported,
               "rope type " + name +
                   " is not supported; supported are default, linear, dynamic, "
                   "llama3, yarn");
  return RopeKind::kDefault;
}

/// What yarn multiplies cos and sin by (arXiv 2309.00071, section 3.4; mscale is DeepSeek's).
double yarn_attention_factor(ConfigFields& scaling, double factor) {
  const auto mscale_of = [factor](double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
  };
  const double mscale = scaling.number("mscale", 0);
  const double mscale_all_dim = scaling.number("mscale_all_dim", 0);
  const double otherwise = mscale != 0 && mscale_all_dim != 0
                               ? mscale_of(mscale) / mscale_of(mscale_all_dim)
                               : mscale_of(1);
  return scaling.number("attention_factor", otherwise);
}

void parse_scaling(ConfigFields& scaling, std::int64_t trained_positions, RopeConfig& rope) {
  rope.kind = parse_kind(scaling);
  if (rope.kind == RopeKind::kDefault) return;
  const bool original_given = scaling.has("original_max_position_embeddings");
  rope.original_max_positions =
      scaling.integer("original_max_position_embeddings", trained_positions, 1, INT32_MAX);
  std::optional<double> ratio;
  if (rope.kind == RopeKind::kYarn && original_given)
    ratio =
        static_cast<double>(trained_positions) / static_cast<double>(rope.original_max_positions);
  rope.factor = scaling.number("factor", ratio);
  if (!(rope.factor >= 1 && rope.factor <= 1e6))
    return scaling.fail(ErrorCode::kCorrupt, "factor is " + std::to_string(rope.factor) +
                                                 ", not a number from 1 to 1000000");
  if (rope.kind == RopeKind::kLlama3) {
    rope.low_freq_factor = scaling.number("low_freq_factor", std::nullopt);
    rope.high_freq_factor = scaling.number("high_freq_factor", std::nullopt);
    if (!(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor))
      scaling.fail(ErrorCode::kCorrupt, "low_freq_factor is not below high_freq_factor");
  }
  if (rope.kind == RopeKind::kYarn) {
    rope.beta_fast = scaling.number("beta_fast", 32);
    rope.beta_slow = scaling.number("beta_slow", 1);
    rope.truncate = scaling.boolean("truncate", true);
    rope.attention_factor = yarn_attention_factor(scaling, rope.factor);
    if (!(rope.beta_fast > 0 && rope.beta_slow > 0))
      scaling.fail(ErrorCode::kCorrupt, "beta_fast and beta_slow are not positive");
  }
}

}  // namespace

RopeConfig parse_rope(ConfigFields& fields, std::string_view layer_type, double default_theta,
                      std::int64_t trained_positions) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", default_theta);
  rope.partial_rotary_factor = fields.number("partial_rotary_factor", 1);
  const char* key = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json* scaling = fields.object(key);
  if (scaling != nullptr && !layer_type.empty()) {
    const auto own = scaling->find(layer_type);
    if (own != scaling->end() && own->is_object()) scaling = &*own;
  }
  if (scaling != nullptr) {
    ConfigFields reader(*scaling, fields.where() + ": " + key);
    rope.theta = reader.number("rope_theta", rope.theta);
    rope.partial_rotary_factor = reader.number("partial_rotary_factor", rope.partial_rotary_factor);
    rope.divisors = reader.numbers("frequency_divisors");  // of GGUF files only
    parse_scaling(reader, trained_positions, rope);
    if (reader.error()) {
      const std::string prefix = fields.where() + ": ";
      fields.fail(reader.error()->code, reader.error()->message.substr(prefix.size()));
    }
  }
  return rope;
}

void check_rope(ConfigFields& fields, const RopeConfig& rope, std::int64_t head_dim) {
  if (!(rope.theta > 1 && std::isfinite(rope.theta)))
    fields.fail(ErrorCode::kCorrupt,
                "the base of a rotation is " + json(rope.theta).dump() + ", it must be above 1");
  const double share = rope.partial_rotary_factor;
  if (!(share > 0 && share <= 1))
    return fields.fail(ErrorCode::kUnsupported, "partial_rotary_factor is " + json(share).dump() +
                                                    ", not above 0 and at most 1");
  const std::int64_t rotated = rope.rotary_dim(head_dim);
  if (rotated < 2 || rotated % 2 != 0)
    fields.fail(ErrorCode::kUnsupported, std::to_string(rotated) + " of " +
                                             std::to_string(head_dim) +
                                             " elements of a head would be rotated");
  if (!rope.divisors.empty() && std::cmp_not_equal(2 * rope.divisors.size(), rotated))
    fields.fail(ErrorCode::kCorrupt, std::to_string(rope.divisors.size()) +
                                         " frequency_divisors for the " +
                                         std::to_string(rotated / 2) + " frequencies of a head");
  for (const double divisor : rope.divisors)
    if (!(divisor > 0 && std::isfinite(divisor)))
      fields.fail(ErrorCode::kCorrupt, "one of frequency_divisors is " + json(divisor).dump() +
                                           ", not a number above 0");
}

}  // namespace troupe
