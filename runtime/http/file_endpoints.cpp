#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "runtime/http/batch_store.hpp"
#include "runtime/http/endpoints.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/multipart.hpp"
#include "runtime/http/target.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxFormFieldBytes = 1 << 10;
constexpr std::size_t kMaxFilenameBytes = 512;
constexpr std::size_t kDownloadBytes = 64 << 10;
constexpr std::int64_t kDefaultFiles = 10000;
constexpr std::int64_t kMinExpiry = 3600, kMaxExpiry = 30 * 86400;
constexpr std::string_view kBatchPurpose = "batch";

/// A file of a form, written to disk as it arrives. What it was is removed if it is not finished.
class FileUpload final : public BodyReader {
 public:
  FileUpload(BatchStore& store, const std::string& boundary)
      : store_(store),
        parser_(boundary, {.begin = [this](const FormPart& part) { begin(part); },
                           .content = [this](std::string_view bytes) { add(bytes); }}) {}
  ~FileUpload() override { discard(); }

  void take(std::string_view bytes) override { parser_.feed(bytes); }

  Result<StoredFile> finish(std::string id, std::string owner, std::int64_t now) {
    RETURN_IF_ERROR(parser_.finish());
    if (error_) return *error_;
    if (!has_file_) return invalid_argument("the form has no file", "file");
    if (num_bytes_ == 0) return invalid_argument("file is empty", "file");
    if (purpose_ != kBatchPurpose)
      return invalid_argument("purpose is \"" + purpose_.substr(0, 64) + "\", must be batch",
                              "purpose");
    StoredFile file{.id = std::move(id),
                    .owner = std::move(owner),
                    .filename = filename_,
                    .purpose = purpose_,
                    .num_bytes = num_bytes_,
                    .created_at = now};
    if (!expires_anchor_.empty() || !expires_seconds_.empty()) {
      ASSIGN_OR_RETURN(const std::int64_t seconds, expiry());
      file.expires_at = now + seconds;
    }
    ::close(std::exchange(descriptor_, -1));
    RETURN_IF_ERROR(store_.add_upload(file, path_));
    path_.clear();
    return file;
  }

 private:
  void begin(const FormPart& part) {
    field_ = nullptr;
    in_file_ = false;
    if (error_) return;
    if (part.name == "purpose") {
      field_ = &purpose_;
    } else if (part.name == "expires_after[anchor]") {
      field_ = &expires_anchor_;
    } else if (part.name == "expires_after[seconds]") {
      field_ = &expires_seconds_;
    } else if (part.name == "file") {
      begin_file(part);
    }
    if (field_ != nullptr) field_name_ = part.name;
  }

