#include "runtime/multimodal/image_inputs.hpp"

#include <algorithm>
#include <utility>

#include "messages/encoder_input.hpp"
#include "runtime/base/json.hpp"
#include "runtime/multimodal/media_io.hpp"

namespace troupe {
namespace {

using nlohmann::json;

constexpr std::string_view kModality = "image";

/// An error of one image, or of one of several.
Error of_image(Error error, std::size_t index) {
  error.message = "image " + std::to_string(index + 1) + ": " + error.message;
  error.param = "messages";
  return error;
}

std::vector<std::size_t> places_of(std::string_view text, std::string_view part) {
  std::vector<std::size_t> places;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size()))
    places.push_back(at);
  return places;
}

Result<json> parse_kwargs(std::string_view text) {
  json kwargs = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (kwargs.is_object()) return kwargs;
  return invalid_argument("mm_processor_kwargs is not an object", "mm_processor_kwargs");
}

}  // namespace

ImageInputs::ImageInputs(ImageTokenFormat format, ImageInputsOptions options, MediaLoader loader,
                         ImageProcessor processor)
    : format_(std::move(format)),
      options_(std::move(options)),
      loader_(std::move(loader)),
      processor_(std::move(processor)) {}

Result<std::shared_ptr<const ImageInputs>> ImageInputs::load(const std::filesystem::path& model,
                                                             ImageTokenFormat format,
                                                             ImageInputsOptions options) {
  ASSIGN_OR_RETURN(ImageProcessor processor, ImageProcessor::load(model));
  if (!options.processor_kwargs.empty()) {
    ASSIGN_OR_RETURN(const json kwargs, parse_kwargs(options.processor_kwargs));
    ASSIGN_OR_RETURN(processor, processor.with_kwargs(kwargs));
  }
  ASSIGN_OR_RETURN(MediaLoader loader, MediaLoader::create(options.loader));
  return std::shared_ptr<const ImageInputs>(new ImageInputs(
      std::move(format), std::move(options), std::move(loader), std::move(processor)));
}

Result<void> ImageInputs::check_settings(const ImageProcessorSettings& settings) const {
  const auto refused = [](const std::string& reason) {
    return invalid_argument("mm_processor_kwargs: " + reason, "mm_processor_kwargs");
  };
  const ImageProcessorSettings& own = processor_.settings();
  const auto size = [](const ImageProcessorSettings& of) {
    return std::to_string(of.width) + " x " + std::to_string(of.height);
  };
  if (!settings.do_resize || settings.width != own.width || settings.height != own.height)
    return refused("the model takes images of " + size(own) + " pixels, not " +
                   (settings.do_resize ? "of " + size(settings) : "as they are"));
  if (settings.image_seq_length != own.image_seq_length)
    return refused("an image has " + std::to_string(own.image_seq_length) + " tokens, not " +
                   std::to_string(settings.image_seq_length));
  const std::int64_t most = settings.pan_and_scan.max_num_crops * format_.per_image;
  if (settings.pan_and_scan.enabled && options_.max_tokens > 0 && most > options_.max_tokens)
    return refused("pan_and_scan_max_num_crops " +
                   std::to_string(settings.pan_and_scan.max_num_crops) + " makes " +
                   std::to_string(most) + " tokens of an image, max_model_len is " +
                   std::to_string(options_.max_tokens));
  return {};
}

Result<ImageInputs::Recipe> ImageInputs::recipe_of(const ImageSettings& settings) const {
  Recipe recipe{.processor = processor_,
                .processor_kwargs = {},
                .media_io_kwargs = {},
                .with_data = settings.with_data};
  if (!settings.processor_kwargs.empty()) {
    ASSIGN_OR_RETURN(const json given, parse_kwargs(settings.processor_kwargs));
    ASSIGN_OR_RETURN(recipe.processor, processor_.with_kwargs(given));
    RETURN_IF_ERROR(check_settings(recipe.processor.settings()));
  }
  recipe.processor_kwargs =
      hashed_processor_kwargs(options_.processor_kwargs, settings.processor_kwargs);
  ASSIGN_OR_RETURN(const ImageIo io,
                   parse_media_io_kwargs(options_.media_io_kwargs, settings.media_io_kwargs));
  recipe.background = io.background;
  recipe.media_io_kwargs = io.kwargs;
  return recipe;
}

