#pragma once
// From images to what a vision tower takes: the image processor of a model's folder.

#include <array>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/result.hpp"
#include "runtime/multimodal/image.hpp"
#include "runtime/multimodal/image_resizer.hpp"

namespace troupe {

/// Keys of mm_processor_kwargs whose objects are for items other than images.
inline constexpr std::string_view kOtherProcessorKwargs[] = {"videos_kwargs", "audio_kwargs"};

/// When an image is also given in parts (Gemma 3).
struct PanAndScan {
  bool enabled = false;
  std::int32_t min_crop_size = 256;
  std::int32_t max_num_crops = 4;
  double min_ratio_to_activate = 1.2;
};

/// The parts, in order; none if the image is too square or the parts would be too small. The
/// last may end at the image's edge. `settings.enabled` is not asked.
/// Pre: width, height, min_crop_size and max_num_crops are positive.
/// Errors: kInvalidArgument (a part would be empty, which transformers cannot resize either).
Result<std::vector<ImageBox>> pan_and_scan_boxes(std::int32_t width, std::int32_t height,
                                                 const PanAndScan& settings);

/// transformers' classes of image processors, as far as they differ.
enum class ImageProcessorKind : std::uint8_t {
  kGemma3,  ///< pan and scan
  kSiglip,
  kClip,  ///< LLaVA's, too
};

/// The fields of preprocessor_config.json, with Gemma 3's defaults.
struct ImageProcessorSettings {
  ImageProcessorKind kind = ImageProcessorKind::kGemma3;
  bool do_resize = true;
  std::int32_t width = 224;
  std::int32_t height = 224;
  /// Not 0: of the shorter side, in the place of width and height; the aspect ratio is kept.
  std::int32_t shortest_edge = 0;
  bool default_to_square = true;  ///< what a size of one number is: else shortest_edge
  bool do_center_crop = false;
  std::int32_t crop_width = 0;  ///< 0: not given
  std::int32_t crop_height = 0;
  ResizeFilter resample = ResizeFilter::kBilinear;
  bool do_rescale = true;
  double rescale_factor = 1.0 / 255;
  bool do_normalize = true;
  std::array<double, 3> image_mean = {0.5, 0.5, 0.5};
  std::array<double, 3> image_std = {0.5, 0.5, 0.5};
  PanAndScan pan_and_scan;
  std::int32_t image_seq_length = 256;  ///< soft tokens per tensor
};

/// [3, height, width], the channels one after the other: a byte per value, and of each channel
/// what its 256 bytes stand for.
struct PixelTensor {
  std::array<std::int64_t, 3> shape{};
  std::vector<std::uint8_t> levels;
  std::vector<float> level_values;  ///< [3, 256]

  [[nodiscard]] std::vector<float> values() const;
};

/// A constant value: any thread may use it.
class ImageProcessor {
 public:
  /// Reads preprocessor_config.json of a model folder, or where there is none, "image_processor" of
  /// processor_config.json; of an encoder's GGUF file, what it says in their place. `kind`: whose
  /// resizing and rounding, that of transformers' fast image processors (kTorchvision, what vLLM
  /// uses) or of the slow ones (kPillow). Errors: kNotFound, kIo, kCorrupt (not JSON, a value out
  /// of range), kUnsupported (another processor, or a field that would change the result and is not
  /// known); they name file and field.
  static Result<ImageProcessor> load(const std::filesystem::path& model,
                                     ResizeKind kind = ResizeKind::kTorchvision);
  /// The same from the text of preprocessor_config.json; `file_name` is for errors only.
  static Result<ImageProcessor> parse(std::string_view text, std::string_view file_name,
                                      ResizeKind kind = ResizeKind::kTorchvision);
  /// A copy with a request's mm_processor_kwargs: an object of the same fields, overridden by those
  /// of images_kwargs. Errors: kInvalidArgument (an unknown field, a value out of range), naming
  /// the field.
  [[nodiscard]] Result<ImageProcessor> with_kwargs(const nlohmann::json& kwargs) const;

  /// The image, then its parts if pan and scan is on: each resized, cropped, rescaled and
  /// normalised, its values in float32. Errors: kInvalidArgument (an empty image, or one that
  /// would become too large; see pan_and_scan_boxes).
  [[nodiscard]] Result<std::vector<PixelTensor>> process(const Image& image) const;

  [[nodiscard]] const ImageProcessorSettings& settings() const noexcept { return settings_; }
  [[nodiscard]] ResizeKind kind() const noexcept { return kind_; }

 private:
  ImageProcessor(const ImageProcessorSettings& settings, ResizeKind kind)
      : settings_(settings), kind_(kind) {}

  ImageProcessorSettings settings_;
  ResizeKind kind_;
};

/// The middle of an image, with black around it where it is smaller: of an odd number of rows or
/// columns of black, the greater part is behind it, but for kPillow before it.
/// Pre: width and height are positive.
[[nodiscard]] Image center_crop(const Image& image, std::int32_t width, std::int32_t height,
                                ResizeKind kind);

/// The normalised channels of an image; one step of ImageProcessor::process.
[[nodiscard]] PixelTensor normalized_pixels(const Image& image,
                                            const ImageProcessorSettings& settings,
                                            ResizeKind kind);

}  // namespace troupe
