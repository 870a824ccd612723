#include "runtime/processors/image_token_format.hpp"

#include <string>

namespace troupe {

Result<ImageTokenFormat> image_token_format(const ImageTokens& tokens, const Tokenizer& tokenizer) {
  ImageTokenFormat format{.soft_id = tokens.soft, .per_image = tokens.per_image};
  const auto text_of = [&](TokenId id) -> Result<std::string> {
    const auto token = tokenizer.id_to_token(id);
    if (token) return std::string(*token);
    return Error{ErrorCode::kCorrupt, "config.json: token " + std::to_string(id) +
                                          " of images is not in tokenizer.json"};
  };
  ASSIGN_OR_RETURN(format.soft, text_of(tokens.soft));
  format.placeholder = format.soft;
  if (tokens.marks) {
    ASSIGN_OR_RETURN(format.placeholder, text_of(tokens.marks->begin));
    ASSIGN_OR_RETURN(const std::string end, text_of(tokens.marks->end));
    format.before = "\n\n" + format.placeholder;
    format.after = end + "\n\n";
  }
  return format;
}

}  // namespace troupe
