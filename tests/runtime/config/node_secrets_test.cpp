#include "runtime/config/node_secrets.hpp"

#include <boost/test/unit_test.hpp>

namespace troupe {
namespace {

using Arguments = std::vector<std::string>;

BOOST_AUTO_TEST_SUITE(node_secrets)

BOOST_AUTO_TEST_CASE(keys_are_taken_out_of_a_command_line_in_every_form) {
  Arguments arguments = {"model",         "--api-key",      "one",    "--port",   "1",
                         "--api-key=two", "--api_key",      "--port", "-tp",      "2",
                         "--api_key=a=b", "--api-key-file", "f",      "--api-key"};
  const Arguments taken = take_secret_options(arguments);
  BOOST_TEST((taken == Arguments{"--api-key", "one", "--api-key=two", "--api_key", "--port",
                                 "--api_key=a=b", "--api-key"}));
  BOOST_TEST((arguments == Arguments{"model", "--port", "1", "-tp", "2", "--api-key-file", "f"}));
}

BOOST_AUTO_TEST_CASE(secrets_passed_to_a_process_arrive) {
  const NodeSecrets secrets = {.cluster_secret = "s", .arguments = {"--api-key", "", "a\nb"}};
  const NodeSecrets read = NodeSecrets::decode(secrets.encode());
  BOOST_TEST(read.cluster_secret == "s");
  BOOST_TEST((read.arguments == secrets.arguments));
  BOOST_TEST(NodeSecrets::decode("").cluster_secret.empty());
  BOOST_TEST(NodeSecrets::decode("").arguments.empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
