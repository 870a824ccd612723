#include "runtime/multimodal/image_processor.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/gguf/mmproj.hpp"
#include "runtime/gguf/model_files.hpp"
#include "runtime/multimodal/resize_passes.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;
constexpr std::int32_t kMaxTargetSide = 16384;
constexpr std::int32_t kMaxNumCrops = 1024;

constexpr std::int64_t kMaxResizedPixels = std::int64_t{1} << 26;

/// What transformers calls them; "Fast" may follow.
struct ImageProcessorType {
  std::string_view name;
  ImageProcessorKind kind;
};
constexpr ImageProcessorType kProcessorTypes[] = {
    {"Gemma3ImageProcessor", ImageProcessorKind::kGemma3},
    {"SiglipImageProcessor", ImageProcessorKind::kSiglip},
    {"CLIPImageProcessor", ImageProcessorKind::kClip},
    {"LlavaImageProcessor", ImageProcessorKind::kClip},
};

ImageProcessorSettings default_settings(ImageProcessorKind kind) {
  ImageProcessorSettings settings{.kind = kind};
  if (kind == ImageProcessorKind::kGemma3) return settings;
  settings.resample = ResizeFilter::kBicubic;
  settings.default_to_square = false;
  if (kind == ImageProcessorKind::kSiglip) return settings;
  settings.shortest_edge = 224;
  settings.do_center_crop = true;
  settings.crop_width = settings.crop_height = 224;
  settings.image_mean = {0.48145466, 0.4578275, 0.40821073};
  settings.image_std = {0.26862954, 0.26130258, 0.27577711};
  return settings;
}

/// Fields that say nothing of the pixels.
constexpr std::array kFieldsWithoutEffect = {
    std::string_view("processor_class"),  std::string_view("feature_extractor_type"),
    std::string_view("return_tensors"),   std::string_view("device"),
    std::string_view("disable_grouping"), std::string_view("_valid_processor_keys")};

/// Reads fields one by one. The first error is kept.
class FieldReader {
 public:
  FieldReader(const json& fields, std::string where, ErrorCode bad_value, ErrorCode bad_name)
      : fields_(fields), where_(std::move(where)), bad_value_(bad_value), bad_name_(bad_name) {}

  /// The field's value if it is there and not null.
  const json* find(const char* name) {
    known_.emplace_back(name);
    const auto found = fields_.find(name);
    return found == fields_.end() || found->is_null() ? nullptr : &*found;
  }
  void read(const char* name, bool& value) {
    if (const json* field = find(name)) {
      if (field->is_boolean())
        value = field->get<bool>();
      else
        fail(name, *field, "true or false");
    }
  }
  void read(const char* name, std::int32_t& value, std::int32_t min, std::int32_t max) {
    if (const json* field = find(name)) value = integer(name, *field, min, max).value_or(value);
  }
  void read(const char* name, double& value, double min) {
    if (const json* field = find(name)) {
      if (field->is_number() && field->get<double>() >= min)
        value = field->get<double>();
      else
        fail(name, *field, "a number of at least " + json(min).dump());
    }
  }
  /// A number for all channels or one for each.
  void read(const char* name, std::array<double, 3>& values, bool zero_allowed) {
    const json* field = find(name);
    if (field == nullptr) return;
    const auto good = [&](const json& value) {
      return value.is_number() && (zero_allowed || value.get<double>() != 0);
    };
    if (good(*field)) {
      values.fill(field->get<double>());
    } else if (field->is_array() && field->size() == 3 && std::ranges::all_of(*field, good)) {
      for (std::size_t c = 0; c < 3; ++c) values[c] = (*field)[c].get<double>();
    } else {
      fail(name, *field, zero_allowed ? "three numbers" : "three numbers other than 0");
    }
  }
  std::optional<std::int32_t> integer(const std::string& name, const json& field, std::int32_t min,
                                      std::int32_t max) {
    if (field.is_number_integer() && field >= min && field <= max) return field.get<std::int32_t>();
    fail(name, field, "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    return std::nullopt;
  }
  void fail(const std::string& name, const json& value, const std::string& expected) {
    if (!error_)
      error_ = Error{bad_value_,
                     where_ + ": " + name + " is " + text_of(value) + ", expected is " + expected};
  }
  void unsupported(const std::string& name, const json& value, const std::string& supported) {
    if (!error_)
      error_ = Error{bad_name_, where_ + ": " + name + " is " + text_of(value) + ", supported is " +
                                    supported};
  }
  /// After all fields were read: what is left is not known.
  Result<void> finish() {
    for (const auto& [name, value] : fields_.items()) {
      if (error_) break;
      if (value.is_null() || std::ranges::find(known_, name) != known_.end() ||
          std::ranges::find(kFieldsWithoutEffect, name) != kFieldsWithoutEffect.end())
        continue;
      error_ = Error{bad_name_, where_ + ": the field " + name + " is not known"};
    }
    if (error_) return *error_;
    return {};
  }

 private:
  static std::string text_of(const json& value) {
    constexpr std::size_t kMaxText = 100;
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > kMaxText) text = text.substr(0, kMaxText) + "...";
    return text;
  }

