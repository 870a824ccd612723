// PNG, with libpng. Its transformations are not used but for 16 bits: what becomes of grey values,
// palettes and transparent colours follows Pillow.

#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/multimodal/image_formats.hpp"
#include "runtime/multimodal/orientation.hpp"

namespace troupe {
namespace {

constexpr std::size_t kIhdrEnd = 8 + 8 + 13;
constexpr std::size_t kMaxPngChunkBytes = std::size_t{8} << 20;  ///< of metadata, decompressed
constexpr int kMaxPngChunks = 1000;                              ///< of metadata that is kept

/// libpng's objects and where it reads. Its errors jump (longjmp) to the function that called it,
/// so those functions have no C++ objects of their own.
struct PngReader {
  explicit PngReader(std::span<const std::byte> encoded) : rest(encoded) {}
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }

  std::span<const std::byte> rest;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::array<char, 128> message{};
};

void png_failed(png_structp png, png_const_charp message) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::strncpy(reader.message.data(), message, reader.message.size() - 1);
  png_longjmp(png, 1);
}
void png_warned(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep out, png_size_t size) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (reader.rest.size() < size) png_error(png, "the data end before the image does");
  std::memcpy(out, reader.rest.data(), size);
  reader.rest = reader.rest.subspan(size);
}

/// Reads all before the pixels. False: reader.message says why not.
bool read_png_header(PngReader& reader) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, png_failed, png_warned);
  if (reader.png == nullptr) return false;
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return false;
  png_set_read_fn(reader.png, &reader, read_png_bytes);
  png_set_user_limits(reader.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // checked before
  png_set_chunk_malloc_max(reader.png, kMaxPngChunkBytes);
  png_set_chunk_cache_max(reader.png, kMaxPngChunks);
  png_set_benign_errors(reader.png, 1);
  png_read_info(reader.png, reader.info);
  if (png_get_bit_depth(reader.png, reader.info) == 16 &&
      png_get_color_type(reader.png, reader.info) != PNG_COLOR_TYPE_GRAY)
    png_set_strip_16(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

/// Pre: rows[y] points to png_get_rowbytes bytes.
bool read_png_rows(PngReader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, rows);
  return true;
}

/// The chunks behind the pixels, where EXIF may be too. Damage there does not matter.
void read_png_end(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return;
  png_read_end(reader.png, reader.info);
}

/// The value of the sample number x of a row with 1, 2, 4 or 8 bits each.
std::uint32_t packed_sample(const std::uint8_t* row, std::size_t x, std::uint32_t depth) {
  if (depth == 8) return row[x];
  const std::size_t bit = x * depth;
  return static_cast<std::uint32_t>(row[bit / 8] >> (8 - depth - bit % 8)) & ((1U << depth) - 1);
}

/// Grey without an alpha channel: to 8 bits, values above 255 cut; the transparent value becomes
/// the background. Pillow compares it after the conversion, by its lower byte.
void convert_grey(const PngReader& reader, const std::vector<std::uint8_t>& raw,
                  const ImageColor& background, Image& image) {
  const std::uint32_t depth = png_get_bit_depth(reader.png, reader.info);
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  const auto width = static_cast<std::size_t>(image.width);
  png_color_16p transparent = nullptr;
  png_get_tRNS(reader.png, reader.info, nullptr, nullptr, &transparent);
  std::uint32_t transparent_value = 256;
  if (transparent != nullptr) {
    transparent_value = transparent->gray & 0xFFU;
    if (depth == 1) transparent_value = transparent->gray != 0 ? 255 : 0;
  }
  const std::uint32_t scale = depth >= 8 ? 1 : 255 / ((1U << depth) - 1);
  std::uint8_t* out = image.rgb.data();
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    const std::uint8_t* row = &raw[y * row_bytes];
    for (std::size_t x = 0; x < width; ++x, out += 3) {
      std::uint32_t value = 0;
      if (depth == 16)
        value = row[2 * x] != 0 ? 255 : row[2 * x + 1];
      else
        value = packed_sample(row, x, depth) * scale;
      out[0] = out[1] = out[2] = static_cast<std::uint8_t>(value);
      if (value == transparent_value) std::copy(background.begin(), background.end(), out);
    }
  }
}

