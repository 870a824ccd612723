// EC connectors by name, and from shared objects.

#include "runtime/ec_transfer/factory.hpp"

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "tests/runtime/ec_transfer/temporary_folder.hpp"

namespace troupe {
namespace {

Result<const ECConnectorKind*> find(const std::string& name, const std::string& module = {}) {
  return find_ec_connector({.connector = name, .module_path = module});
}

BOOST_AUTO_TEST_CASE(connectors_are_found_by_name) {
  for (const char* name :
       {"ECExampleConnector", "ECMemoryConnector", "ECSharedMemoryConnector", "ECTieredConnector"})
    BOOST_TEST(find(name).value()->name == std::string(name));
  BOOST_TEST(find("ECMooncakeConnector").error().message ==
             "ec-transfer-config: ec_connector ECMooncakeConnector is unknown, there are "
             "ECExampleConnector, ECMemoryConnector, ECSharedMemoryConnector, ECTieredConnector, "
             "ECNetworkConnector");
}

BOOST_AUTO_TEST_CASE(a_shared_object_brings_connectors_of_its_own) {
  const ECConnectorKind* const kind = find("Remembering", TROUPE_TEST_MODULE).value();
  ECConnectorContext context{.config = {.connector = "Remembering", .extra_config = "{\"a\":1}"},
                             .encoder_key = "key"};
  const std::shared_ptr<ECConnector> connector = kind->create(context).value();
  BOOST_TEST((connector->has_cache_item({.identifier = "{\"a\":1}"}, 0) == std::optional(true)));
  BOOST_TEST((connector->has_cache_item({.identifier = "key"}, 0) == std::optional(false)));
  const auto refused = kind->create_worker(context);
  BOOST_REQUIRE(!refused.ok());
  BOOST_TEST(refused.error().message == "it has no workers");
  const std::string module = TROUPE_TEST_MODULE;
  BOOST_TEST(
      find("ECExampleConnector", module).error().message ==
      "ec-transfer-config: ec_connector ECExampleConnector is unknown, there are Remembering "
      "in " +
          module);
}

BOOST_AUTO_TEST_CASE(what_is_no_shared_object_of_connectors_is_refused_by_its_path) {
  const TransferFolder folder;
  const std::string path = (folder.path() / "no.so").string();
  const auto missing = find("X", path);
  BOOST_REQUIRE(!missing.ok());
  BOOST_TEST((missing.error().code == ErrorCode::kNotFound));
  BOOST_TEST(missing.error().message.starts_with("ec-transfer-config: ec_connector_module_path " +
                                                 path + ": "));
  std::ofstream(path) << "text";
  BOOST_TEST(!find("X", path).ok());
  const auto other = find("X", "libm.so.6");
  BOOST_REQUIRE(!other.ok());
  BOOST_TEST(other.error().message ==
             "ec-transfer-config: ec_connector_module_path libm.so.6: it does not export "
             "troupe_ec_connectors");
}

}  // namespace
}  // namespace troupe
