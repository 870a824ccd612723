// Compiles the templates of a part of the messages for all files; see messages/type_ids.hpp.
#include "messages/type_ids.hpp"

TROUPE_KV_CACHE_MESSAGES(TROUPE_DEFINE_MESSAGE_TEMPLATES)
