#include "runtime/config/topology.hpp"

#include <boost/test/unit_test.hpp>

#include "runtime/config/config_file.hpp"

namespace troupe {
namespace {

constexpr std::string_view kThreeNodes = R"(
[node.front]
roles=["frontend", "input-processor", "output-processor"]
[node.core]
roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
[node.worker-0]
host="10.0.0.2"
workers=[0]
)";

Result<Topology> parse(std::string text, std::int32_t num_workers = 1,
                       std::int32_t num_groups = 1) {
  return parse_topology(parse_config(text, "t.conf").value(), "t.conf", {num_workers, num_groups});
}

std::string error_of(const std::string& text, std::int32_t num_workers = 1,
                     std::int32_t num_groups = 1) {
  const auto topology = parse(text, num_workers, num_groups);
  BOOST_REQUIRE(!topology.ok());
  return topology.error().message;
}

BOOST_AUTO_TEST_CASE(without_nodes_everything_is_in_one_process) {
  const Topology topology = parse("", 2).value();
  BOOST_REQUIRE_EQUAL(topology.nodes.size(), 1u);
  BOOST_TEST(topology.nodes[0].roles.size() == kNumRoles - 1);
  BOOST_TEST(!topology.nodes[0].has(Role::kEncoder));
  BOOST_TEST((topology.nodes[0].workers == std::vector<std::int32_t>{0, 1}));
  BOOST_TEST(!topology.spans_hosts());
}

BOOST_AUTO_TEST_CASE(roles_and_workers_are_found_where_the_file_places_them) {
  const Topology topology = parse(std::string(kThreeNodes)).value();
  BOOST_TEST(topology.node_of(Role::kScheduler).name == "core");
  BOOST_TEST(topology.node_of(Role::kOutputProcessor).name == "front");
  BOOST_TEST(topology.node_of_worker(0).host == "10.0.0.2");
  BOOST_TEST(topology.spans_hosts());
  BOOST_TEST(topology.node_of(Role::kRequestRouter).name == "front");  // it is not named
  BOOST_TEST(topology.find("core") != nullptr);
  BOOST_TEST(topology.find("cores") == nullptr);
}

BOOST_AUTO_TEST_CASE(what_cannot_work_is_refused_with_the_reason) {
  const std::string nodes(kThreeNodes);
  BOOST_TEST(error_of(nodes, 2) == "t.conf: no node runs the worker of rank 1");
  BOOST_TEST(error_of("[node.a]\nroles=[\"frontend\"]\n") ==
             "t.conf: no node runs the input-processor");
  BOOST_TEST(error_of(nodes + "[node.b]\nroles=[\"executor\"]\n") ==
             "t.conf: executor is assigned to both 'core' and 'b'");
  BOOST_TEST(error_of(nodes + "[node.b]\nworkers=[1]\n") ==
             "t.conf:10: worker 1: the ranks are 0 to 0");
  BOOST_TEST(
      error_of("[node.a]\nroles=[\"front\"]\n")
          .starts_with("t.conf:2: unknown role 'front', expected one of frontend, request-router"));
  BOOST_TEST(error_of("[node.a]\nrole=[\"frontend\"]\n") ==
             "t.conf:2: unknown key 'node.a.role', expected device, group, host, optional, roles "
             "or workers");
  BOOST_TEST(error_of("[node.a]\nworkers=0\n") == "t.conf:2: workers takes a list");
  BOOST_TEST(error_of("[node.a]\nworkers=[0]\n[node.b]\nworkers=[0]\n[node.a]\nhost=\"h\"\n") ==
             "t.conf:6: [node.a] is defined twice");
}

constexpr std::string_view kTwoGroups = R"(
[node.front]
roles=["frontend"]
[node.texts]
roles=["input-processor", "output-processor"]
group=[0, 1]
[node.core-0]
roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
workers=[0]
[node.core-1]
group=1
optional=true
roles=["scheduler", "kv-cache-manager", "encoder-cache-manager", "executor"]
workers=[0]
)";