  const json& fields_;
  std::string where_;
  ErrorCode bad_value_;
  ErrorCode bad_name_;
  std::vector<std::string> known_;
  std::optional<Error> error_;
};

/// The members of a size, of which there are no others. Nothing if they are not all there.
std::optional<std::vector<std::int32_t>> read_sides(FieldReader& reader, const std::string& name,
                                                    const json& size,
                                                    std::initializer_list<const char*> members) {
  if (!size.is_object() || size.size() != members.size()) return std::nullopt;
  std::vector<std::int32_t> sides;
  for (const char* member : members) {
    if (!size.contains(member)) return std::nullopt;
    sides.push_back(
        reader.integer(name + "." + member, size[member], 1, kMaxTargetSide).value_or(1));
  }
  return sides;
}

void read_size(FieldReader& reader, ImageProcessorSettings& settings) {
  const json* size = reader.find("size");
  if (size == nullptr) return;
  if (const auto sides = read_sides(reader, "size", *size, {"height", "width"})) {
    settings.shortest_edge = 0;
    settings.height = (*sides)[0];
    settings.width = (*sides)[1];
  } else if (const auto edge = read_sides(reader, "size", *size, {"shortest_edge"})) {
    settings.shortest_edge = (*edge)[0];
  } else if (size->is_number()) {
    const std::int32_t side = reader.integer("size", *size, 1, kMaxTargetSide).value_or(1);
    settings.height = settings.width = side;
    settings.shortest_edge = settings.default_to_square ? 0 : side;
  } else {
    reader.unsupported("size", *size, "an object of height and width or of shortest_edge");
  }
}

void read_crop(FieldReader& reader, ImageProcessorSettings& settings) {
  reader.read("do_center_crop", settings.do_center_crop);
  if (const json* size = reader.find("crop_size")) {
    if (const auto sides = read_sides(reader, "crop_size", *size, {"height", "width"})) {
      settings.crop_height = (*sides)[0];
      settings.crop_width = (*sides)[1];
    } else if (size->is_number()) {
      settings.crop_height = settings.crop_width =
          reader.integer("crop_size", *size, 1, kMaxTargetSide).value_or(1);
    } else {
      reader.unsupported("crop_size", *size, "an object of height and width");
    }
  }
  if (!settings.do_center_crop) return;
  if (settings.kind == ImageProcessorKind::kGemma3)
    reader.unsupported("do_center_crop", true, "false");
  if (settings.crop_width == 0)
    reader.fail("crop_size", nullptr, "a size, as do_center_crop is on");
}

