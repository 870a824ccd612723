#pragma once
// The images of a prompt: loaded, decoded, made into what the model's encoder takes, and given
// their places among the tokens.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/request.hpp"
#include "runtime/base/result.hpp"
#include "runtime/base/work_budget.hpp"
#include "runtime/multimodal/image_decoder.hpp"
#include "runtime/multimodal/image_processor.hpp"
#include "runtime/multimodal/media_hasher.hpp"
#include "runtime/multimodal/media_loader.hpp"
#include "runtime/multimodal/processor_cache.hpp"

namespace troupe {

/// An image as a request names it.
struct ImageSource {
  std::string url;   ///< empty: it was sent before, under the same uuid
  std::string uuid;  ///< the client's name for it, or empty
};

/// How the model's prompts hold an image.
struct ImageTokenFormat {
  std::string placeholder;  ///< in the rendered text, one for each image
  std::string before;       ///< replaces it: before, per_image times soft, after
  std::string soft;
  std::string after;
  TokenId soft_id = 0;
  std::int64_t per_image = 0;
};

struct ImageInputsOptions {
  MediaLoaderOptions loader;
  ImageLimits limits;
  std::size_t max_images = 999;  ///< of a prompt
  std::int64_t max_tokens = 0;   ///< of a prompt; 0: no limit
  std::string model_id;          ///< goes into the identifiers
  std::string processor_kwargs;  ///< JSON object, or empty; a request's own override them
  std::string media_io_kwargs;   ///< JSON object, or empty; a request's own are added to them
  MediaHashAlgorithm hash_algorithm = MediaHashAlgorithm::kBlake3;  ///< of the identifiers
  std::shared_ptr<ProcessorCache> cache;                            ///< null: none
};

/// The files of a request that are on other hosts, where somebody else fetches them.
struct RemoteMedia {
  std::vector<std::string> wanted;  ///< not empty: to be fetched
  std::optional<MediaLoader::FetchedFiles> files;
};

/// What a request says of its images.
struct ImageSettings {
  std::string_view processor_kwargs;  ///< mm_processor_kwargs, a JSON object, or empty
  std::string_view media_io_kwargs;   ///< a JSON object, or empty
  bool with_data = false;  ///< items have their data, also where the engine is likely to have it
  /// Null: what is on other hosts is fetched, which blocks. Else expand() takes its files.
  RemoteMedia* remote = nullptr;
};

/// Thread-safe. Used by the InputProcessor.
///
/// An image's identifier is vLLM's: the hash of its bytes with the model's name, or the client's
/// uuid. The server's own processor_kwargs, if there are any, are hashed with the request's: vLLM
/// leaves them out, but here what is stored outlives a restart with others. A part of it (pan and
/// scan) is an item of its own, whose identifier has its number added.
class ImageInputs {
 public:
  /// Reads the image processor's configuration: see ImageProcessor::load. Errors: those of
  /// ImageProcessor::load and MediaLoader::create, and of processor_kwargs.
  static Result<std::shared_ptr<const ImageInputs>> load(const std::filesystem::path& model,
                                                         ImageTokenFormat format,
                                                         ImageInputsOptions options);

  /// A text with its images' tokens, and an item for each run of them, in order, without offset.
  struct Expanded {
    std::string text;
    std::vector<MultiModalFeature> items;
    std::int32_t num_hits = 0;  ///< images that were in the cache
  };
  /// Errors, with the number of the image: those of loading, decoding and processing;
  /// kInvalidArgument: as many placeholders as images are not in the text, too many images, an
  /// unknown uuid, the settings. Without the files of settings.remote, if there should be some:
  /// kUnavailable, with those that are wanted.
  [[nodiscard]] Result<Expanded> expand(std::string_view text, std::span<const ImageSource> images,
                                        const ImageSettings& settings,
                                        const WorkLimits& limits) const;
  /// Gives the items their offsets. Errors: kInvalidArgument, there are other tokens of images.
  [[nodiscard]] Result<void> place(std::span<const TokenId> token_ids,
                                   std::vector<MultiModalFeature>& items) const;
  [[nodiscard]] const MediaLoader& loader() const noexcept { return loader_; }
  [[nodiscard]] const ImageTokenFormat& format() const noexcept { return format_; }
  /// Null: there is none.
  [[nodiscard]] const std::shared_ptr<ProcessorCache>& cache() const noexcept {
    return options_.cache;
  }

 private:
  struct ProcessedImage {
    std::string identifier;
    std::vector<ItemData> data;  ///< of the image and its parts, in order
    bool is_hit = false;
  };
  /// How the images of a request are read and processed.
  struct Recipe {
    ImageProcessor processor;
    std::string processor_kwargs;  ///< for the identifiers
    std::string media_io_kwargs;   ///< the same
    ImageColor background = kWhite;
    bool with_data = false;
  };

  ImageInputs(ImageTokenFormat format, ImageInputsOptions options, MediaLoader loader,
              ImageProcessor processor);
  Result<Recipe> recipe_of(const ImageSettings& settings) const;
  /// `encoded`: the file, empty without a URL.
  Result<ProcessedImage> process(const ImageSource& source, std::span<const std::byte> encoded,
                                 const Recipe& recipe) const;
  /// Whether the model can take what a processor with a request's settings makes.
  [[nodiscard]] Result<void> check_settings(const ImageProcessorSettings& settings) const;
  /// In the place of an image's placeholder: its tokens and those of its parts.
  [[nodiscard]] std::string tokens_of(std::size_t num_parts) const;

  ImageTokenFormat format_;
  ImageInputsOptions options_;
  MediaLoader loader_;
  ImageProcessor processor_;
};

}  // namespace troupe
