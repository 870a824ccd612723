#include "runtime/multimodal/media_hasher.hpp"

#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>
#include <variant>

#include "runtime/base/blake3.hpp"
#include "runtime/base/check.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/base/ordered_json.hpp"

namespace troupe {
namespace {

using nlohmann::ordered_json;

enum ValueKind : std::uint8_t { kNone = 0, kSequence = 1, kMapping = 2, kLeaf = 3 };

struct EvpDeleter {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

std::span<const std::byte> bytes_of_text(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::array<std::byte, 8> little_endian(std::uint64_t value) {
  std::array<std::byte, 8> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(value >> (8 * i) & 0xFF);
  return bytes;
}

}  // namespace

/// BLAKE3, or one of OpenSSL's functions.
class MediaHasher::Digest {
 public:
  explicit Digest(MediaHashAlgorithm algorithm) {
    if (algorithm == MediaHashAlgorithm::kBlake3) return;
    openssl_.reset(EVP_MD_CTX_new());
    const EVP_MD* function = algorithm == MediaHashAlgorithm::kSha256 ? EVP_sha256() : EVP_sha512();
    CHECK(openssl_ != nullptr && EVP_DigestInit_ex(openssl_.get(), function, nullptr) == 1);
  }
  void update(std::span<const std::byte> bytes) {
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    if (openssl_ == nullptr)
      blake3_.update({data, bytes.size()});
    else
      CHECK(EVP_DigestUpdate(openssl_.get(), data, bytes.size()) == 1);
  }
  std::string finish() {
    if (openssl_ == nullptr) return to_hex(blake3_.digest());
    std::array<std::uint8_t, EVP_MAX_MD_SIZE> digest;
    unsigned size = 0;
    CHECK(EVP_DigestFinal_ex(openssl_.get(), digest.data(), &size) == 1);
    return to_hex(std::span(digest).first(size));
  }

 private:
  Blake3 blake3_;
  std::unique_ptr<EVP_MD_CTX, EvpDeleter> openssl_;
};

std::optional<MediaHashAlgorithm> parse_media_hash_algorithm(std::string_view name) {
  if (name == "blake3") return MediaHashAlgorithm::kBlake3;
  if (name == "sha256") return MediaHashAlgorithm::kSha256;
  if (name == "sha512") return MediaHashAlgorithm::kSha512;
  return std::nullopt;
}

MediaHasher::MediaHasher(MediaHashAlgorithm algorithm)
    : digest_(std::make_unique<Digest>(algorithm)) {}
MediaHasher::MediaHasher(MediaHasher&&) noexcept = default;
MediaHasher& MediaHasher::operator=(MediaHasher&&) noexcept = default;
MediaHasher::~MediaHasher() = default;

void MediaHasher::add_frame(std::span<const std::byte> bytes) {
  digest_->update(little_endian(bytes.size()));
  digest_->update(bytes);
}

void MediaHasher::add_kind(std::uint8_t kind, std::optional<std::uint64_t> num_elements) {
  const std::array tag = {static_cast<std::byte>(kind)};
  digest_->update(tag);
  if (num_elements) digest_->update(little_endian(*num_elements));
}

void MediaHasher::add_name(std::string_view name) { add_frame(bytes_of_text(name)); }
void MediaHasher::add_bytes(std::span<const std::byte> bytes) {
  add_kind(kLeaf, std::nullopt);
  add_frame(bytes);
}
void MediaHasher::add_text(std::string_view text) { add_bytes(bytes_of_text(text)); }

void MediaHasher::add_image(std::span<const std::byte> encoded,
                            const std::optional<ImageColor>& background) {
  add_kind(kLeaf, std::nullopt);
  add_name("image");
  if (!background) return add_bytes(encoded);
  add_kind(kMapping, 2);
  add_name("io_config");
  add_json({{"image_mode", "RGB"}, {"rgba_background_color", *background}});
  add_name("data");
  add_bytes(encoded);
}

void MediaHasher::add_json(const ordered_json& value) {
  switch (value.type()) {
    case ordered_json::value_t::object:
      add_kind(kMapping, value.size());
      for (const auto& [name, member] : value.items()) {
        add_name(name);
        add_json(member);
      }
      break;
    case ordered_json::value_t::array:
      add_kind(kSequence, value.size());
      for (const ordered_json& element : value) add_json(element);
      break;
    case ordered_json::value_t::string:
      add_text(value.get_ref<const std::string&>());
      break;
    case ordered_json::value_t::boolean: {
      const std::array byte = {static_cast<std::byte>(value.get<bool>())};
      add_bytes(byte);
      break;
    }
    case ordered_json::value_t::number_integer:
    case ordered_json::value_t::number_unsigned:
      add_bytes(little_endian(static_cast<std::uint64_t>(value.get<std::int64_t>())));
      break;
    case ordered_json::value_t::number_float:
      add_bytes(little_endian(std::bit_cast<std::uint64_t>(value.get<double>())));
      break;
    default:
      add_kind(kNone, std::nullopt);
  }
}

std::string MediaHasher::finish() { return digest_->finish(); }

namespace {

constexpr std::string_view kPartMark = "~part";

/// Null: there are none.
ordered_json kwargs_of(std::string_view text) {
  if (text.empty()) return {};
  ordered_json kwargs = ordered_json::parse(text, nullptr, false);
  if (kwargs.is_discarded()) kwargs = text;  // they are rejected where they are used
  return kwargs;
}

}  // namespace

std::string image_identifier(const ImageFactors& factors) {
  const ordered_json kwargs = kwargs_of(factors.processor_kwargs);
  const ordered_json io_kwargs = kwargs_of(factors.media_io_kwargs);
  const bool reads_as_part = image_of_part(factors.uuid) != factors.uuid;
  if (!factors.uuid.empty() && kwargs.empty() && io_kwargs.empty() && !reads_as_part)
    return std::string(factors.uuid);
  MediaHasher hasher(factors.algorithm);
  hasher.add_name("image");
  if (factors.uuid.empty())
    hasher.add_image(factors.encoded, factors.background);
  else
    hasher.add_text(factors.uuid);
  if (!io_kwargs.empty()) {
    hasher.add_name("media_io_kwargs");
    hasher.add_json({{"image", io_kwargs}});
  }
  if (!kwargs.empty()) {
    hasher.add_name("mm_processor_kwargs");
    hasher.add_json(kwargs);
  }
  hasher.add_name("model_id");
  hasher.add_text(factors.model_id);
  return hasher.finish();
}

std::string part_identifier(const std::string& identifier, std::size_t part) {
  return part == 0 ? identifier : identifier + std::string(kPartMark) + std::to_string(part);
}

std::string_view image_of_part(std::string_view item_identifier) {
  const std::size_t digits = item_identifier.find_last_not_of("0123456789") + 1;  // npos: 0
  const std::string_view before = item_identifier.substr(0, digits);
  if (digits == item_identifier.size() || !before.ends_with(kPartMark)) return item_identifier;
  return before.substr(0, before.size() - kPartMark.size());
}

}  // namespace troupe
