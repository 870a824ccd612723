// WebP, with libwebp's animation decoder as in Pillow: a still image is an animation of one frame.

#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>
#include <string_view>

#include "runtime/multimodal/image_formats.hpp"
#include "runtime/multimodal/orientation.hpp"

namespace troupe {
namespace {

struct DemuxerDeleter {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
struct AnimationDeleter {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

/// The chunk's bytes; empty if there is none. They are within the encoded image.
std::span<const std::byte> webp_chunk(const WebPDemuxer* demuxer, const char* name) {
  WebPChunkIterator iterator;
  if (WebPDemuxGetChunk(demuxer, name, 1, &iterator) == 0) return {};
  const auto bytes = std::as_bytes(std::span(iterator.chunk.bytes, iterator.chunk.size));
  WebPDemuxReleaseChunkIterator(&iterator);
  return bytes;
}

}  // namespace

bool webp_is_rgb(std::span<const std::byte> encoded) {
  WebPBitstreamFeatures features;
  return WebPGetFeatures(reinterpret_cast<const std::uint8_t*>(encoded.data()), encoded.size(),
                         &features) == VP8_STATUS_OK &&
         features.has_alpha == 0;
}

Result<StoredImage> decode_webp(std::span<const std::byte> encoded, const ImageLimits& limits,
                                const ImageColor& background) {
  const WebPData data{reinterpret_cast<const std::uint8_t*>(encoded.data()), encoded.size()};
  const std::unique_ptr<WebPDemuxer, DemuxerDeleter> demuxer(WebPDemux(&data));
  if (demuxer == nullptr) return invalid_argument("the WebP image is damaged or cut off");
  const std::uint64_t width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  const std::uint64_t height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  RETURN_IF_ERROR(check_image_size("WebP", width, height, limits));
  const bool has_alpha = !webp_is_rgb(encoded);
  WebPAnimDecoderOptions options;
  WebPAnimDecoderOptionsInit(&options);
  const std::unique_ptr<WebPAnimDecoder, AnimationDeleter> decoder(
      WebPAnimDecoderNew(&data, &options));
  std::uint8_t* rgba = nullptr;
  int timestamp = 0;
  if (decoder == nullptr || WebPAnimDecoderGetNext(decoder.get(), &rgba, &timestamp) == 0)
    return invalid_argument("the WebP image is damaged: its first frame cannot be decoded");
  StoredImage stored;
  stored.image = blank_image(width, height);
  std::uint8_t* out = stored.image.rgb.data();
  for (std::uint64_t i = 0; i < width * height; ++i, rgba += 4, out += 3) {
    for (std::size_t c = 0; c < 3; ++c)
      out[c] = has_alpha ? pasted(rgba[c], rgba[3], background[c]) : rgba[c];
  }
  const std::span<const std::byte> xmp = webp_chunk(demuxer.get(), "XMP ");
  stored.orientation = orientation_of(webp_chunk(demuxer.get(), "EXIF"),
                                      {reinterpret_cast<const char*>(xmp.data()), xmp.size()});
  return stored;
}

}  // namespace troupe
