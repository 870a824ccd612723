#include "runtime/models/torch_file.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file.hpp"

namespace troupe {
namespace {

constexpr std::size_t kMaxTorchEntries = std::size_t{1} << 20;
constexpr std::size_t kMaxPickleBytes = std::size_t{1} << 28;
constexpr std::size_t kMaxTorchDimensions = 16;
constexpr std::size_t kMaxShownName = 200;

Error torch_error(ErrorCode code, std::string_view file, const std::string& reason) {
  return {code, std::string(file) + ": " + reason};
}

std::string shown_name(std::string_view name) {
  return "\"" + std::string(name.substr(0, kMaxShownName)) + "\"";
}

/// Little endian, as every machine we build for. Pre: it lies in `bytes`.
template <class T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  T number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

/// The entries of a ZIP archive (APPNOTE.TXT 6.3, 4.3), by name.
using ZipEntries = std::map<std::string, std::span<const std::byte>, std::less<>>;

class ZipReader {
 public:
  ZipReader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  Result<ZipEntries> read() const {
    ASSIGN_OR_RETURN(const Directory directory, find_directory());
    if (directory.num_entries > kMaxTorchEntries)
      return corrupt("the archive claims " + std::to_string(directory.num_entries) +
                     " entries, at most " + std::to_string(kMaxTorchEntries) + " are read");
    ZipEntries entries;
    std::uint64_t at = directory.offset;
    for (std::uint64_t i = 0; i < directory.num_entries; ++i) {
      constexpr std::uint64_t kFixed = 46;
      if (!lies_in(at, kFixed) || number_at<std::uint32_t>(bytes_, at) != 0x02014b50)
        return corrupt("entry " + std::to_string(i) + " of the archive's directory is damaged");
      const std::uint64_t name_size = number_at<std::uint16_t>(bytes_, at + 28);
      const std::uint64_t extra_size = number_at<std::uint16_t>(bytes_, at + 30);
      const std::uint64_t comment_size = number_at<std::uint16_t>(bytes_, at + 32);
      if (!lies_in(at + kFixed, name_size + extra_size + comment_size))
        return corrupt("entry " + std::to_string(i) + " of the archive's directory is cut short");
      std::string name(reinterpret_cast<const char*>(bytes_.data() + at + kFixed), name_size);
      ASSIGN_OR_RETURN(const std::span<const std::byte> data,
                       entry_data(at, bytes_.subspan(at + kFixed + name_size, extra_size), name));
      if (!entries.emplace(name, data).second)
        return corrupt("the archive has two entries " + shown_name(name));
      at += kFixed + name_size + extra_size + comment_size;
    }
    return entries;
  }

 private:
  struct Directory {
    std::uint64_t num_entries = 0;
    std::uint64_t offset = 0;
  };

  [[nodiscard]] Error corrupt(const std::string& reason) const {
    return torch_error(ErrorCode::kCorrupt, file_, reason);
  }
  [[nodiscard]] bool lies_in(std::uint64_t offset, std::uint64_t size) const {
    return offset <= bytes_.size() && size <= bytes_.size() - offset;
  }

  /// From the record at the end, behind which there may be a comment.
  Result<Directory> find_directory() const {
    constexpr std::size_t kEnd = 22;
    constexpr std::size_t kMaxComment = 0xffff;
    const std::size_t first =
        bytes_.size() > kEnd + kMaxComment ? bytes_.size() - kEnd - kMaxComment : 0;
    for (std::size_t at = bytes_.size() < kEnd ? 0 : bytes_.size() - kEnd + 1; at-- > first;) {
      if (number_at<std::uint32_t>(bytes_, at) != 0x06054b50) continue;
      if (number_at<std::uint16_t>(bytes_, at + 20) != bytes_.size() - at - kEnd) continue;
      const Directory directory{number_at<std::uint16_t>(bytes_, at + 10),
                                number_at<std::uint32_t>(bytes_, at + 16)};
      if (directory.num_entries != 0xffff && directory.offset != 0xffffffff) return directory;
      return find_large_directory(at);
    }
    return corrupt("no directory of a ZIP archive at its end (is it cut short?)");
  }

