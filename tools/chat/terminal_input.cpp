#include "tools/chat/terminal_input.hpp"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <iterator>

#include "runtime/base/check.hpp"

namespace troupe::tools {
namespace {

constexpr int kHistoryLength = 1000;
constexpr const wchar_t* kPasteBegins = L"\033[200~";
constexpr std::wstring_view kPasteEnds = L"\033[201~";
constexpr const char* kPasteModeOn = "\033[?2004h";
constexpr const char* kPasteModeOff = "\033[?2004l";
constexpr char32_t kReplacement = 0xFFFD;

void append_utf8(std::string& text, char32_t c) {
  if (c < 0x80) {
    text.push_back(static_cast<char>(c));
    return;
  }
  const int num_more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr unsigned kLead[] = {0, 0xC0, 0xE0, 0xF0};
  text.push_back(static_cast<char>(kLead[num_more] | (c >> (6 * num_more))));
  for (int i = num_more - 1; i >= 0; --i)
    text.push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

/// The window was resized, or the program continues after Ctrl-Z: poll returns EINTR.
void wake_up_on(int signal) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(signal, &action, nullptr);
}

}  // namespace

std::wstring clean_paste(const std::wstring& pasted) {
  std::wstring text;
  for (std::size_t i = 0; i < pasted.size(); ++i) {
    const wchar_t c = pasted[i];
    if (c == L'\r') {
      if (i + 1 == pasted.size() || pasted[i + 1] != L'\n') text.push_back(L'\n');
    } else if (c == L'\n' || c == L'\t' || (c >= L' ' && (c < 0x7F || c > 0x9F))) {
      text.push_back(c);
    }
  }
  return text;
}

class TerminalInput::Impl {
 public:
  Impl(std::string prompt, Interrupt& interrupt)
      : prompt_(prompt.begin(), prompt.end()), interrupt_(interrupt) {
    // The editor writes wide characters in the locale's encoding. Terminals use UTF-8.
    std::setlocale(LC_CTYPE, "C.UTF-8");
    output_ = fdopen(dup(STDERR_FILENO), "w");
    CHECK(output_ != nullptr, errno);
    editor_ = el_init("troupe", stdin, output_, output_);
    CHECK(editor_ != nullptr, errno);
    history_ = history_winit();
    CHECK(history_ != nullptr, errno);
    HistEventW event;
    history_w(history_, &event, H_SETSIZE, kHistoryLength);
    history_w(history_, &event, H_SETUNIQUE, 1);
    el_wset(editor_, EL_CLIENTDATA, this);
    el_wset(editor_, EL_PROMPT, &Impl::prompt);
    el_wset(editor_, EL_EDITOR, L"emacs");
    el_wset(editor_, EL_HIST, history_w, history_);
    el_wset(editor_, EL_GETCFN, &Impl::read_character);
    el_wset(editor_, EL_ADDFN, L"troupe-paste", L"Insert what is pasted", &Impl::paste);
    el_wset(editor_, EL_BIND, kPasteBegins, L"troupe-paste", nullptr);
    el_wset(editor_, EL_BIND, L"^R", L"em-inc-search-prev", nullptr);
    el_source(editor_, nullptr);  // the user's ~/.editrc
    wake_up_on(SIGWINCH);
    wake_up_on(SIGCONT);
    // Also during an answer: text pasted then is read afterwards.
    std::fputs(kPasteModeOn, output_);
  }
  ~Impl() {
    std::fputs(kPasteModeOff, output_);
    history_wend(history_);
    el_end(editor_);
    std::fclose(output_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status next(std::string& message) {
    interrupted_ = false;
    el_resize(editor_);
    el_wset(editor_, EL_PREP_TERM, 1);  // before the prompt, so that typed-ahead text is edited
    int count = 0;
    const wchar_t* line = el_wgets(editor_, &count);
    if (interrupted_ || line == nullptr || count <= 0) std::fputc('\n', output_);
    std::fflush(output_);
    if (interrupted_) return Status::kInterrupted;
    if (line == nullptr || count <= 0) return Status::kEnd;
    std::wstring text(line, static_cast<std::size_t>(count));
    while (text.ends_with(L'\n')) text.pop_back();
    HistEventW event;
    if (text.find_first_not_of(L" \t\n") != std::wstring::npos)
      history_w(history_, &event, H_ENTER, text.c_str());
    message.clear();
    for (const wchar_t c : text) append_utf8(message, static_cast<char32_t>(c));
    return Status::kMessage;
  }

 private:
  static Impl& of(EditLine* editor) {
    void* self = nullptr;
    el_wget(editor, EL_CLIENTDATA, &self);
    return *static_cast<Impl*>(self);
  }
  static wchar_t* prompt(EditLine* editor) { return of(editor).prompt_.data(); }

  /// One byte of the terminal; false at its end, or on Ctrl-C.
  bool read_byte(unsigned char& byte) {
    for (;;) {
      pollfd sources[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                          {.fd = interrupt_.descriptor(), .events = POLLIN, .revents = 0}};
      if (poll(sources, std::size(sources), -1) < 0) {
        if (errno != EINTR) return false;
        el_wset(editor_, EL_PREP_TERM, 1);
        el_resize(editor_);
        el_wset(editor_, EL_REFRESH);
        continue;
      }
      if (sources[1].revents != 0) {
        interrupted_ = interrupt_.take();
        errno = EINTR;
        return false;
      }
      const ssize_t count = read(STDIN_FILENO, &byte, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count == 0) errno = 0;
      return count == 1;
    }
  }

  /// 1 and a character, 0 at the end, -1 on Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* character) {
    Impl& self = of(editor);
    unsigned char byte = 0;
    if (!self.read_byte(byte)) return self.interrupted_ ? -1 : 0;
    const int num_more = byte < 0xC0 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : byte < 0xF8 ? 3 : 0;
    char32_t c = num_more == 0 ? byte : byte & (0x3Fu >> num_more);
    if (num_more == 0 && byte >= 0x80) c = kReplacement;
    for (int i = 0; i < num_more; ++i) {
      if (!self.read_byte(byte)) return self.interrupted_ ? -1 : 0;
      c = (byte & 0xC0) == 0x80 ? (c << 6) | (byte & 0x3F) : kReplacement;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) c = kReplacement;
    *character = static_cast<wchar_t>(c);
    return 1;
  }

  static unsigned char paste(EditLine* editor, wint_t) {
    std::wstring text;
    wchar_t c = 0;
    while (!text.ends_with(kPasteEnds)) {
      if (read_character(editor, &c) != 1) return CC_EOF;
      text.push_back(c);
    }
    text.resize(text.size() - kPasteEnds.size());
    text = clean_paste(text);
    return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  std::wstring prompt_;
  Interrupt& interrupt_;
  std::FILE* output_ = nullptr;
  EditLine* editor_ = nullptr;
  HistoryW* history_ = nullptr;
  bool interrupted_ = false;
};

TerminalInput::TerminalInput(std::string prompt, Interrupt& interrupt)
    : impl_(std::make_unique<Impl>(std::move(prompt), interrupt)) {}
TerminalInput::~TerminalInput() = default;

TerminalInput::Status TerminalInput::next(std::string& message) { return impl_->next(message); }

}  // namespace troupe::tools
