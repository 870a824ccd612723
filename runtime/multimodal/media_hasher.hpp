#pragma once
// Identities of media items: vLLM's MultiModalHasher. Equal items are processed and encoded once.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/multimodal/image.hpp"

namespace troupe {

enum class MediaHashAlgorithm : std::uint8_t { kBlake3, kSha256, kSha512 };
/// "blake3", "sha256", "sha512"; nullopt for others.
[[nodiscard]] std::optional<MediaHashAlgorithm> parse_media_hash_algorithm(std::string_view name);

/// Hashes named values without ambiguity: every piece of bytes follows its length (8 bytes, little
/// endian), every value its kind (a byte): 0 none, 1 sequence and 2 mapping with their number of
/// elements, 3 leaf with its bytes.
class MediaHasher {
 public:
  explicit MediaHasher(MediaHashAlgorithm algorithm = MediaHashAlgorithm::kBlake3);
  MediaHasher(MediaHasher&&) noexcept;
  MediaHasher& operator=(MediaHasher&&) noexcept;
  ~MediaHasher();

  /// The name of the value that follows. vLLM hashes an item's values in the order of their names.
  void add_name(std::string_view name);
  void add_bytes(std::span<const std::byte> bytes);
  void add_text(std::string_view text);
  /// The bytes of an image's file, and of one whose pixels are converted to RGB (stored_as_rgb),
  /// what its transparency is pasted on.
  void add_image(std::span<const std::byte> encoded, const std::optional<ImageColor>& background);
  /// A JSON value as Python's: numbers are 8 bytes, objects keep their members' order.
  void add_json(const nlohmann::ordered_json& value);

  /// Lower-case hexadecimal digits. Call once, at the end.
  [[nodiscard]] std::string finish();

 private:
  class Digest;
  void add_frame(std::span<const std::byte> bytes);
  void add_kind(std::uint8_t kind, std::optional<std::uint64_t> num_elements);

  std::unique_ptr<Digest> digest_;
};

/// What an image's identifier depends on.
struct ImageFactors {
  std::string_view model_id;
  std::span<const std::byte> encoded;    ///< the file
  std::optional<ImageColor> background;  ///< see MediaHasher::add_image
  std::string_view uuid;                 ///< the client's; empty: none
  std::string_view processor_kwargs;     ///< mm_processor_kwargs, a JSON object; empty: none
  std::string_view media_io_kwargs;      ///< those of images, a JSON object; empty: none
  MediaHashAlgorithm algorithm = MediaHashAlgorithm::kBlake3;
};

/// What names an image in caches and block hashes, the same as vLLM 0.32's: the hash of its file
/// with the model's name and the kwargs ({} counts as none). The client's uuid stands for the file,
/// and without kwargs is the identifier itself, unless it reads as that of a part.
[[nodiscard]] std::string image_identifier(const ImageFactors& factors);

/// Of a part of an image: "<the image's>~part<number>", which is no image's. Part 0 is the
/// image.
[[nodiscard]] std::string part_identifier(const std::string& identifier, std::size_t part);
/// The image's identifier, of that of a part or of its own.
[[nodiscard]] std::string_view image_of_part(std::string_view item_identifier);

}  // namespace troupe
