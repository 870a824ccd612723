#include <optional>
#include <utility>

#include "runtime/http/chat_fields.hpp"
#include "runtime/http/dialect.hpp"
#include "runtime/http/generation_fields.hpp"
#include "runtime/http/pooling.hpp"
#include "runtime/http/unsupported_fields.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxInputs = 2048;  // as OpenAI's
constexpr std::string_view kEncodings[] = {"float", "base64"};
/// Of base64: what the pooler computes.
constexpr std::string_view kEmbedTypes[] = {"float32"};
constexpr std::string_view kByteOrders[] = {"native", "little"};

constexpr PoolingApi kEmbeddings = {.id_prefix = "embd-", .json = embedding_json};
constexpr PoolingApi kPooling = {.id_prefix = "pool-", .json = pooling_json};
constexpr PoolingApi kClasses = {.id_prefix = "classify-", .json = classes_json};
constexpr PoolingApi kScores = {.id_prefix = "score-", .json = score_json};
constexpr PoolingApi kRerank = {.id_prefix = "rerank-", .json = rerank_json};
constexpr PoolingApi kOllamaEmbed = {.id_prefix = "embd-", .json = ollama_embed_json};
constexpr PoolingApi kOllamaEmbeddings = {.id_prefix = "embd-", .json = ollama_embeddings_json};

/// Fields of vLLM's that would change the answer.
constexpr std::string_view kRefusedByPooling[] = {
    "prompt_embeds",        "media_io_kwargs",    "step_tag_id",     "returned_token_ids",
    "max_tokens_per_query", "max_tokens_per_doc", "late_interaction"};
constexpr std::string_view kTasks[] = {"embed"};
constexpr std::string_view kClassTasks[] = {"classify"};
constexpr std::string_view kSides[] = {"left"};
constexpr std::string_view kPaddings[] = {"do_not_pad"};

void read_dimensions(const JsonFields& fields, const ServerDefaults& defaults,
                     PoolingRequest& request) {
  const Interval range = {1, static_cast<double>(defaults.hidden_size)};
  if (const auto dimensions = fields.integer("dimensions", range))
    request.pooling->dimensions = static_cast<std::int32_t>(*dimensions);
}

/// What all of them have in common.
void read_common(const JsonFields& fields, const ServerDefaults& defaults,
                 PoolingRequest& request) {
  request.dialect = &kOpenAiDialect;
  request.pooling = PoolingParams{.normalize = defaults.pooler.normalize,
                                  .classifies = defaults.pooler.classifies(),
                                  .activation = defaults.pooler.activation};
  request.labels = defaults.pooler.labels;
  request.params.max_tokens = 1;
  request.limits = defaults.limits;
  request.model = fields.text("model").value_or("");
  request.request_id = fields.text("request_id").value_or("");
  if (request.request_id.size() > kMaxRequestIdBytes)
    fields.wrong_value("request_id",
                       "request_id has more than " + std::to_string(kMaxRequestIdBytes) + " bytes");
  const Interval kept = {-1, static_cast<double>(defaults.max_model_len)};
  if (const auto last = fields.integer("truncate_prompt_tokens", kept))
    request.truncate_prompt_tokens = static_cast<std::int32_t>(*last);
  fields.choice("truncation_side", kSides);
  fields.choice("padding", kPaddings);
  if (defaults.pooler.classifies())
    fields.choice("task", kClassTasks);
  else
    fields.choice("task", kTasks);
  read_cache_salt(fields, request);
  for (const std::string_view name : kRefusedByPooling)
    if (fields.has(name)) fields.fail(unsupported(name, name));
  read_priority(fields, defaults, request);
  request.user = fields.text("user").value_or("");
  if (request.user.size() > kMaxRequestIdBytes)
    fields.wrong_value("user",
                       "user has more than " + std::to_string(kMaxRequestIdBytes) + " bytes");
}

/// Of a classifier: false gives the numbers that its probabilities are made of.
std::optional<bool> read_activation(const JsonFields& fields, PoolingRequest& request) {
  const auto activate = fields.boolean("use_activation");
  if (request.pooling->classifies && activate == false)
    request.pooling->activation = ClassActivation::kNone;
  return activate;
}

