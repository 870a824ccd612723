#pragma once
// Random texts that reach the corners of tokenizers: many scripts, odd spaces, contractions, marks.

#include <random>
#include <string>

#include "runtime/tokenizer/unicode.hpp"

namespace troupe::testing {

inline char32_t random_character(std::mt19937& random) {
  struct Block {
    char32_t first;
    char32_t last;
  };
  static constexpr Block kBlocks[] = {
      {' ', ' '},       {'\n', '\n'},       {'\r', '\r'},       {'\t', '\t'},
      {'\'', '\''},     {'a', 'z'},         {'a', 'z'},         {'A', 'Z'},
      {'0', '9'},       {0x21, 0x2F},       {0x3A, 0x40},       {0, 0x7F},
      {0x80, 0xFF},     {0x100, 0x24F},     {0x2B0, 0x2FF},     {0x300, 0x36F},
      {0x370, 0x4FF},   {0x590, 0x6FF},     {0x900, 0xD7F},     {0x1100, 0x11FF},
      {0x1E00, 0x1FFF}, {0x2000, 0x206F},   {0x2100, 0x218F},   {0x2460, 0x24FF},
      {0x3000, 0x30FF}, {0x4E00, 0x4E7F},   {0xAC00, 0xAC7F},   {0xFB00, 0xFB4F},
      {0xFF00, 0xFFEF}, {0x1D400, 0x1D7FF}, {0x1F100, 0x1F1FF}, {0x1F300, 0x1F64F},
  };
  constexpr std::size_t kNumBlocks = sizeof kBlocks / sizeof kBlocks[0];
  const Block block = kBlocks[random() % kNumBlocks];
  return block.first + static_cast<char32_t>(random() % (block.last - block.first + 1));
}

inline std::string random_text(std::mt19937& random, std::size_t max_characters) {
  static constexpr const char* kFragments[] = {
      "  ",   "\n\n",    " \n ", "'s",     "'LL",    "'\u017F",
      "I've", " 123456", "_",    "\u2581", "\u3000", "//\n",
  };
  constexpr std::size_t kNumFragments = sizeof kFragments / sizeof kFragments[0];
  std::string text;
  const std::size_t num_characters = random() % (max_characters + 1);
  for (std::size_t i = 0; i < num_characters; ++i) {
    if (random() % 6 == 0) text += kFragments[random() % kNumFragments];
    unicode::append(text, random_character(random));
  }
  return text;
}

}  // namespace troupe::testing
