#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "runtime/base/base64.hpp"
#include "runtime/base/check.hpp"
#include "runtime/http/generation.hpp"
#include "runtime/http/json_text.hpp"
#include "runtime/http/pooling.hpp"

namespace troupe {
namespace {

/// A request's texts are parts; each ends with its vector.
class PoolingGeneration final : public Generation {
 public:
  PoolingGeneration(ServiceContext& context, ResponseSink& sink, PoolingRequest request,
                    std::string id)
      : Generation(context, sink, request, std::move(id), {}), request_(std::move(request)) {
    std::vector<std::string> external_ids;
    for (std::size_t i = 0; i < request_.prompts.size(); ++i)
      external_ids.push_back(head().id + "-" + std::to_string(i));
    submit(std::exchange(request_.prompts, {}), external_ids, request_,
           /*return_prompt_text=*/false);
  }

 private:
  void append_events(std::string&, Part&) override {}
  [[nodiscard]] std::string_view stream_object() const override { return {}; }

  std::string final_json() override {
    PoolingAnswer answer{.head = head(), .embeddings = {}, .usage = usage()};
    for (Part& part : parts()) {
      CHECK(part.pending.outputs.size() == 1, part.pending.outputs.size());
      answer.embeddings.push_back(std::move(part.pending.outputs.front().embedding));
    }
    return request_.api->json(request_, answer);
  }

  PoolingRequest request_;
};

void append_numbers(std::string& json, std::span<const float> values) {
  append_json_array(json, values,
                    [](std::string& out, float value) { append_json_float(out, value); });
}

/// Little-endian floats.
void append_base64(std::string& json, std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  append_json_string(json, to_base64(std::as_bytes(values)));
}

std::string list_json(const PoolingRequest& request, const PoolingAnswer& answer,
                      std::string_view object, std::string_view field) {
  std::string json;
  append_head(json, answer.head, "list");
  json += ",\"data\":";
  std::size_t index = 0;
  append_json_array(json, answer.embeddings, [&](std::string& out, const auto& embedding) {
    out += "{\"index\":";
    append_json_integer(out, index++);
    out.append(",\"object\":\"").append(object).append("\",\"").append(field).append("\":");
    if (request.as_base64)
      append_base64(out, embedding);
    else
      append_numbers(out, embedding);
    out += '}';
  });
  json += ',';
  append_usage(json, answer.usage, true);
  return json + "}";
}

/// Of vectors of length 1.
double cosine(std::span<const float> a, std::span<const float> b) {
  return std::transform_reduce(
      a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
      [](float x, float y) { return static_cast<double>(x) * static_cast<double>(y); });
}

/// Of each document with its query.
std::vector<double> scores(const PoolingRequest& request, const PoolingAnswer& answer) {
  std::vector<double> result;
  if (request.num_queries == 0) {
    for (const auto& numbers : answer.embeddings)
      result.push_back(static_cast<double>(numbers.front()));
    return result;
  }
  for (std::size_t i = request.num_queries; i < answer.embeddings.size(); ++i) {
    const std::size_t query = request.num_queries == 1 ? 0 : i - request.num_queries;
    result.push_back(cosine(answer.embeddings[query], answer.embeddings[i]));
  }
  return result;
}

}  // namespace

std::string embedding_json(const PoolingRequest& request, const PoolingAnswer& answer) {
  return list_json(request, answer, "embedding", "embedding");
}

std::string pooling_json(const PoolingRequest& request, const PoolingAnswer& answer) {
  return list_json(request, answer, "pooling", "data");
}

std::string classes_json(const PoolingRequest& request, const PoolingAnswer& answer) {
  std::string json;
  append_head(json, answer.head, "list");
  json += ",\"data\":";
  std::size_t index = 0;
  append_json_array(json, answer.embeddings, [&](std::string& out, const auto& numbers) {
    const auto best = static_cast<std::size_t>(std::ranges::max_element(numbers) - numbers.begin());
    CHECK(best < request.labels.size(), best, request.labels.size());
    out += "{\"index\":";
    append_json_integer(out, index++);
    out += ",\"label\":";
    append_json_string(out, request.labels[best]);
    out += ",\"probs\":";
    append_numbers(out, numbers);
    out += ",\"num_classes\":";
    append_json_integer(out, numbers.size());
    out += '}';
  });
  json += ',';
  append_usage(json, answer.usage, true);
  return json + "}";
}

std::string score_json(const PoolingRequest& request, const PoolingAnswer& answer) {
  std::string json;
  append_head(json, answer.head, "list");
  json += ",\"data\":";
  std::size_t index = 0;
  append_json_array(json, scores(request, answer), [&](std::string& out, double score) {
    out += "{\"index\":";
    append_json_integer(out, index++);
    out += ",\"object\":\"score\",\"score\":";
    append_json_float(out, score);
    out += '}';
  });
  json += ',';
  append_usage(json, answer.usage, true);
  return json + "}";
}

std::string rerank_json(const PoolingRequest& request, const PoolingAnswer& answer) {
  const std::vector<double> relevance = scores(request, answer);
  std::vector<std::size_t> order(relevance.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return relevance[a] > relevance[b]; });
  order.resize(std::min(order.size(), request.max_results));
  std::string json = "{\"id\":";
  append_json_string(json, answer.head.id);
  json += ",\"model\":";
  append_json_string(json, answer.head.model);
  json += ',';
  append_usage(json, answer.usage, true);
  json += ",\"results\":";
  append_json_array(json, order, [&](std::string& out, std::size_t index) {
    out += "{\"index\":";
    append_json_integer(out, index);
    out += ",\"document\":{\"text\":";
    append_json_string(out, request.documents[index]);
    out += "},\"relevance_score\":";
    append_json_float(out, relevance[index]);
    out += '}';
  });
  return json + "}";
}

std::string ollama_embed_json(const PoolingRequest&, const PoolingAnswer& answer) {
  std::string json = "{\"model\":";
  append_json_string(json, answer.head.model);
  json += ",\"embeddings\":";
  append_json_array(json, answer.embeddings, [](std::string& out, const auto& embedding) {
    append_numbers(out, embedding);
  });
  json += ",\"prompt_eval_count\":";
  append_json_integer(json, answer.usage.num_prompt_tokens);
  return json + "}";
}

std::string ollama_embeddings_json(const PoolingRequest&, const PoolingAnswer& answer) {
  std::string json = "{\"embedding\":";
  append_numbers(json, answer.embeddings.front());
  return json + "}";
}

std::unique_ptr<Exchange> start_pooling(ServiceContext& context, ResponseSink& sink,
                                        PoolingRequest request, std::string id) {
  return std::make_unique<PoolingGeneration>(context, sink, std::move(request), std::move(id));
}

}  // namespace troupe
