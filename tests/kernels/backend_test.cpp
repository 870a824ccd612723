#include "kernels/backend.hpp"

#include "tests/kernels/kernel_testing.hpp"

namespace troupe {
namespace {

BOOST_AUTO_TEST_CASE(every_table_names_its_set_and_lacks_nothing) {
  for (const OpTable* ops : testing::all_tables()) {
    BOOST_TEST(ops->name != nullptr);
#define TROUPE_CHECK_OPERATION(result, operation, parameters) \
  BOOST_TEST(ops->operation != nullptr, ops->name << " lacks " #operation);
    TROUPE_OPERATIONS(TROUPE_CHECK_OPERATION)
#undef TROUPE_CHECK_OPERATION
  }
  BOOST_TEST(std::string(cpu_ops(Isa::kScalar)->name) == "scalar");
}

BOOST_AUTO_TEST_CASE(a_set_is_chosen_by_name_or_refused_with_a_reason) {
  BOOST_TEST(choose_isa("scalar").error.empty());
  BOOST_TEST((choose_isa("auto").isa == detect_isa()));
  BOOST_TEST((choose_isa("").isa == detect_isa()));
  const IsaChoice unknown = choose_isa("sse9");
  BOOST_TEST(unknown.error.find("sse9") != std::string::npos);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    const IsaChoice choice = choose_isa(to_string(isa));
    BOOST_TEST(choice.error.empty() == why_unavailable(isa).empty());
    if (choice.error.empty()) {
      BOOST_TEST((choice.isa == isa));
    } else {
      BOOST_TEST(choice.error.find(why_unavailable(isa)) != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(the_detected_set_can_be_used_and_none_above_it_can) {
  BOOST_TEST(why_unavailable(detect_isa()).empty());
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa > detect_isa()) BOOST_TEST(!why_unavailable(isa).empty());
  }
}

}  // namespace
}  // namespace troupe
