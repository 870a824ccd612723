// Names of models on the Hugging Face Hub, the settings of the environment, and which files are
// loaded.
#include <boost/test/unit_test.hpp>
#include <map>
#include <string>
#include <vector>

#include "runtime/hub/hub_cache.hpp"
#include "runtime/hub/hub_reference.hpp"
#include "runtime/hub/hub_settings.hpp"
#include "runtime/hub/hub_snapshot.hpp"
#include "runtime/hub/pull.hpp"

namespace troupe {
namespace {

using Paths = std::vector<std::string>;
const std::string kCommit(40, 'a');

BOOST_AUTO_TEST_SUITE(hub)

BOOST_AUTO_TEST_CASE(names_are_read_as_users_write_them) {
  for (const std::string text : {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main", "a/b@refs/pr/1",
                                 "a/b:Q4_K_M", "a/b@v1.0:sub/x-Q8_0.gguf", "1.x/y_z"}) {
    for (const std::string prefix : {"", "hf://", "https://huggingface.co/", "https://hf.co/"}) {
      const auto reference = parse_hub_reference(prefix + text);
      BOOST_TEST_CONTEXT(prefix + text) {
        BOOST_REQUIRE(reference.has_value());
        BOOST_TEST(reference->text() == text);
      }
    }
  }
  const auto all = parse_hub_reference("a/b@v1.0:sub/x.gguf");
  BOOST_TEST(all->repository == "a/b");
  BOOST_TEST(all->revision == "v1.0");
  BOOST_TEST(all->file == "sub/x.gguf");
}

BOOST_AUTO_TEST_CASE(other_texts_are_no_names) {
  for (const std::string text : {"",
                                 "gpt2",
                                 "/a/b",
                                 "a/b/c",
                                 "a/",
                                 "/b",
                                 "./a",
                                 "../a",
                                 "a/..",
                                 "a/b@",
                                 "a/b:",
                                 "a/b@../x",
                                 "a/b:../x.gguf",
                                 "a/b:/x.gguf",
                                 "a/b c",
                                 "a/b--c",
                                 "-a/b",
                                 "folder/model.gguf",
                                 "a/b@x y",
                                 "http://a/b"})
    BOOST_TEST(!parse_hub_reference(text).has_value(), text);
}

BOOST_AUTO_TEST_CASE(the_environment_is_read_as_the_python_package_does) {
  std::map<std::string, std::string> variables = {{"HOME", "/h"}};
  const auto settings = [&] {
    return hub_settings([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  BOOST_TEST(settings().cache == "/h/.cache/huggingface/hub");
  BOOST_TEST(settings().endpoint == "https://huggingface.co");
  BOOST_TEST(!settings().offline);
  variables["XDG_CACHE_HOME"] = "/x";
  BOOST_TEST(settings().cache == "/x/huggingface/hub");
  variables["HF_HOME"] = "~/hf";
  BOOST_TEST(settings().cache == "/h/hf/hub");
  variables["HUGGINGFACE_HUB_CACHE"] = "/old";
  BOOST_TEST(settings().cache == "/old");
  variables["HF_HUB_CACHE"] = "/new";
  BOOST_TEST(settings().cache == "/new");
  variables["HF_ENDPOINT"] = "https://mirror/";
  BOOST_TEST(settings().endpoint == "https://mirror");
  variables["HF_TOKEN"] = " hf_x\n";
  BOOST_TEST(settings().token == "hf_x");
  for (const char* yes : {"1", "true", "Yes", "ON"}) {
    variables["HF_HUB_OFFLINE"] = yes;
    BOOST_TEST(settings().offline);
  }
  variables["HF_HUB_OFFLINE"] = "0";
  BOOST_TEST(!settings().offline);
}

BOOST_AUTO_TEST_CASE(the_files_that_are_loaded_are_chosen) {
  const auto chosen = [](const Paths& files) {
    const auto result = files_to_load({.repository = "a/b"}, files);
    return result.ok() ? *result : Paths{result.error().message};
  };
  BOOST_TEST(chosen({"README.md", "config.json", "model.safetensors", "pytorch_model.bin", "x.gguf",
                     "onnx/config.json", "1_Pooling/config.json", "vocab.txt"}) ==
                 (Paths{"config.json", "model.safetensors", "1_Pooling/config.json", "vocab.txt"}),
             boost::test_tools::per_element());
  BOOST_TEST(chosen({"consolidated.safetensors", "model-00001-of-00001.safetensors",
                     "model.safetensors.index.json"}) ==
                 (Paths{"model-00001-of-00001.safetensors", "model.safetensors.index.json"}),
             boost::test_tools::per_element());
  BOOST_TEST(chosen({"consolidated.safetensors", "params.json"}) ==
                 (Paths{"consolidated.safetensors", "params.json"}),
             boost::test_tools::per_element());
  BOOST_TEST(
      chosen({"config.json", "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json",
              "training_args.bin"}) == (Paths{"config.json", "pytorch_model.bin.index.json",
                                              "pytorch_model-00001-of-00001.bin"}),
      boost::test_tools::per_element());
  BOOST_TEST(chosen({"flax_model.msgpack", "training_args.bin"})[0] ==
             "a/b has no weights as safetensors; Troupe reads safetensors and GGUF files");
  BOOST_TEST(chosen({"x.gguf", "y.gguf"})[0] ==
             "a/b has no weights as safetensors; name one of its GGUF files as a/b:FILE: x.gguf, "
             "y.gguf");
}

BOOST_AUTO_TEST_CASE(malformed_descriptions_are_refused_with_the_field) {
  const auto why = [](const std::string& json) {
    const auto snapshot = parse_hub_snapshot(json, "a/b");
    return snapshot.ok() ? "" : snapshot.error().message;
  };
  const std::string sha = R"("sha":")" + kCommit + R"(",)";
  const auto file = [&](const std::string& fields) {
    return "{" + sha + R"("siblings":[{)" + fields + "}]}";
  };
  const std::string hash = R"("blobId":")" + kCommit + R"(")";
  BOOST_TEST(why(file(R"("rfilename":"x.json","size":1,)" + hash)) == "");
  const std::string begin = "the Hub's description of a/b has no valid ";
  BOOST_TEST(why("[]") == begin + "JSON object");
  BOOST_TEST(why("{}") == begin + "sha");
  BOOST_TEST(why(R"({"sha":"../x","siblings":[]})") == begin + "sha");
  BOOST_TEST(why("{" + sha + R"("siblings":7})") == begin + "siblings");
  BOOST_TEST(why(file(R"("rfilename":"../x","size":1,)" + hash)) == begin + "file name: '../x'");
  BOOST_TEST(why(file(R"("rfilename":"x","size":-1,)" + hash)) == begin + "hash and size of x");
  BOOST_TEST(why(file(R"("rfilename":"x","size":1,"blobId":"../y")")) ==
             begin + "hash and size of x");
}

BOOST_AUTO_TEST_CASE(sizes_are_written_with_a_unit) {
  BOOST_TEST(bytes_text(0) == "0 B");
  BOOST_TEST(bytes_text(999) == "999 B");
  BOOST_TEST(bytes_text(1400) == "1.4 kB");
  BOOST_TEST(bytes_text(999'600) == "1.0 MB");
  BOOST_TEST(bytes_text(15'200'000'000) == "15 GB");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