/// What the config and a request's mm_processor_kwargs have in common.
void read_settings(FieldReader& reader, ResizeKind kind, ImageProcessorSettings& settings) {
  reader.read("do_resize", settings.do_resize);
  reader.read("default_to_square", settings.default_to_square);
  read_size(reader, settings);
  read_crop(reader, settings);
  if (const json* field = reader.find("resample")) {
    const auto filter = reader.integer("resample", *field, 0, 5);
    if (filter) settings.resample = static_cast<ResizeFilter>(*filter);
    if (filter && !supports_filter(kind, settings.resample))
      reader.unsupported("resample", *field, "0 (nearest), 2 (bilinear) or 3 (bicubic)");
  }
  reader.read("do_rescale", settings.do_rescale);
  reader.read("rescale_factor", settings.rescale_factor, 1e-30);
  reader.read("do_normalize", settings.do_normalize);
  reader.read("image_mean", settings.image_mean, true);
  reader.read("image_std", settings.image_std, false);
  bool convert_rgb = true;  // images come as RGB: false changes nothing
  reader.read("do_convert_rgb", convert_rgb);
  if (PanAndScan& pan = settings.pan_and_scan; settings.kind == ImageProcessorKind::kGemma3) {
    reader.read("do_pan_and_scan", pan.enabled);
    reader.read("pan_and_scan_min_crop_size", pan.min_crop_size, 1, kMaxTargetSide);
    reader.read("pan_and_scan_max_num_crops", pan.max_num_crops, 1, kMaxNumCrops);
    reader.read("pan_and_scan_min_ratio_to_activate", pan.min_ratio_to_activate, 0);
  }
  bool do_pad = false;
  reader.read("do_pad", do_pad);
  if (do_pad) reader.unsupported("do_pad", true, "false");
  for (const char* name : {"data_format", "input_data_format"}) {
    const json* field = reader.find(name);
    if (field != nullptr && *field != "channels_first")
      reader.unsupported(name, *field, "\"channels_first\"");
  }
}

Result<ImageProcessorSettings> parse_settings(const json& config, const std::string& where,
                                              ResizeKind kind) {
  if (!config.is_object()) return Error{ErrorCode::kCorrupt, where + " is not a JSON object"};
  FieldReader reader(config, where, ErrorCode::kCorrupt, ErrorCode::kUnsupported);
  ImageProcessorKind type_kind = ImageProcessorKind::kGemma3;
  if (const json* type = reader.find("image_processor_type")) {
    std::string name = type->is_string() ? type->get<std::string>() : "";
    if (name.ends_with("Fast")) name.resize(name.size() - std::string_view("Fast").size());
    const auto* const known = std::ranges::find(kProcessorTypes, name, &ImageProcessorType::name);
    if (known == std::end(kProcessorTypes))
      reader.unsupported("image_processor_type", *type,
                         "a Gemma3, Siglip, CLIP or Llava processor");
    else
      type_kind = known->kind;
  }
  ImageProcessorSettings settings = default_settings(type_kind);
  read_settings(reader, kind, settings);
  reader.read("image_seq_length", settings.image_seq_length, 1, 1 << 20);
  RETURN_IF_ERROR(reader.finish());
  return settings;
}

Result<json> parse_json(std::string_view text, const std::string& where) {
  json config = json::parse(text, nullptr, false);
  if (config.is_discarded()) return Error{ErrorCode::kCorrupt, where + " is not JSON"};
  return config;
}

struct ImageSize {
  std::int32_t width = 0;
  std::int32_t height = 0;
};

