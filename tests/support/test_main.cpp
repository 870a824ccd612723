// The one main function of every Boost.Test executable. `--file=NAME` runs the cases of one source
// file: ctest has an entry for each, so that a failure names its file. A case that no entry would
// run is an error.
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

namespace ut = boost::unit_test;

constexpr std::string_view kFileOption = "--file=";

/// The file that was asked for; empty: all.
std::string& chosen_file() {
  static std::string file;
  return file;
}

std::string file_name(const ut::test_unit& unit) {
  const std::string path(unit.p_file_name.begin(), unit.p_file_name.end());
  return path.substr(path.find_last_of('/') + 1);
}

/// Each *_test.cpp has one (troupe_tests in tools/cmake/TroupeTargets.cmake); a case in a file that
/// tests share has none.
bool has_entry(const std::string& file) { return file.ends_with("_test.cpp"); }

/// By its own decorator, which Boost applies later and only to what nobody disabled before.
bool is_disabled(const ut::test_case& test) {
  return std::ranges::any_of(test.p_decorators.get(), [](const auto& decorator) {
    return dynamic_cast<const ut::decorator::disabled*>(decorator.get()) != nullptr;
  });
}

class FileFilter final : public ut::test_tree_visitor {
 public:
  void visit(const ut::test_case& test) override {
    const std::string file = file_name(test);
    if (!has_entry(file)) {
      std::fprintf(stderr, "%s: no entry of ctest runs the case %s\n", file.c_str(),
                   test.p_name.get().c_str());
      all_have_entries_ = false;
    }
    if (file == chosen_file())
      ++num_chosen_;
    else if (!chosen_file().empty() && !is_disabled(test))
      ut::framework::get<ut::test_unit>(test.p_id).p_default_status.value =
          ut::test_unit::RS_DISABLED;
  }

  [[nodiscard]] bool is_fine() const {
    if (!chosen_file().empty() && num_chosen_ == 0)
      std::fprintf(stderr, "no case is in %s\n", chosen_file().c_str());
    return all_have_entries_ && (chosen_file().empty() || num_chosen_ > 0);
  }

 private:
  int num_chosen_ = 0;
  bool all_have_entries_ = true;
};

bool choose_tests() {
  ut::framework::master_test_suite().p_name.value = "troupe";
  FileFilter filter;
  ut::traverse_test_tree(ut::framework::master_test_suite(), filter, true);
  return filter.is_fine();
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> arguments;
  for (char* const argument : std::vector<char*>(argv, argv + argc)) {
    if (std::string_view(argument).starts_with(kFileOption))
      chosen_file() = argument + kFileOption.size();
    else
      arguments.push_back(argument);
  }
  return ut::unit_test_main(&choose_tests, static_cast<int>(arguments.size()), arguments.data());
}