/// `normalize`, or `use_activation` as vLLM calls it, and how the numbers are written.
void read_form(const JsonFields& fields, PoolingRequest& request) {
  if (const auto normalize = fields.boolean("normalize")) request.pooling->normalize = *normalize;
  if (const auto activate = read_activation(fields, request))
    request.pooling->normalize = *activate;
  request.as_base64 = fields.choice("encoding_format", kEncodings) == "base64";
  fields.choice("embed_dtype", kEmbedTypes);
  fields.choice("endianness", kByteOrders);
}

PromptSizes sizes_of(const std::vector<Prompt>& prompts) {
  PromptSizes sizes{.count = static_cast<std::int64_t>(prompts.size())};
  for (const Prompt& prompt : prompts) {
    if (const auto* tokens = std::get_if<TokensPrompt>(&prompt))
      sizes.num_tokens += static_cast<std::int64_t>(tokens->token_ids.size());
    else if (const auto* text = std::get_if<TextPrompt>(&prompt))
      sizes.num_bytes +=
          static_cast<std::int64_t>(text->text.size() + (text->second ? text->second->size() : 0));
  }
  return sizes;
}

Result<PoolingRequest> finished(const JsonFields& fields, const ServerDefaults& defaults,
                                PoolingRequest request) {
  ServerDefaults limits = defaults;
  limits.size.max_samples = 2 * static_cast<std::int64_t>(kMaxInputs);
  check_request_size(fields, limits, request, sizes_of(request.prompts));
  RETURN_IF_ERROR(fields.result());
  return request;
}

/// What is asked for must be what the model gives.
void check_task(const JsonFields& fields, const ServerDefaults& defaults, bool classifies) {
  if (defaults.pooler.type == PoolingType::kNone || defaults.pooler.classifies() == classifies)
    return;
  fields.fail({ErrorCode::kUnsupported,
               classifies
                   ? "the model gives embeddings, it does not classify texts: see /v1/embeddings"
                   : "the model classifies texts, it gives no embeddings: see /classify and /score",
               "model"});
}

/// `input`, or a conversation in `messages`.
Result<PoolingRequest> parse_vectors(std::string_view body, const ServerDefaults& defaults,
                                     const PoolingApi& api) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  PoolingRequest request;
  request.api = &api;
  read_common(fields, defaults, request);
  read_dimensions(fields, defaults, request);
  read_form(fields, request);
  if (api.json == classes_json) check_task(fields, defaults, /*classifies=*/true);
  if (api.json == embedding_json) check_task(fields, defaults, /*classifies=*/false);
  if (fields.has("messages")) {
    LastMessage last;
    request.prompts.emplace_back(read_chat_prompt(fields, defaults, last));
  } else {
    request.prompts = read_prompts(fields, "input", defaults.vocab_size, kMaxInputs);
  }
  return finished(fields, defaults, std::move(request));
}

/// Of the first of the names that is there, else of the last one.
std::vector<std::string> read_texts(const JsonFields& fields,
                                    std::initializer_list<std::string_view> names) {
  std::string_view used;
  for (const std::string_view name : names)
    if (used.empty() || !fields.has(used)) used = name;
  fields.require(used);
  auto texts = fields.texts(used, kMaxInputs).value_or(std::vector<std::string>{});
  if (texts.empty()) fields.wrong_value(used, std::string(used) + " must not be empty");
  return texts;
}

/// Fields for the templates of pairs, which this server does not have.
void refuse_template_fields(const JsonFields& fields) {
  if (fields.has("instruction")) fields.fail(unsupported("instruction", "instruction"));
  const auto kwargs = fields.object("chat_template_kwargs");
  if (const auto name = kwargs ? kwargs->other_name({}) : std::nullopt)
    fields.fail(unsupported("chat_template_kwargs", "chat_template_kwargs." + *name));
}

/// What /score and /rerank have in common.
void read_scoring(const JsonFields& fields, const ServerDefaults& defaults,
                  PoolingRequest& request) {
  read_common(fields, defaults, request);
  refuse_template_fields(fields);
  request.pooling->normalize = true;
  request.pooling->activation = defaults.pooler.score_activation;
  read_activation(fields, request);
}

/// The first of each pair is a query: the only one, or one for each document.
void add_pairs(const JsonFields& fields, const std::vector<std::string>& queries,
               const std::vector<std::string>& documents, PoolingRequest& request) {
  request.num_queries = 0;
  if (request.labels.size() != 1)
    return fields.fail({ErrorCode::kUnsupported,
                        "the model has " + std::to_string(request.labels.size()) +
                            " classes, scores need a classifier with one",
                        "model"});
  if (queries.empty()) return;
  for (std::size_t i = 0; i < documents.size(); ++i)
    request.prompts.emplace_back(TextPrompt{.text = queries[queries.size() == 1 ? 0 : i],
                                            .add_special_tokens = true,
                                            .second = documents[i]});
}

