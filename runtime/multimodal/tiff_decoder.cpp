// TIFF, with libtiff: the first image of a file. What becomes of the samples follows Pillow.

#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/multimodal/image_formats.hpp"
#include "runtime/multimodal/orientation.hpp"

namespace troupe {
namespace {

/// Of libtiff's own tables.
constexpr tmsize_t kMaxTiffAllocation = tmsize_t{64} << 20;
constexpr std::uint64_t kMaxTilePixels = std::uint64_t{1} << 20;  ///< beyond four times the image's

/// Those that Pillow writes and others commonly use.
constexpr std::uint16_t kTiffCompressions[] = {
    COMPRESSION_NONE,          COMPRESSION_CCITTRLE, COMPRESSION_CCITTFAX3,
    COMPRESSION_CCITTFAX4,     COMPRESSION_LZW,      COMPRESSION_JPEG,
    COMPRESSION_ADOBE_DEFLATE, COMPRESSION_DEFLATE,  COMPRESSION_PACKBITS};

/// The file in memory, and what libtiff says of it.
struct TiffSource {
  std::span<const std::byte> bytes;
  std::uint64_t at = 0;
  std::string message;
  bool lacks_palette = false;  ///< libtiff would continue in grey
};

tmsize_t read_tiff(thandle_t handle, void* out, tmsize_t size) {
  auto& source = *static_cast<TiffSource*>(handle);
  if (size < 0 || source.at >= source.bytes.size()) return 0;
  const std::size_t count = std::min(static_cast<std::size_t>(size),
                                     source.bytes.size() - static_cast<std::size_t>(source.at));
  std::memcpy(out, source.bytes.data() + source.at, count);
  source.at += count;
  return static_cast<tmsize_t>(count);
}
tmsize_t write_tiff(thandle_t, void*, tmsize_t) { return 0; }
toff_t seek_tiff(thandle_t handle, toff_t offset, int whence) {
  auto& source = *static_cast<TiffSource*>(handle);
  if (whence == SEEK_CUR) offset += source.at;
  if (whence == SEEK_END) offset += source.bytes.size();
  source.at = offset;
  return offset;
}
int close_tiff(thandle_t) { return 0; }
toff_t tiff_size(thandle_t handle) { return static_cast<TiffSource*>(handle)->bytes.size(); }

int tiff_failed(TIFF*, void* to, const char*, const char* format, va_list arguments) {
  std::array<char, 200> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  auto& source = *static_cast<TiffSource*>(to);
  if (source.message.empty()) source.message = text.data();
  return 1;  // nothing is printed
}
int tiff_warned(TIFF*, void* to, const char*, const char* format, va_list arguments) {
  std::array<char, 200> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  if (std::string_view(text.data()).find("ColorMap") != std::string_view::npos)
    static_cast<TiffSource*>(to)->lacks_palette = true;
  return 1;
}

struct TiffCloser {
  void operator()(TIFF* tiff) const { TIFFClose(tiff); }
};
using TiffHandle = std::unique_ptr<TIFF, TiffCloser>;

TiffHandle open_tiff(TiffSource& source) {
  const std::unique_ptr<TIFFOpenOptions, decltype(&TIFFOpenOptionsFree)> options(
      TIFFOpenOptionsAlloc(), &TIFFOpenOptionsFree);
  if (options == nullptr) return nullptr;
  TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), kMaxTiffAllocation);
  TIFFOpenOptionsSetErrorHandlerExtR(options.get(), tiff_failed, &source);
  TIFFOpenOptionsSetWarningHandlerExtR(options.get(), tiff_warned, &source);
  // "m": not mapped, since reading beyond the end must be noticed.
  return TiffHandle(TIFFClientOpenExt("image", "rm", &source, read_tiff, write_tiff, seek_tiff,
                                      close_tiff, tiff_size, nullptr, nullptr, options.get()));
}

/// What the samples of a pixel are.
enum class TiffKind : std::uint8_t {
  kGrey,
  kGreyAlpha,
  kPalette,
  kRgb,
  kRgba,
  kPremultiplied,
  kCmyk
};

struct TiffLayout {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::uint16_t bits = 1;     ///< of a sample
  std::uint16_t samples = 1;  ///< of a pixel
  bool separate = false;      ///< a plane for each sample
  bool inverted = false;      ///< 0 is white
  TiffKind kind = TiffKind::kGrey;

  [[nodiscard]] std::size_t num_planes() const { return separate ? samples : 1; }
  [[nodiscard]] std::size_t row_bytes() const {
    return (std::size_t{width} * (separate ? 1 : samples) * bits + 7) / 8;
  }
  [[nodiscard]] std::size_t plane_bytes() const { return row_bytes() * height; }
};

