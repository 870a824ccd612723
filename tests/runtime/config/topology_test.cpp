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

Result<Topology> parse(std::string text, std::int32_t num_workers = 1) {
  return parse_topology(parse_config(text, "t.conf").value(), "t.conf", num_workers);
}

std::string error_of(const std::string& text, std::int32_t num_workers = 1) {
  const auto topology = parse(text, num_workers);
  BOOST_REQUIRE(!topology.ok());
  return topology.error().message;
}

BOOST_AUTO_TEST_CASE(without_nodes_everything_is_in_one_process) {
  const Topology topology = parse("", 2).value();
  BOOST_REQUIRE_EQUAL(topology.nodes.size(), 1u);
  BOOST_TEST(topology.nodes[0].roles.size() == kNumRoles);
  BOOST_TEST(topology.num_workers() == 2);
  BOOST_TEST(!topology.spans_hosts());
}

BOOST_AUTO_TEST_CASE(roles_and_workers_are_found_where_the_file_places_them) {
  const Topology topology = parse(std::string(kThreeNodes)).value();
  BOOST_TEST(topology.node_of(Role::kScheduler).name == "core");
  BOOST_TEST(topology.node_of(Role::kOutputProcessor).name == "front");
  BOOST_TEST(topology.node_of_worker(0).host == "10.0.0.2");
  BOOST_TEST(topology.spans_hosts());
  BOOST_TEST(topology.find("core") != nullptr);
  BOOST_TEST(topology.find("cores") == nullptr);
}

BOOST_AUTO_TEST_CASE(what_cannot_work_is_refused_with_the_reason) {
  const std::string nodes(kThreeNodes);
  BOOST_TEST(error_of(nodes, 2) == "t.conf: no node runs the worker of rank 1");
  BOOST_TEST(error_of("[node.a]\nroles=[\"frontend\"]\n") ==
             "t.conf: no node runs the input-processor");
  BOOST_TEST(error_of(nodes + "[node.b]\nroles=[\"executor\"]\n") ==
             "t.conf: executor is asked of 'core' and of 'b'");
  BOOST_TEST(error_of(nodes + "[node.b]\nworkers=[1]\n") ==
             "t.conf:10: worker 1: the ranks are 0 to 0");
  BOOST_TEST(error_of("[node.a]\nroles=[\"front\"]\n")
                 .starts_with(
                     "t.conf:2: unknown role 'front', expected one of frontend, input-processor"));
  BOOST_TEST(error_of("[node.a]\nrole=[\"frontend\"]\n") ==
             "t.conf:2: unknown key 'node.a.role', expected host, roles or workers");
  BOOST_TEST(error_of("[node.a]\nworkers=0\n") == "t.conf:2: workers takes a list");
  BOOST_TEST(error_of("[node.a]\nworkers=[0]\n[node.b]\nworkers=[0]\n[node.a]\nhost=\"h\"\n") ==
             "t.conf:6: [node.a] stands in two places");
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
  BOOST_TEST(options_topology(options).error().message.starts_with("insecure is set, and so is"));
  options.topology.insecure = false;
  options.topology.tls_certificate.clear();
  BOOST_TEST(options_topology(options).error().message.starts_with("tls-certificate is not set"));
}

BOOST_AUTO_TEST_CASE(a_drawing_shows_every_host_with_its_nodes) {
  const std::string drawing = draw(parse(std::string(kThreeNodes)).value(), "10.0.0.1");
  BOOST_TEST(drawing ==
             "┌─ 10.0.0.1 ─────────────────────────────────────────────────────────┐\n"
             "│ supervisor                                                         │\n"
             "│ front: frontend, input-processor, output-processor                 │\n"
             "│ core: scheduler, kv-cache-manager, encoder-cache-manager, executor │\n"
             "└────────────────────────────────────────────────────────────────────┘\n"
             "┌─ 10.0.0.2 ─────────┐\n"
             "│ worker-0: worker 0 │\n"
             "└────────────────────┘\n");
}

}  // namespace
}  // namespace troupe
