#pragma once
// Requests for streams, kept so that a stream that broke off can be run again.

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

/// All that decides what a stream says.
struct KeptStream {
  std::string id;      ///< of the answer
  std::string engine;  ///< ServiceConfig::engine_name: another one might say something else
  std::string path;    ///< of the endpoint
  std::string body;    ///< as the client sent it
  std::uint32_t tenant = 0;
  double arrival_time = 0;                 ///< seconds since 1970; a chat template may show it
  std::vector<std::uint64_t> philox_keys;  ///< by prompt
  bool operator==(const KeptStream&) const = default;
};
TROUPE_MESSAGE(KeptStream, id, engine, path, body, tenant, arrival_time, philox_keys)

/// Owns the streams in a folder: a file for each that runs or has ended a short while ago. What it
/// holds outlives the process, but not the folder's limits: when one of them is reached, the
/// stream that ended first makes room. Of the folder it touches files with names of its own form
/// only, and the mark that says whose the folder is. Thread-safe. Times are seconds of any one
/// clock.
class KeptStreams {
 public:
  struct Limits {
    std::size_t max_streams = 1024;
    std::size_t max_bytes = 64 << 20;
    double ttl_s = 300;  ///< after the end of the stream
  };
  /// Makes the folder, which then is the user's alone, marks an empty one, or goes on with what is
  /// in one that has the mark. Errors: kIo, the folder cannot be made, belongs to somebody else, or
  /// is in use by another server; kInvalidArgument, it has other files and no mark.
  [[nodiscard]] static Result<std::unique_ptr<KeptStreams>> open(
      const std::filesystem::path& directory, const Limits& limits, double now);

  /// The stream runs from now on, until `release`. Errors: kOverloaded, there is no room, as all
  /// others still run, or there is one with this id, whosever it is; kIo, and nothing is left of
  /// it.
  Result<void> keep(const KeptStream& stream, double now);

  /// As it was kept; it runs from now on, until `release`. Errors: kNotFound, there is none of this
  /// id, engine and tenant.
  [[nodiscard]] Result<KeptStream> resume(std::string_view id, std::string_view engine,
                                          std::uint32_t tenant, double now);

  void release(std::string_view id, double now);

  /// Removes those whose time is up; also done whenever one is kept or resumed.
  void expire(double now);

  /// Forgets all of them, as nobody will ask, and removes the folder if it was made here and has
  /// nothing else.
  void remove_all();

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }

 private:
  struct Entry {
    std::size_t num_bytes = 0;
    int num_running = 0;
    double ended_at = 0;
    std::list<std::string>::iterator place;  // in ended_, if nothing runs
  };
  using Entries = std::unordered_map<std::string, Entry>;  // by the name of the file

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
  std::mutex mutex_;             // guards all below
  Entries entries_;
  std::list<std::string> ended_;  // oldest first
  std::size_t num_bytes_ = 0;
};

}  // namespace troupe
