#pragma once
// Storage of streaming requests, so that an interrupted stream can be resumed.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "messages/reflect.hpp"
#include "runtime/base/file_descriptor.hpp"
#include "runtime/base/result.hpp"

namespace troupe {

/// Everything that determines the content of a stream.
struct KeptStream {
  std::string id;      ///< of the response
  std::string engine;  ///< ServiceConfig::engine_name: another engine might generate other tokens
  std::string path;    ///< of the endpoint
  std::string body;    ///< as the client sent it
  std::uint32_t tenant = 0;
  double arrival_time = 0;                 ///< seconds since 1970; a chat template may show it
  std::vector<std::uint64_t> philox_keys;  ///< by prompt
  bool operator==(const KeptStream&) const = default;
};
TROUPE_MESSAGE(KeptStream, id, engine, path, body, tenant, arrival_time, philox_keys)

/// Owns the streams in a folder: a file for each that is running or has ended recently. The files
/// survive the process, within the folder's limits: when one is reached, the stream that ended
/// first is removed. In the folder it touches only files with names of its own form, and the mark
/// that identifies the folder. Thread-safe. Times are seconds of one clock.
class KeptStreams {
 public:
  struct Limits {
    std::size_t max_streams = 1024;
    std::size_t max_bytes = 64 << 20;
    double ttl_s = 300;  ///< after the end of the stream
  };
  /// Creates the folder, accessible to the user only, or uses an existing one that is empty or has
  /// the mark. Errors: kIo (the folder cannot be created, belongs to another user, or is in use by
  /// another server), kInvalidArgument (it has other files and no mark).
  [[nodiscard]] static Result<std::unique_ptr<KeptStreams>> open(
      const std::filesystem::path& directory, const Limits& limits, double now);

  /// Stores a stream, which is running until `release`. Errors: kOverloaded (no room, since all
  /// others are running, or the id exists), kIo; on error nothing is stored.
  Result<void> keep(const KeptStream& stream, double now);

  /// Returns the stored stream, which is running until `release`. Errors: kNotFound (no stream with
  /// this id, engine and tenant).
  [[nodiscard]] Result<KeptStream> resume(std::string_view id, std::string_view engine,
                                          std::uint32_t tenant, double now);

  void release(std::string_view id, double now);

  /// Removes expired streams; also done on each keep and resume.
  void expire(double now);

  /// Another server opens the folder from now on: streams that run are its own, nothing is stored
  /// here any more, and no file is touched.
  void hand_over();

  /// Removes all streams, and the folder if it was created here and is otherwise empty.
  void remove_all();

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }

 private:
  struct Entry {
    std::size_t num_bytes = 0;
    int num_running = 0;
    double ended_at = 0;
    std::list<std::string>::iterator place;  // in ended_, if not running
  };
  using Entries = std::unordered_map<std::string, Entry>;  // by file name

  KeptStreams(std::filesystem::path directory, const Limits& limits, FileDescriptor folder,
              bool is_made)
      : directory_(std::move(directory)),
        limits_(limits),
        folder_(std::move(folder)),
        is_made_(is_made) {}

  Result<void> read_folder(double now);
  void end(Entries::iterator entry, double now);
  void run(Entry& entry);
  void remove(Entries::iterator entry);
  void remove_expired(double now);
  [[nodiscard]] bool make_room(std::size_t num_bytes);
  Result<void> write(const std::string& name, const std::vector<char>& bytes) const;

  const std::filesystem::path directory_;
  const Limits limits_;
  const FileDescriptor folder_;  // locked
  const bool is_made_;           // not found
  std::mutex mutex_;             // guards everything below
  Entries entries_;
  std::list<std::string> ended_;  // oldest first
  std::size_t num_bytes_ = 0;
  bool handed_over_ = false;
};

}  // namespace troupe
