#include "runtime/models/rope_config.hpp"

#include <cmath>
#include <utility>

#include "runtime/base/json.hpp"

namespace troupe {
namespace {

using nlohmann::json;

RopeKind parse_kind(ConfigFields& scaling, bool longrope_alone) {
  // "type" is the older spelling of "rope_type".
  const std::string name = scaling.text("rope_type", scaling.text("type", "default"));
  if (longrope_alone) {
    if (name == "longrope" || name == "su" || name == "yarn") return RopeKind::kLongRope;
    if (name != "default")
      scaling.fail(ErrorCode::kUnsupported, "rope type " + name +
                                                " is not supported for this architecture; "
                                                "supported are default, longrope");
    return RopeKind::kDefault;
  }
  if (name == "default") return RopeKind::kDefault;
  if (name == "linear") return RopeKind::kLinear;
  if (name == "dynamic") return RopeKind::kDynamic;
  if (name == "llama3") return RopeKind::kLlama3;
  if (name == "yarn") return RopeKind::kYarn;
  if (name == "longrope") return RopeKind::kLongRope;
  if (name == "proportional") return RopeKind::kProportional;
  scaling.fail(ErrorCode::kUnsupported,
               "rope type " + name +
                   " is not supported; supported are default, linear, dynamic, "
                   "llama3, yarn, longrope, proportional");
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

/// 0 says nothing, as absent and null do.
double number_or(ConfigFields& scaling, std::string_view key, double otherwise) {
  const double number = scaling.number(key, otherwise);
  return number == 0 ? otherwise : number;
}

void parse_yarn(ConfigFields& scaling, RopeConfig& rope) {
  rope.beta_fast = number_or(scaling, "beta_fast", 32);
  rope.beta_slow = number_or(scaling, "beta_slow", 1);
  rope.truncate = scaling.true_unless_null("truncate");
  rope.attention_factor = yarn_attention_factor(scaling, rope.factor);
  if (!(rope.beta_fast > 0 && rope.beta_slow > 0))
    scaling.fail(ErrorCode::kCorrupt, "beta_fast and beta_slow are not positive");
}

void parse_llama3(ConfigFields& scaling, RopeConfig& rope) {
  rope.low_freq_factor = scaling.number("low_freq_factor", std::nullopt);
  rope.high_freq_factor = scaling.number("high_freq_factor", std::nullopt);
  if (!(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor))
    scaling.fail(ErrorCode::kCorrupt, "low_freq_factor is not below high_freq_factor");
}

void parse_longrope(ConfigFields& scaling, RopeConfig& rope) {
  rope.short_divisors = scaling.numbers("short_factor");
  rope.long_divisors = scaling.numbers("long_factor");
  for (const char* key : {"short_factor", "long_factor"})
    if (!scaling.has(key)) scaling.fail(ErrorCode::kCorrupt, std::string(key) + " is missing");
  const double otherwise =
      rope.factor <= 1
          ? 1
          : std::sqrt(1 + std::log(rope.factor) /
                              std::log(static_cast<double>(rope.original_max_positions)));
  rope.attention_factor = scaling.number("attention_factor", otherwise);
  if (!(rope.attention_factor > 0 && std::isfinite(rope.attention_factor)))
    scaling.fail(ErrorCode::kCorrupt, "attention_factor is " + json(rope.attention_factor).dump() +
                                          ", not a number above 0");
}

void parse_scaling(ConfigFields& scaling, const RopeLengths& lengths, bool longrope_alone,
                   RopeConfig& rope) {
  rope.kind = parse_kind(scaling, longrope_alone);
  if (rope.kind == RopeKind::kDefault) return;
  // The dynamic kind grows from max_position_embeddings, whatever else is said.
  rope.original_max_positions = lengths.trained;
  std::optional<double> ratio;
  if (rope.kind == RopeKind::kProportional) ratio = 1;
  if (rope.kind == RopeKind::kLlama3 || rope.kind == RopeKind::kYarn ||
      rope.kind == RopeKind::kLongRope) {
    const bool given = lengths.original || scaling.has("original_max_position_embeddings");
    rope.original_max_positions = lengths.original.value_or(
        scaling.integer("original_max_position_embeddings", lengths.trained, 1, INT32_MAX));
    if ((given && rope.kind == RopeKind::kYarn) || rope.kind == RopeKind::kLongRope)
      ratio =
          static_cast<double>(lengths.trained) / static_cast<double>(rope.original_max_positions);
  }
  rope.factor = scaling.number("factor", ratio);
  if (!(rope.factor > 0 && rope.factor <= 1e6))
    return scaling.fail(ErrorCode::kCorrupt, "factor is " + std::to_string(rope.factor) +
                                                 ", not a number above 0 and at most 1000000");
  if (rope.kind == RopeKind::kLlama3) parse_llama3(scaling, rope);
  if (rope.kind == RopeKind::kYarn) parse_yarn(scaling, rope);
  if (rope.kind == RopeKind::kLongRope) parse_longrope(scaling, rope);
}

/// One set of parameters. `rope` and `partial` hold what is assumed where they are silent.
void parse_parameters(ConfigFields& reader, const RopeLengths& lengths, const RopeFamily& family,
                      double partial, RopeConfig& rope) {
  rope.theta = reader.number("rope_theta", rope.theta);
  parse_scaling(reader, lengths, family.scales_by_longrope_alone, rope);
  partial = reader.number("partial_rotary_factor", partial);
  if (rope.kind == RopeKind::kProportional) {
    rope.partial_rotary_factor = 1;
    rope.proportion = partial;
    return;
  }
  if (family.rotates_part) {
    rope.partial_rotary_factor = partial;
    return;
  }
  // Where nothing is scaled these families rotate the whole head, whatever this says.
  if (partial != 1 && rope.kind != RopeKind::kDefault)
    reader.fail(ErrorCode::kUnsupported, "partial_rotary_factor is " + json(partial).dump() +
                                             ", which is not supported with a scaled rotation");
}

/// Errors of a part are errors of the whole: the part's name starts with that of the whole.
void hand_up(const ConfigFields& part, ConfigFields& fields) {
  if (!part.error()) return;
  fields.fail(part.error()->code, part.error()->message.substr(fields.where().size() + 2));
}

}  // namespace

RopeConfig parse_rope(ConfigFields& fields, const RopeFamily& family,
                      std::int64_t trained_positions) {
  RopeConfig rope;
  rope.theta = fields.number("rope_theta", family.default_theta);
  const json* parameters = fields.object("rope_parameters");
  const json* scaling = fields.object("rope_scaling");
  const char* key = "rope_parameters";
  if (scaling != nullptr && !scaling->empty()) {
    // As in transformers it replaces rope_parameters as a whole. Added to a newer config.json, it
    // would silently drop the base of the rotation.
    const json lost = parameters != nullptr ? parameters->value("rope_theta", json()) : json();
    if (lost.is_number() && lost != rope.theta && !scaling->contains("rope_theta"))
      fields.fail(ErrorCode::kUnsupported,
                  "rope_scaling takes the place of rope_parameters, whose rope_theta " +
                      lost.dump() +
                      " would be lost; put it into rope_scaling too, or all into "
                      "rope_parameters");
    parameters = scaling;
    key = "rope_scaling";
  }
  const std::string_view part = "partial_rotary_factor";
  const bool is_whole = fields.contains(part) && !fields.has(part);  // null takes the default away
  const double partial = family.overrides_part
                             ? family.default_part
                             : fields.number(part, is_whole ? 1 : family.default_part);
  if (family.rotates_part) rope.partial_rotary_factor = partial;
  rope.pairs_neighbours = family.pairs_neighbours;
  RopeLengths lengths{.trained = trained_positions, .original = family.default_original};
  if (fields.has("original_max_position_embeddings"))
    lengths.original = fields.integer("original_max_position_embeddings", 1, 1, INT32_MAX);
  if (parameters == nullptr) return rope;
  ConfigFields reader(*parameters, fields.where() + ": " + key);
  for (const auto& [name, value] : parameters->items())
    if (value.is_object())
      reader.fail(ErrorCode::kUnsupported,
                  name + " is an object, but all layers of this family share one rotation");
  parse_parameters(reader, lengths, family, partial, rope);
  hand_up(reader, fields);
  return rope;
}

RopeConfig parse_layer_rope(ConfigFields& fields, const LayerRope& layer,
                            std::int64_t trained_positions) {
  RopeConfig rope;
  rope.theta = fields.number(layer.theta_key, layer.default_theta);
  const double partial = fields.number("partial_rotary_factor", 1);
  const RopeLengths lengths{.trained = trained_positions, .original = std::nullopt};
  const json* parameters = fields.object("rope_parameters");
  const json* scaling = layer.takes_scaling ? fields.object("rope_scaling") : nullptr;
  json merged = {{"rope_type", "default"}};
  if (parameters != nullptr) {
    const auto own = parameters->find(layer.type);
    if (own != parameters->end() && own->is_object())
      merged = *own;
    else if (own != parameters->end() && !own->is_null())
      fields.fail(ErrorCode::kCorrupt,
                  "rope_parameters: " + std::string(layer.type) + " is not an object");
    else if (scaling != nullptr)
      fields.fail(ErrorCode::kUnsupported, "rope_scaling changes rope_parameters: " +
                                               std::string(layer.type) + ", which is not there");
  }
  std::string where = fields.where() + ": rope_parameters: " + std::string(layer.type);
  if (scaling != nullptr) {
    merged.update(*scaling);
    where = fields.where() + ": rope_scaling";
  }
  ConfigFields reader(merged, where);
  parse_parameters(reader, lengths, {}, partial, rope);
  // Transformers reads it beside the types of layers alone, vLLM here.
  if (rope.kind == RopeKind::kYarn && !rope.truncate)
    reader.fail(ErrorCode::kUnsupported, "truncate is false, which is not supported");
  hand_up(reader, fields);
  return rope;
}

void parse_rope_divisors(ConfigFields& fields, RopeConfig& rope) {
  const json* parameters = fields.object("rope_parameters");
  if (parameters == nullptr) return;
  ConfigFields reader(*parameters, fields.where() + ": rope_parameters");
  rope.divisors = reader.numbers("frequency_divisors");
  hand_up(reader, fields);
}

void check_rope(ConfigFields& fields, const RopeConfig& rope, std::int64_t head_dim) {
  if (!(rope.theta > 1 && std::isfinite(rope.theta)))
    fields.fail(ErrorCode::kCorrupt,
                "the base of a rotation is " + json(rope.theta).dump() + ", it must be above 1");
  for (const double part : {rope.partial_rotary_factor, rope.proportion})
    if (!(part > 0 && part <= 1))
      return fields.fail(ErrorCode::kCorrupt, "partial_rotary_factor is " + json(part).dump() +
                                                  ", not a number above 0 and at most 1");
  const std::int64_t rotated = rope.rotary_dim(head_dim);
  const bool is_odd = rope.frequency_dim(head_dim) % 2 != 0;
  const bool takes_odd = rope.kind == RopeKind::kDefault || rope.kind == RopeKind::kLinear ||
                         rope.kind == RopeKind::kLlama3 || rope.kind == RopeKind::kLongRope;
  if (rotated < 2 || rotated > head_dim || (is_odd && !takes_odd))
    fields.fail(ErrorCode::kUnsupported, std::to_string(rope.frequency_dim(head_dim)) + " of " +
                                             std::to_string(head_dim) +
                                             " elements of a head would be rotated");
  const auto check_divisors = [&](const std::string& key, const std::vector<double>& divisors) {
    if (std::cmp_not_equal(2 * divisors.size(), rotated))
      fields.fail(ErrorCode::kCorrupt, std::to_string(divisors.size()) + " " + key + " for the " +
                                           std::to_string(rotated / 2) + " frequencies of a head");
    for (const double divisor : divisors)
      if (!(divisor > 0 && std::isfinite(divisor)))
        fields.fail(ErrorCode::kCorrupt,
                    "one of " + key + " is " + json(divisor).dump() + ", not a number above 0");
  };
  if (!rope.divisors.empty()) check_divisors("frequency_divisors", rope.divisors);
  if (rope.kind != RopeKind::kLongRope) return;
  check_divisors("numbers of short_factor", rope.short_divisors);
  check_divisors("numbers of long_factor", rope.long_divisors);
}

}  // namespace troupe
