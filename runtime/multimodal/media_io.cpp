#include "runtime/multimodal/media_io.hpp"

#include <algorithm>

#include "runtime/base/ordered_json.hpp"
#include "runtime/multimodal/image_processor.hpp"

namespace troupe {
namespace {

using nlohmann::ordered_json;

Error wrong_io(const std::string& reason) {
  return invalid_argument("media_io_kwargs: " + reason, "media_io_kwargs");
}

/// Without what is nested in it: how deep that is, is the client's choice.
std::string shown_io(const ordered_json& value) {
  const bool is_nested =
      value.is_structured() && std::ranges::any_of(value, [](const ordered_json& element) {
        return element.is_structured();
      });
  return is_nested ? value.type_name() : value.dump().substr(0, 100);
}

Result<ImageColor> parse_color(const ordered_json& value) {
  const Error wrong = wrong_io(
      "image.rgba_background_color must be 3 numbers from 0 to 255, it is " + shown_io(value));
  ImageColor color{};
  if (!value.is_array() || value.size() != color.size()) return wrong;
  for (std::size_t i = 0; i < color.size(); ++i) {
    if (!value[i].is_number_unsigned() || value[i] > 255) return wrong;
    color[i] = value[i].get<std::uint8_t>();
  }
  return color;
}

Result<void> add_image_kwargs(std::string_view text, ordered_json& kwargs) {
  if (text.empty()) return {};
  const ordered_json given = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) return wrong_io("it is not a JSON object");
  for (const auto& [modality, fields] : given.items()) {
    if (!fields.is_object()) return wrong_io(modality + " is not a JSON object");
    if (modality == "image") {
      for (const auto& [key, value] : fields.items()) kwargs[key] = value;
    } else if (modality != "video" && modality != "audio") {  // there are no such items
      return wrong_io(modality.substr(0, 100) + " is not a kind of media");
    }
  }
  return {};
}

}  // namespace

Result<ImageIo> parse_media_io_kwargs(std::string_view of_server, std::string_view of_request) {
  ordered_json kwargs = ordered_json::object();
  RETURN_IF_ERROR(add_image_kwargs(of_server, kwargs));
  RETURN_IF_ERROR(add_image_kwargs(of_request, kwargs));
  ImageIo io;
  for (const auto& [key, value] : kwargs.items()) {
    if (key == "rgba_background_color") {
      ASSIGN_OR_RETURN(io.background, parse_color(value));
    } else if (key != "image_mode") {
      return wrong_io("image." + key.substr(0, 100) + " is not known");
    } else if (value != "RGB") {
      return wrong_io("image.image_mode must be \"RGB\", it is " + shown_io(value));
    }
  }
  if (!kwargs.empty()) io.kwargs = kwargs.dump();
  return io;
}

std::string hashed_processor_kwargs(std::string_view of_server, std::string_view of_request) {
  ordered_json merged = ordered_json::object();
  for (const std::string_view text : {of_server, of_request})
    if (!text.empty()) merged.update(ordered_json::parse(text), /*merge_objects=*/true);
  for (const std::string_view other : kOtherProcessorKwargs) merged.erase(std::string(other));
  return merged.dump();
}

}  // namespace troupe
