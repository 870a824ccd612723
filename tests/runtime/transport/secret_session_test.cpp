#include "runtime/transport/secret_session.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <string>
#include <string_view>

#include "runtime/transport/handshakes.hpp"
#include "tests/runtime/transport/session_pair.hpp"

namespace troupe {
namespace {

using Side = Session::Side;

struct Pair {
  std::array<FileDescriptor, 2> sockets = make_socket_pair();
  SecretSession connector, acceptor;

  Pair(const std::string& connects, const std::string& accepts)
      : connector(connects, sockets[0].get(), Side::kConnects),
        acceptor(accepts, sockets[1].get(), Side::kAccepts) {}
};

/// The error of an accepting session for a peer that sends these bytes.
std::string answer_to(std::string_view bytes) {
  const auto sockets = make_socket_pair();
  SecretSession acceptor("secret", sockets[1].get(), Side::kAccepts);
  BOOST_TEST(send(sockets[0].get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  return acceptor.read({}) ? "" : acceptor.error();
}

BOOST_AUTO_TEST_SUITE(secret_session)

BOOST_AUTO_TEST_CASE(peers_with_the_same_secret_accept_each_other) {
  Pair pair("secret", "secret");
  BOOST_TEST(pair.acceptor.write(std::string_view("first word")).value() == 10u);
  BOOST_TEST(!pair.acceptor.established());
  BOOST_TEST(read_some(pair.connector, pair.acceptor) == "first word");
  BOOST_TEST(pair.acceptor.established());
  BOOST_TEST(pair.connector.established());
  BOOST_TEST(pair.connector.write(std::string_view("back")).value() == 4u);
  BOOST_TEST(read_some(pair.acceptor, pair.connector) == "back");
}

BOOST_AUTO_TEST_CASE(a_peer_without_the_secret_gets_no_proof) {
  Pair pair("guess", "secret");
  static_cast<void>(pair.acceptor.write(std::string_view("first word")));
  BOOST_TEST(pair.connector.read({}).has_value());  // reads the challenge and answers it
  BOOST_TEST(!pair.acceptor.read({}).has_value());
  BOOST_TEST(pair.acceptor.error() == "the peer does not know the secret");
  BOOST_TEST(!pair.acceptor.established());
  BOOST_TEST(pair.connector.read({}).value() == 0u);  // no answer, and no word
  BOOST_TEST(!pair.connector.established());
}

BOOST_AUTO_TEST_CASE(the_accepting_side_must_know_the_secret_too) {
  const auto sockets = make_socket_pair();
  SecretSession connector("secret", sockets[0].get(), Side::kConnects);
  const std::string challenge = "TROUPE/1" + std::string(32, 'c');
  BOOST_TEST(send(sockets[1].get(), challenge.data(), challenge.size(), 0) == 40);
  BOOST_TEST(connector.read({}).has_value());
  std::array<char, 100> hello;
  BOOST_REQUIRE_EQUAL(recv(sockets[1].get(), hello.data(), hello.size(), 0), 72);
  // Its own answer, sent back.
  BOOST_TEST(send(sockets[1].get(), hello.data() + 40, 32, 0) == 32);
  BOOST_TEST(!connector.read({}).has_value());
  BOOST_TEST(connector.error() == "the peer does not know the secret");
}

BOOST_AUTO_TEST_CASE(a_frame_that_comes_instead_of_the_handshake_ends_the_connection) {
  const std::string forged = std::string(8, '\0') + std::string(8, '\xff') + std::string(8, '\0') +
                             std::string("\x80\0\0\0\0\0\0\0", 8);
  BOOST_TEST(answer_to(forged) == "the peer is not a node, or has another version");
  BOOST_TEST(answer_to(std::string(1, '\0')) == "the peer is not a node, or has another version");
  BOOST_TEST(answer_to("GET / HTTP/1.1\r\n\r\n") ==
             "the peer is not a node, or has another version");
  BOOST_TEST(answer_to("TROUPE/2") == "the peer is not a node, or has another version");
  BOOST_TEST(answer_to("TROUPE/1").empty());  // the rest may come
  BOOST_TEST(answer_to("TROUPE/1" + std::string(64, 'x')) == "the peer does not know the secret");
}

BOOST_AUTO_TEST_CASE(data_before_the_handshake_is_limited) {
  Pair pair("secret", "secret");
  const std::string much(Session::kMaxEarlyBytes, 'x');
  BOOST_TEST(pair.acceptor.write(much).value() == much.size());
  BOOST_TEST(!pair.acceptor.write(std::string_view("x")).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(handshakes)

bool is_open(const FileDescriptor& end) {
  char byte = 0;
  return recv(end.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0;
}

BOOST_AUTO_TEST_CASE(the_oldest_handshake_is_dropped_and_authenticated_peers_are_kept) {
  Handshakes handshakes(2, std::chrono::hours(1));
  Pair established("secret", "secret");
  handshakes.add(std::shared_ptr<Session>(&established.acceptor, [](Session*) {}),
                 established.sockets[1].get());
  struct Silent {
    std::array<FileDescriptor, 2> sockets = make_socket_pair();
    std::shared_ptr<Session> session =
        std::make_shared<SecretSession>("secret", sockets[1].get(), Side::kAccepts);
  };
  std::array<Silent, 3> silent;
  static_cast<void>(read_some(established.connector, established.acceptor));
  for (const Silent& each : silent) handshakes.add(each.session, each.sockets[1].get());
  BOOST_TEST(!is_open(silent[0].sockets[0]));
  BOOST_TEST(is_open(silent[1].sockets[0]));
  BOOST_TEST(is_open(silent[2].sockets[0]));
  BOOST_TEST(is_open(established.sockets[0]));
  silent[1].session.reset();
  BOOST_TEST(handshakes.num_pending() == 1u);
}

BOOST_AUTO_TEST_CASE(silent_connections_are_closed_in_time) {
  Handshakes handshakes(2, std::chrono::milliseconds(1));
  const auto sockets = make_socket_pair();
  const auto session = std::make_shared<SecretSession>("secret", sockets[1].get(), Side::kAccepts);
  handshakes.add(session, sockets[1].get());
  BOOST_TEST(fcntl(sockets[0].get(), F_SETFL, 0) == 0);
  char byte = 0;
  BOOST_TEST(recv(sockets[0].get(), &byte, 1, 0) == 0);  // returns when it is
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
