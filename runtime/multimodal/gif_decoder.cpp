// The first frame of a GIF (GIF89a specification), with an LZW decoder of our own.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "runtime/multimodal/image_formats.hpp"

namespace troupe {
namespace {

constexpr std::uint32_t kMaxLzwCodes = 4096;
constexpr std::uint32_t kMaxLzwBits = 12;
constexpr std::size_t kGifHeaderBytes = 13;
constexpr std::size_t kGifFrameBytes = 9;

Error gif_error(const std::string& what) {
  return invalid_argument("the GIF image is damaged: " + what);
}
Error gif_is_cut() { return gif_error("the data end before the image does"); }

using GifPalette = std::array<std::array<std::uint8_t, 3>, 256>;

struct GifFrame {
  std::uint32_t x0 = 0;
  std::uint32_t y0 = 0;
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  bool interlaced = false;
  std::optional<GifPalette> palette;  ///< its own
};

/// Reads the file's blocks from front to back. No function reads behind the end.
class GifReader {
 public:
  explicit GifReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] std::optional<std::span<const std::byte>> take(std::size_t size) {
    if (rest_.size() < size) return std::nullopt;
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  /// A sub-block; empty at the end of the chain.
  [[nodiscard]] std::optional<std::span<const std::byte>> take_block() {
    const auto size = take(1);
    if (!size) return std::nullopt;
    return take(byte_at(*size, 0));
  }
  /// The colour table that `flags` announce.
  [[nodiscard]] std::optional<GifPalette> take_palette(std::uint32_t flags) {
    const std::size_t num_colors = std::size_t{2} << (flags & 7);
    const auto table = take(3 * num_colors);
    if (!table) return std::nullopt;
    GifPalette palette{};
    for (std::size_t i = 0; i < 3 * num_colors; ++i)
      palette[i / 3][i % 3] = static_cast<std::uint8_t>(byte_at(*table, i));
    return palette;
  }

 private:
  std::span<const std::byte> rest_;
};

/// LZW with codes of variable length, as GIF packs them: lowest bits first.
class LzwDecoder {
 public:
  /// Pre: 0 <= min_bits <= 8. Reads sub-blocks from `reader`.
  LzwDecoder(GifReader& reader, std::uint32_t min_bits)
      : reader_(reader), clear_(1U << min_bits), min_bits_(min_bits) {
    reset();
  }

  /// Fills `out`. False: the data end, or are damaged.
  bool decode(std::span<std::uint8_t> out) {
    std::size_t filled = 0;
    while (filled < out.size()) {
      const auto code = next_code();
      if (!code || *code == clear_ + 1) return false;
      if (*code == clear_) {
        reset();
        continue;
      }
      if (*code > next_ || (!previous_ && *code > clear_)) return false;
      const std::size_t length = expand(*code);
      const std::size_t copied = std::min(length, out.size() - filled);
      std::reverse_copy(text_.begin() + static_cast<std::ptrdiff_t>(length - copied),
                        text_.begin() + static_cast<std::ptrdiff_t>(length),
                        out.begin() + static_cast<std::ptrdiff_t>(filled));
      filled += copied;
      previous_ = *code;
    }
    return true;
  }

 private:
  void reset() {
    next_ = clear_ + 2;
    code_bits_ = min_bits_ + 1;
    previous_.reset();
  }

  std::optional<std::uint32_t> next_code() {
    while (num_bits_ < code_bits_) {
      if (block_.empty()) {
        const auto block = reader_.take_block();
        if (!block || block->empty()) return std::nullopt;
        block_ = *block;
      }
      bits_ |= byte_at(block_, 0) << num_bits_;
      num_bits_ += 8;
      block_ = block_.subspan(1);
    }
    const std::uint32_t code = bits_ & ((1U << code_bits_) - 1);
    bits_ >>= code_bits_;
    num_bits_ -= code_bits_;
    return code;
  }

  /// Writes the code's text to text_, last byte first, and adds the entry that follows from it.
  /// Returns its length.
  std::size_t expand(std::uint32_t code) {
    std::size_t length = 0;
    if (code == next_ && previous_) {  // the entry that is added now
      text_[length++] = first_;
      code = *previous_;
    }
    while (code >= clear_) {
      text_[length++] = last_[code];
      code = prefix_[code];
    }
    first_ = static_cast<std::uint8_t>(code);
    text_[length++] = first_;
    if (previous_ && next_ < kMaxLzwCodes) {
      prefix_[next_] = *previous_;
      last_[next_] = first_;
      ++next_;
      if (next_ == 1U << code_bits_ && code_bits_ < kMaxLzwBits) ++code_bits_;
    }
    return length;
  }