std::uint16_t tiff_field(TIFF* tiff, std::uint32_t tag) {
  std::uint16_t value = 0;
  TIFFGetFieldDefaulted(tiff, tag, &value);
  return value;
}

Error tiff_unsupported(const std::string& what) {
  return {ErrorCode::kUnsupported, "TIFF images with " + what + " are not supported"};
}

/// What Pillow takes the samples for. Nothing: it is rare.
std::optional<TiffKind> kind_of_samples(std::uint16_t photometric, const TiffLayout& layout,
                                        std::uint16_t num_extra, std::uint16_t extra) {
  const bool has_bytes = layout.bits == 8 || layout.bits == 16;
  switch (photometric) {
    case PHOTOMETRIC_MINISWHITE:
    case PHOTOMETRIC_MINISBLACK:
      if (layout.samples == 1 && num_extra == 0) return TiffKind::kGrey;
      if (layout.samples != 2 || layout.bits != 8 || photometric == PHOTOMETRIC_MINISWHITE) break;
      if (num_extra == 1 && extra == EXTRASAMPLE_UNASSALPHA) return TiffKind::kGreyAlpha;
      break;
    case PHOTOMETRIC_PALETTE:
      if (layout.samples == 1 && layout.bits <= 8) return TiffKind::kPalette;
      break;
    case PHOTOMETRIC_RGB:
      if (!has_bytes) break;
      if (layout.samples == 3) return TiffKind::kRgb;
      if (layout.samples != 4 || num_extra > 1) break;
      if (num_extra == 1 && extra == EXTRASAMPLE_UNSPECIFIED) return TiffKind::kRgb;
      return num_extra == 1 && extra == EXTRASAMPLE_ASSOCALPHA ? TiffKind::kPremultiplied
                                                               : TiffKind::kRgba;
    case PHOTOMETRIC_SEPARATED:
      if (has_bytes && layout.samples == 4 && num_extra == 0) return TiffKind::kCmyk;
      break;
    default:
      break;
  }
  return std::nullopt;
}

/// Pre: the size has been checked.
Result<TiffLayout> read_tiff_layout(TIFF* tiff, std::uint32_t width, std::uint32_t height) {
  TiffLayout layout{.width = width,
                    .height = height,
                    .bits = tiff_field(tiff, TIFFTAG_BITSPERSAMPLE),
                    .samples = tiff_field(tiff, TIFFTAG_SAMPLESPERPIXEL),
                    .separate = tiff_field(tiff, TIFFTAG_PLANARCONFIG) == PLANARCONFIG_SEPARATE};
  const std::uint16_t compression = tiff_field(tiff, TIFFTAG_COMPRESSION);
  if (std::ranges::find(kTiffCompressions, compression) == std::end(kTiffCompressions) ||
      TIFFIsCODECConfigured(compression) == 0)
    return tiff_unsupported("compression " + std::to_string(compression));
  std::uint16_t photometric = PHOTOMETRIC_MINISBLACK;
  TIFFGetField(tiff, TIFFTAG_PHOTOMETRIC, &photometric);
  if (photometric == PHOTOMETRIC_YCBCR && compression == COMPRESSION_JPEG) {
    TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
    photometric = PHOTOMETRIC_RGB;
  }
  std::uint16_t num_extra = 0;
  std::uint16_t* extra = nullptr;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_EXTRASAMPLES, &num_extra, &extra);
  const bool known_bits = layout.bits == 1 || layout.bits == 2 || layout.bits == 4 ||
                          layout.bits == 8 || layout.bits == 16;
  // Pillow inverts no 16 bits, and refuses them in the other byte order.
  const bool is_rare =
      photometric == PHOTOMETRIC_MINISWHITE && layout.bits == 16 && TIFFIsBigEndian(tiff) != 0;
  const auto kind =
      kind_of_samples(photometric, layout, num_extra, num_extra > 0 ? extra[0] : std::uint16_t{0});
  if (!known_bits || is_rare || !kind ||
      tiff_field(tiff, TIFFTAG_SAMPLEFORMAT) != SAMPLEFORMAT_UINT)
    return tiff_unsupported(std::to_string(layout.samples) + " samples of " +
                            std::to_string(layout.bits) + " bits, photometric interpretation " +
                            std::to_string(photometric) + " and sample format " +
                            std::to_string(tiff_field(tiff, TIFFTAG_SAMPLEFORMAT)));
  layout.kind = *kind;
  layout.inverted = photometric == PHOTOMETRIC_MINISWHITE && layout.bits < 16;
  return layout;
}

