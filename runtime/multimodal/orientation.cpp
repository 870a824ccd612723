#include "runtime/multimodal/orientation.hpp"

#include <cstring>
#include <optional>
#include <utility>

namespace troupe {
namespace {

constexpr std::size_t kIfdEntryBytes = 12;
constexpr std::uint32_t kOrientationTag = 274;

/// Reads TIFF's numbers in the byte order of its header.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool little) : bytes_(bytes), little_(little) {}
  [[nodiscard]] std::optional<std::uint32_t> read(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t from = little_ ? at + size - 1 - i : at + i;
      value = value << 8 | std::to_integer<std::uint32_t>(bytes_[from]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool little_;
};

/// The value of the tag, if there is one: anything but 1 to 8 means upright.
std::optional<std::uint32_t> exif_orientation(std::span<const std::byte> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  while (exif.size() >= kPrefix.size() &&
         std::memcmp(exif.data(), kPrefix.data(), kPrefix.size()) == 0)
    exif = exif.subspan(kPrefix.size());
  if (exif.size() < 8) return std::nullopt;
  const bool little = std::memcmp(exif.data(), "II*\0", 4) == 0;
  if (!little && std::memcmp(exif.data(), "MM\0*", 4) != 0) return std::nullopt;
  const TiffReader tiff(exif, little);
  const std::size_t directory = *tiff.read(4, 4);
  const auto num_entries = tiff.read(directory, 2);
  std::optional<std::uint32_t> orientation;
  for (std::size_t i = 0; num_entries && i < *num_entries; ++i) {
    const std::size_t entry = directory + 2 + i * kIfdEntryBytes;
    const auto tag = tiff.read(entry, 2);
    if (!tiff.read(entry + kIfdEntryBytes - 4, 4)) break;
    if (tag != kOrientationTag) continue;
    const std::uint32_t type = *tiff.read(entry + 2, 2);
    const bool is_short = type == 3 || type == 8;
    const bool is_long = type == 4 || type == 9;
    if (!is_short && !is_long) continue;
    orientation = tiff.read(entry + 4, 4) == 1U ? *tiff.read(entry + 8, is_short ? 2 : 4) : 1;
  }
  return orientation;
}

std::optional<std::uint32_t> xmp_orientation(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at)) {
    at += kName.size();
    std::string_view rest = xmp.substr(at);
    if (rest.starts_with("=\""))
      rest.remove_prefix(2);
    else if (rest.starts_with(">"))
      rest.remove_prefix(1);
    else
      continue;
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9')
      return static_cast<std::uint32_t>(rest[0] - '0');
  }
  return std::nullopt;
}

}  // namespace

int orientation_of(std::span<const std::byte> exif, std::string_view xmp) {
  auto orientation = exif_orientation(exif);
  if (!orientation) orientation = xmp_orientation(xmp);
  return orientation && *orientation >= 1 && *orientation <= 8 ? static_cast<int>(*orientation) : 1;
}

Image upright(Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  const auto width = static_cast<std::size_t>(image.width);
  const auto height = static_cast<std::size_t>(image.height);
  const bool swapped = orientation >= 5;
  // Where the result's first pixel comes from, and the way to the next one in a row and a column.
  const bool from_right =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image turned{swapped ? image.height : image.width, swapped ? image.width : image.height, {}};
  turned.rgb.resize(image.rgb.size());
  std::uint8_t* out = turned.rgb.data();
  for (std::size_t y = 0; y < (swapped ? width : height); ++y) {
    for (std::size_t x = 0; x < (swapped ? height : width); ++x, out += 3) {
      std::size_t column = swapped ? y : x;
      std::size_t row = swapped ? x : y;
      if (from_right) column = width - 1 - column;
      if (from_bottom) row = height - 1 - row;
      std::memcpy(out, &image.rgb[(row * width + column) * 3], 3);
    }
  }
  return turned;
}

}  // namespace troupe
