#include "runtime/models/pooler_config.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace troupe {
namespace {

namespace fs = std::filesystem;

class PoolingFolder {
 public:
  PoolingFolder() {
    std::string path = (fs::temp_directory_path() / "troupe-pooler-XXXXXX").string();
    BOOST_REQUIRE(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~PoolingFolder() { fs::remove_all(path_); }
  PoolingFolder(const PoolingFolder&) = delete;
  PoolingFolder& operator=(const PoolingFolder&) = delete;

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  /// modules.json with these, and the settings of pooling.
  void write_modules(std::initializer_list<std::string> types, const std::string& pooling) const {
    std::string modules;
    for (const std::string& type : types)
      modules += (modules.empty() ? "" : ",") +
                 std::string("{\"type\":\"sentence_transformers.models.") + type +
                 "\",\"path\":\"" + (type == "Pooling" ? "1_Pooling" : "") + "\"}";
    write("modules.json", "[" + modules + "]");
    write("1_Pooling/config.json", pooling);
  }
  [[nodiscard]] Result<PoolerConfig> load(std::string_view runner = "auto",
                                          std::string_view override_json = "",
                                          bool is_encoder = false) const {
    return load_pooler_config(path_, runner, override_json, is_encoder);
  }
  [[nodiscard]] std::string error(std::string_view runner = "auto",
                                  std::string_view override_json = "",
                                  bool is_encoder = false) const {
    const auto config = load(runner, override_json, is_encoder);
    return config.ok() ? "no error" : config.error().message;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

BOOST_AUTO_TEST_CASE(the_files_of_sentence_transformers_say_how_texts_are_pooled) {
  const PoolingFolder folder;
  folder.write_modules({"Transformer", "Pooling", "Normalize"},
                       R"({"pooling_mode_lasttoken":true})");
  BOOST_TEST((folder.load().value() == PoolerConfig{PoolingType::kLast, true, false}));
  folder.write_modules({"Transformer", "Pooling"},
                       R"({"pooling_mode_mean_tokens":true,"pooling_mode_cls_token":false})");
  BOOST_TEST((folder.load().value() == PoolerConfig{PoolingType::kMean, false, true}));
  folder.write_modules({"Pooling"}, R"({"pooling_mode_cls_token":true})");
  BOOST_TEST((folder.load().value() == PoolerConfig{PoolingType::kCls, false, true}));
  // The model may be run for something else, and its pooling be another.
  BOOST_TEST((folder.load("generate").value() == PoolerConfig()));
  BOOST_TEST((folder.load("pooling", R"({"pooling_type":"LAST","normalize":true})").value() ==
              PoolerConfig{PoolingType::kLast, true, false}));
  BOOST_TEST((folder.load("auto", R"({"use_activation":true})").value() ==
              PoolerConfig{PoolingType::kCls, true, true}));
}

BOOST_AUTO_TEST_CASE(without_these_files_the_runner_decides) {
  const PoolingFolder folder;
  BOOST_TEST((folder.load().value() == PoolerConfig()));
  BOOST_TEST((folder.load("pooling").value() == PoolerConfig{PoolingType::kLast, true, false}));
  BOOST_TEST(
      (folder.load("auto", "", true).value() == PoolerConfig{PoolingType::kCls, true, true}));
  BOOST_TEST(folder.error("generate", "", true) ==
             "runner generate: the model is an encoder, it generates no text");
  BOOST_TEST(folder.error("auto", "{}") == "pooler-config needs a pooling model: see runner");
  BOOST_TEST(load_max_text_tokens(folder.path()).value() == 0);
  folder.write("sentence_bert_config.json", R"({"max_seq_length":384,"do_lower_case":false})");
  BOOST_TEST(load_max_text_tokens(folder.path()).value() == 384);
}

BOOST_AUTO_TEST_CASE(what_is_not_offered_is_refused_by_its_name) {
  const PoolingFolder folder;
  folder.write_modules({"Transformer", "Pooling", "Dense"}, R"({"pooling_mode_lasttoken":true})");
  BOOST_TEST(folder.error() ==
             "modules.json: module sentence_transformers.models.Dense is not supported");
  folder.write_modules({"Pooling"}, R"({"pooling_mode_max_tokens":true})");
  BOOST_TEST(folder.error() == "1_Pooling/config.json: pooling_mode_max_tokens is not supported");
  folder.write_modules({"Pooling"},
                       R"({"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true})");
  BOOST_TEST(folder.error() ==
             "1_Pooling/config.json: several ways of pooling at once are not supported");
  folder.write_modules({"Pooling"}, R"({"pooling_mode_cls_token":true,"include_prompt":false})");
  BOOST_TEST(folder.error() == "1_Pooling/config.json: include_prompt false is not supported");
  folder.write_modules({"Pooling"}, "{}");
  BOOST_TEST(folder.error() == "1_Pooling/config.json names no way of pooling");
  folder.write_modules({"Transformer"}, "{}");
  BOOST_TEST(folder.error() == "modules.json has no module for pooling");
  folder.write("modules.json", "{}");
  BOOST_TEST(folder.error() == "modules.json is not an array");
  folder.write("modules.json", "[1]");
  BOOST_TEST(folder.error() == "modules.json has a module that is not an object");
  BOOST_TEST(folder.error("pooling", "[") != "no error");
  fs::remove(folder.path() / "modules.json");
  BOOST_TEST(folder.error("pooling", R"({"pooling_type":"MAX"})") ==
             "pooler-config: pooling_type is \"MAX\", must be LAST, CLS or MEAN");
  BOOST_TEST(folder.error("pooling", R"({"step":1})") ==
             "pooler-config: step is not known, only pooling_type, normalize and use_activation");
}

}  // namespace
}  // namespace troupe