  void begin_file(const FormPart& part) {
    if (has_file_) return fail(invalid_argument("the form has two files", "file"));
    if (part.filename.empty() || part.filename.size() > kMaxFilenameBytes)
      return fail(invalid_argument("the name of file has " + std::to_string(part.filename.size()) +
                                       " bytes, it must have 1 to " +
                                       std::to_string(kMaxFilenameBytes),
                                   "file"));
    auto path = store_.new_upload();
    if (!path.ok()) return fail(path.error());
    has_file_ = in_file_ = has_reserved_ = true;
    filename_ = part.filename;
    path_ = *path;
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor_ < 0) fail(io_failure());
  }

  void add(std::string_view bytes) {
    if (error_) return;
    if (in_file_) return write(bytes);
    if (field_ == nullptr) return;
    field_->append(bytes);
    if (field_->size() > kMaxFormFieldBytes)
      fail(invalid_argument(
          field_name_ + " has more than " + std::to_string(kMaxFormFieldBytes) + " bytes",
          field_name_));
  }

  void write(std::string_view bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    if (num_bytes_ + size > store_.limits().max_file_bytes) {
      return fail({ErrorCode::kTooLarge,
                   "file has more than max-batch-file-bytes, " +
                       std::to_string(store_.limits().max_file_bytes),
                   "file"});
    }
    if (const auto room = store_.reserve(size); !room.ok()) return fail(room.error());
    num_bytes_ += size;
    while (!bytes.empty()) {  // to the page cache
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return fail(io_failure());
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  [[nodiscard]] Result<std::int64_t> expiry() const {
    if (expires_anchor_ != "created_at")
      return invalid_argument(
          "expires_after[anchor] is \"" + expires_anchor_.substr(0, 64) + "\", must be created_at",
          "expires_after");
    std::int64_t seconds = 0;
    const char* const end = expires_seconds_.data() + expires_seconds_.size();
    const auto [stop, error] = std::from_chars(expires_seconds_.data(), end, seconds);
    if (error != std::errc() || stop != end || seconds < kMinExpiry || seconds > kMaxExpiry)
      return invalid_argument("expires_after[seconds] is \"" + expires_seconds_.substr(0, 64) +
                                  "\", it must be between " + std::to_string(kMinExpiry) + " and " +
                                  std::to_string(kMaxExpiry),
                              "expires_after");
    return seconds;
  }

  [[nodiscard]] static Error io_failure() {
    return {ErrorCode::kIo, "cannot store the file: " + std::generic_category().message(errno), ""};
  }

  void fail(Error error) {
    error_ = std::move(error);
    discard();
  }

  void discard() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    if (path_.empty()) return;
    std::error_code ignored;
    std::filesystem::remove(std::exchange(path_, {}), ignored);
    constexpr std::int64_t kCost = 4096;  // as new_upload has reserved
    if (std::exchange(has_reserved_, false)) store_.release(num_bytes_ + kCost);
    num_bytes_ = 0;
  }

  BatchStore& store_;
  MultipartParser parser_;
  std::string* field_ = nullptr;  ///< that the current part is
  std::string field_name_;
  std::string purpose_, expires_anchor_, expires_seconds_, filename_;
  bool has_file_ = false;
  bool in_file_ = false;
  bool has_reserved_ = false;
  std::filesystem::path path_;  ///< empty: none
  int descriptor_ = -1;
  std::int64_t num_bytes_ = 0;
  std::optional<Error> error_;
};

/// Sends a file in pieces, as fast as the client reads.
class FileDownload final : public Exchange {
 public:
  FileDownload(ResponseSink& sink, std::ifstream file, std::int64_t num_bytes)
      : sink_(sink), file_(std::move(file)), num_left_(num_bytes) {}

  void start(const StoredFile& file) {
    sink_.begin(
        {.status = 200,
         .content_type = "application/octet-stream",
         .body = "",
         .headers = {{"Content-Disposition", "attachment; filename=\"" + file.id + ".jsonl\""}}});
    send_piece();
  }
  void on_ready() override { send_piece(); }
  [[nodiscard]] bool done() const noexcept { return num_left_ == 0; }

 private:
  void send_piece() {
    if (num_left_ == 0) return;
    std::string piece(static_cast<std::size_t>(std::min<std::int64_t>(
                          num_left_, static_cast<std::int64_t>(kDownloadBytes))),
                      '\0');
    file_.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (!file_) throw std::runtime_error("a stored file cannot be read");
    num_left_ -= static_cast<std::int64_t>(piece.size());
    sink_.write(piece, num_left_ == 0);
  }

  ResponseSink& sink_;
  std::ifstream file_;
  std::int64_t num_left_;
};

/// ID and what follows it in "/v1/files/ID/more".
std::pair<std::string, std::string> file_path_of(const HttpRequest& http) {
  const std::string rest = unescaped(http.path().substr(kFilesPath.size() + 1));
  const std::size_t slash = rest.find('/');
  return {rest.substr(0, slash), slash == std::string::npos ? "" : rest.substr(slash + 1)};
}

Result<Answer> try_upload(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  auto* const upload = dynamic_cast<FileUpload*>(http.reader.get());
  CHECK(upload != nullptr);
  ASSIGN_OR_RETURN(const StoredFile file,
                   upload->finish("file-" + context.random_id(), file_owner_of(http),
                                  static_cast<std::int64_t>(context.environment.wall_clock())));
  sink.respond(json_response(file_json(file)));
  return Answer(nullptr);
}

