#include "runtime/transport/local_secret.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "runtime/base/file.hpp"
#include "runtime/base/file_descriptor.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxSecretBytes = 4096;

std::string folder_of_user() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') return std::string(runtime) + "/troupe";
  return "/tmp/troupe-" + std::to_string(geteuid());
}

Result<void> check_folder(const std::string& folder) {
  struct stat status {};
  if (lstat(folder.c_str(), &status) != 0)
    return Error{ErrorCode::kIo, folder + ": " + std::strerror(errno)};
  if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 077) != 0)
    return Error{ErrorCode::kIo, folder + " is accessible to other users, its mode must be 0700"};
  return {};
}

std::string file_of(const std::string& folder, std::uint16_t port) {
  return folder + "/supervisor-" + std::to_string(port);
}

std::string read_secret(const std::string& file) {
  auto text = read_file(file, kMaxSecretBytes);
  return text.ok() ? std::move(text).value() : std::string();
}

}  // namespace

Result<std::string> private_folder() {
  std::string folder = folder_of_user();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Error{ErrorCode::kIo, folder + ": " + std::strerror(errno)};
  RETURN_IF_ERROR(check_folder(folder));
  return folder;
}

Result<void> replace_private_file(const std::string& file, const std::string& content) {
  const std::string draft = file + "." + std::to_string(getpid());
  {
    const FileDescriptor out(
        open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!out.valid() || !write_all(out.get(), std::as_bytes(std::span(content)), 0))
      return Error{ErrorCode::kIo, draft + ": " + std::strerror(errno)};
  }
  if (rename(draft.c_str(), file.c_str()) != 0)
    return Error{ErrorCode::kIo, file + ": " + std::strerror(errno)};
  return {};
}

Result<LocalSecret> LocalSecret::publish(std::uint16_t port, std::string secret) {
  ASSIGN_OR_RETURN(const std::string folder, private_folder());
  std::string file = file_of(folder, port);
  RETURN_IF_ERROR(replace_private_file(file, secret));
  return LocalSecret(std::move(file), std::move(secret));
}

LocalSecret::~LocalSecret() {
  if (!file_.empty() && read_secret(file_) == secret_) unlink(file_.c_str());
}

std::string LocalSecret::find(std::uint16_t port) {
  const std::string folder = folder_of_user();
  return check_folder(folder).ok() ? read_secret(file_of(folder, port)) : std::string();
}

}  // namespace troupe
