#pragma once
// All differences between CAF versions: 0.17 (Debian's package), and 0.18 and later (an embedding
// application's). No other file checks the version.

#include <caf/all.hpp>
#include <caf/config.hpp>
#include <chrono>
#include <utility>

// CAF 1.1 ships a CAF_VERSION of 0100; the major number is correct.
#if defined(CAF_VERSION_MAJOR) || CAF_VERSION >= 1800
#define TROUPE_CAF_TYPE_IDS 1
#else
#define TROUPE_CAF_TYPE_IDS 0
#endif
#if defined(CAF_VERSION_MAJOR) && CAF_VERSION_MAJOR >= 1
#define TROUPE_CAF_MAIL 1
#else
#define TROUPE_CAF_MAIL 0
#endif

namespace troupe {

/// A reply of several values: ActorOf<Replies<A, B>(Request)>.
template <class... Results>
struct Replies {};

namespace internal {
template <class Signature>
struct ActorSignature;
template <class... Results, class... Arguments>
struct ActorSignature<Replies<Results...>(Arguments...)> {
#if TROUPE_CAF_TYPE_IDS
  using type = caf::result<Results...>(Arguments...);
#else
  using type = typename caf::replies_to<Arguments...>::template with<Results...>;
#endif
};
template <class Result, class... Arguments>
struct ActorSignature<Result(Arguments...)> {
#if TROUPE_CAF_TYPE_IDS
  using type = caf::result<Result>(Arguments...);
#else
  using type = typename caf::replies_to<Arguments...>::template with<Result>;
#endif
};
}  // namespace internal

/// A typed actor handle from plain signatures: ActorOf<Reply(Ask), void(OneWay)>.
template <class... Signatures>
using ActorOf = caf::typed_actor<typename internal::ActorSignature<Signatures>::type...>;

/// Sends one-way, from an actor. `arguments` are actor handles, which plain structs cannot hold.
template <class Self, class Handle, class Message, class... Arguments>
void send(Self* self, const Handle& to, Message&& message, Arguments&&... arguments) {
#if TROUPE_CAF_MAIL
  self->mail(std::forward<Message>(message), std::forward<Arguments>(arguments)...).send(to);
#else
  self->send(to, std::forward<Message>(message), std::forward<Arguments>(arguments)...);
#endif
}

/// Sends one message to several actors without copying it. Pre: the actors accept such a message.
template <class Self, class Handle>
void send_shared(Self* self, const Handle& to, const caf::message& message) {
#if TROUPE_CAF_MAIL
  // A typed actor accepts only what the compiler can check.
  caf::actor_cast<caf::abstract_actor*>(to)->enqueue(
      caf::make_mailbox_element(caf::strong_actor_ptr{self->ctrl()}, caf::make_message_id(),
                                message),
      self->context());
#else
  caf::unsafe_send_as(self, to, message);
#endif
}

/// Sends one-way, from any thread.
template <class Handle, class Message, class... Arguments>
void post(const Handle& to, Message&& message, Arguments&&... arguments) {
#if TROUPE_CAF_MAIL
  caf::anon_mail(std::forward<Message>(message), std::forward<Arguments>(arguments)...).send(to);
#else
  caf::anon_send(to, std::forward<Message>(message), std::forward<Arguments>(arguments)...);
#endif
}

/// Sends one-way, from any thread, on behalf of `from`, which gets the reply.
template <class From, class Handle, class Message>
void post_as(const From& from, const Handle& to, Message&& message) {
#if TROUPE_CAF_MAIL
  caf::actor_cast<caf::abstract_actor*>(to)->enqueue(
      caf::make_mailbox_element(caf::actor_cast<caf::strong_actor_ptr>(from),
                                caf::make_message_id(), std::forward<Message>(message)),
      nullptr);
#else
  caf::send_as(from, to, std::forward<Message>(message));
#endif
}

template <class Self, class Handle, class Message>
void send_after(Self* self, std::chrono::nanoseconds delay, const Handle& to, Message&& message) {
#if TROUPE_CAF_MAIL
  self->mail(std::forward<Message>(message)).delay(delay).send(to);
#else
  self->delayed_send(to, delay, std::forward<Message>(message));
#endif
}

/// Sends a request with a deadline; without a reply it fails with request_timeout. Not for the
/// token path: each deadline costs a timer that the reply does not cancel.
template <class Self, class Handle, class Message, class... More>
auto ask(Self* self, const Handle& to, std::chrono::nanoseconds deadline, Message&& message,
         More&&... more) {
#if TROUPE_CAF_MAIL
  return self->mail(std::forward<Message>(message), std::forward<More>(more)...)
      .request(to, deadline);
#else
  return self->request(to, deadline, std::forward<Message>(message), std::forward<More>(more)...);
#endif
}

/// Sends a request to an actor that `self` monitors, on the token path: without a timer, its DOWN
/// message is the error.
template <class Self, class Handle, class Message>
auto ask(Self* self, const Handle& to, Message&& message) {
#if TROUPE_CAF_MAIL
  return self->mail(std::forward<Message>(message)).request(to, caf::infinite);
#else
  return self->request(to, caf::infinite, std::forward<Message>(message));
#endif
}

/// Delegates the current message to another actor.
template <class Self, class Handle, class Message>
auto delegate(Self* self, const Handle& to, Message&& message) {
#if TROUPE_CAF_MAIL
  return self->mail(std::forward<Message>(message)).delegate(to);
#else
  return self->delegate(to, std::forward<Message>(message));
#endif
}

template <class Self>
decltype(auto) state(Self* self) {
#if TROUPE_CAF_MAIL
  return self->state();
#else
  return (self->state);
#endif
}

[[nodiscard]] inline std::string to_text(const caf::error& error, const caf::actor_system& system) {
#if TROUPE_CAF_TYPE_IDS
  static_cast<void>(system);
  return to_string(error);
#else
  return system.render(error);
#endif
}

template <class Block>
void add_message_types(caf::actor_system_config& config) {
#if TROUPE_CAF_TYPE_IDS
  static_cast<void>(config);
  caf::core::init_global_meta_objects();
  caf::init_global_meta_objects<Block>();
#else
  config.add_message_types<Block>();
#endif
}

/// The exit reason of an actor that fails; to_text returns the text with CAF's additions.
[[nodiscard]] inline caf::error exit_reason_of(std::string text) {
  return caf::make_error(caf::sec::runtime_error, std::move(text));
}

/// Makes an actor exit with a reason of its own, from any thread.
template <class Handle>
void post_exit(const Handle& to, caf::error reason) {
  post(caf::actor_cast<caf::actor>(to), caf::exit_msg{to->address(), std::move(reason)});
}

/// The type ID of a CAF type that travels between processes: 0.17 has a number for it, and no name.
template <class T>
void add_caf_type(caf::actor_system_config& config, const char* name) {
#if TROUPE_CAF_TYPE_IDS
  static_cast<void>(config);
  static_cast<void>(name);
#else
  config.add_message_type<T>(name);
#endif
}

/// Settings that CAF needs for low latency, unless the configuration sets them: no work stealing
/// (its workers sleep between polls), no extra threads between the network and the actors.
inline void tune(caf::actor_system_config& config) {
  const auto set_missing = [&config](const char* name, auto value) {
    if (caf::get_if(&caf::content(config), name) == nullptr) config.set(name, std::move(value));
  };
#if TROUPE_CAF_TYPE_IDS
  set_missing("caf.scheduler.policy", "sharing");
#if !TROUPE_CAF_MAIL
  set_missing("caf.middleman.workers", std::size_t{0});  // later versions have none
#endif
#else
  set_missing("scheduler.policy", caf::atom("sharing"));
  set_missing("middleman.workers", std::size_t{0});
#endif
}

/// One of CAF's own modules.
template <class Module>
void load_module(caf::actor_system_config& config) {
#if TROUPE_CAF_TYPE_IDS
  Module::init_global_meta_objects();
#endif
  config.load<Module>();
}

/// The prefix of CAF's own option names.
#if TROUPE_CAF_TYPE_IDS
inline constexpr const char* kCafOptionPrefix = "caf.";
#else
inline constexpr const char* kCafOptionPrefix = "";
#endif

/// Whether a command line has arguments that are not CAF options.
inline bool has_remainder(const caf::actor_system_config& config) {
#if TROUPE_CAF_MAIL
  return !config.remainder().empty();
#else
  return !config.remainder.empty();
#endif
}

#if TROUPE_CAF_MAIL
using CafModule = caf::actor_system_module;
#else
using CafModule = caf::actor_system::module;
#endif

/// A module for caf::actor_system_config::load that has nothing to start or to stop:
/// `configure(config)` is called before the actor system is set up. CAF has a fixed number of slots
/// for modules, named after its own; this one takes `slot`.
template <void (*configure)(caf::actor_system_config&), CafModule::id_t slot>
class ConfiguringModule : public CafModule {
 public:
#if TROUPE_CAF_MAIL
  static void check_abi_compatibility(caf::version::abi_token token) {
    // CAF's own check is not exported, and its macro for the error is not in every version.
    if (static_cast<int>(token) != CAF_VERSION_MAJOR)
      throw std::runtime_error("built against another version of CAF than the one that is loaded");
  }
  static void add_module_options(caf::actor_system_config& config) { configure(config); }
  static CafModule* make(caf::actor_system&) { return new ConfiguringModule; }
#else
  static CafModule* make(caf::actor_system& system, caf::detail::type_list<>) {
    // `init` gets the configuration non-const, but runs after the scheduler has been set up.
    configure(const_cast<caf::actor_system_config&>(system.config()));
    return new ConfiguringModule;
  }
#endif
  void init(caf::actor_system_config&) override {}
  void start() override {}
  void stop() override {}
  [[nodiscard]] id_t id() const override { return slot; }
  [[nodiscard]] void* subtype_ptr() override { return this; }
};

}  // namespace troupe