void convert_palette(const PngReader& reader, const std::vector<std::uint8_t>& raw,
                     const ImageColor& background, Image& image) {
  const std::uint32_t depth = png_get_bit_depth(reader.png, reader.info);
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  png_colorp colors = nullptr;
  int num_colors = 0;
  png_get_PLTE(reader.png, reader.info, &colors, &num_colors);
  png_bytep alphas = nullptr;
  int num_alphas = 0;
  png_get_tRNS(reader.png, reader.info, &alphas, &num_alphas, nullptr);
  if (alphas == nullptr) num_alphas = 0;
  std::array<std::array<std::uint8_t, 3>, 256> palette{};  // what is not defined is black
  for (int i = 0; i < 256; ++i) {
    auto& color = palette[static_cast<std::size_t>(i)];
    if (i < num_colors) color = {colors[i].red, colors[i].green, colors[i].blue};
    if (i >= num_alphas) continue;
    for (std::size_t c = 0; c < color.size(); ++c)
      color[c] = pasted(color[c], alphas[i], background[c]);
  }
  std::uint8_t* out = image.rgb.data();
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    for (std::size_t x = 0; x < static_cast<std::size_t>(image.width); ++x, out += 3)
      std::memcpy(out, palette[packed_sample(&raw[y * row_bytes], x, depth)].data(), 3);
  }
}

/// Channels of a byte: grey and alpha, RGB, or RGB and alpha.
void convert_channels(const PngReader& reader, const std::vector<std::uint8_t>& raw,
                      const ImageColor& background, Image& image) {
  const std::size_t num_channels = png_get_channels(reader.png, reader.info);
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  const auto width = static_cast<std::size_t>(image.width);
  std::uint8_t* out = image.rgb.data();
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    const std::uint8_t* in = &raw[y * row_bytes];
    if (num_channels == 3) {
      std::memcpy(out, in, width * 3);
      out += width * 3;
      continue;
    }
    for (std::size_t x = 0; x < width; ++x, in += num_channels, out += 3) {
      const std::uint8_t alpha = in[num_channels - 1];
      const std::size_t step = num_channels == 4 ? 1 : 0;
      for (std::size_t c = 0; c < 3; ++c) out[c] = pasted(in[c * step], alpha, background[c]);
    }
  }
}

int png_orientation(const PngReader& reader) {
  png_bytep exif = nullptr;
  png_uint_32 num_exif_bytes = 0;
  png_get_eXIf_1(reader.png, reader.info, &num_exif_bytes, &exif);
  if (exif == nullptr) num_exif_bytes = 0;
  std::string_view xmp;
  png_textp texts = nullptr;
  int num_texts = 0;
  png_get_text(reader.png, reader.info, &texts, &num_texts);
  for (int i = 0; i < num_texts; ++i) {
    const png_text& text = texts[i];
    if (std::string_view(text.key) == "XML:com.adobe.xmp" && text.text != nullptr)
      xmp = {text.text, std::max(text.text_length, text.itxt_length)};
  }
  return orientation_of(std::as_bytes(std::span(exif, num_exif_bytes)), xmp);
}

}  // namespace

bool png_is_rgb(std::span<const std::byte> encoded) {
  return encoded.size() >= kIhdrEnd && byte_at(encoded, 25) == PNG_COLOR_TYPE_RGB;
}

Result<StoredImage> decode_png(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background) {
  if (encoded.size() < kIhdrEnd || u32_be(encoded, 12) != 0x49484452)  // "IHDR"
    return invalid_argument("the PNG image is damaged: it has no header");
  RETURN_IF_ERROR(check_image_size("PNG", u32_be(encoded, 16), u32_be(encoded, 20), limits));
  PngReader reader(encoded);
  const auto damaged = [&reader] {
    return invalid_argument("the PNG image is damaged: " + std::string(reader.message.data()));
  };
  if (!read_png_header(reader)) return damaged();
  StoredImage stored;
  stored.image = blank_image(u32_be(encoded, 16), u32_be(encoded, 20));
  Image& image = stored.image;
  const std::size_t row_bytes = png_get_rowbytes(reader.png, reader.info);
  std::vector<std::uint8_t> raw(row_bytes * static_cast<std::size_t>(image.height));
  std::vector<png_bytep> rows(static_cast<std::size_t>(image.height));
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = &raw[y * row_bytes];
  if (!read_png_rows(reader, rows.data())) return damaged();
  switch (png_get_color_type(reader.png, reader.info)) {
    case PNG_COLOR_TYPE_GRAY:
      convert_grey(reader, raw, background, image);
      break;
    case PNG_COLOR_TYPE_PALETTE:
      convert_palette(reader, raw, background, image);
      break;
    default:
      convert_channels(reader, raw, background, image);
  }
  read_png_end(reader);
  stored.orientation = png_orientation(reader);
  return stored;
}

}  // namespace troupe
