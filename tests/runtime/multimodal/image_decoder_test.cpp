#include <boost/test/unit_test.hpp>

#include <array>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/base/hash.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/orientation.hpp"

using namespace troupe;
using namespace std::literals;

namespace {

std::string image_bytes(const std::string& name) {
  std::ifstream file(TROUPE_GOLDEN_DIR "/images/" + name, std::ios::binary);
  BOOST_REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

Result<Image> decode_text(std::string_view bytes, const ImageLimits& limits = {}) {
  return decode_image(std::as_bytes(std::span(bytes)), limits);
}

/// "" if it can be decoded.
std::string decode_error(std::string_view bytes, const ImageLimits& limits = {}) {
  const auto image = decode_text(bytes, limits);
  if (image.ok()) return "";
  BOOST_TEST((image.error().code == ErrorCode::kInvalidArgument ||
              image.error().code == ErrorCode::kUnsupported));
  return image.error().message;
}

std::string little_endian_text(std::uint32_t value, int num_bytes) {
  std::string text;
  for (int i = 0; i < num_bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFF);
  return text;
}
std::string big_endian_text(std::uint32_t value) {
  const std::string text = little_endian_text(value, 4);
  return {text.rbegin(), text.rend()};
}

/// The first bytes of images of that size: enough to refuse it.
std::string png_of_size(std::uint32_t width, std::uint32_t height) {
  return "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"s + big_endian_text(width) + big_endian_text(height) +
         "\x08\x02\0\0\0\0\0\0\0"s;
}
std::string gif_of_size(std::uint32_t width, std::uint32_t height) {
  return "GIF89a" + little_endian_text(width, 2) + little_endian_text(height, 2) +
         "\0\0\0,\0\0\0\0"s + little_endian_text(width, 2) + little_endian_text(height, 2) +
         "\0\x02\x01\0\0"s;
}
std::string bmp_of_size(std::uint32_t width, std::uint32_t height) {
  return "BM" + std::string(8, '\0') + little_endian_text(54, 4) + little_endian_text(40, 4) +
         little_endian_text(width, 4) + little_endian_text(height, 4) + "\1\0\x18\0"s +
         std::string(24, '\0');
}
/// Replaces the size in the frame header.
std::string jpeg_of_size(std::uint32_t width, std::uint32_t height) {
  std::string jpeg = image_bytes("grey.jpg");
  const std::size_t at = jpeg.find("\xff\xc0"sv);
  BOOST_REQUIRE(at != std::string::npos);
  for (const auto& [offset, value] : {std::pair{5U, height}, std::pair{7U, width}}) {
    jpeg[at + offset] = static_cast<char>(value >> 8);
    jpeg[at + offset + 1] = static_cast<char>(value);
  }
  return jpeg;
}
std::string webp_of_size(std::uint32_t width, std::uint32_t height) {
  std::string webp = image_bytes("lossy.webp");
  BOOST_REQUIRE(webp.substr(12, 4) == "VP8 ");
  webp.replace(26, 4, little_endian_text(width, 2) + little_endian_text(height, 2));
  return webp;
}

constexpr std::array kImages = {"rgb.png",  "rgba.png",  "palette.png",     "photo420.jpg",
                                "cmyk.jpg", "ycck.jpg",  "progressive.jpg", "lossy.webp",
                                "anim.gif", "plain.bmp", "lossless.webp"};

}  // namespace

BOOST_AUTO_TEST_CASE(an_image_cut_off_anywhere_is_an_error_or_whole) {
  for (const std::string name : kImages) {
    const std::string bytes = image_bytes(name);
    const Image whole = decode_text(bytes).value();
    const std::size_t step = bytes.size() / 150 + 1;
    for (std::size_t size = 0; size < bytes.size(); size += step) {
      const auto image = decode_text(std::string_view(bytes).substr(0, size));
      // Only what follows the pixels may be missing.
      if (image.ok()) BOOST_TEST((*image == whole), name << " cut to " << size);
    }
    BOOST_TEST(decode_error(std::string_view(bytes).substr(0, bytes.size() / 3)) != "", name);
  }
}

BOOST_AUTO_TEST_CASE(damaged_images_are_errors_or_images_of_the_same_memory) {
  for (const std::string name : kImages) {
    const std::string bytes = image_bytes(name);
    for (std::size_t at = 0; at < bytes.size(); at += bytes.size() / 60 + 1) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      const auto image = decode_text(damaged, {.max_pixels = 1 << 22});
      if (image.ok())
        BOOST_TEST(image->rgb.size() == static_cast<std::size_t>(image->width) *
                                            static_cast<std::size_t>(image->height) * 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_ycck_image_is_decoded_as_pillow_does) {
  const Image image = decode_text(image_bytes("ycck.jpg")).value();
  const Image expected = decode_text(image_bytes("decoded/ycck.jpg.png")).value();
  BOOST_TEST((image == expected));
}

BOOST_AUTO_TEST_CASE(sizes_over_a_limit_are_refused_from_the_header) {
  const ImageLimits limits{
      .max_encoded_bytes = 1 << 20, .max_pixels = 1'000'000, .max_side = 16000};
  const std::pair<const char*, std::string (*)(std::uint32_t, std::uint32_t)> formats[] = {
      {"PNG", png_of_size},   {"GIF", gif_of_size},   {"BMP", bmp_of_size},
      {"JPEG", jpeg_of_size}, {"WebP", webp_of_size},
  };
  for (const auto& [name, make] : formats) {
    BOOST_TEST(decode_error(make(2000, 1000), limits) ==
               "the " + std::string(name) +
                   " image is 2000x1000 = 2000000 pixels, the limit is 1000000");
    BOOST_TEST(decode_error(make(16001, 2), limits) ==
               "the " + std::string(name) + " image is 16001x2, the limit of a side is 16000");
  }
  BOOST_TEST(decode_error(png_of_size(20000, 20000)) ==
             "the PNG image is 20000x20000 = 400000000 pixels, the limit is 89478485");
  BOOST_TEST(decode_error(png_of_size(0xFFFFFFFF, 0xFFFFFFFF)).starts_with("the PNG image is"));
  BOOST_TEST(decode_error(png_of_size(1, 10000)) ==
             "the PNG image is 1x10000: the ratio of its sides is 10000, the limit is 200");
  BOOST_TEST(decode_error(bmp_of_size(601, 3)) ==
             "the BMP image is 601x3: the ratio of its sides is 201, the limit is 200");
  BOOST_TEST(decode_error(png_of_size(0, 5)) == "the PNG image is 0x5: it has no pixels");
  BOOST_TEST(decode_error(gif_of_size(7, 0)) == "the GIF image is 7x0: it has no pixels");
  BOOST_TEST(decode_error(bmp_of_size(0, 0)) == "the BMP image is 0x0: it has no pixels");
  BOOST_TEST(decode_error(image_bytes("rgb.png"), {.max_encoded_bytes = 100})
                 .ends_with(" bytes, the limit is 100"));
}

BOOST_AUTO_TEST_CASE(other_formats_are_refused_by_name) {
  BOOST_TEST(decode_error("") == "the image is empty: it has 0 bytes");
  BOOST_TEST(decode_error("no image") ==
             "the data are not an image of a known format; supported are JPEG, PNG, WebP, GIF, BMP "
             "and TIFF");
  for (const auto& [bytes, name] : std::initializer_list<std::pair<std::string, const char*>>{
           {"<?xml version=\"1.0\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "SVG"},
           {"\0\0\0\x1c"
            "ftypavif\0\0\0\0"s,
            "AVIF"},
           {"\0\0\0\x1c"
            "ftypheic\0\0\0\0"s,
            "HEIC"},
           {"\0\0\1\0\1\0"s, "ICO"},
           {"%PDF-1.7", "PDF"},
           {"<!DOCTYPE html><html>", "HTML"}})
    BOOST_TEST(decode_error(bytes) == std::string(name) +
                                          " images are not supported; supported are JPEG, PNG, "
                                          "WebP, GIF, BMP and TIFF");
  // Only the beginning of a format.
  for (const std::string& bytes :
       {"\xff\xd8\xff"s, "\x89PNG\r\n\x1a\n"s, "RIFF\0\0\0\0WEBP"s, "GIF89a"s, "BM"s, "RIFF"s})
    BOOST_TEST(decode_error(bytes) != "");
}

BOOST_AUTO_TEST_CASE(orientations_turn_an_image_as_exif_defines_them) {
  const Image image{2, 3, {1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 6}};
  const auto shown = [&](int orientation) {
    const Image turned = upright(image, orientation);
    std::string text = std::to_string(turned.width) + ":";
    for (std::size_t i = 0; i < turned.rgb.size(); i += 3) text += std::to_string(turned.rgb[i]);
    return text;
  };
  BOOST_TEST(shown(1) == "2:123456");
  BOOST_TEST(shown(2) == "2:214365");
  BOOST_TEST(shown(3) == "2:654321");
  BOOST_TEST(shown(4) == "2:563412");
  BOOST_TEST(shown(5) == "3:135246");
  BOOST_TEST(shown(6) == "3:531642");
  BOOST_TEST(shown(7) == "3:642531");
  BOOST_TEST(shown(8) == "3:246135");
}

BOOST_AUTO_TEST_CASE(the_orientation_comes_from_exif_or_xmp) {
  const auto of_exif = [](std::string_view exif, std::string_view xmp = {}) {
    return orientation_of(std::as_bytes(std::span(exif)), xmp);
  };
  const std::string little = "II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"s;
  const std::string big = "MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\x08\0\0\0\0\0\0"s;
  BOOST_TEST(of_exif(little) == 6);
  BOOST_TEST(of_exif("Exif\0\0"s + little) == 6);
  BOOST_TEST(of_exif(big) == 8);
  BOOST_TEST(of_exif("") == 1);
  BOOST_TEST(of_exif("nonsense") == 1);
  for (std::size_t size = 0; size < 22; ++size) BOOST_TEST(of_exif(little.substr(0, size)) == 1);
  BOOST_TEST(of_exif("II*\0\xff\xff\xff\xff"s) == 1);
  const std::string_view xmp = R"(<rdf:Description tiff:Orientation="3"/>)";
  BOOST_TEST(of_exif("", xmp) == 3);
  BOOST_TEST(of_exif("", "<tiff:Orientation>7</tiff:Orientation>") == 7);
  BOOST_TEST(of_exif("", R"(tiff:Orientation="9")") == 1);
  BOOST_TEST(of_exif(little, xmp) == 6);
}

// golden.json has the size and the hash of the pixels that Pillow 13 reads from each file, upright,
// on white; tests/system/image_check.py wrote the files.
BOOST_AUTO_TEST_CASE(tiff_images_have_the_pixels_of_pillow) {
  const auto golden = nlohmann::json::parse(image_bytes("tiff/golden.json"));
  BOOST_TEST(golden.size() > 50u);
  for (const auto& [name, expected] : golden.items()) {
    BOOST_TEST_CONTEXT(name) {
      const auto image = decode_text(image_bytes("tiff/" + name + ".tiff"));
      BOOST_REQUIRE_MESSAGE(image.ok(), (image.ok() ? "" : image.error().message));
      BOOST_TEST(image->width == expected.at("width").get<int>());
      BOOST_TEST(image->height == expected.at("height").get<int>());
      BOOST_TEST(to_hex(sha256(image->rgb)) == expected.at("sha256").get<std::string>());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_tiff_image_that_is_too_large_cut_off_or_rare_is_refused_by_name) {
  const std::string whole = image_bytes("tiff/photometric2_3x8_compression8_strips.tiff");
  BOOST_TEST(decode_error(whole).empty());
  for (std::size_t size = 4; size < whole.size(); ++size)
    if (const std::string error = decode_error(whole.substr(0, size)); !error.empty())
      BOOST_TEST(error.starts_with("the TIFF image"), error);
  BOOST_TEST(decode_error(whole, {.max_pixels = 1}).find("the limit is 1") != std::string::npos);
  // The value of the first tag with this number becomes another one (little endian).
  const auto with_tag = [&](std::uint16_t tag, std::uint32_t value) {
    std::string changed = whole;
    const std::string entry = little_endian_text(tag, 2);
    for (std::size_t at = 0; at + 12 <= changed.size(); ++at)
      if (changed.compare(at, 2, entry) == 0 && changed[at + 2] >= 3 && changed[at + 2] <= 4 &&
          changed[at + 3] == 0 && changed.compare(at + 4, 4, "\1\0\0\0"s) == 0)
        changed.replace(at + 8, 4, little_endian_text(value, 4));
    return changed;
  };
  BOOST_TEST(decode_error(whole, {.max_side = 2}).find("the limit of a side is 2") !=
             std::string::npos);
  BOOST_TEST(decode_error(with_tag(256, 500)).starts_with("the TIFF image is damaged"));
  BOOST_TEST(decode_error(with_tag(259, 34676)).find("compression 34676") != std::string::npos);
  BOOST_TEST(decode_error(with_tag(262, 8)).find("photometric interpretation 8") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(transparent_pixels_lie_on_the_colour_that_is_asked_for) {
  const auto first_pixel = [](const std::string& bytes, const ImageColor& background) {
    const Image image = decode_image(std::as_bytes(std::span(bytes)), {}, background).value();
    return ImageColor{image.rgb[0], image.rgb[1], image.rgb[2]};
  };
  // One transparent pixel: GIF, and BMP with an alpha channel.
  const std::string gif =
      "GIF89a\1\0\1\0\x80\0\0\1\2\3\4\5\6!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"s;
  const ImageColor red = {200, 10, 20};
  BOOST_TEST((first_pixel(gif, red) == red));
  BOOST_TEST((first_pixel(gif, kWhite) == kWhite));
}
