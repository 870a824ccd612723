#pragma once
// media_io_kwargs and mm_processor_kwargs: how media are read and processed, by their modality.

#include <string>
#include <string_view>

#include "runtime/base/result.hpp"
#include "runtime/multimodal/image.hpp"

namespace troupe {

struct ImageIo {
  ImageColor background = kWhite;  ///< rgba_background_color: what lies below transparent pixels
  std::string kwargs;              ///< what was given, a JSON object; empty: nothing
};

/// What the server and a request say of images, the request before the server; JSON objects, or
/// empty. Known are rgba_background_color and image_mode "RGB", as in vLLM. Errors:
/// kInvalidArgument (a key that is not known, a value that is not offered), naming it.
[[nodiscard]] Result<ImageIo> parse_media_io_kwargs(std::string_view of_server,
                                                    std::string_view of_request);

/// The mm_processor_kwargs that images' identifiers depend on, a JSON object: the server's,
/// overridden by the request's, without those of other kinds of items. Pre: both are JSON objects
/// or empty.
[[nodiscard]] std::string hashed_processor_kwargs(std::string_view of_server,
                                                  std::string_view of_request);

}  // namespace troupe