  Result<Directory> find_large_directory(std::size_t end) const {
    constexpr std::size_t kLocator = 20;
    constexpr std::uint64_t kRecord = 56;
    if (end < kLocator || number_at<std::uint32_t>(bytes_, end - kLocator) != 0x07064b50)
      return corrupt("the archive has no ZIP64 locator");
    const auto at = number_at<std::uint64_t>(bytes_, end - kLocator + 8);
    if (!lies_in(at, kRecord) || number_at<std::uint32_t>(bytes_, at) != 0x06064b50)
      return corrupt("the archive's ZIP64 record is damaged");
    return Directory{number_at<std::uint64_t>(bytes_, at + 32),
                     number_at<std::uint64_t>(bytes_, at + 48)};
  }

  /// `at`: of the entry in the directory.
  Result<std::span<const std::byte>> entry_data(std::uint64_t at, std::span<const std::byte> extra,
                                                const std::string& name) const {
    const auto unsupported = [&](const char* what) {
      return torch_error(ErrorCode::kUnsupported, file_,
                         "entry " + shown_name(name) + " of the archive is " + what);
    };
    if ((number_at<std::uint16_t>(bytes_, at + 8) & 1u) != 0) return unsupported("encrypted");
    if (number_at<std::uint16_t>(bytes_, at + 10) != 0) return unsupported("compressed");
    std::uint64_t stored = number_at<std::uint32_t>(bytes_, at + 20);
    std::uint64_t size = number_at<std::uint32_t>(bytes_, at + 24);
    std::uint64_t offset = number_at<std::uint32_t>(bytes_, at + 42);
    // What did not fit is in the extra field of ZIP64, in this order.
    for (std::size_t field = 0; field + 4 <= extra.size();) {
      const std::size_t field_size = number_at<std::uint16_t>(extra, field + 2);
      if (field_size > extra.size() - field - 4) break;
      if (number_at<std::uint16_t>(extra, field) == 1) {
        std::span<const std::byte> numbers = extra.subspan(field + 4, field_size);
        for (std::uint64_t* const number : {&size, &stored, &offset}) {
          if (*number != 0xffffffff || numbers.size() < sizeof *number) continue;
          *number = number_at<std::uint64_t>(numbers, 0);
          numbers = numbers.subspan(sizeof *number);
        }
      }
      field += 4 + field_size;
    }
    constexpr std::uint64_t kLocal = 30;
    const auto damaged = [&] {
      return corrupt("entry " + shown_name(name) + " does not lie in the archive");
    };
    if (stored != size) return damaged();
    if (!lies_in(offset, kLocal) || number_at<std::uint32_t>(bytes_, offset) != 0x04034b50)
      return damaged();
    offset += kLocal + number_at<std::uint16_t>(bytes_, offset + 26) +
              number_at<std::uint16_t>(bytes_, offset + 28);
    if (!lies_in(offset, size)) return damaged();
    return bytes_.subspan(offset, size);
  }

  std::span<const std::byte> bytes_;
  std::string_view file_;
};

std::optional<TensorType> storage_type(std::string_view name) {
  struct Known {
    std::string_view name;
    TensorType type;
  };
  static constexpr std::array<Known, 10> kKnown = {{{"FloatStorage", TensorType::kF32},
                                                    {"HalfStorage", TensorType::kF16},
                                                    {"BFloat16Storage", TensorType::kBF16},
                                                    {"DoubleStorage", TensorType::kF64},
                                                    {"LongStorage", TensorType::kI64},
                                                    {"IntStorage", TensorType::kI32},
                                                    {"ShortStorage", TensorType::kI16},
                                                    {"CharStorage", TensorType::kI8},
                                                    {"ByteStorage", TensorType::kU8},
                                                    {"BoolStorage", TensorType::kBool}}};
  const auto* const found = std::ranges::find(kKnown, name, &Known::name);
  if (found == kKnown.end()) return std::nullopt;
  return found->type;
}

/// What a pickle puts on its stack.
struct PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kNumber,
    kText,
    kGlobal,   ///< text: "module.name"
    kTuple,    ///< items
    kList,     ///< items
    kDict,     ///< items: keys and values in turn
    kStorage,  ///< text: its key
    kTensor,   ///< tensor
    kOther,    ///< of no use here
  };
  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  std::string text;
  std::vector<std::size_t> items;
  TensorView tensor;
};

