#include "runtime/chat/chat_renderer.hpp"

#include "runtime/base/file.hpp"
#include "runtime/base/json.hpp"
#include "runtime/base/json_depth.hpp"
#include "runtime/gguf/model_files.hpp"

namespace troupe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// The file as an object; an empty object if the file does not exist.
Result<Json> read_json(const fs::path& model, std::string_view name) {
  const Result<std::string> text = read_model_text(model, name);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) return Json::object();
  if (!text.ok()) return text.error();
  Json json = parse_bounded_json<Json>(*text);
  if (!json.is_object())
    return Error{ErrorCode::kCorrupt, (model / name).string() + " is not a JSON object"};
  return json;
}

/// "bos_token": "<s>" or {"content": "<s>", ...}.
void add_special_token(const std::string& name, const Json& value,
                       std::map<std::string, std::string>& tokens) {
  if (value.is_string()) tokens[name] = value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    tokens[name] = value["content"].get<std::string>();
  }
}

void add_special_tokens(const Json& config, std::map<std::string, std::string>& tokens) {
  for (const auto& [name, value] : config.items()) {
    if (name.ends_with("_token")) add_special_token(name, value, tokens);
  }
  // Models with more special tokens list them here ("image_token", ...).
  const auto further = config.find("model_specific_special_tokens");
  if (further == config.end() || !further->is_object()) return;
  for (const auto& [name, value] : further->items()) add_special_token(name, value, tokens);
}

/// "chat_template": one template, or a list of {"name", "template"}.
void add_templates(const Json& config, std::map<std::string, std::string>& templates) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return;
  if (found->is_string()) templates["default"] = found->get<std::string>();
  if (!found->is_array()) return;
  for (const Json& entry : *found) {
    if (entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
        entry.contains("template") && entry["template"].is_string()) {
      templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
    }
  }
}

Error unreadable(const fs::path& path, const std::error_code& reason) {
  return {ErrorCode::kIo, "cannot read '" + path.string() + "': " + reason.message()};
}

/// not_found is no error. Errors: kIo.
Result<fs::file_type> type_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::none) return unreadable(path, error);
  return type;
}

/// The templates in a folder, if it exists: NAME.jinja each.
Result<void> add_template_files(const fs::path& folder,
                                std::map<std::string, std::string>& templates) {
  ASSIGN_OR_RETURN(const fs::file_type type, type_of(folder));
  if (type != fs::file_type::directory) return {};
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.extension() == ".jinja") {
      ASSIGN_OR_RETURN(templates[path.stem().string()], read_file(path));
    }
  }
  if (error) return unreadable(folder, error);
  return {};
}

}  // namespace

Result<ChatFiles> load_chat_files(const fs::path& folder) {
  ChatFiles files;
  ASSIGN_OR_RETURN(const Json special, read_json(folder, "special_tokens_map.json"));
  ASSIGN_OR_RETURN(const Json config, read_json(folder, "tokenizer_config.json"));
  ASSIGN_OR_RETURN(const Json processor, read_json(folder, "chat_template.json"));
  add_special_tokens(special, files.special_tokens);
  add_special_tokens(config, files.special_tokens);
  // Later ones override earlier ones: separate files override the configuration.
  add_templates(config, files.templates);
  add_templates(processor, files.templates);
  const fs::path own = folder / "chat_template.jinja";
  ASSIGN_OR_RETURN(const fs::file_type own_type, type_of(own));
  if (own_type != fs::file_type::not_found) {
    ASSIGN_OR_RETURN(files.templates["default"], read_file(own));
  }
  RETURN_IF_ERROR(add_template_files(folder / "additional_chat_templates", files.templates));
  return files;
}

ChatRenderer::ChatRenderer(ChatFiles files, const ChatRendererOptions& options)
    : options_(options), special_tokens_(std::move(files.special_tokens)) {}

Result<std::unique_ptr<ChatRenderer>> ChatRenderer::create(ChatFiles files,
                                                           const ChatRendererOptions& options) {
  std::map<std::string, std::string> sources = std::move(files.templates);
  if (!options.chat_template.empty()) sources = {{"default", options.chat_template}};
  std::unique_ptr<ChatRenderer> renderer(new ChatRenderer(std::move(files), options));
  for (const auto& [name, source] : sources) {
    auto compiled = ChatTemplate::compile(source, options.limits);
    if (!compiled.ok()) {
      Error error = std::move(compiled).error();
      error.message = "chat template '" + name + "': " + error.message;
      return error;
    }
    renderer->templates_.emplace(name, *std::move(compiled));
  }
  return renderer;
}

Result<ChatRenderer::TemplatePtr> ChatRenderer::choose(const ChatPrompt& prompt) {
  if (!prompt.chat_template.empty()) {
    const auto named = templates_.find(prompt.chat_template);
    return named != templates_.end() ? Result<TemplatePtr>(named->second)
                                     : compile_cached(prompt.chat_template);
  }
  const bool has_tools =
      !prompt.tools_json.empty() && prompt.tools_json != "[]" && prompt.tools_json != "null";
  auto found = has_tools ? templates_.find("tool_use") : templates_.end();
  if (found == templates_.end()) found = templates_.find("default");
  if (found == templates_.end()) {
    return invalid_argument(
        "this model has no chat template; give one with the request or with --chat-template");
  }
  return found->second;
}

Result<ChatRenderer::TemplatePtr> ChatRenderer::compile_cached(const std::string& source) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = cache_index_.find(source); found != cache_index_.end()) {
      cache_.splice(cache_.begin(), cache_, found->second);
      return found->second->compiled;
    }
  }
  ASSIGN_OR_RETURN(TemplatePtr compiled, ChatTemplate::compile(source, options_.limits));
  const std::lock_guard lock(mutex_);
  if (!cache_index_.contains(source)) {
    cache_.push_front({source, compiled});
    cache_index_.emplace(cache_.front().source, cache_.begin());
    if (cache_.size() > options_.max_cached_templates) {
      cache_index_.erase(cache_.back().source);
      cache_.pop_back();
    }
  }
  return compiled;
}

Result<RenderedChat> ChatRenderer::render(const ChatPrompt& prompt, const ChatClock& clock,
                                          const WorkLimits& limits) {
  ASSIGN_OR_RETURN(const TemplatePtr chosen, choose(prompt));
  NormalizeOptions normalize;
  normalize.content_format = options_.content_format.value_or(chosen->content_format());
  normalize.keep_developer_role = chosen->knows_role("developer");
  normalize.image_placeholder = options_.image_placeholder;
  ASSIGN_OR_RETURN(NormalizedMessages messages,
                   normalize_messages(prompt.messages_json, normalize));
  ChatTemplateInput input;
  input.messages_json = std::move(messages.messages_json);
  input.tools_json = prompt.tools_json;
  input.documents_json = prompt.documents_json;
  input.template_kwargs_json = prompt.template_kwargs_json;
  input.add_generation_prompt = prompt.add_generation_prompt;
  input.continue_final_message = prompt.continue_final_message;
  input.special_tokens = special_tokens_;
  input.clock = clock;
  ASSIGN_OR_RETURN(RenderedPrompt rendered, chosen->render(input, limits));
  return RenderedChat{std::move(rendered.text), std::move(messages.media)};
}

}  // namespace troupe
