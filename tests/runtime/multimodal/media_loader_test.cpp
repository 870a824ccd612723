#include "runtime/multimodal/media_loader.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

namespace troupe {
namespace {

namespace fs = std::filesystem;

/// A folder with a file, beside another folder.
struct Folders {
  Folders() : root(fs::temp_directory_path() / ("media_" + std::to_string(::getpid()))) {
    fs::create_directories(root / "open" / "deep");
    fs::create_directories(root / "open but not");
    write("open/a b.png", "image");
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

/// Answers each request with the same body, one after the other.
class Host {
 public:
  explicit Host(const std::string& body) {
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    BOOST_REQUIRE(::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    BOOST_REQUIRE(::listen(socket_, 16) == 0);
    socklen_t size = sizeof(address);
    BOOST_REQUIRE(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/";
    const std::string answer =
        "HTTP/1.0 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    thread_ = std::jthread([this, answer] {
      while (true) {
        const int client = ::accept(socket_, nullptr, nullptr);
        if (client < 0) return;
        std::array<char, 4096> request{};
        static_cast<void>(::recv(client, request.data(), request.size(), 0));
        static_cast<void>(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL));
        ::close(client);
      }
    });
  }
  ~Host() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  [[nodiscard]] std::string url(const std::string& path) const { return url_ + path; }

 private:
  int socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string url_;
  std::jthread thread_;
};

std::string text_of(const Result<std::vector<std::byte>>& bytes) {
  if (!bytes.ok()) return "error: " + bytes.error().message;
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

BOOST_AUTO_TEST_CASE(files_below_the_folder_are_read_and_no_others) {
  const Folders folders;
  const MediaLoader loader =
      MediaLoader::create({.local_folder = folders.root / "open", .max_bytes = 7}).value();
  BOOST_TEST(text_of(loader.load(folders.url("open/a%20b.png"))) == "image");
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
             "error: images may not be fetched from other hosts (allowed-media-domains)");
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

BOOST_AUTO_TEST_CASE(files_of_other_hosts_may_be_fetched_before_they_are_taken) {
  const Host host("image");
  const MediaLoader loader =
      MediaLoader::create({.domains = {"127.0.0.1"}, .timeout_s = 200}).value();
  BOOST_TEST(loader.fetches());
  const std::string a = host.url("a"), b = host.url("b");
  const std::vector<std::string_view> urls = {a, "data:text/plain;base64,aGk=", b, a, ""};
  BOOST_TEST((loader.remote_of(urls) == std::vector<std::string>{a, b}));
  const auto nobody = MediaLoader::create({}).value();
  BOOST_TEST(!nobody.fetches());
  BOOST_TEST(nobody.remote_of(urls).empty());
  auto files = loader.fetch_all(urls, {});
  BOOST_TEST(files.size() == 2u);
  BOOST_TEST((*files.at(a))->size() == 5u);
  for (const bool before : {true, false}) {
    auto batch = loader.load_all(
        urls, {},
        before ? std::optional(std::move(files)) : std::optional<MediaLoader::FetchedFiles>());
    constexpr std::array<std::size_t, 5> kSizes = {5, 2, 5, 5, 0};
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      const auto file = batch.take(i);
      BOOST_REQUIRE(file.ok());
      BOOST_TEST((*file)->size() == kSizes[i]);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_all_requests_have_fetched_has_a_limit_while_it_is_needed) {
  const Host host(std::string(60, 'x'));
  const MediaLoader loader =
      MediaLoader::create({.domains = {"127.0.0.1"}, .timeout_s = 200, .max_held_bytes = 100})
          .value();
  const std::string a = host.url("a"), b = host.url("b");
  const std::vector<std::string_view> first = {a}, second = {b};
  auto held = loader.fetch_all(first, {});
  BOOST_TEST(held.at(a).ok());
  const auto refused = loader.fetch_all(second, {});
  BOOST_REQUIRE(!refused.at(b).ok());
  BOOST_TEST((refused.at(b).error().code == ErrorCode::kUnavailable));
  BOOST_TEST(refused.at(b).error().message ==
             "the images that are fetched at once have more than 100 bytes in all, the limit");
  held.clear();
  BOOST_TEST(loader.fetch_all(second, {}).at(b).ok());
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_none_is_an_error_at_the_start) {
  BOOST_TEST(MediaLoader::create({.local_folder = "/no/such/folder"}).error().message ==
             "allowed-local-media-path /no/such/folder is not a folder");
}

}  // namespace
}  // namespace troupe