/// Follows a pickle (pickletools.py of CPython describes the instructions). Values are numbered: a
/// value that is in several places is one.
class PickleReader {
 public:
  PickleReader(std::span<const std::byte> pickle, const ZipEntries& entries, std::string root,
               std::string_view file)
      : pickle_(pickle), entries_(entries), root_(std::move(root)), file_(file) {}

  Result<TensorMap> read() {
    bool is_done = false;
    while (!is_done) RETURN_IF_ERROR(step(is_done));
    ASSIGN_OR_RETURN(const std::size_t top, pop());
    const PickleValue& all = values_[top];
    if (all.kind != Kind::kDict) return unsupported("it is not a dictionary of tensors");
    TensorMap tensors;
    for (std::size_t i = 0; i + 1 < all.items.size(); i += 2) {
      const PickleValue& name = values_[all.items[i]];
      const PickleValue& value = values_[all.items[i + 1]];
      if (name.kind != Kind::kText) return unsupported("a tensor's name is not a text");
      if (value.kind != Kind::kTensor)
        return unsupported(shown_name(name.text) + " is not a tensor");
      tensors.insert_or_assign(name.text, value.tensor);
    }
    return tensors;
  }

 private:
  using Kind = PickleValue::Kind;

  [[nodiscard]] Error corrupt(const std::string& reason) const {
    return torch_error(ErrorCode::kCorrupt, file_, "data.pkl: " + reason);
  }
  [[nodiscard]] Error unsupported(const std::string& reason) const {
    return torch_error(ErrorCode::kUnsupported, file_, "data.pkl: " + reason);
  }

