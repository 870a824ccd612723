#include "runtime/transport/tls.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "tests/runtime/transport/session_pair.hpp"

namespace troupe {
namespace {

/// A folder with what tools/make_certificates.sh makes: two authorities with a certificate each.
struct Certificates {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("troupe-tls-" + std::to_string(getpid()));

  Certificates() {
    make("", "node");
    make("/other", "stranger");
  }
  ~Certificates() { std::filesystem::remove_all(folder); }

  void make(const std::string& authority, const std::string& name) const {
    const std::string command = std::string(TROUPE_SOURCE_DIR "/tools/make_certificates.sh ") +
                                folder.string() + authority + " " + name;
    BOOST_REQUIRE_EQUAL(std::system(command.c_str()), 0);
  }
  [[nodiscard]] TlsFiles files(const std::string& name) const {
    const std::string start = folder.string() + "/" + name;
    return {start + ".pem", start + ".key", (folder / name).parent_path().string() + "/ca.pem"};
  }
  [[nodiscard]] std::shared_ptr<const TlsContext> context(const std::string& name) const {
    return TlsContext::load(files(name)).value();
  }
};

/// Both ends of a connection.
struct Pair {
  std::array<FileDescriptor, 2> sockets = make_socket_pair();
  TlsSession connector, acceptor;

  Pair(const std::shared_ptr<const TlsContext>& connects,
       const std::shared_ptr<const TlsContext>& accepts)
      : connector(connects, sockets[0].get(), TlsSession::Side::kConnects),
        acceptor(accepts, sockets[1].get(), TlsSession::Side::kAccepts) {}
};

/// The number of bytes that were taken; -1: the connection is over.
int write_some(TlsSession& session, std::string_view text) {
  const auto count = session.write(text);
  return count ? static_cast<int>(*count) : -1;
}

struct Fixture {
  const Certificates& certificates() {
    static const Certificates made;
    return made;
  }
};

BOOST_FIXTURE_TEST_SUITE(tls, Fixture)

BOOST_AUTO_TEST_CASE(what_is_written_before_the_handshake_arrives_after_it) {
  const auto context = certificates().context("node");
  Pair pair(context, context);
  const std::string hello = "first word";
  BOOST_TEST(write_some(pair.acceptor, hello) == 10);
  BOOST_TEST(!pair.acceptor.established());
  BOOST_TEST(read_some(pair.connector, pair.acceptor) == hello);
  BOOST_TEST(pair.acceptor.established());
  BOOST_TEST(write_some(pair.connector, hello) == 10);
  BOOST_TEST(read_some(pair.acceptor, pair.connector) == hello);
}

BOOST_AUTO_TEST_CASE(data_before_the_handshake_is_limited) {
  const auto context = certificates().context("node");
  Pair pair(context, context);
  const std::string much(TlsSession::kMaxEarlyBytes, 'x');
  BOOST_TEST(write_some(pair.acceptor, much) == 65536);
  BOOST_TEST(write_some(pair.acceptor, "x") == -1);
  BOOST_TEST(pair.acceptor.error() == "more than 65536 bytes before the handshake");
}

BOOST_AUTO_TEST_CASE(a_peer_with_a_foreign_certificate_is_rejected_and_others_are_unaffected) {
  const auto ours = certificates().context("node");
  const auto other = certificates().context("other/stranger");
  Pair healthy(ours, ours);
  BOOST_TEST(write_some(healthy.acceptor, "here") == 4);
  BOOST_TEST(read_some(healthy.connector, healthy.acceptor) == "here");

  Pair refused(other, ours);
  std::array<char, 10> text;
  static_cast<void>(refused.connector.read(text));
  static_cast<void>(refused.acceptor.read(text));
  BOOST_TEST(read_some(refused.connector, refused.acceptor)
                 .starts_with("over: certificate verify failed ("));

  // An error that were left in this thread's queue would end it.
  BOOST_TEST(healthy.connector.read(text).value() == 0u);
  BOOST_TEST(write_some(healthy.acceptor, "still") == 5);
  BOOST_TEST(read_some(healthy.connector, healthy.acceptor) == "still");
}

BOOST_AUTO_TEST_CASE(the_end_of_a_peer_is_no_error) {
  const auto context = certificates().context("node");
  Pair pair(context, context);
  BOOST_TEST(write_some(pair.acceptor, "a") == 1);
  BOOST_TEST(read_some(pair.connector, pair.acceptor) == "a");
  pair.sockets[0] = FileDescriptor();  // closes the connector's end
  BOOST_TEST(read_some(pair.acceptor, pair.connector).starts_with("over: "));
}

BOOST_AUTO_TEST_CASE(invalid_files_are_rejected_with_the_reason) {
  TlsFiles files = certificates().files("node");
  files.certificate += "x";
  BOOST_TEST(TlsContext::load(files).error().message.find("No such file") != std::string::npos);
  files = certificates().files("node");
  files.key = certificates().files("other/stranger").key;
  BOOST_TEST(TlsContext::load(files).error().message.ends_with("key values mismatch"));
  files = certificates().files("node");
  files.ca = certificates().files("other/stranger").ca;
  BOOST_TEST(TlsContext::load(files).error().message.find(
                 "unable to get local issuer certificate") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_renewed_certificate_is_used_for_new_connections) {
  const TlsFiles files = certificates().files("renewed");
  certificates().make("", "renewed");
  const auto source = TlsSource::open(files).value();
  const auto first = source->context();
  BOOST_TEST(source->context() == first);
  const auto replace = [](const std::string& file, const std::string& by) {
    std::filesystem::copy_file(by, file + "-new");
    std::filesystem::rename(file + "-new", file);
  };
  const TlsFiles other = certificates().files("node");
  replace(files.certificate, other.certificate);
  BOOST_TEST(source->context() == first);  // the key is not this one's
  replace(files.key, other.key);
  const auto second = source->context();
  BOOST_TEST(second != first);
  BOOST_TEST(source->context() == second);
  Pair pair(first, second);  // peers with the old one are still accepted
  BOOST_TEST(write_some(pair.connector, "a") >= 0);
  BOOST_TEST(read_some(pair.acceptor, pair.connector) == "a");
  std::filesystem::remove(files.certificate);
  BOOST_TEST(source->context() == second);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
