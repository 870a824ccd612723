#include "runtime/multimodal/media_loader.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A folder with a file, beside another folder.
struct Folders {
  Folders() : root(fs::temp_directory_path() / ("media_" + std::to_string(::getpid()))) {
    fs::create_directories(root / "open" / "deep");
    fs::create_directories(root / "open but not");
    write("open/a b.png", "picture");
    write("open/deep/c.png", "deep");
    write("open but not/d.png", "secret");
    fs::create_symlink(root / "open but not" / "d.png", root / "open" / "link.png");
    fs::create_symlink(root / "open" / "deep" / "c.png", root / "open" / "inside.png");
    BOOST_REQUIRE(::mkfifo((root / "open" / "fifo").c_str(), 0600) == 0);
  }
  ~Folders() { fs::remove_all(root); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root / name) << text;
  }
  [[nodiscard]] std::string url(const std::string& name) const {
    return "file://" + (root / name).string();
  }
  fs::path root;
};

std::string text_of(const Result<std::vector<std::byte>>& bytes) {
  if (!bytes.ok()) return "error: " + bytes.error().message;
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

BOOST_AUTO_TEST_CASE(files_below_the_folder_are_read_and_no_others) {
  const Folders folders;
  const MediaLoader loader =
      MediaLoader::create({.local_folder = folders.root / "open", .max_bytes = 7}).value();
  BOOST_TEST(text_of(loader.load(folders.url("open/a%20b.png"))) == "picture");
  BOOST_TEST(text_of(loader.load(folders.url("open/deep/../deep/c.png"))) == "deep");
  BOOST_TEST(text_of(loader.load(folders.url("open/inside.png"))) == "deep");
  const std::string outside = "error: the file is not below allowed-local-media-path";
  for (const char* name : {"open/../open but not/d.png", "open but not/d.png", "open/link.png",
                           "open/deep/../../open%20but%20not/d.png", "open/a%20b.png%00.png"})
    BOOST_TEST(text_of(loader.load(folders.url(name))) == outside, name);
  for (const char* name : {"open/fifo", "open/deep", "open/none.png"})
    BOOST_TEST(text_of(loader.load(folders.url(name))).find("cannot be read") != std::string::npos,
               name);
  folders.write("open/large", "8 bytes.");
  BOOST_TEST(text_of(loader.load(folders.url("open/large"))) ==
             "error: it has more than 7 bytes, the limit");
  BOOST_TEST(text_of(loader.load("file:relative.png")).find("names no file") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_the_operator_has_not_allowed_is_refused_by_the_option) {
  const MediaLoader loader = MediaLoader::create({}).value();
  BOOST_TEST(text_of(loader.load("file:///etc/hostname")) ==
             "error: files may not be named (allowed-local-media-path)");
  BOOST_TEST(text_of(loader.load("http://127.0.0.1:1/a.png")) ==
             "error: pictures may not be fetched from other hosts (allowed-media-domains)");
  BOOST_TEST(text_of(loader.load("gopher://a/b")).find("gopher://a/b is not supported") !=
             std::string::npos);
  BOOST_TEST(text_of(loader.load("data:text/plain;base64,aGk=")) == "hi");
}

BOOST_AUTO_TEST_CASE(hosts_are_compared_as_the_connection_would_be_made) {
  const MediaLoader loader =
      MediaLoader::create({.domains = {"images.example", "localhost.localdomain"}}).value();
  for (const char* url :
       {"http://images.example.evil/a", "http://evil/?images.example", "http://evil#images.example",
        "http://images.example@evil/a", "http://[::1]/a"})
    BOOST_TEST(text_of(loader.load(url)).find("may not be asked") != std::string::npos, url);
}

BOOST_AUTO_TEST_CASE(a_name_that_leads_into_the_own_network_is_not_connected_to) {
  // Named by its name, not by its address: it might be anyone's.
  const MediaLoader loader = MediaLoader::create({.domains = {"ip6-localhost"}}).value();
  const std::string text = text_of(loader.load("http://ip6-localhost:1/a.png"));
  BOOST_TEST((text == "error: the host ip6-localhost has an address that is not public" ||
              text.find("cannot be asked") != std::string::npos),  // a host without that name
             text);
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_none_is_an_error_at_the_start) {
  BOOST_TEST(MediaLoader::create({.local_folder = "/no/such/folder"}).error().message ==
             "allowed-local-media-path /no/such/folder is not a folder");
}

}  // namespace
}  // namespace troupe
