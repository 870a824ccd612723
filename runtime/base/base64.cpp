#include "runtime/base/base64.hpp"

#include <openssl/evp.h>

namespace troupe {

std::string to_base64(std::span<const std::byte> bytes) {
  // One more for the zero that the library writes behind the text.
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace troupe