/// Pre: out has plane_bytes for each plane.
bool read_tiff_strips(TIFF* tiff, const TiffLayout& layout, std::uint8_t* out) {
  std::uint32_t rows_per_strip = 0;
  TIFFGetFieldDefaulted(tiff, TIFFTAG_ROWSPERSTRIP, &rows_per_strip);
  if (rows_per_strip == 0) return false;
  rows_per_strip = std::min(rows_per_strip, layout.height);
  std::uint32_t strip = 0;
  for (std::size_t plane = 0; plane < layout.num_planes(); ++plane) {
    for (std::uint32_t row = 0; row < layout.height; row += rows_per_strip, ++strip) {
      const auto num_bytes =
          static_cast<tmsize_t>(std::min(rows_per_strip, layout.height - row) * layout.row_bytes());
      std::uint8_t* const to = out + plane * layout.plane_bytes() + row * layout.row_bytes();
      if (TIFFReadEncodedStrip(tiff, strip, to, num_bytes) != num_bytes) return false;
    }
  }
  return true;
}

/// The same. Pre: pixels begin at whole bytes in tiles, whose widths are multiples of 16.
bool read_tiff_tiles(TIFF* tiff, const TiffLayout& layout, std::uint8_t* out) {
  std::uint32_t tile_width = 0;
  std::uint32_t tile_height = 0;
  TIFFGetField(tiff, TIFFTAG_TILEWIDTH, &tile_width);
  TIFFGetField(tiff, TIFFTAG_TILELENGTH, &tile_height);
  const std::uint64_t max_pixels = 4 * std::uint64_t{layout.width} * layout.height + kMaxTilePixels;
  if (tile_width == 0 || tile_height == 0 || tile_width % 8 != 0 ||
      std::uint64_t{tile_width} * tile_height > max_pixels)
    return false;
  const std::size_t pixel_bits = std::size_t{layout.bits} * (layout.separate ? 1U : layout.samples);
  const std::size_t tile_row_bytes = tile_width * pixel_bits / 8;
  std::vector<std::uint8_t> tile(tile_row_bytes * tile_height);
  if (TIFFTileSize(tiff) != static_cast<tmsize_t>(tile.size())) return false;
  for (std::size_t plane = 0; plane < layout.num_planes(); ++plane) {
    for (std::uint32_t y = 0; y < layout.height; y += tile_height) {
      for (std::uint32_t x = 0; x < layout.width; x += tile_width) {
        const std::uint32_t number =
            TIFFComputeTile(tiff, x, y, 0, static_cast<std::uint16_t>(plane));
        if (TIFFReadEncodedTile(tiff, number, tile.data(), static_cast<tmsize_t>(tile.size())) !=
            static_cast<tmsize_t>(tile.size()))
          return false;
        const std::size_t at = x * pixel_bits / 8;
        const std::size_t num_bytes = std::min(tile_row_bytes, layout.row_bytes() - at);
        for (std::uint32_t row = 0; row < std::min(tile_height, layout.height - y); ++row)
          std::memcpy(out + plane * layout.plane_bytes() + (y + row) * layout.row_bytes() + at,
                      tile.data() + row * tile_row_bytes, num_bytes);
      }
    }
  }
  return true;
}

/// The samples of a pixel: as they are up to 8 bits; of 16 the upper 8, but for grey, which is cut
/// to 255.
class TiffSamples {
 public:
  TiffSamples(const TiffLayout& layout, const std::vector<std::uint8_t>& raw)
      : layout_(layout), raw_(raw) {}

  [[nodiscard]] std::uint32_t at(std::uint32_t x, std::uint32_t y, std::size_t sample) const {
    const std::size_t plane = layout_.separate ? sample : 0;
    const std::uint8_t* const row =
        raw_.data() + plane * layout_.plane_bytes() + y * layout_.row_bytes();
    const std::size_t number = layout_.separate ? x : std::size_t{x} * layout_.samples + sample;
    if (layout_.bits == 8) return row[number];
    if (layout_.bits == 16) {  // in this machine's order
      std::uint16_t value = 0;
      std::memcpy(&value, row + 2 * number, sizeof(value));
      if (layout_.kind == TiffKind::kGrey) return std::min<std::uint32_t>(value, 255);
      return value >> 8U;
    }
    const std::size_t bit = number * layout_.bits;
    return static_cast<std::uint32_t>(row[bit / 8] >> (8 - layout_.bits - bit % 8)) &
           ((1U << layout_.bits) - 1);
  }

 private:
  const TiffLayout& layout_;
  const std::vector<std::uint8_t>& raw_;
};