Result<ImageInputs::ProcessedImage> ImageInputs::process(const ImageSource& source,
                                                         std::span<const std::byte> encoded,
                                                         const Recipe& recipe) const {
  if (source.url.empty() && source.uuid.empty())
    return invalid_argument("it has neither a URL nor a uuid");
  ImageFactors factors{.model_id = options_.model_id,
                       .encoded = encoded,
                       .background = recipe.background,
                       .uuid = source.uuid,
                       .processor_kwargs = recipe.processor_kwargs,
                       .media_io_kwargs = recipe.media_io_kwargs,
                       .algorithm = options_.hash_algorithm};
  if (source.uuid.empty() && stored_as_rgb(encoded)) factors.background.reset();
  ProcessedImage processed{.identifier = image_identifier(factors), .data = {}};
  if (options_.cache != nullptr)
    processed.data = options_.cache->find(processed.identifier, recipe.with_data);
  processed.is_hit = !processed.data.empty();
  if (processed.is_hit) return processed;
  if (source.url.empty())
    return invalid_argument("no image is known as " + source.uuid.substr(0, 100) +
                            " (any more), it must be sent again");
  ASSIGN_OR_RETURN(const Image image, decode_image(encoded, options_.limits, recipe.background));
  ASSIGN_OR_RETURN(const std::vector<PixelTensor> tensors, recipe.processor.process(image));
  for (const PixelTensor& tensor : tensors)
    processed.data.push_back(pack_encoder_levels(tensor.shape, tensor.level_values, tensor.levels));
  if (options_.cache != nullptr) options_.cache->keep(processed.identifier, processed.data);
  return processed;
}

std::string ImageInputs::tokens_of(std::size_t num_parts) const {
  std::string one = format_.before;
  for (std::int64_t i = 0; i < format_.per_image; ++i) one += format_.soft;
  one += format_.after;
  if (num_parts == 0) return one;
  // Gemma 3's words, as transformers writes them.
  std::string all =
      "Here is the original image " + one + " and here are some crops to help you see better";
  for (std::size_t i = 0; i < num_parts; ++i) all += " " + one;
  return all;
}

Result<ImageInputs::Expanded> ImageInputs::expand(std::string_view text,
                                                  std::span<const ImageSource> images,
                                                  const ImageSettings& settings,
                                                  const WorkLimits& limits) const {
  const auto refused = [](const std::string& reason) {
    return invalid_argument(reason, "messages");
  };
  const std::string count = std::to_string(images.size());
  if (images.size() > options_.max_images)
    return refused("the prompt has " + count + " images, the limit is " +
                   std::to_string(options_.max_images) + " (limit-mm-per-prompt)");
  const std::int64_t num_tokens = std::ssize(images) * format_.per_image;
  if (options_.max_tokens > 0 && num_tokens > options_.max_tokens)
    return refused("the prompt has " + count + " images of " + std::to_string(format_.per_image) +
                   " tokens, max_model_len is " + std::to_string(options_.max_tokens));
  const std::vector<std::size_t> places = places_of(text, format_.placeholder);
  if (places.size() != images.size())
    return refused("the prompt has " + count + " images and " + std::to_string(places.size()) +
                   " times " + format_.placeholder + ", which stands for one");
  ASSIGN_OR_RETURN(const Recipe recipe, recipe_of(settings));
  std::vector<std::string_view> urls;
  for (const ImageSource& image : images) urls.push_back(image.url);
  std::optional<MediaLoader::FetchedFiles> fetched;
  if (settings.remote != nullptr) {
    if (!settings.remote->files) {
      settings.remote->wanted = loader_.remote_of(urls);
      if (!settings.remote->wanted.empty())
        return Error{ErrorCode::kUnavailable, "its images are to be fetched first"};
    }
    fetched = std::exchange(settings.remote->files, std::nullopt);
  }
  MediaLoader::Batch files = loader_.load_all(urls, limits, std::move(fetched));

  Expanded expanded;
  std::size_t end = 0;  // of what has been taken of the text
  for (std::size_t i = 0; i < images.size(); ++i) {
    const auto file = files.take(i);
    if (!file.ok()) return of_image(file.error(), i);
    auto processed = process(images[i], **file, recipe);
    if (!processed.ok()) return of_image(std::move(processed).error(), i);
    expanded.num_hits += processed->is_hit ? 1 : 0;
    expanded.text += text.substr(end, places[i] - end);
    end = places[i] + format_.placeholder.size();
    expanded.text += tokens_of(processed->data.size() - 1);
    for (std::size_t part = 0; part < processed->data.size(); ++part)
      expanded.items.push_back({.modality = std::string(kModality),
                                .identifier = part_identifier(processed->identifier, part),
                                .length = static_cast<std::int32_t>(format_.per_image),
                                .data = processed->data[part]});
  }
  expanded.text += text.substr(end);
  return expanded;
}

Result<void> ImageInputs::place(std::span<const TokenId> token_ids,
                                std::vector<MultiModalFeature>& items) const {
  const auto length = static_cast<std::size_t>(format_.per_image);
  std::size_t num_placed = 0;
  std::size_t num_tokens = 0;
  for (std::size_t at = 0; at < token_ids.size();) {
    std::size_t end = at;
    while (end < token_ids.size() && token_ids[end] == format_.soft_id) ++end;
    num_tokens += end - at;
    // Images that follow each other with nothing between them are one run.
    for (; at + length <= end && num_placed < items.size(); at += length)
      items[num_placed++].offset = static_cast<std::int32_t>(at);
    at = std::max(at + 1, end);
  }
  if (num_placed == items.size() && num_tokens == items.size() * length) return {};
  return invalid_argument("the prompt has " + std::to_string(num_tokens) + " times the token " +
                              format_.soft + ", its images have " +
                              std::to_string(items.size() * length),
                          "messages");
}

}  // namespace troupe
