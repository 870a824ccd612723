#include "runtime/kv_transfer/piece_files.hpp"

#include <optional>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/kv_transfer/model_identity.hpp"

namespace troupe {
namespace {

PieceFiles::Loaded read_piece(BlockStore& store, const BlockOrigin& origin, bool is_narrow,
                              const PieceFiles::Load& load) {
  const auto blob = store.load(load.key);
  auto piece = blob.ok() ? KeptPiece::unpack(**blob, origin, load.key, is_narrow)
                         : Result<std::shared_ptr<KeptPiece>>(blob.error());
  if (piece.ok()) return {load, std::move(*piece)};
  log_warning("a piece of a prompt could not be loaded", kv("place", store.place_of(load.key)),
              kv("reason", piece.error().message));
  store.remove(load.key);
  return {load, nullptr};
}

}  // namespace

PieceFiles::PieceFiles(std::unique_ptr<BlockStore> store, const BlockOrigin& origin, bool is_narrow,
                       std::chrono::milliseconds load_timeout)
    : load_timeout_(load_timeout),
      thread_(
          [store = std::shared_ptr<BlockStore>(std::move(store)), origin,
           is_narrow](Job& job) -> std::optional<Loaded> {
            if (const auto* const load = std::get_if<Load>(&job))
              return read_piece(*store, origin, is_narrow, *load);
            if (const auto* const save = std::get_if<Save>(&job)) {
              const auto saved = store->save(save->key, save->piece->pack(origin, save->key.hash));
              if (!saved.ok())
                log_warning("a piece of a prompt could not be saved",
                            kv("reason", saved.error().message));
            } else if (const auto* const removal = std::get_if<Removal>(&job)) {
              store->remove(removal->key);
            } else {
              store->clear();
            }
            return std::nullopt;
          },
          [](const Job& job) { return std::holds_alternative<Load>(job); }) {}

void PieceFiles::load(const Load& load) {
  open_loads_.add(load, load_timeout_);
  thread_.add(load);
}

void PieceFiles::save(const StoreKey& key, std::shared_ptr<const KeptPiece> piece) {
  const std::size_t num_bytes = piece->num_bytes();
  thread_.add(Save{key, std::move(piece)}, num_bytes);
}

void PieceFiles::remove(const StoreKey& key) { thread_.add(Removal{key}); }

void PieceFiles::clear() { thread_.add(Clearing{}); }

std::vector<PieceFiles::Loaded> PieceFiles::take_loaded() {
  std::vector<Loaded> all = thread_.take_done();
  std::erase_if(all,
                [this](const Loaded& loaded) { return !open_loads_.remove(loaded.load.number); });
  for (Load& late : open_loads_.take_late(thread_.hangs(load_timeout_))) {
    log_warning("a piece of a prompt is not there in time", kv("limit_ms", load_timeout_.count()));
    all.push_back({std::move(late), nullptr});
  }
  return all;
}

std::string piece_folder(const std::string& path, const std::string& model_identity,
                         const KVCacheConfig& cache, const ParallelConfig& parallel) {
  return path + "/" + origin_folder(model_identity, cache, parallel) + "_pieces";
}

}  // namespace troupe