/// What a part of an image is resized to. Errors: kInvalidArgument, too many pixels.
Result<ImageSize> resized_size(const ImageProcessorSettings& settings, const ImageBox& box) {
  const std::int64_t width = box.x1 - box.x0;
  const std::int64_t height = box.y1 - box.y0;
  if (!settings.do_resize)
    return ImageSize{static_cast<std::int32_t>(width), static_cast<std::int32_t>(height)};
  const std::int64_t edge = settings.shortest_edge;
  if (edge == 0) return ImageSize{settings.width, settings.height};
  const std::int64_t longer = edge * std::max(width, height) / std::min(width, height);
  if (edge * longer > kMaxResizedPixels)
    return invalid_argument("an image of " + std::to_string(width) + "x" + std::to_string(height) +
                            " pixels would be resized to " + std::to_string(edge) + "x" +
                            std::to_string(longer) + ", at most " +
                            std::to_string(kMaxResizedPixels) + " pixels are supported");
  const auto shorter_side = static_cast<std::int32_t>(edge);
  const auto longer_side = static_cast<std::int32_t>(longer);
  return width <= height ? ImageSize{shorter_side, longer_side}
                         : ImageSize{longer_side, shorter_side};
}

/// What is subtracted from and divides a channel's bytes, in float32 as in transformers.
struct ChannelScale {
  float mean = 0;
  float deviation = 1;
};
ChannelScale fused_scale(const ImageProcessorSettings& settings, std::size_t channel) {
  const auto factor =
      settings.do_rescale ? static_cast<float>(1.0 / settings.rescale_factor) : 1.0F;
  return {static_cast<float>(settings.image_mean[channel]) * factor,
          static_cast<float>(settings.image_std[channel]) * factor};
}

/// The value of each byte in a channel.
std::array<float, 256> channel_values(const ImageProcessorSettings& settings, std::size_t channel,
                                      ResizeKind kind) {
  std::array<float, 256> values{};
  const ChannelScale scale = fused_scale(settings, channel);
  for (int byte = 0; byte < 256; ++byte) {
    auto& value = values[static_cast<std::size_t>(byte)];
    value = static_cast<float>(byte);
    if (kind == ResizeKind::kTorchvision && settings.do_normalize) {
      value = (value - scale.mean) / scale.deviation;
    } else if (kind == ResizeKind::kTorchvision && settings.do_rescale) {
      value *= static_cast<float>(settings.rescale_factor);
    } else if (kind == ResizeKind::kPillow) {
      if (settings.do_rescale) value = static_cast<float>(byte * settings.rescale_factor);
      if (settings.do_normalize)
        value = (value - static_cast<float>(settings.image_mean[channel])) /
                static_cast<float>(settings.image_std[channel]);
    }
  }
  return values;
}

PixelTensor new_tensor(std::int32_t width, std::int32_t height,
                       const ImageProcessorSettings& settings, ResizeKind kind) {
  PixelTensor tensor{{3, height, width}, {}, {}};
  tensor.levels.resize(3 * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
  for (std::size_t c = 0; c < 3; ++c) {
    const std::array<float, 256> values = channel_values(settings, c, kind);
    tensor.level_values.insert(tensor.level_values.end(), values.begin(), values.end());
  }
  return tensor;
}

/// Where each channel's levels are, from a pixel on.
std::array<std::uint8_t*, 3> channels_at(PixelTensor& tensor, std::size_t pixel) {
  std::uint8_t* first = tensor.levels.data() + pixel;
  const std::size_t num_pixels = tensor.levels.size() / 3;
  return {first, first + num_pixels, first + 2 * num_pixels};
}

/// normalized_pixels of a resized box, without an image in between.
PixelTensor resized_pixels(const Image& image, const ImageBox& box, std::int32_t width,
                           std::int32_t height, const ImageProcessorSettings& settings,
                           ResizeKind kind) {
  PixelTensor tensor = new_tensor(width, height, settings, kind);
  const auto row_pixels = static_cast<std::size_t>(width);
  const ResizeCode code = resize_codes().back();
  std::size_t at = 0;
  resize_image_rows(image, box, width, height, settings.resample, kind,
                    [&](const std::uint8_t* row) {
                      split_channels(row, row_pixels, channels_at(tensor, at), code);
                      at += row_pixels;
                    });
  return tensor;
}

}  // namespace