  std::size_t add(PickleValue value) {
    values_.push_back(std::move(value));
    return values_.size() - 1;
  }
  void push(PickleValue value) { stack_.push_back(add(std::move(value))); }
  void push_number(std::int64_t number) { push({.kind = Kind::kNumber, .number = number}); }
  Result<std::size_t> pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      return corrupt("its stack is empty");
    const std::size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }
  /// Behind the last mark.
  Result<std::vector<std::size_t>> pop_to_mark() {
    if (marks_.empty()) return corrupt("the stack has no mark");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<std::size_t> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  Result<std::vector<std::size_t>> pop_items(std::size_t count) {
    std::vector<std::size_t> items(count);
    for (std::size_t i = count; i-- > 0;) {
      ASSIGN_OR_RETURN(items[i], pop());
    }
    return items;
  }

  Result<std::span<const std::byte>> take(std::uint64_t count) {
    if (count > pickle_.size() - at_) return corrupt("it is cut short");
    const std::span<const std::byte> bytes = pickle_.subspan(at_, count);
    at_ += count;
    return bytes;
  }
  template <class T>
  Result<T> take_number() {
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, take(sizeof(T)));
    return number_at<T>(bytes, 0);
  }
  Result<std::string> take_text(std::uint64_t size) {
    ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, take(size));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  Result<std::string> take_line() {
    const auto rest = pickle_.subspan(at_);
    const auto end = std::ranges::find(rest, std::byte{'\n'});
    if (end == rest.end()) return corrupt("a line is cut short");
    ASSIGN_OR_RETURN(std::string line, take_text(static_cast<std::uint64_t>(end - rest.begin())));
    ++at_;
    return line;
  }

  Result<void> push_text(std::uint64_t size) {
    ASSIGN_OR_RETURN(std::string text, take_text(size));
    push({.kind = Kind::kText, .text = std::move(text)});
    return {};
  }
  Result<void> push_tuple(std::size_t count) {
    ASSIGN_OR_RETURN(std::vector<std::size_t> items, pop_items(count));
    push({.kind = Kind::kTuple, .items = std::move(items)});
    return {};
  }
  Result<void> remember(std::uint64_t place) {
    if (stack_.empty()) return corrupt("its stack is empty");
    memo_[place] = stack_.back();
    return {};
  }
  Result<void> recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) return corrupt("nothing is remembered as " + std::to_string(place));
    stack_.push_back(found->second);
    return {};
  }
  /// Appends to the list, or dictionary, on top of the stack.
  Result<void> extend(Kind kind, const std::vector<std::size_t>& items) {
    if (stack_.empty() || values_[stack_.back()].kind != kind ||
        (kind == Kind::kDict && items.size() % 2 != 0))
      return corrupt("items are added to what holds none");
    std::vector<std::size_t>& all = values_[stack_.back()].items;
    all.insert(all.end(), items.begin(), items.end());
    return {};
  }

  Result<void> step(bool& is_done) {
    ASSIGN_OR_RETURN(const auto instruction, take_number<std::uint8_t>());
    switch (instruction) {
      case 0x80: {  // PROTO
        ASSIGN_OR_RETURN(const auto protocol, take_number<std::uint8_t>());
        if (protocol < 2 || protocol > 5)
          return unsupported("its protocol is " + std::to_string(protocol));
        return {};
      }
      case 0x95: {  // FRAME
        ASSIGN_OR_RETURN(const auto size, take_number<std::uint64_t>());
        static_cast<void>(size);
        return {};
      }
      case '.':
        is_done = true;
        return {};
      case '(':
        marks_.push_back(stack_.size());
        return {};
      case '}':
        push({.kind = Kind::kDict});
        return {};
      case ']':
        push({.kind = Kind::kList});
        return {};
      case ')':
        push({.kind = Kind::kTuple});
        return {};
      case 'N':
        push({});
        return {};
      case 0x88:
      case 0x89:
        push_number(instruction == 0x88 ? 1 : 0);
        return {};
      case 'K': {
        ASSIGN_OR_RETURN(const auto number, take_number<std::uint8_t>());
        push_number(number);
        return {};
      }
      case 'M': {
        ASSIGN_OR_RETURN(const auto number, take_number<std::uint16_t>());
        push_number(number);
        return {};
      }
      case 'J': {
        ASSIGN_OR_RETURN(const auto number, take_number<std::int32_t>());
        push_number(number);
        return {};
      }
      case 0x8a: {  // LONG1
        ASSIGN_OR_RETURN(const auto size, take_number<std::uint8_t>());
        ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, take(size));
        if (size > sizeof(std::int64_t)) return unsupported("a number is too large");
        const bool is_negative = size > 0 && (bytes.back() & std::byte{0x80}) != std::byte{0};
        std::int64_t number = is_negative ? -1 : 0;
        if (size > 0) std::memcpy(&number, bytes.data(), size);
        push_number(number);
        return {};
      }
      case 'G': {
        ASSIGN_OR_RETURN(const auto bits, take_number<std::uint64_t>());
        static_cast<void>(bits);
        push({.kind = Kind::kOther});
        return {};
      }
      case 'X': {
        ASSIGN_OR_RETURN(const auto size, take_number<std::uint32_t>());
        return push_text(size);
      }
      case 0x8c: {
        ASSIGN_OR_RETURN(const auto size, take_number<std::uint8_t>());
        return push_text(size);
      }
      case 'c': {
        ASSIGN_OR_RETURN(const std::string module, take_line());
        ASSIGN_OR_RETURN(const std::string name, take_line());
        push({.kind = Kind::kGlobal, .text = module + "." + name});
        return {};
      }
      case 0x93: {  // STACK_GLOBAL
        ASSIGN_OR_RETURN(const std::vector<std::size_t> names, pop_items(2));
        push(
            {.kind = Kind::kGlobal, .text = values_[names[0]].text + "." + values_[names[1]].text});
        return {};
      }
      case 'q': {
        ASSIGN_OR_RETURN(const auto place, take_number<std::uint8_t>());
        return remember(place);
      }
      case 'r': {
        ASSIGN_OR_RETURN(const auto place, take_number<std::uint32_t>());
        return remember(place);
      }
      case 0x94:
        return remember(memo_.size());
      case 'h': {
        ASSIGN_OR_RETURN(const auto place, take_number<std::uint8_t>());
        return recall(place);
      }
      case 'j': {
        ASSIGN_OR_RETURN(const auto place, take_number<std::uint32_t>());
        return recall(place);
      }
      case 't': {
        ASSIGN_OR_RETURN(std::vector<std::size_t> items, pop_to_mark());
        push({.kind = Kind::kTuple, .items = std::move(items)});
        return {};
      }
      case 0x85:
      case 0x86:
      case 0x87:
        return push_tuple(std::size_t{instruction} - 0x84);
      case 's': {
        ASSIGN_OR_RETURN(const std::vector<std::size_t> items, pop_items(2));
        return extend(Kind::kDict, items);
      }
      case 'u': {
        ASSIGN_OR_RETURN(const std::vector<std::size_t> items, pop_to_mark());
        return extend(Kind::kDict, items);
      }
      case 'a': {
        ASSIGN_OR_RETURN(const std::vector<std::size_t> items, pop_items(1));
        return extend(Kind::kList, items);
      }
      case 'e': {
        ASSIGN_OR_RETURN(const std::vector<std::size_t> items, pop_to_mark());
        return extend(Kind::kList, items);
      }
      case 'Q':
        return push_storage();
      case 'R':
        return call();
      case 'b': {  // BUILD: what a dictionary has beside its items
        RETURN_IF_ERROR(pop_items(1));
        if (stack_.empty() || values_[stack_.back()].kind != Kind::kDict)
          return unsupported("an object has a state");
        return {};
      }
      default:
        return unsupported("instruction " + std::to_string(instruction) + " at byte " +
                           std::to_string(at_ - 1));
    }
  }

  /// ("storage", torch.FloatStorage, key, device, number of elements).
  Result<void> push_storage() {
    ASSIGN_OR_RETURN(const std::size_t id, pop());
    const std::vector<std::size_t>& items = values_[id].items;
    constexpr std::string_view kTorch = "torch.";
    if (values_[id].kind != Kind::kTuple || items.size() != 5 ||
        values_[items[0]].text != "storage" || values_[items[1]].kind != Kind::kGlobal ||
        values_[items[2]].kind != Kind::kText || values_[items[4]].kind != Kind::kNumber)
      return corrupt("what it refers to is not a storage");
    const std::string& type_name = values_[items[1]].text;
    const std::optional<TensorType> type = type_name.starts_with(kTorch)
                                               ? storage_type(type_name.substr(kTorch.size()))
                                               : std::nullopt;
    if (!type) return unsupported("storages of type " + shown_name(type_name));
    const std::string& key = values_[items[2]].text;
    const auto entry = entries_.find(root_ + "data/" + key);
    if (entry == entries_.end()) return corrupt("no storage " + shown_name(key));
    const std::uint64_t element_bytes = static_cast<std::uint64_t>(type_block(*type).num_bytes);
    const std::int64_t count = values_[items[4]].number;
    if (count < 0 || static_cast<std::uint64_t>(count) > entry->second.size() / element_bytes)
      return corrupt("storage " + shown_name(key) + " has " + std::to_string(entry->second.size()) +
                     " bytes, fewer than its " + std::to_string(count) + " elements take");
    if (reinterpret_cast<std::uintptr_t>(entry->second.data()) % element_bytes != 0)
      return unsupported("storage " + shown_name(key) + " is not aligned to its element size");
    push({.kind = Kind::kStorage, .text = key, .tensor = {*type, {}, entry->second}});
    return {};
  }

  Result<void> call() {
    ASSIGN_OR_RETURN(const std::vector<std::size_t> both, pop_items(2));
    const PickleValue& what = values_[both[0]];
    const std::vector<std::size_t>& arguments = values_[both[1]].items;
    if (what.kind != Kind::kGlobal || values_[both[1]].kind != Kind::kTuple)
      return corrupt("it calls something other than a global");
    if (what.text == "collections.OrderedDict" && arguments.empty()) {
      push({.kind = Kind::kDict});
      return {};
    }
    if (what.text == "torch._utils._rebuild_tensor_v2" && arguments.size() >= 6)
      return push_tensor(arguments);
    if (what.text == "torch._utils._rebuild_parameter" && !arguments.empty() &&
        values_[arguments[0]].kind == Kind::kTensor) {
      stack_.push_back(arguments[0]);
      return {};
    }
    if (what.text == "torch.Size" && arguments.size() == 1 &&
        values_[arguments[0]].kind == Kind::kTuple) {
      stack_.push_back(arguments[0]);
      return {};
    }
    return unsupported("it calls " + shown_name(what.text) +
                       ", only dictionaries of tensors are read: a pickle can run any program");
  }

  Result<std::vector<std::int64_t>> numbers(std::size_t tuple) const {
    std::vector<std::int64_t> numbers;
    if (values_[tuple].kind != Kind::kTuple || values_[tuple].items.size() > kMaxTorchDimensions)
      return corrupt("a tensor's shape is not a list of numbers");
    for (const std::size_t item : values_[tuple].items) {
      if (values_[item].kind != Kind::kNumber || values_[item].number < 0)
        return corrupt("a tensor's shape is not a list of numbers");
      numbers.push_back(values_[item].number);
    }
    return numbers;
  }

  /// (storage, first element, shape, strides, requires_grad, hooks).
  Result<void> push_tensor(const std::vector<std::size_t>& arguments) {
    const PickleValue& storage = values_[arguments[0]];
    const PickleValue& first = values_[arguments[1]];
    if (storage.kind != Kind::kStorage || first.kind != Kind::kNumber || first.number < 0)
      return corrupt("a tensor has no storage");
    ASSIGN_OR_RETURN(std::vector<std::int64_t> shape, numbers(arguments[2]));
    ASSIGN_OR_RETURN(const std::vector<std::int64_t> strides, numbers(arguments[3]));
    if (strides.size() != shape.size()) return corrupt("a tensor's strides are not its shape's");
    std::int64_t count = 1;
    for (std::size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != count)
        return unsupported("the elements of a tensor of shape " + shape_text(shape) +
                           " do not follow each other");
      if (__builtin_mul_overflow(count, shape[i], &count)) return corrupt("a shape overflows");
    }
    const auto element_bytes =
        static_cast<std::uint64_t>(type_block(storage.tensor.type).num_bytes);
    const std::uint64_t available = storage.tensor.bytes.size() / element_bytes;
    const auto begin = static_cast<std::uint64_t>(first.number);
    const auto size = static_cast<std::uint64_t>(count);
    if (begin > available || size > available - begin)
      return corrupt("a tensor of shape " + shape_text(shape) + " does not lie in its storage " +
                     shown_name(storage.text));
    const std::span<const std::byte> bytes =
        storage.tensor.bytes.subspan(begin * element_bytes, size * element_bytes);
    push({.kind = Kind::kTensor, .tensor = {storage.tensor.type, std::move(shape), bytes}});
    return {};
  }

  std::span<const std::byte> pickle_;
  const ZipEntries& entries_;
  std::string root_;  ///< of the entries' names
  std::string_view file_;
  std::size_t at_ = 0;
  std::vector<PickleValue> values_;
  std::vector<std::size_t> stack_;  // in values_
  std::vector<std::size_t> marks_;  // in stack_
  std::map<std::uint64_t, std::size_t> memo_;
};

}  // namespace