/// The colours of indices: 16 bits, of which the upper 8 count. False: there are none.
bool read_tiff_palette(TIFF* tiff, const TiffLayout& layout, std::vector<ImageColor>& palette) {
  std::array<std::uint16_t*, 3> channels{};
  if (TIFFGetField(tiff, TIFFTAG_COLORMAP, &channels[0], &channels[1], &channels[2]) == 0)
    return false;
  palette.resize(std::size_t{1} << layout.bits);
  for (std::size_t i = 0; i < palette.size(); ++i)
    for (std::size_t c = 0; c < channels.size(); ++c)
      palette[i][c] = static_cast<std::uint8_t>(channels[c][i] >> 8U);
  return true;
}

ImageColor tiff_color(const TiffLayout& layout, const TiffSamples& samples, std::uint32_t x,
                      std::uint32_t y, const std::vector<ImageColor>& palette,
                      const ImageColor& background) {
  ImageColor color{};
  switch (layout.kind) {
    case TiffKind::kGrey: {
      std::uint32_t value = samples.at(x, y, 0);
      if (layout.bits < 8) value *= 255 / ((1U << layout.bits) - 1);
      color.fill(static_cast<std::uint8_t>(layout.inverted ? 255 - value : value));
      break;
    }
    case TiffKind::kGreyAlpha:
      for (std::size_t c = 0; c < 3; ++c)
        color[c] = pasted(samples.at(x, y, 0), samples.at(x, y, 1), background[c]);
      break;
    case TiffKind::kPalette:
      color = palette[samples.at(x, y, 0)];
      break;
    case TiffKind::kRgb:
      for (std::size_t c = 0; c < 3; ++c) color[c] = static_cast<std::uint8_t>(samples.at(x, y, c));
      break;
    case TiffKind::kRgba:
    case TiffKind::kPremultiplied: {
      const std::uint32_t alpha = samples.at(x, y, 3);
      for (std::size_t c = 0; c < 3; ++c) {
        std::uint32_t value = samples.at(x, y, c);
        if (layout.kind == TiffKind::kPremultiplied)
          value = alpha == 0 ? 0 : std::min<std::uint32_t>(value * 255 / alpha, 255);
        color[c] = pasted(value, alpha, background[c]);
      }
      break;
    }
    case TiffKind::kCmyk: {
      const std::uint32_t not_black = 255 - samples.at(x, y, 3);
      for (std::size_t c = 0; c < 3; ++c)
        color[c] =
            static_cast<std::uint8_t>(not_black - divided_by_255(samples.at(x, y, c) * not_black));
      break;
    }
  }
  return color;
}

}  // namespace

bool tiff_is_rgb(std::span<const std::byte> encoded) {
  TiffSource source{.bytes = encoded, .message = {}};
  const TiffHandle tiff = open_tiff(source);
  if (tiff == nullptr) return false;
  const Result<TiffLayout> layout = read_tiff_layout(tiff.get(), 1, 1);
  return layout.ok() && layout->kind == TiffKind::kRgb;
}

Result<StoredImage> decode_tiff(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background) {
  TiffSource source{.bytes = encoded, .message = {}};
  const auto damaged = [&source] {
    return invalid_argument("the TIFF image is damaged or cut off" +
                            (source.message.empty() ? "" : ": " + source.message));
  };
  const TiffHandle tiff = open_tiff(source);
  if (tiff == nullptr || source.lacks_palette) return damaged();
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  TIFFGetField(tiff.get(), TIFFTAG_IMAGEWIDTH, &width);
  TIFFGetField(tiff.get(), TIFFTAG_IMAGELENGTH, &height);
  RETURN_IF_ERROR(check_image_size("TIFF", width, height, limits));
  ASSIGN_OR_RETURN(const TiffLayout layout, read_tiff_layout(tiff.get(), width, height));
  std::vector<ImageColor> palette;
  if (layout.kind == TiffKind::kPalette && !read_tiff_palette(tiff.get(), layout, palette))
    return invalid_argument("the TIFF image is damaged: it has no palette");
  std::vector<std::uint8_t> raw(layout.plane_bytes() * layout.num_planes());
  const bool read = TIFFIsTiled(tiff.get()) != 0 ? read_tiff_tiles(tiff.get(), layout, raw.data())
                                                 : read_tiff_strips(tiff.get(), layout, raw.data());
  if (!read) return damaged();
  StoredImage stored;
  stored.orientation = tiff_field(tiff.get(), TIFFTAG_ORIENTATION);
  stored.image = blank_image(width, height);
  const TiffSamples samples(layout, raw);
  std::uint8_t* out = stored.image.rgb.data();
  for (std::uint32_t y = 0; y < height; ++y) {
    for (std::uint32_t x = 0; x < width; ++x, out += 3) {
      const ImageColor color = tiff_color(layout, samples, x, y, palette, background);
      std::copy(color.begin(), color.end(), out);
    }
  }
  return stored;
}

}  // namespace troupe
