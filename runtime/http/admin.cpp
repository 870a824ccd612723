#include "runtime/http/admin.hpp"

#include "runtime/http/json_fields.hpp"
#include "runtime/http/json_text.hpp"

namespace troupe {
namespace {

constexpr double kMaxDrainSeconds = 86400;

std::string_view to_string(GroupState state) {
  constexpr std::string_view kNames[] = {"absent", "starting", "serving"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace

Result<DrainGroup> parse_drain_group(std::string_view body) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  fields.require("group");
  DrainGroup drain;
  drain.group = static_cast<std::uint32_t>(fields.integer("group", {0, kAnyInt32.max}).value_or(0));
  drain.timeout_s = fields.number("timeout_s", {0, kMaxDrainSeconds}).value_or(0);
  RETURN_IF_ERROR(fields.result());
  return drain;
}

std::string topology_json(const TopologyStatus& status) {
  std::string json = "{\"groups\":";
  std::int32_t number = 0;
  append_json_array(json, status.groups, [&](std::string& out, const GroupStatus& group) {
    out += "{\"group\":";
    append_json_integer(out, number++);
    out += ",\"state\":";
    append_json_string(out, to_string(group.state));
    out += ",\"incarnation\":";
    append_json_integer(out, group.incarnation);
    out += "}";
  });
  json += ",\"nodes\":";
  append_json_array(json, status.nodes, [](std::string& out, const NodeStatus& node) {
    out += "{\"name\":";
    append_json_string(out, node.name);
    out += ",\"host\":";
    append_json_string(out, node.host);
    out += ",\"groups\":";
    append_json_array(out, node.groups,
                      [](std::string& to, std::int32_t group) { append_json_integer(to, group); });
    out += node.joined ? ",\"joined\":true}" : ",\"joined\":false}";
  });
  return json + "}";
}

}  // namespace troupe