Result<Answer> try_list_files(ServiceContext& context, const HttpRequest& http,
                              ResponseSink& sink) {
  ASSIGN_OR_RETURN(const std::int64_t limit, list_limit(http, kDefaultFiles, kDefaultFiles));
  const std::string order(query_value(http.target, "order").value_or("desc"));
  if (order != "asc" && order != "desc")
    return invalid_argument("order is \"" + order.substr(0, 32) + "\", must be asc or desc",
                            "order");
  ASSIGN_OR_RETURN(
      std::vector<StoredFile> files,
      context.counters.batches->files(
          file_owner_of(http), unescaped(query_value(http.target, "purpose").value_or("")),
          unescaped(query_value(http.target, "after").value_or("")), order == "asc", limit + 1));
  const bool has_more = static_cast<std::int64_t>(files.size()) > limit;
  if (has_more) files.pop_back();
  std::string json = "{\"object\":\"list\",\"data\":";
  append_json_array(json, files,
                    [](std::string& out, const StoredFile& file) { out += file_json(file); });
  const auto append_id = [&](std::string_view name, bool first) {
    json.append(",\"").append(name).append("\":");
    if (files.empty()) {
      json += "null";
    } else {
      append_json_string(json, first ? files.front().id : files.back().id);
    }
  };
  append_id("first_id", true);
  append_id("last_id", false);
  sink.respond(json_response(json + (has_more ? ",\"has_more\":true}" : ",\"has_more\":false}")));
  return Answer(nullptr);
}

Result<Answer> try_show_file(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  const auto [id, more] = file_path_of(http);
  if (!more.empty() && more != "content")
    return Error{ErrorCode::kNotFound, "no such path: " + std::string(http.path().substr(0, 256)),
                 ""};
  BatchStore& store = *context.counters.batches;
  ASSIGN_OR_RETURN(const StoredFile file, store.file(id, file_owner_of(http)));
  if (more.empty()) {
    sink.respond(json_response(file_json(file)));
    return Answer(nullptr);
  }
  if (http.method == "HEAD")
    return Error{ErrorCode::kUnsupported, "HEAD is not supported for contents, only GET", ""};
  std::ifstream content(store.file_path(file.id), std::ios::binary);
  if (!content || file.num_bytes == 0)
    return Error{ErrorCode::kNotFound, "the content of " + file.id + " no longer exists", "id"};
  auto download = std::make_unique<FileDownload>(sink, std::move(content), file.num_bytes);
  download->start(file);
  if (download->done()) return Answer(nullptr);
  return Answer(std::move(download));
}

Result<Answer> try_remove_file(ServiceContext& context, const HttpRequest& http,
                               ResponseSink& sink) {
  const auto [id, more] = file_path_of(http);
  if (!more.empty())
    return Error{ErrorCode::kNotFound, "no such path: " + std::string(http.path().substr(0, 256)),
                 ""};
  RETURN_IF_ERROR(context.counters.batches->remove_file(id, file_owner_of(http)));
  std::string json = "{\"id\":";
  append_json_string(json, id);
  sink.respond(json_response(json + ",\"object\":\"file\",\"deleted\":true}"));
  return Answer(nullptr);
}

}  // namespace

std::string file_owner_of(const HttpRequest& http) {
  return http.owner ? http.owner->key : ApiKeys::key_id(http.authorization());
}

Result<std::int64_t> list_limit(const HttpRequest& http, std::int64_t otherwise, std::int64_t max) {
  const auto text = query_value(http.target, "limit");
  if (!text) return otherwise;
  std::int64_t limit = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
  if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > max)
    return invalid_argument("limit is \"" + std::string(text->substr(0, 32)) +
                                "\", it must be between 1 and " + std::to_string(max),
                            "limit");
  return limit;
}

std::shared_ptr<BodyReader> make_upload(const ServiceContext& context, const HttpRequest& head) {
  const auto boundary = MultipartParser::boundary_of(head.header("Content-Type"));
  CHECK(boundary.ok() && context.counters.batches != nullptr);
  return std::make_shared<FileUpload>(*context.counters.batches, *boundary);
}

Answer answer_uploaded_file(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_upload(context, http, sink), sink);
}

Answer answer_files(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_list_files(context, http, sink), sink);
}

Answer answer_file(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_show_file(context, http, sink), sink);
}

Answer answer_removed_file(ServiceContext& context, const HttpRequest& http, ResponseSink& sink) {
  return answer_or_refuse(try_remove_file(context, http, sink), sink);
}

}  // namespace troupe
