// Files and batches on a server with a real socket, and an engine whose answers the test decides.

#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runtime/base/json.hpp"
#include "runtime/http/batch_store.hpp"
#include "tests/runtime/http/server_fixture.hpp"

namespace troupe {
namespace {

using BatchTestJson = nlohmann::json;

struct BatchFixture : ServerFixture {
  BatchFixture() {
    char pattern[] = "/tmp/troupe-batches-XXXXXX";
    BOOST_REQUIRE(mkdtemp(pattern) != nullptr);
    config.options.batch_directory = pattern;
    config.service.api_keys = {{"ada"}, {"bob"}};
  }
  ~BatchFixture() {
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(config.options.batch_directory, ignored);
  }

  /// The status and the body of an answer.
  std::pair<int, std::string> ask(const std::string& request, const std::string& key,
                                  const std::string& body = "",
                                  const std::string& type = "application/json") {
    Client client(server().port());
    client.send(request + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer " +
                key + "\r\nContent-Type: " + type +
                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    std::string answer = client.read_until("\r\n\r\n");
    const int status = std::stoi(answer.substr(9, 3));
    const bool is_chunked = answer.find("chunked") != std::string::npos;
    std::string content = client.read_until("never");
    if (is_chunked) {  // one chunk is enough here
      content.erase(0, content.find("\r\n") + 2);
      content.erase(content.rfind("\r\n0\r\n"));
    }
    return {status, content};
  }
  BatchTestJson json(const std::string& request, const std::string& body = "",
                     const std::string& key = "ada") {
    const auto [status, text] = ask(request, key, body);
    BOOST_TEST(status == 200, request << text);
    return BatchTestJson::parse(text, nullptr, false);
  }
  std::pair<int, std::string> upload(const std::string& content, const std::string& key = "ada",
                                     const std::string& purpose = "batch") {
    return ask("POST /v1/files", key,
               "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
                   "\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; "
                   "filename=\"in.jsonl\"\r\n\r\n" +
                   content + "\r\n--b--\r\n",
               "multipart/form-data; boundary=b");
  }
  static std::string line(const std::string& id, const std::string& body = R"({"prompt":"a"})") {
    return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions","body":)" +
           body + "}\n";
  }
  std::string create(const std::string& content, const std::string& window = "24h") {
    const auto file = BatchTestJson::parse(upload(content).second);
    return json("POST /v1/batches", R"({"endpoint":"/v1/completions","input_file_id":")" +
                                        file["id"].get<std::string>() +
                                        R"(","completion_window":")" + window + "\"}")["id"];
  }
  BatchTestJson wait(const std::string& id, const std::string& status) {
    BatchTestJson batch;
    for (int i = 0; i < 10000; ++i) {
      batch = json("GET /v1/batches/" + id);
      if (batch["status"] == status) return batch;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    BOOST_ERROR("the batch is " << batch.dump() << " and not " << status);
    return batch;
  }
  std::string content_of(const BatchTestJson& id) {
    return ask("GET /v1/files/" + id.get<std::string>() + "/content", "ada").second;
  }
};

std::size_t count_lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

BOOST_FIXTURE_TEST_SUITE(batches, BatchFixture)

BOOST_AUTO_TEST_CASE(files_are_kept_for_the_key_that_sent_them) {
  const auto [status, text] = upload("{}\n");
  BOOST_TEST(status == 200, text);
  const auto file = BatchTestJson::parse(text);
  const std::string id = file["id"];
  BOOST_TEST(id.starts_with("file-"));
  BOOST_TEST(file["bytes"] == 3);
  BOOST_TEST(file["filename"] == "in.jsonl");
  BOOST_TEST(file["purpose"] == "batch");
  BOOST_TEST(json("GET /v1/files/" + id) == file);
  BOOST_TEST(content_of(id) == "{}\n");
  BOOST_TEST(json("GET /v1/files")["data"].size() == 1u);
  BOOST_TEST(json("GET /v1/files", "", "bob")["data"].empty());
  BOOST_TEST(ask("GET /v1/files/" + id, "bob").first == 404);
  BOOST_TEST(ask("DELETE /v1/files/" + id, "bob").first == 404);
  BOOST_TEST(ask("GET /v1/files/" + id + "/content", "bob").first == 404);
  const std::string second = BatchTestJson::parse(upload("[]\n").second)["id"];
  const auto page = json("GET /v1/files?limit=1");
  BOOST_TEST(page["data"][0]["id"] == second);
  BOOST_TEST(page["has_more"] == true);
  BOOST_TEST(json("GET /v1/files?after=" + second)["data"][0]["id"] == id);
  BOOST_TEST(json("DELETE /v1/files/" + id)["deleted"] == true);
  BOOST_TEST(ask("GET /v1/files/" + id, "ada").first == 404);
}

BOOST_AUTO_TEST_CASE(what_is_wrong_with_an_upload_is_said) {
  config.options.max_batch_file_bytes = 1 << 20;
  const auto is_said = [](const std::pair<int, std::string>& answer, int status,
                          const std::string& text) {
    BOOST_TEST(answer.first == status, answer.second);
    BOOST_TEST(answer.second.find(text) != std::string::npos, answer.second);
  };
  is_said(upload("x", "ada", "fine-tune"), 400, "purpose is \\\"fine-tune\\\", must be batch");
  is_said(upload(""), 400, "file is empty");
  is_said(upload(std::string((1 << 20) + 1, 'x')), 413, "max-batch-file-bytes, 1048576");
  is_said(upload(std::string(2 << 20, 'x')), 413, "max-batch-file-bytes, 1048576");
  is_said(ask("POST /v1/files", "ada", "{}"), 400, "a file is sent as multipart/form-data");
  is_said(ask("POST /v1/files", "ada", "x", "multipart/form-data; boundary=b"), 400,
          "it ends before its last boundary");
  is_said(ask("GET /v1/files?limit=0", "ada"), 400, "limit is \\\"0\\\"");
  is_said(ask("POST /v1/batches", "ada", R"({"endpoint":"/health","completion_window":"1y"})"), 400,
          "input_file_id");
  is_said(
      ask("POST /v1/batches", "ada",
          R"({"input_file_id":"file-1","endpoint":"/v1/completions","completion_window":"24h"})"),
      400, "there is no such file");
  is_said(ask("POST /v1/batches/batch_1/cancel", "ada"), 404, "No such Batch object: batch_1");
  // Nothing is left of them.
  BOOST_TEST(std::filesystem::is_empty(config.options.batch_directory + "/uploads"));
  BOOST_TEST(std::filesystem::is_empty(config.options.batch_directory + "/files"));
}

BOOST_AUTO_TEST_CASE(without_a_directory_there_are_none) {
  std::error_code ignored;
  std::filesystem::remove_all(std::exchange(config.options.batch_directory, ""), ignored);
  for (const char* request : {"GET /v1/files", "POST /v1/files", "POST /v1/batches",
                              "GET /v1/batches/batch_1", "DELETE /v1/files/file-1"}) {
    const auto [status, text] = ask(request, "ada");
    BOOST_TEST(status == 501, request);
    BOOST_TEST(text.find("--batch-directory") != std::string::npos, text);
  }
}

BOOST_AUTO_TEST_CASE(a_batch_is_answered_and_its_errors_stand_by_themselves) {
  answer_with(1);
  const std::string id =
      create(line("one") + line("bad", R"({"prompt":"a","temperature":-1})") + "\n" + line("two"));
  const auto batch = wait(id, "completed");
  BOOST_TEST(batch["request_counts"].dump() == R"({"completed":2,"failed":1,"total":3})");
  const std::string output = content_of(batch["output_file_id"]);
  BOOST_TEST(count_lines(output) == 2u);
  BOOST_TEST(output.find(R"("custom_id":"one","response":{"status_code":200)") !=
             std::string::npos);
  const std::string errors = content_of(batch["error_file_id"]);
  BOOST_TEST(count_lines(errors) == 1u);
  BOOST_TEST(errors.find(R"("custom_id":"bad","response":{"status_code":400)") !=
             std::string::npos);
  BOOST_TEST(json("GET /v1/batches")["data"].size() == 1u);
  BOOST_TEST(json("GET /v1/batches", "", "bob")["data"].empty());
  BOOST_TEST(ask("GET /v1/batches/" + id, "bob").first == 404);
  for (const char* time : {"created_at", "in_progress_at", "finalizing_at", "completed_at"})
    BOOST_TEST(batch[time].is_number(), time);
}

BOOST_AUTO_TEST_CASE(a_file_with_wrong_lines_fails_as_a_whole) {
  const auto batch =
      wait(create(line("one") + "{}\n" + line("one") +
                  R"({"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{}})"),
           "failed");
  const auto& errors = batch["errors"]["data"];
  BOOST_REQUIRE(errors.size() == 3u);
  BOOST_TEST(errors[0]["line"] == 2);
  BOOST_TEST(errors[0]["message"] == "custom_id must be a string");
  BOOST_TEST(errors[1]["code"] == "duplicate_custom_id");
  BOOST_TEST(errors[2]["code"] == "mismatched_endpoint");
  BOOST_TEST(engine.wait_submitted(0).empty());
}

BOOST_AUTO_TEST_CASE(only_so_many_requests_are_in_the_engine_and_a_cancelled_batch_leaves_it) {
  config.options.max_batch_in_flight = 2;
  std::string content;
  for (int i = 0; i < 10; ++i) content += line("r" + std::to_string(i));
  const std::string id = create(content);
  BOOST_TEST(engine.wait_submitted(2).size() == 2u);
  const auto file = json("GET /v1/batches/" + id)["input_file_id"].get<std::string>();
  BOOST_TEST(ask("DELETE /v1/files/" + file, "ada").first == 400);  // it is being read
  BOOST_TEST(json("POST /v1/batches/" + id + "/cancel")["status"].get<std::string>().starts_with(
      "cancel"));
  const auto batch = wait(id, "cancelled");
  BOOST_TEST(batch["cancelled_at"].is_number());
  BOOST_TEST(batch["output_file_id"].is_null());
  BOOST_TEST(engine.wait_aborted(2).size() == 2u);
  BOOST_TEST(engine.wait_submitted(2).size() == 2u);
  BOOST_TEST(ask("POST /v1/batches/" + id + "/cancel", "ada").first == 400);
}

BOOST_AUTO_TEST_CASE(what_is_not_done_in_time_expires) {
  const auto batch = wait(create(line("one") + line("two"), "1s"), "expired");
  BOOST_TEST(batch["request_counts"].dump() == R"({"completed":0,"failed":2,"total":2})");
  const std::string errors = content_of(batch["error_file_id"]);
  BOOST_TEST(count_lines(errors) == 2u);
  BOOST_TEST(errors.find(R"("error":{"code":"batch_expired")") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(the_next_server_goes_on_without_doing_anything_twice) {
  config.options.max_batch_in_flight = 1;
  std::atomic<int> num_answered = 0;
  engine.react([&](const GenerateRequest& request) {
    if (num_answered == 3) return;  // the rest hangs
    ++num_answered;
    started().deliver(step(text_output(request.id, "t", {1}, FinishReason::kLength)));
  });
  std::string content;
  for (int i = 0; i < 6; ++i) content += line("r" + std::to_string(i));
  const std::string id = create(content);
  BOOST_TEST(engine.wait_submitted(4).size() == 4u);
  server_.reset();
  // As a process that is killed while it writes.
  for (const auto& entry :
       std::filesystem::directory_iterator(config.options.batch_directory + "/files")) {
    std::ifstream file(entry.path());
    std::string first;
    std::getline(file, first);
    if (first.find("status_code") != std::string::npos)
      std::ofstream(entry.path(), std::ios::app) << R"({"id":"batch_req_0","custom_)";
  }
  answer_with(1);
  const auto batch = wait(id, "completed");
  BOOST_TEST(batch["request_counts"].dump() == R"({"completed":6,"failed":0,"total":6})");
  const std::string output = content_of(batch["output_file_id"]);
  BOOST_TEST(count_lines(output) == 6u);
  for (int i = 0; i < 6; ++i)
    BOOST_TEST(output.find("\"r" + std::to_string(i) + "\"") != std::string::npos, i);
  BOOST_TEST(engine.wait_submitted(7).size() == 7u);  // one of them twice: its answer had not come
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace troupe
