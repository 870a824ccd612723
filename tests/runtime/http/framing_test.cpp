// Where a request ends: what could be read in two ways is refused, and nothing behind it is read.

#include <boost/test/unit_test.hpp>

#include "tests/runtime/http/session_fixture.hpp"

namespace troupe {
namespace {

constexpr const char* kStart =
    "POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n";
/// A request that an attacker tries to smuggle in.
constexpr const char* kSmuggled = "GET /version HTTP/1.1\r\nHost: h\r\n\r\n";

struct Fixture : SessionFixture {
  /// What a fresh session answers to `bytes` with a request behind them, sent at once and byte by
  /// byte: the same.
  std::string answer_to(const std::string& bytes) {
    const std::string all = bytes + kSmuggled;
    reopen_any();
    const std::string answer = exchange(all);
    const bool closed = session().finished();
    reopen_any();
    for (const char c : all) session().receive({&c, 1});
    BOOST_TEST(drain_output() == answer);
    BOOST_TEST(session().finished() == closed);
    return answer;
  }
  void check_refused(const std::string& bytes, int status, std::string_view named = "") {
    const std::string answer = answer_to(bytes);
    BOOST_TEST_CONTEXT(bytes << " -> " << answer) {
      BOOST_TEST(starts(answer, status));
      BOOST_TEST(has(answer, "Connection: close\r\n"));
      BOOST_TEST(has(answer, named));
      BOOST_TEST(!has(answer, "\"version\""));
      BOOST_TEST(session().finished());
    }
  }
  /// Both requests are answered.
  void check_taken(const std::string& bytes) {
    const std::string answer = answer_to(bytes);
    BOOST_TEST_CONTEXT(bytes << " -> " << answer) {
      BOOST_TEST(starts(answer, 200));
      BOOST_TEST(has(answer, "[97]"));
      BOOST_TEST(has(answer, "\"version\""));
    }
  }
  void reopen_any() {
    session();
    reopen();
  }
};

BOOST_FIXTURE_TEST_SUITE(framing, Fixture)

BOOST_AUTO_TEST_CASE(a_transfer_encoding_is_chunked_or_the_end) {
  const std::string chunks = "\r\n\r\ne\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n";
  const auto with = [&](const std::string& field) { return kStart + field + chunks; };
  check_taken(with("Transfer-Encoding: chunked"));
  check_taken(with("transfer-encoding:\t Chunked \t"));
  for (const char* coding : {"gzip",
                             "identity",
                             "xchunked",
                             "chunkedx",
                             "\"chunked\"",
                             "",
                             "chunked, chunked",
                             "gzip, chunked",
                             "chunked, identity",
                             "identity, chunked",
                             ", chunked",
                             "chunked,",
                             "chunked;q=1",
                             "chunked chunked",
                             "chun\tked",
                             "chunked\xA0",
                             "cow",
                             "deflate",
                             "x-gzip",
                             "'chunked'",
                             "chunked\x80",
                             "c\xE1\xB8\xA5unked"}) {
    check_refused(with("Transfer-Encoding: " + std::string(coding)), 400, "Transfer-Encoding");
  }
  // Similar names are malformed, or other headers.
  for (const char* field : {"Transfer-Encoding : chunked",
                            "Transfer-Encoding\t: chunked",
                            " Transfer-Encoding: chunked",
                            "\tTransfer-Encoding: chunked",
                            "X: y\r\n Transfer-Encoding: chunked",
                            "Transfer-Encoding: \r\n chunked",
                            "Transfer-Encoding:\r\n\tchunked",
                            "Transfer-Encoding",
                            "X: y\nTransfer-Encoding: chunked",
                            "X: y\rTransfer-Encoding: chunked",
                            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                            "Transfer-Encoding: identity\r\ntransfer-encoding: chunked",
                            "Transfer-Encoding: chunked\r\nContent-Length: 3",
                            "Content-Length: 3\r\nTransfer-Encoding: chunked",
                            "Transfer-Encoding: chun\vked",
                            "Transfer-Encoding: \vchunked",
                            "Transfer-Encoding: chunked\x7F",
                            "Transfer Encoding: chunked",
                            "Transfer-Encoding\v: chunked",
                            ": chunked"}) {
    check_refused(with(field), 400);
  }
  check_refused(kStart + std::string("Transfer-Encoding: chunked\0", 27) + chunks, 400);
  // HTTP/1.0 has no such header.
  const std::string old =
      std::string("POST /tokenize HTTP/1.0\r\nContent-Type: application/json\r\n") +
      "Connection: keep-alive\r\nTransfer-Encoding: chunked" + chunks;
  const std::string answer = answer_to(old);
  BOOST_TEST(answer.starts_with("HTTP/1.1 400 "));
  BOOST_TEST(!has(answer, "\"version\""));
}

BOOST_AUTO_TEST_CASE(a_length_is_one_number_or_the_end) {
  const std::string body = "\r\n\r\n{\"prompt\":\"a\"}";
  const auto with = [&](const std::string& field) { return kStart + field + body; };
  check_taken(with("Content-Length: 14"));
  check_taken(with("content-length:014"));
  for (const char* length : {"+14", "-14", "14, 14", "14,14", "14, 15", "0x0e", "1 4", "", "14a",
                             "14.0", "1e1", "\"14\"", "\xD9\xA1\xD9\xA4", "14;"}) {
    check_refused(with("Content-Length: " + std::string(length)), 400, "Content-Length");
  }
  for (const char* fields :
       {"Content-Length: 14\r\nContent-Length: 15", "Content-Length: 14\r\nContent-Length: 14",
        "Content-Length: 0\r\ncontent-length: 14", "Content-Length : 14", " Content-Length: 14",
        "X: y\r\n Content-Length: 14", "Content-Length: 1\r\n 4", "Content-Length: 14\n",
        "X: y\nContent-Length: 14", "Content-Length: 14\r",
        "Content-Length: \x01"
        "14"}) {
    check_refused(with(fields), 400);
  }
  for (const char* length : {"18446744073709551616", "18446744073709551630", "9223372036854775807",
                             "99999999999999999999999999999"}) {
    check_refused(with("Content-Length: " + std::string(length)), 413, "max_body_bytes");
  }
}

BOOST_AUTO_TEST_CASE(chunks_are_read_in_one_way_only) {
  const auto with = [&](const std::string& chunks) {
    return std::string(kStart) + "Transfer-Encoding: chunked\r\n\r\n" + chunks;
  };
  const std::string data = "{\"prompt\":\"a\"}";
  check_taken(with("E;x=\"y\";z\r\n" + data + "\r\n000;last\r\nT: v\r\nU:\r\n\r\n"));
  check_taken(
      with("2 ; x\r\n" + data.substr(0, 2) + "\r\n00c\r\n" + data.substr(2) + "\r\n0\r\n\r\n"));
  for (const std::string& chunks : {"e\n" + data + "\r\n0\r\n\r\n",
                                    "e\r" + data + "\r\n0\r\n\r\n",
                                    "e;x\n" + data + "\r\n0\r\n\r\n",
                                    "e\r\n" + data + "\n0\r\n\r\n",
                                    "e\r\n" + data + "0\r\n\r\n",
                                    "d\r\n" + data + "\r\n0\r\n\r\n",
                                    "f\r\n" + data + "\r\n0\r\n\r\n",
                                    "0xe\r\n" + data + "\r\n0\r\n\r\n",
                                    "+e\r\n" + data + "\r\n0\r\n\r\n",
                                    "-e\r\n" + data + "\r\n0\r\n\r\n",
                                    " e\r\n" + data + "\r\n0\r\n\r\n",
                                    "e \r\n" + data + "\r\n0\r\n\r\n",
                                    "\r\n" + data + "\r\n0\r\n\r\n",
                                    ";x\r\n" + data + "\r\n0\r\n\r\n",
                                    "0000000000000000e\r\n" + data + "\r\n0\r\n\r\n",
                                    "e;x\ry\r\n" + data + "\r\n0\r\n\r\n",
                                    "e\r\n" + data + "\r\n0\n\n",
                                    "e\r\n" + data + "\r\n0\r\n\n",
                                    "e\r\n" + data + "\r\n0\r\n T: v\r\n\r\n",
                                    "e\r\n" + data + "\r\n0\r\nT : v\r\n\r\n",
                                    "e\r\n" + data + "\r\n0\r\nT\r\n\r\n",
                                    "e\r\n" + data + "\r\n0\r\nT: v\nU: w\r\n\r\n",
                                    "e\r\n" + data + "\r\n0\r\nT: v\r\r\n\r\n"}) {
    check_refused(with(chunks), 400);
  }
  for (const char* size : {"fffffffffffffffe", "7fffffffffffffff", "10000000000", "2000001"}) {
    check_refused(with(size + ("\r\n" + data) + "\r\n0\r\n\r\n"), 413, "max_body_bytes");
  }
}

BOOST_AUTO_TEST_CASE(the_size_of_chunk_framing_is_limited_too) {
  limits.max_body_bytes = 1000;
  const std::string head = std::string(kStart) + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string many(10000, '1');
  check_refused(head + "1;" + many, 413, "max_body_bytes");
  check_refused(head + "0\r\nT: " + many, 413, "max_body_bytes");
  std::string extensions, trailers;
  for (int i = 0; i < 100; ++i) {
    extensions += "1;" + std::string(100, 'x') + "\r\n \r\n";
    trailers += "T: " + std::string(100, 'x') + "\r\n";
  }
  check_refused(head + extensions, 413, "max_body_bytes");
  check_refused(head + "0\r\n" + trailers, 413, "max_body_bytes");
  std::string bytes;  // what an honest client may do: each byte a chunk
  for (const char c : std::string("{\"prompt\":\"a\"}" + std::string(300, ' ')))
    bytes += "1\r\n" + std::string(1, c) + "\r\n";
  check_taken(head + bytes + "0\r\n\r\n");
}

BOOST_AUTO_TEST_CASE(lines_of_a_head_end_with_cr_lf_and_hold_no_control_characters) {
  check_refused("GET /version HTTP/1.1\nHost: h\n\n", 400);
  check_refused("GET /version HTTP/1.1\r\nHost: h\n\r\n", 400);
  check_refused("GET /version HTTP/1.1\r\nHost: h\r\n\n", 400);
  check_refused("GET /version\rX HTTP/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("GET /version HTTP/1.1\r\nHost: h\r\nX: a\x1B[31m\r\n\r\n", 400);
  check_refused("GET /ver sion HTTP/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("GET  /version HTTP/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("GET /version\r\n\r\n", 400);
  check_refused("GET /version http/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("G(T /version HTTP/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("GET /v\xC3\xA4 HTTP/1.1\r\nHost: h\r\n\r\n", 400);
  check_refused("\x16\x03\x01\x02", 400);  // TLS
  check_refused("GET /version HTTP/1.1\r\n\r\n", 400, "Host");
  check_refused("GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "Host");
  check_refused("GET /version HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "Host");
  BOOST_TEST(starts(answer_to("\r\n\r\nGET /version HTTP/1.1\r\nHost: h\r\n\r\n"), 200));
  BOOST_TEST(starts(answer_to("GET http://h:80/version?x HTTP/1.1\r\nHost: h\r\n\r\n"), 200));
}

BOOST_AUTO_TEST_CASE(other_versions_are_rejected_with_the_supported_one) {
  check_refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "supports HTTP/1.1 only");
  check_refused("GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505);
  BOOST_TEST(has(answer_to("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                 "HTTP/1.1 505 HTTP Version Not Supported\r\n"));
}

BOOST_AUTO_TEST_CASE(the_body_timeout_grows_with_the_received_bytes) {
  limits.body_timeout_s = 10;
  exchange(std::string(kStart) + "Content-Length: 1000000\r\n\r\n");
  session().check_time(now + 10);
  BOOST_TEST(drain_output() == "");
  exchange(std::string(16 << 10, ' '));
  session().check_time(now + 11);
  BOOST_TEST(drain_output() == "");
  session().check_time(now + 11.1);
  BOOST_TEST(starts(drain_output(), 408));
  BOOST_TEST(session().finished());
  // Extensions of chunks are no progress.
  reopen();
  exchange(std::string(kStart) + "Transfer-Encoding: chunked\r\n\r\n1;" +
           std::string(64 << 10, 'x'));
  session().check_time(now + 10.1);
  BOOST_TEST(starts(drain_output(), 408));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