Result<std::vector<ImageBox>> pan_and_scan_boxes(std::int32_t width, std::int32_t height,
                                                 const PanAndScan& settings) {
  const bool is_wide = width >= height;
  const std::int32_t longer = is_wide ? width : height;
  const std::int32_t shorter = is_wide ? height : width;
  const double ratio = static_cast<double>(longer) / shorter;
  if (ratio < settings.min_ratio_to_activate) return std::vector<ImageBox>{};
  std::int64_t num_crops = static_cast<std::int64_t>(std::floor(ratio + 0.5));
  num_crops = std::min<std::int64_t>(longer / settings.min_crop_size, num_crops);
  num_crops = std::max<std::int64_t>(num_crops, 2);
  num_crops = std::min<std::int64_t>(num_crops, settings.max_num_crops);
  const auto crop_size = static_cast<std::int32_t>((longer + num_crops - 1) / num_crops);
  if (std::min(crop_size, shorter) < settings.min_crop_size) return std::vector<ImageBox>{};
  std::vector<ImageBox> boxes;
  for (std::int32_t i = 0; i < num_crops; ++i) {
    const std::int64_t begin = std::int64_t{i} * crop_size;
    const std::int64_t end = std::min<std::int64_t>(begin + crop_size, longer);
    if (begin >= end)
      return invalid_argument("pan and scan: part " + std::to_string(i + 1) + " of " +
                              std::to_string(num_crops) + " of an image of " +
                              std::to_string(width) + "x" + std::to_string(height) +
                              " pixels is empty");
    const auto first = static_cast<std::int32_t>(begin);
    const auto last = static_cast<std::int32_t>(end);
    boxes.push_back(is_wide ? ImageBox{first, 0, last, height} : ImageBox{0, first, width, last});
  }
  return boxes;
}

Result<ImageProcessor> ImageProcessor::load(const std::filesystem::path& model, ResizeKind kind) {
  if (is_gguf(model)) {
    ASSIGN_OR_RETURN(const std::string config, mmproj_preprocessor_json(model));
    return parse(config, model.filename().string(), kind);
  }
  const std::filesystem::path path = model / "preprocessor_config.json";
  auto text = read_file(path, kMaxConfigBytes);
  if (text.ok()) return parse(*text, path.string(), kind);
  if (text.error().code != ErrorCode::kNotFound) return std::move(text).error();
  const std::filesystem::path other = model / "processor_config.json";
  const auto other_text = read_file(other, kMaxConfigBytes);
  if (!other_text.ok()) return std::move(text).error();
  ASSIGN_OR_RETURN(const json config, parse_json(*other_text, other.string()));
  if (!config.is_object() || !config.contains("image_processor")) return std::move(text).error();
  json fields = config["image_processor"];
  // It belongs to the processor of texts and images; older folders repeat it in the other file.
  if (fields.is_object() && config.contains("image_seq_length"))
    fields["image_seq_length"] = config["image_seq_length"];
  ASSIGN_OR_RETURN(const ImageProcessorSettings settings,
                   parse_settings(fields, other.string(), kind));
  return ImageProcessor(settings, kind);
}

Result<ImageProcessor> ImageProcessor::parse(std::string_view text, std::string_view file_name,
                                             ResizeKind kind) {
  const std::string where(file_name);
  ASSIGN_OR_RETURN(const json config, parse_json(text, where));
  ASSIGN_OR_RETURN(const ImageProcessorSettings settings, parse_settings(config, where, kind));
  return ImageProcessor(settings, kind);
}