  GifReader& reader_;
  const std::uint32_t clear_;  ///< the code that empties the table; the next one ends the data
  const std::uint32_t min_bits_;
  std::span<const std::byte> block_;
  std::uint32_t bits_ = 0;
  std::uint32_t num_bits_ = 0;
  std::uint32_t code_bits_ = 0;
  std::uint32_t next_ = 0;  ///< the code that is added next
  std::optional<std::uint32_t> previous_;
  std::uint8_t first_ = 0;                            ///< of the previous code's text
  std::array<std::uint32_t, kMaxLzwCodes> prefix_{};  ///< a code's text is its prefix's ...
  std::array<std::uint8_t, kMaxLzwCodes> last_{};     ///< ... and this byte
  std::array<std::uint8_t, kMaxLzwCodes + 1> text_{};
};

/// The rows in the order in which they are stored.
std::vector<std::uint32_t> gif_rows(const GifFrame& frame) {
  std::vector<std::uint32_t> rows;
  rows.reserve(frame.height);
  struct Pass {
    std::uint32_t first;
    std::uint32_t step;
  };
  constexpr std::array kPasses = {Pass{0, 8}, Pass{4, 8}, Pass{2, 4}, Pass{1, 2}};
  if (!frame.interlaced) {
    for (std::uint32_t y = 0; y < frame.height; ++y) rows.push_back(y);
    return rows;
  }
  for (const Pass& pass : kPasses) {
    for (std::uint32_t y = pass.first; y < frame.height; y += pass.step) rows.push_back(y);
  }
  return rows;
}

/// Skips to the first frame. Leaves the transparent index of its graphic control extension, if it
/// has one.
Result<GifFrame> read_gif_frame(GifReader& reader, std::optional<std::uint32_t>& transparent) {
  while (true) {
    const auto label = reader.take(1);
    if (!label || byte_at(*label, 0) == ';') return gif_error("it has no frame");
    if (byte_at(*label, 0) == '!') {
      const auto kind = reader.take(1);
      const bool is_control = kind && byte_at(*kind, 0) == 0xF9;
      auto block = reader.take_block();
      if (is_control && block && block->size() >= 4 && (byte_at(*block, 0) & 1) != 0)
        transparent = byte_at(*block, 3);
      while (block && !block->empty()) block = reader.take_block();
      if (!block) return gif_is_cut();
    } else if (byte_at(*label, 0) == ',') {
      const auto fields = reader.take(kGifFrameBytes);
      if (!fields) return gif_is_cut();
      GifFrame frame{u16_le(*fields, 0),
                     u16_le(*fields, 2),
                     u16_le(*fields, 4),
                     u16_le(*fields, 6),
                     (byte_at(*fields, 8) & 64) != 0,
                     std::nullopt};
      if ((byte_at(*fields, 8) & 128) != 0) {
        frame.palette = reader.take_palette(byte_at(*fields, 8));
        if (!frame.palette) return gif_is_cut();
      }
      return frame;
    }
    // Other bytes between blocks are skipped, as other programs do.
  }
}

}  // namespace

Result<StoredImage> decode_gif(std::span<const std::byte> encoded, const ImageLimits& limits,
                               const ImageColor& background_color) {
  GifReader reader(encoded);
  const auto header = reader.take(kGifHeaderBytes);
  if (!header) return gif_is_cut();
  GifPalette palette;  // without any table: grey
  for (std::size_t i = 0; i < palette.size(); ++i) palette[i].fill(static_cast<std::uint8_t>(i));
  const std::uint32_t flags = byte_at(*header, 10);
  if ((flags & 128) != 0) {
    const auto global = reader.take_palette(flags);
    if (!global) return gif_is_cut();
    palette = *global;
  }
  std::optional<std::uint32_t> transparent;
  ASSIGN_OR_RETURN(const GifFrame frame, read_gif_frame(reader, transparent));
  if (frame.palette) palette = *frame.palette;
  if (transparent) palette[*transparent] = background_color;
  // A frame that is larger than the canvas enlarges it.
  const std::uint32_t width = std::max(u16_le(*header, 6), frame.x0 + frame.width);
  const std::uint32_t height = std::max(u16_le(*header, 8), frame.y0 + frame.height);
  RETURN_IF_ERROR(check_image_size("GIF", width, height, limits));
  const auto min_bits = reader.take(1);
  if (!min_bits) return gif_is_cut();
  if (byte_at(*min_bits, 0) > 8)
    return gif_error("its codes start with " + std::to_string(byte_at(*min_bits, 0)) +
                     " bits, the limit is 8");
  std::vector<std::uint8_t> indices(std::size_t{frame.width} * frame.height);
  if (!LzwDecoder(reader, byte_at(*min_bits, 0)).decode(indices))
    return gif_error("its pixels end early or are not valid LZW codes");
  StoredImage stored;
  stored.image = blank_image(width, height);
  std::uint8_t* out = stored.image.rgb.data();
  const auto& background = palette[transparent.value_or(0)];
  for (std::size_t i = 0; i < std::size_t{width} * height; ++i)
    std::copy(background.begin(), background.end(), out + 3 * i);
  const std::vector<std::uint32_t> rows = gif_rows(frame);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t y = frame.y0 + rows[i / frame.width];
    const std::size_t x = frame.x0 + i % frame.width;
    const auto& color = palette[indices[i]];
    std::copy(color.begin(), color.end(), out + 3 * (y * width + x));
  }
  return stored;
}

}  // namespace troupe