void add_texts(std::vector<std::string> texts, std::vector<Prompt>& prompts) {
  for (std::string& text : texts)
    prompts.emplace_back(TextPrompt{std::move(text), /*add_special_tokens=*/true});
}

/// Texts, or objects with a text.
std::vector<std::string> read_documents(const JsonFields& fields) {
  if (fields.element_kind("documents") != JsonKind::kObject)
    return read_texts(fields, {"documents"});
  std::vector<std::string> texts;
  fields.each_object("documents", [&](const JsonFields& document) {
    document.require("text");
    if (texts.size() < kMaxInputs) texts.push_back(document.text("text").value_or(""));
  });
  return texts;
}

Result<PoolingRequest> parse_ollama(std::string_view body, const ServerDefaults& defaults,
                                    const PoolingApi& api, std::string_view input) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  PoolingRequest request;
  request.api = &api;
  read_common(fields, defaults, request);
  request.dialect = &kOllamaDialect;
  check_task(fields, defaults, /*classifies=*/false);
  request.pooling->normalize = true;
  read_dimensions(fields, defaults, request);
  if (fields.boolean("truncate").value_or(true)) request.truncate_prompt_tokens = -1;
  add_texts(read_texts(fields, {input}), request.prompts);
  return finished(fields, defaults, std::move(request));
}

}  // namespace

Result<PoolingRequest> parse_embedding_request(std::string_view body,
                                               const ServerDefaults& defaults) {
  return parse_vectors(body, defaults, kEmbeddings);
}

Result<PoolingRequest> parse_pooling_request(std::string_view body,
                                             const ServerDefaults& defaults) {
  return parse_vectors(body, defaults, kPooling);
}

Result<PoolingRequest> parse_classify_request(std::string_view body,
                                              const ServerDefaults& defaults) {
  return parse_vectors(body, defaults, kClasses);
}

Result<PoolingRequest> parse_score_request(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  PoolingRequest request;
  request.api = &kScores;
  read_scoring(fields, defaults, request);
  std::vector<std::string> queries = read_texts(fields, {"queries", "data_1", "text_1"});
  std::vector<std::string> documents =
      read_texts(fields, {"documents", "items", "data_2", "text_2"});
  request.num_queries = queries.size();
  if (queries.size() != 1 && queries.size() != documents.size())
    fields.wrong_value("text_1", "there are " + std::to_string(queries.size()) + " and " +
                                     std::to_string(documents.size()) +
                                     " texts: input lengths must be 1:1, 1:N or N:N");
  RETURN_IF_ERROR(fields.result());
  if (request.pooling->classifies) {
    add_pairs(fields, queries, documents, request);
  } else {
    add_texts(std::move(queries), request.prompts);
    add_texts(std::move(documents), request.prompts);
  }
  return finished(fields, defaults, std::move(request));
}

Result<PoolingRequest> parse_rerank_request(std::string_view body, const ServerDefaults& defaults) {
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::parse(body));
  PoolingRequest request;
  request.api = &kRerank;
  read_scoring(fields, defaults, request);
  request.num_queries = 1;
  fields.require("query");
  const std::string query = fields.text("query").value_or("");
  request.documents = read_documents(fields);
  request.max_results = request.documents.size();
  // 0: all of them.
  if (const auto top = fields.integer("top_n", {0, kAnyInt32.max}); top && *top > 0)
    request.max_results = std::min(request.max_results, static_cast<std::size_t>(*top));
  RETURN_IF_ERROR(fields.result());
  if (request.pooling->classifies) {
    add_pairs(fields, {query}, request.documents, request);
  } else {
    add_texts({query}, request.prompts);
    add_texts(request.documents, request.prompts);
  }
  return finished(fields, defaults, std::move(request));
}

Result<PoolingRequest> parse_ollama_embed(std::string_view body, const ServerDefaults& defaults) {
  return parse_ollama(body, defaults, kOllamaEmbed, "input");
}

Result<PoolingRequest> parse_ollama_embeddings(std::string_view body,
                                               const ServerDefaults& defaults) {
  return parse_ollama(body, defaults, kOllamaEmbeddings, "prompt");
}

}  // namespace troupe
