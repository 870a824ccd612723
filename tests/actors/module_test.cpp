// Troupe as a module of an application's own actor system.
#include <boost/test/unit_test.hpp>
#include <caf/io/all.hpp>
#include <sstream>

#include "actors/module.hpp"

namespace troupe {
namespace {

struct ApplicationConfig : caf::actor_system_config {
  /// `file` is what CAF's configuration file says.
  explicit ApplicationConfig(const std::string& file = {}) {
    load<module>();
    std::istringstream in(file);
    BOOST_REQUIRE(!parse(std::vector<std::string>{}, in));
  }
};

std::string problem(const std::string& file) {
  const ApplicationConfig config(file);
  const auto options = start_options(config);
  return options.ok() ? "" : options.error().message;
}

BOOST_AUTO_TEST_CASE(the_section_of_cafs_configuration_file_has_the_options_of_the_binary) {
  const ApplicationConfig config(
      "[troupe]\nmodel=\"some/folder\"\nmax-num-seqs=7\nkv-cache-memory-bytes=\"16M\"\n"
      "gpu-memory-utilization=0.25\nenable-prefix-caching=false\n"
      "served-model-name=[\"one\", \"two\"]\nnode-program=\"/usr/bin/troupe\"\n"
      "[own]\nkey=1\n");
  const auto start = start_options(config);
  BOOST_REQUIRE_MESSAGE(start.ok(), problem(""));
  const Options& options = start->options;
  BOOST_TEST(options.model.model == "some/folder");
  BOOST_TEST(options.engine.max_num_seqs == 7);
  BOOST_TEST(options.engine.kv_cache_memory_bytes == 16 << 20);
  BOOST_TEST(options.engine.gpu_memory_utilization == 0.25);
  BOOST_TEST(!options.engine.enable_prefix_caching);
  BOOST_TEST((options.model.served_model_name == std::vector<std::string>{"one", "two"}));
  BOOST_TEST(start->node_program == "/usr/bin/troupe");
  BOOST_TEST(!start->serve_http);
  // The nodes get what the section says, but for their own program.
  BOOST_TEST(start->node_arguments.size() == 7u);
}

BOOST_AUTO_TEST_CASE(an_invalid_key_of_the_section_is_an_error_that_names_it) {
  BOOST_TEST(problem("").empty());
  BOOST_TEST(problem("[troupe]\nmax-num-seq=7\n").find("max-num-seq") != std::string::npos);
  BOOST_TEST(problem("[troupe]\nmax-num-seqs=0\n").find("max-num-seqs = '0'") != std::string::npos);
  BOOST_TEST(
      problem("[troupe]\nidle-timeout-s=500ms\n") ==
      "troupe.idle-timeout-s is neither a string, a number, a flag nor a list of those: 500ms");
  BOOST_TEST(problem("[troupe]\nconfig-file=\"no-such-file\"\n").find("no-such-file") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(cafs_scheduler_is_tuned_where_the_application_does_not_do_it) {
  ApplicationConfig silent;
  const caf::actor_system tuned{silent};
  BOOST_TEST(caf::to_string(caf::get<caf::atom_value>(silent, "scheduler.policy")) == "sharing");
  ApplicationConfig decided("[scheduler]\npolicy='stealing'\n");
  const caf::actor_system as_decided{decided};
  BOOST_TEST(caf::to_string(caf::get<caf::atom_value>(decided, "scheduler.policy")) == "stealing");
}

BOOST_AUTO_TEST_CASE(the_module_takes_one_of_cafs_slots_which_the_application_chooses) {
  ApplicationConfig config;
  const caf::actor_system system{config};
  BOOST_TEST(system.has_network_manager());
  BOOST_TEST(!system.has_openssl_manager());
  caf::actor_system_config other;
  other.load<ModuleIn<CafModule::openssl_manager>>();
  const caf::actor_system beside{other};
  BOOST_TEST(!beside.has_network_manager());
  BOOST_TEST(beside.has_openssl_manager());
}

BOOST_AUTO_TEST_CASE(processes_of_this_host_need_a_program) {
  ApplicationConfig config("[troupe]\nmodel=\"" TROUPE_SOURCE_DIR
                           "/tools/demo_model/model\"\nconfig-file=\"" TROUPE_SOURCE_DIR
                           "/configs/multi-process.conf\"\n");
  auto options = start_options(config);
  BOOST_REQUIRE(options.ok());
  {
    caf::actor_system system{config};
    const auto refused = start(system, *options);
    BOOST_REQUIRE(!refused.ok());
    BOOST_TEST(refused.error().message.find("middleman") != std::string::npos);
  }
  config.load<caf::io::middleman>();
  caf::actor_system system{config};
  const auto refused = start(system, *options);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message ==
             "node-program is not set: node 'front' is a process of this host, which runs the "
             "program troupe");
}

}  // namespace
}  // namespace troupe
