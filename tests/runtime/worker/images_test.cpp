// Prompts with images through a worker: the same bits alone, in batches, in chunks, behind shared
// prefixes, after preemptions, and with few rows for the encoder's outputs.

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "tests/support/replay_vision.hpp"

namespace troupe {
namespace {

const std::string kModel = TROUPE_GOLDEN_DIR "/models/models/gemma3";

std::vector<DriverJob> image_jobs() {
  std::vector<DriverJob> jobs;
  const ImagePrompts prompts(kModel, TROUPE_GOLDEN_DIR "/models/goldens/gemma3");
  for (const ImagePrompt& one : prompts.all()) jobs.push_back(one.job);
  // Another image behind the same tokens.
  jobs.push_back(jobs.front());
  jobs.back().items.front() = jobs[2].items.front();
  jobs.back().items.front().offset = jobs.front().items.front().offset;
  return jobs;
}

BOOST_AUTO_TEST_CASE(images_have_the_same_bits_whatever_the_schedule) {
  const std::vector<DriverJob> jobs = image_jobs();
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const DriverModelOptions options{.folder = kModel, .dtype = dtype};
    DrivenRunner first = load_driven_runner(options);
    const std::vector<DriverResult> alone = drive(first, jobs, {.max_running = 1});
    BOOST_TEST((alone.front() != alone.back()));
    const auto check = [&](const std::string& what, const DriverSchedule& schedule) {
      DrivenRunner runner = load_driven_runner(options);
      BOOST_TEST((drive(runner, jobs, schedule) == alone), what << ", " << dtype);
    };
    check("all at once", {});
    check("chunks of 9", {.token_budget = 9, .max_running = 3});
    check("preemptions", {.token_budget = 40, .preempt_every = 3});
  }
}

}  // namespace
}  // namespace troupe
