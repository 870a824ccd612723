// JPEG, with libjpeg-turbo and its default settings, which are Pillow's: accurate integer DCT,
// fancy upsampling.

#include <csetjmp>
#include <cstdio>
// libjpeg's header needs <cstdio> before it.
#include <jpeglib.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/multimodal/image_formats.hpp"
#include "runtime/multimodal/orientation.hpp"

namespace troupe {
namespace {

/// A progressive image is decoded as a whole once per scan: real ones have about ten.
constexpr int kMaxJpegScans = 500;

/// libjpeg's objects. Its errors jump (longjmp) to the function that called it, so those functions
/// have no C++ objects of their own.
struct JpegReader {
  JpegReader() = default;
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
  ~JpegReader() {
    if (created) jpeg_destroy_decompress(&decompress);
  }

  jpeg_decompress_struct decompress{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump;
  bool created = false;
  std::array<char, JMSG_LENGTH_MAX> message{};
};

JpegReader& jpeg_reader(j_common_ptr common) {
  return *static_cast<JpegReader*>(common->client_data);
}

[[noreturn]] void jpeg_failed(j_common_ptr common) {
  JpegReader& reader = jpeg_reader(common);
  reader.errors.format_message(common, reader.message.data());
  std::longjmp(reader.jump, 1);
}
void jpeg_warned(j_common_ptr) {}

void limit_jpeg_scans(j_common_ptr common) {
  JpegReader& reader = jpeg_reader(common);
  if (reader.decompress.input_scan_number <= kMaxJpegScans) return;
  std::snprintf(reader.message.data(), reader.message.size(), "it has more than %d scans",
                kMaxJpegScans);
  std::longjmp(reader.jump, 1);
}

void start_jpeg_source(j_decompress_ptr) {}
void end_jpeg_source(j_decompress_ptr) {}
boolean no_more_jpeg_bytes(j_decompress_ptr) { return FALSE; }  // suspends the decoder
void skip_jpeg_bytes(j_decompress_ptr decompress, long count) {
  jpeg_source_mgr& source = *decompress->src;
  if (count <= 0) return;
  const auto skipped = std::min(static_cast<std::size_t>(count), source.bytes_in_buffer);
  source.next_input_byte += skipped;
  source.bytes_in_buffer -= skipped;
}

bool jpeg_is_cut(JpegReader& reader) {
  std::strncpy(reader.message.data(), "the data end before the image does",
               reader.message.size() - 1);
  return false;
}

/// Reads all before the pixels. False: reader.message says why not.
bool read_jpeg_header(JpegReader& reader, std::span<const std::byte> encoded) {
  jpeg_decompress_struct& decompress = reader.decompress;
  decompress.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = jpeg_failed;
  reader.errors.output_message = jpeg_warned;
  decompress.client_data = &reader;
  if (setjmp(reader.jump) != 0) return false;
  jpeg_create_decompress(&decompress);
  reader.created = true;
  reader.progress.progress_monitor = limit_jpeg_scans;
  decompress.progress = &reader.progress;
  reader.source.init_source = start_jpeg_source;
  reader.source.fill_input_buffer = no_more_jpeg_bytes;
  reader.source.skip_input_data = skip_jpeg_bytes;
  reader.source.resync_to_restart = jpeg_resync_to_restart;
  reader.source.term_source = end_jpeg_source;
  reader.source.next_input_byte = reinterpret_cast<const JOCTET*>(encoded.data());
  reader.source.bytes_in_buffer = encoded.size();
  decompress.src = &reader.source;
  jpeg_save_markers(&decompress, JPEG_APP0 + 1, 0xFFFF);  // EXIF, XMP
  if (jpeg_read_header(&decompress, TRUE) != JPEG_HEADER_OK) return jpeg_is_cut(reader);
  return true;
}

/// Decodes into rows of bytes_per_row. Pre: out has output_height of them.
bool read_jpeg_rows(JpegReader& reader, std::uint8_t* out, std::size_t bytes_per_row) {
  if (setjmp(reader.jump) != 0) return false;
  jpeg_decompress_struct& decompress = reader.decompress;
  if (jpeg_start_decompress(&decompress) == FALSE) return jpeg_is_cut(reader);
  while (decompress.output_scanline < decompress.output_height) {
    JSAMPROW row = out + decompress.output_scanline * bytes_per_row;
    if (jpeg_read_scanlines(&decompress, &row, 1) != 1) return jpeg_is_cut(reader);
  }
  return true;
}

/// Pillow takes all CMYK images as Adobe stores them: inverted.
void convert_cmyk(const std::vector<std::uint8_t>& cmyk, Image& image) {
  std::uint8_t* out = image.rgb.data();
  for (std::size_t i = 0; i < cmyk.size(); i += 4, out += 3) {
    const std::uint32_t not_black = cmyk[i + 3];
    for (std::size_t c = 0; c < 3; ++c)
      out[c] =
          static_cast<std::uint8_t>(not_black - divided_by_255((255U - cmyk[i + c]) * not_black));
  }
}

int jpeg_orientation(const JpegReader& reader) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  constexpr std::string_view kXmp("http://ns.adobe.com/xap/1.0/\0", 29);
  std::string exif;
  std::string_view xmp;
  for (auto* marker = reader.decompress.marker_list; marker != nullptr; marker = marker->next) {
    std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (data.starts_with(kExif))
      exif += data.substr(kExif.size());
    else if (data.starts_with(kXmp))
      xmp = data.substr(kXmp.size());
  }
  return orientation_of(std::as_bytes(std::span(exif)), xmp);
}

}  // namespace

bool jpeg_is_rgb(std::span<const std::byte> encoded) {
  JpegReader reader;
  return read_jpeg_header(reader, encoded) && reader.decompress.num_components == 3;
}

Result<StoredImage> decode_jpeg(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& /*background*/) {
  JpegReader reader;
  const auto damaged = [&reader] {
    return invalid_argument("the JPEG image is damaged: " + std::string(reader.message.data()));
  };
  if (!read_jpeg_header(reader, encoded)) return damaged();
  jpeg_decompress_struct& decompress = reader.decompress;
  const std::uint64_t width = decompress.image_width;
  const std::uint64_t height = decompress.image_height;
  RETURN_IF_ERROR(check_image_size("JPEG", width, height, limits));
  const bool is_cmyk = decompress.num_components == 4;
  if (decompress.num_components != 1 && decompress.num_components != 3 && !is_cmyk)
    return Error{ErrorCode::kUnsupported, "JPEG images with " +
                                              std::to_string(decompress.num_components) +
                                              " components are not supported"};
  StoredImage stored;
  stored.orientation = jpeg_orientation(reader);
  stored.image = blank_image(width, height);
  if (is_cmyk) {
    decompress.out_color_space = JCS_CMYK;
    std::vector<std::uint8_t> cmyk(4 * width * height);
    if (!read_jpeg_rows(reader, cmyk.data(), 4 * width)) return damaged();
    convert_cmyk(cmyk, stored.image);
  } else {
    decompress.out_color_space = JCS_RGB;
    if (!read_jpeg_rows(reader, stored.image.rgb.data(), 3 * width)) return damaged();
  }
  return stored;
}

}  // namespace troupe