BOOST_AUTO_TEST_CASE(each_group_has_all_roles_and_ranks_and_shares_the_frontend) {
  const Topology topology = parse(std::string(kTwoGroups), 1, 2).value();
  BOOST_TEST(topology.node_of(Role::kScheduler, 0).name == "core-0");
  BOOST_TEST(topology.node_of(Role::kScheduler, 1).name == "core-1");
  BOOST_TEST(topology.node_of(Role::kInputProcessor, 1).name == "texts");
  BOOST_TEST(topology.node_of(Role::kFrontend, 1).name == "front");
  BOOST_TEST(topology.node_of_worker(0, 1).name == "core-1");
  BOOST_TEST(topology.find("core-1")->optional);
  BOOST_TEST((parse("", 2, 2).value().nodes[0].groups == std::vector<std::int32_t>{0, 1}));
  BOOST_TEST(draw(topology, "here").find("core-1 (group 1, optional): scheduler") !=
             std::string::npos);
  BOOST_TEST(draw(topology, "here").find("front: frontend") != std::string::npos);
  BOOST_TEST(draw(topology, "here").find("texts (groups 0 1): input-processor") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_request_router_may_have_a_process_of_its_own) {
  const std::string nodes = std::string(kTwoGroups) + "[node.router]\nroles=[\"request-router\"]\n";
  const Topology topology = parse(nodes, 1, 2).value();
  BOOST_TEST(topology.node_of(Role::kRequestRouter, 1).name == "router");
  BOOST_TEST(topology.find("router")->serves_all_groups());
  BOOST_TEST(!topology.find("front")->has(Role::kRequestRouter));
  BOOST_TEST(error_of(nodes + "optional=true\n", 1, 2) ==
             "t.conf: 'router' is optional, but runs the request-router");
}

BOOST_AUTO_TEST_CASE(any_number_of_nodes_run_encoders_for_all_groups) {
  const std::string nodes = std::string(kTwoGroups) +
                            "[node.encoder-0]\nroles=[\"encoder\"]\n"
                            "[node.encoder-1]\nroles=[\"encoder\"]\nhost=\"h\"\noptional=true\n";
  const Topology topology = parse(nodes, 1, 2).value();
  BOOST_TEST(topology.find("encoder-0")->serves_all_groups());
  BOOST_TEST(topology.find("encoder-1")->optional);
  BOOST_TEST(draw(topology, "here").find("encoder-0: encoder") != std::string::npos);
  BOOST_TEST(error_of("[node.a]\nroles=[\"encoder\", \"encoder\"]\n") ==
             "t.conf:2: role 'encoder' is listed twice");
}

BOOST_AUTO_TEST_CASE(a_node_may_name_the_device_of_its_workers) {
  const std::string nodes(kTwoGroups);
  const Topology topology = parse(nodes + "device=\"cuda\"\n", 1, 2).value();
  BOOST_TEST(topology.nodes.back().device == "cuda");
  BOOST_TEST(topology.nodes.front().device == "");
  BOOST_TEST(draw(topology, "here").find("worker 0 on cuda") != std::string::npos);
  BOOST_TEST(error_of("[node.a]\ndevice=\"tpu\"\n", 1, 2) ==
             "t.conf:2: device is 'tpu', not one of auto, cpu, cuda, cuda-emulated");
  BOOST_TEST(error_of("[node.a]\ndevice=[\"cpu\"]\n", 1, 2) ==
             "t.conf:2: device takes one value, not a list");
}

BOOST_AUTO_TEST_CASE(groups_that_cannot_work_are_refused_with_the_reason) {
  const std::string nodes(kTwoGroups);
  BOOST_TEST(error_of(nodes, 1, 3) == "t.conf: no node runs the input-processor of group 2");
  BOOST_TEST(error_of(nodes, 1, 1) == "t.conf:6: group 1: the groups are 0 to 0");
  BOOST_TEST(error_of(nodes + "[node.b]\ngroup=1\nworkers=[0]\n", 1, 2) ==
             "t.conf: worker of rank 0 of group 1 is assigned to both 'core-1' and 'b'");
  BOOST_TEST(error_of("[node.a]\noptional=1\n", 1, 2) ==
             "t.conf:2: optional is '1', expected true or false");
  BOOST_TEST(error_of(nodes + "[node.b]\noptional=true\ngroup=0\n", 1, 2) ==
             "t.conf: every group has an optional node");
  BOOST_TEST(error_of("[node.a]\ngroup=[1, 1]\n", 1, 2) == "t.conf:2: group 1 is listed twice");
}

BOOST_AUTO_TEST_CASE(nodes_of_other_hosts_need_a_supervisor_that_they_can_reach) {
  Options options;
  options.nodes = parse_config(kThreeNodes, "t.conf").value();
  BOOST_TEST(options_topology(options).error().message.starts_with("supervisor-host is 127.0.0.1"));
  options.topology.supervisor_host = "10.0.0.1";
  BOOST_TEST(options_topology(options).error().message.starts_with("supervisor-port is 0"));
  options.topology.supervisor_port = 4000;
  BOOST_TEST(options_topology(options).error().message.starts_with("nodes are on several hosts"));
  options.topology.insecure = true;
  BOOST_TEST(options_topology(options).ok());
  options.topology.cluster_secret_file = "secret";
  BOOST_TEST(options_topology(options).error().message.starts_with(
      "cluster-secret-file and insecure exclude each other"));
  options.topology.insecure = false;
  BOOST_TEST(options_topology(options).ok());
}

BOOST_AUTO_TEST_CASE(tls_needs_all_of_its_files) {
  Options options;
  options.topology.tls_certificate = "c.pem";
  BOOST_TEST(options_topology(options).error().message.starts_with("tls-key is not set"));
  options.topology.tls_key = "c.key";
  BOOST_TEST(options_topology(options).error().message.starts_with("tls-ca is not set"));
  options.topology.tls_ca = "ca.pem";
  BOOST_TEST(options_topology(options).ok());
  options.topology.insecure = true;
  BOOST_TEST(options_topology(options).error().message.starts_with(
      "insecure and tls-certificate exclude"));
  options.topology.insecure = false;
  options.topology.tls_certificate.clear();
  BOOST_TEST(options_topology(options).error().message.starts_with("tls-certificate is not set"));
}

BOOST_AUTO_TEST_CASE(a_drawing_shows_every_host_with_its_nodes) {
  const std::string drawing = draw(parse(std::string(kThreeNodes)).value(), "10.0.0.1");
  BOOST_TEST(drawing ==
             "┌─ 10.0.0.1 ─────────────────────────────────────────────────────────┐\n"
             "│ supervisor                                                         │\n"
             "│ front: frontend, request-router, input-processor, output-processor │\n"
             "│ core: scheduler, kv-cache-manager, encoder-cache-manager, executor │\n"
             "└────────────────────────────────────────────────────────────────────┘\n"
             "┌─ 10.0.0.2 ─────────┐\n"
             "│ worker-0: worker 0 │\n"
             "└────────────────────┘\n");
}

}  // namespace
}  // namespace troupe