Result<ImageProcessor> ImageProcessor::with_kwargs(const json& kwargs) const {
  const std::string where = "mm_processor_kwargs";
  ImageProcessor changed = *this;
  if (kwargs.is_null()) return changed;
  if (!kwargs.is_object()) return invalid_argument(where + " is not a JSON object", where);
  json of_all = kwargs;
  const json of_images = of_all.contains("images_kwargs") ? of_all["images_kwargs"] : json();
  if (!of_images.is_null() && !of_images.is_object())
    return invalid_argument(where + ": images_kwargs is not a JSON object", where);
  for (const std::string_view other : kOtherProcessorKwargs) of_all.erase(std::string(other));
  of_all.erase("images_kwargs");
  for (const json* fields : {&std::as_const(of_all), &of_images}) {
    if (!fields->is_object()) continue;
    FieldReader reader(*fields, where, ErrorCode::kInvalidArgument, ErrorCode::kInvalidArgument);
    read_settings(reader, kind_, changed.settings_);
    if (auto finished = reader.finish(); !finished.ok()) {
      Error error = std::move(finished).error();
      error.param = where;
      return error;
    }
  }
  return changed;
}

Image center_crop(const Image& image, std::int32_t width, std::int32_t height, ResizeKind kind) {
  // Where the crop begins in the image, and where the image begins in the crop.
  const std::int32_t from_x = std::max(0, (image.width - width) / 2);
  const std::int32_t from_y = std::max(0, (image.height - height) / 2);
  const std::int32_t odd_pixel = kind == ResizeKind::kPillow ? 1 : 0;
  const std::int32_t to_x = std::max(0, (width - image.width + odd_pixel) / 2);
  const std::int32_t to_y = std::max(0, (height - image.height + odd_pixel) / 2);
  const auto num_bytes = static_cast<std::size_t>(std::min(width, image.width)) * 3;
  const auto at = [](const Image& in, std::int32_t x, std::int32_t y) {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(in.width) +
            static_cast<std::size_t>(x)) *
           3;
  };
  Image crop{width, height, {}};
  crop.rgb.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  for (std::int32_t y = 0; y < std::min(height, image.height); ++y)
    std::copy_n(&image.rgb[at(image, from_x, from_y + y)], num_bytes,
                &crop.rgb[at(crop, to_x, to_y + y)]);
  return crop;
}

std::vector<float> PixelTensor::values() const {
  std::vector<float> all(levels.size());
  const std::size_t num_pixels = levels.size() / 3;
  for (std::size_t c = 0; c < 3; ++c) {
    const float* values_of = level_values.data() + c * 256;
    for (std::size_t i = c * num_pixels; i < (c + 1) * num_pixels; ++i)
      all[i] = values_of[levels[i]];
  }
  return all;
}

PixelTensor normalized_pixels(const Image& image, const ImageProcessorSettings& settings,
                              ResizeKind kind) {
  PixelTensor tensor = new_tensor(image.width, image.height, settings, kind);
  split_channels(image.rgb.data(), image.rgb.size() / 3, channels_at(tensor, 0),
                 resize_codes().back());
  return tensor;
}

Result<std::vector<PixelTensor>> ImageProcessor::process(const Image& image) const {
  if (image.width <= 0 || image.height <= 0)
    return invalid_argument("the image is " + std::to_string(image.width) + "x" +
                            std::to_string(image.height) + ": it has no pixels");
  std::vector<ImageBox> boxes = {{0, 0, image.width, image.height}};
  if (settings_.pan_and_scan.enabled) {
    ASSIGN_OR_RETURN(const std::vector<ImageBox> parts,
                     pan_and_scan_boxes(image.width, image.height, settings_.pan_and_scan));
    boxes.insert(boxes.end(), parts.begin(), parts.end());
  }
  std::vector<PixelTensor> tensors;
  tensors.reserve(boxes.size());
  for (const ImageBox& box : boxes) {
    ASSIGN_OR_RETURN(const ImageSize size, resized_size(settings_, box));
    if (settings_.do_center_crop) {
      const Image resized =
          resize_image(image, box, size.width, size.height, settings_.resample, kind_);
      tensors.push_back(normalized_pixels(
          center_crop(resized, settings_.crop_width, settings_.crop_height, kind_), settings_,
          kind_));
    } else {
      tensors.push_back(resized_pixels(image, box, size.width, size.height, settings_, kind_));
    }
  }
  return tensors;
}

}  // namespace troupe