Result<TensorMap> parse_torch_file(std::span<const std::byte> bytes, std::string_view file_name) {
  const std::string_view whole(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (const auto pointer = lfs_pointer_error(whole, file_name)) return *pointer;
  if (!whole.starts_with("PK"))
    return torch_error(ErrorCode::kUnsupported, file_name,
                       "not a ZIP archive, as torch.save writes it since version 1.6");
  ASSIGN_OR_RETURN(const ZipEntries entries, ZipReader(bytes, file_name).read());
  constexpr std::string_view kPickle = "data.pkl";
  const auto pickle = std::ranges::find_if(entries, [&](const auto& entry) {
    const std::string& name = entry.first;
    return name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size() - 1;
  });
  if (pickle == entries.end())
    return torch_error(ErrorCode::kCorrupt, file_name, "the archive has no data.pkl");
  if (pickle->second.size() > kMaxPickleBytes)
    return torch_error(ErrorCode::kTooLarge, file_name,
                       "data.pkl has " + std::to_string(pickle->second.size()) +
                           " bytes, at most " + std::to_string(kMaxPickleBytes) + " are read");
  std::string root = pickle->first.substr(0, pickle->first.size() - kPickle.size());
  if (const auto order = entries.find(root + "byteorder"); order != entries.end()) {
    const std::string_view text(reinterpret_cast<const char*>(order->second.data()),
                                order->second.size());
    if (text != "little")
      return torch_error(ErrorCode::kUnsupported, file_name,
                         "its numbers are in byte order " + shown_name(text));
  }
  return PickleReader(pickle->second, entries, std::move(root), file_name).read();
}

}  // namespace troupe
