// Windows and OS/2 bitmaps (BITMAPCOREHEADER to BITMAPV5HEADER), as Pillow reads them.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "runtime/multimodal/image_formats.hpp"

namespace troupe {
namespace {

constexpr std::size_t kBmpFileHeaderBytes = 14;
constexpr std::uint32_t kBmpCoreHeaderBytes = 12;

enum BmpCompression : std::uint32_t { kBmpRaw = 0, kBmpRle8 = 1, kBmpRle4 = 2, kBmpFields = 3 };

/// Where a pixel's channels are: in whole bytes, or in 5 and 6 bits.
struct BmpLayout {
  std::array<std::uint32_t, 4> masks;  ///< red, green, blue, alpha (0: none)
};

/// What can be read, as in Pillow. All four 0 is what some programs write for BGRA.
constexpr std::array kBmpLayouts32 = {
    BmpLayout{{0xFF0000, 0xFF00, 0xFF, 0}},
    BmpLayout{{0xFF000000, 0xFF0000, 0xFF00, 0}},
    BmpLayout{{0xFF000000, 0xFF00, 0xFF, 0}},
    BmpLayout{{0xFF000000, 0xFF0000, 0xFF00, 0xFF}},
    BmpLayout{{0xFF, 0xFF00, 0xFF0000, 0xFF000000}},
    BmpLayout{{0xFF0000, 0xFF00, 0xFF, 0xFF000000}},
    BmpLayout{{0xFF000000, 0xFF00, 0xFF, 0xFF0000}},
};
constexpr BmpLayout kBgr = {{0xFF0000, 0xFF00, 0xFF, 0}};
constexpr BmpLayout kBgra = {{0xFF0000, 0xFF00, 0xFF, 0xFF000000}};
constexpr BmpLayout kBgr555 = {{0x7C00, 0x3E0, 0x1F, 0}};
constexpr BmpLayout kBgr565 = {{0xF800, 0x7E0, 0x1F, 0}};

struct BmpHeader {
  std::uint32_t header_bytes = 0;
  std::uint64_t width = 0;
  std::uint64_t height = 0;
  bool top_down = false;
  std::uint32_t bits = 0;
  std::uint32_t compression = kBmpRaw;
  std::uint64_t num_colors = 0;
  std::size_t bytes_per_color = 4;
  BmpLayout layout = kBgr;
  std::size_t palette_at = 0;
  std::uint64_t pixels_at = 0;
};

Error bmp_is_cut() {
  return invalid_argument("the BMP image is damaged: the data end before the image does");
}
Error unsupported_bmp(const std::string& what) {
  return {ErrorCode::kUnsupported, "BMP images with " + what + " are not supported"};
}

Result<void> read_bmp_layout(std::span<const std::byte> encoded, BmpHeader& header) {
  const std::size_t masks_at = kBmpFileHeaderBytes + 40;
  const bool has_alpha = header.header_bytes >= 56;
  if (encoded.size() < masks_at + 16) return bmp_is_cut();
  BmpLayout layout{
      {u32_le(encoded, masks_at), u32_le(encoded, masks_at + 4), u32_le(encoded, masks_at + 8), 0}};
  if (has_alpha && header.bits == 32) layout.masks[3] = u32_le(encoded, masks_at + 12);
  if (header.header_bytes == 40) header.palette_at += 12;  // the masks follow the header
  const auto is_layout = [&](const BmpLayout& other) { return other.masks == layout.masks; };
  if (header.bits == 32 && std::ranges::any_of(kBmpLayouts32, is_layout)) {
    header.layout = layout;
  } else if (header.bits == 32 && layout.masks == std::array<std::uint32_t, 4>{}) {
    header.layout = kBgra;
  } else if ((header.bits == 24 && is_layout(kBgr)) ||
             (header.bits == 16 && (is_layout(kBgr555) || is_layout(kBgr565)))) {
    header.layout = layout;
  } else {
    return unsupported_bmp("this layout of bit fields");
  }
  return {};
}

Result<BmpHeader> read_bmp_header(std::span<const std::byte> encoded) {
  if (encoded.size() < kBmpFileHeaderBytes + kBmpCoreHeaderBytes) return bmp_is_cut();
  BmpHeader header;
  header.pixels_at = u32_le(encoded, 10);
  header.header_bytes = u32_le(encoded, 14);
  if (encoded.size() < kBmpFileHeaderBytes + std::uint64_t{header.header_bytes})
    return bmp_is_cut();
  header.palette_at = kBmpFileHeaderBytes + header.header_bytes;
  if (header.header_bytes == kBmpCoreHeaderBytes) {
    header.width = u16_le(encoded, 18);
    header.height = u16_le(encoded, 20);
    header.bits = u16_le(encoded, 24);
    header.bytes_per_color = 3;
  } else {
    constexpr std::array<std::uint32_t, 6> kSizes = {40, 52, 56, 64, 108, 124};
    if (std::ranges::find(kSizes, header.header_bytes) == kSizes.end())
      return unsupported_bmp("a header of " + std::to_string(header.header_bytes) + " bytes");
    header.width = u32_le(encoded, 18);
    header.height = u32_le(encoded, 22);
    header.top_down = byte_at(encoded, 25) == 0xFF;
    if (header.top_down) header.height = (std::uint64_t{1} << 32) - header.height;
    header.bits = u16_le(encoded, 28);
    header.compression = u32_le(encoded, 30);
    header.num_colors = u32_le(encoded, 46);
  }
  constexpr std::array<std::uint32_t, 6> kDepths = {1, 4, 8, 16, 24, 32};
  if (std::ranges::find(kDepths, header.bits) == kDepths.end())
    return unsupported_bmp(std::to_string(header.bits) + " bits a pixel");
  if (header.num_colors == 0 && header.bits <= 8) header.num_colors = 1ULL << header.bits;
  if (header.bits == 16) header.layout = kBgr555;
  switch (header.compression) {
    case kBmpRaw:
      break;
    case kBmpFields: {
      RETURN_IF_ERROR(read_bmp_layout(encoded, header));
      break;
    }
    case kBmpRle8:
    case kBmpRle4:
      if (header.bits > 8) return unsupported_bmp("run lengths of more than 8 bits a pixel");
      break;
    default:
      return unsupported_bmp("compression " + std::to_string(header.compression));
  }
  return header;
}

/// The palette indices of an image in run lengths, from its first row on, rows without gaps. As
/// Pillow, runs are cut at a row's end and what is skipped is 0. Empty: the data end early.
std::vector<std::uint8_t> decode_bmp_runs(std::span<const std::byte> encoded, std::size_t at,
                                          const BmpHeader& header) {
  const std::size_t width = header.width;
  const std::size_t num_pixels = width * header.height;
  const bool is_rle4 = header.compression == kBmpRle4;
  const auto add_pair = [](std::vector<std::uint8_t>& to, std::uint32_t byte, bool both) {
    to.push_back(static_cast<std::uint8_t>(byte >> 4));
    if (both) to.push_back(static_cast<std::uint8_t>(byte & 15));
  };
  std::vector<std::uint8_t> pixels;
  pixels.reserve(num_pixels);
  std::size_t x = 0;
  while (pixels.size() < num_pixels && at + 2 <= encoded.size()) {
    std::size_t count = byte_at(encoded, at);
    const std::uint32_t value = byte_at(encoded, at + 1);
    at += 2;
    if (count > 0) {  // a run
      count = x < width ? std::min(count, width - x) : 0;
      for (std::size_t i = 0; i < count; i += is_rle4 ? 2 : 1) {
        if (is_rle4)
          add_pair(pixels, value, i + 1 < count);
        else
          pixels.push_back(static_cast<std::uint8_t>(value));
      }
      x += count;
    } else if (value == 0) {  // the end of a row
      pixels.resize((pixels.size() + width - 1) / width * width);
      x = 0;
    } else if (value == 1) {  // the end
      break;
    } else if (value == 2) {  // go right and up
      if (at + 2 > encoded.size()) break;
      pixels.resize(std::min(
          num_pixels, pixels.size() + byte_at(encoded, at) + byte_at(encoded, at + 1) * width));
      x = pixels.size() % width;
      at += 2;
    } else {  // pixels as they are
      count = std::min<std::size_t>(num_pixels - pixels.size(), value);
      const std::size_t num_bytes = is_rle4 ? (count + 1) / 2 : count;
      if (at + num_bytes > encoded.size()) break;
      for (std::size_t i = 0; i < num_bytes; ++i) {
        const std::uint32_t byte = byte_at(encoded, at + i);
        if (is_rle4)
          add_pair(pixels, byte, i * 2 + 1 < count);
        else
          pixels.push_back(static_cast<std::uint8_t>(byte));
      }
      x += value;
      at += num_bytes;
      at += at & 1;  // an even place in the file
    }
  }
  if (pixels.size() < num_pixels) pixels.clear();
  return pixels;
}

/// A channel's 8 bits.
std::uint32_t bmp_channel(std::uint32_t pixel, std::uint32_t mask) {
  const auto shift = static_cast<std::uint32_t>(__builtin_ctz(mask));
  const std::uint32_t max = mask >> shift;
  return ((pixel & mask) >> shift) * 255 / max;
}

}  // namespace

bool bmp_is_rgb(std::span<const std::byte> encoded) {
  const Result<BmpHeader> header = read_bmp_header(encoded);
  return header.ok() && header->bits > 8 && header->layout.masks[3] == 0;
}

Result<StoredImage> decode_bmp(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background) {
  ASSIGN_OR_RETURN(BmpHeader header, read_bmp_header(encoded));
  RETURN_IF_ERROR(check_image_size("BMP", header.width, header.height, limits));
  std::vector<std::array<std::uint8_t, 3>> palette(header.bits <= 8 ? 256 : 0);
  if (header.bits <= 8) {
    if (header.num_colors > 65536)
      return unsupported_bmp(std::to_string(header.num_colors) + " colours in the palette");
    for (std::size_t i = 0; i < std::min<std::uint64_t>(header.num_colors, 256); ++i) {
      const std::size_t at = header.palette_at + i * header.bytes_per_color;
      if (encoded.size() < at + 3) return bmp_is_cut();
      for (std::size_t c = 0; c < 3; ++c)
        palette[i][c] = static_cast<std::uint8_t>(byte_at(encoded, at + 2 - c));
    }
  }
  const std::uint64_t colors_end = header.palette_at + header.num_colors * header.bytes_per_color;
  // Some files count the pixels from the header's end.
  if (header.bits <= 8 && header.pixels_at == kBmpFileHeaderBytes + header.header_bytes)
    header.pixels_at = colors_end;
  if (header.pixels_at == 0) header.pixels_at = header.bits <= 8 ? colors_end : header.palette_at;
  StoredImage stored;
  if (header.compression == kBmpRle8 || header.compression == kBmpRle4) {
    const auto pixels = decode_bmp_runs(encoded, header.pixels_at, header);
    if (pixels.empty()) return bmp_is_cut();
    stored.image = blank_image(header.width, header.height);
    for (std::size_t y = 0; y < header.height; ++y) {
      const std::size_t stored_row = header.top_down ? y : header.height - 1 - y;
      for (std::size_t x = 0; x < header.width; ++x) {
        const auto& color = palette[pixels[stored_row * header.width + x]];
        std::ranges::copy(color, &stored.image.rgb[(y * header.width + x) * 3]);
      }
    }
    return stored;
  }
  const std::uint64_t bytes_per_row = (header.width * header.bits + 31) / 32 * 4;
  // The last row may lack its padding.
  const std::uint64_t needed =
      header.pixels_at + (header.height - 1) * bytes_per_row + (header.width * header.bits + 7) / 8;
  if (encoded.size() < needed) return bmp_is_cut();
  stored.image = blank_image(header.width, header.height);
  for (std::uint64_t y = 0; y < header.height; ++y) {
    const std::uint64_t stored_row = header.top_down ? y : header.height - 1 - y;
    const auto row = encoded.subspan(header.pixels_at + stored_row * bytes_per_row);
    std::uint8_t* out = &stored.image.rgb[y * header.width * 3];
    for (std::uint64_t x = 0; x < header.width; ++x, out += 3) {
      if (header.bits <= 8) {
        const std::uint64_t bit = x * header.bits;
        const std::uint32_t index =
            byte_at(row, bit / 8) >> (8 - header.bits - bit % 8) & ((1U << header.bits) - 1);
        std::copy(palette[index].begin(), palette[index].end(), out);
        continue;
      }
      std::uint32_t pixel = 0;
      for (std::uint32_t i = 0; i < header.bits / 8; ++i)
        pixel |= byte_at(row, x * (header.bits / 8) + i) << (8 * i);
      const auto& masks = header.layout.masks;
      for (std::size_t c = 0; c < 3; ++c) {
        const std::uint32_t value = bmp_channel(pixel, masks[c]);
        out[c] = masks[3] == 0 ? static_cast<std::uint8_t>(value)
                               : pasted(value, bmp_channel(pixel, masks[3]), background[c]);
      }
    }
  }
  return stored;
}

}  // namespace troupe
