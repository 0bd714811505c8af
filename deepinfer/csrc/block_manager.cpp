#include "block_manager.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace deepinfer {
namespace {

template <typename Error, typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    std::ostringstream message;
    (message << ... << parts);
    throw Error(message.str());
}

constexpr std::int64_t max_references = std::numeric_limits<std::int32_t>::max();

std::int64_t checked_count(std::int64_t num_blocks) {
    if (num_blocks < 1 || num_blocks > std::numeric_limits<std::int32_t>::max()) {
        fail<std::invalid_argument>("num_blocks must be between 1 and 2147483647 (block 0 is reserved), not ", num_blocks);
    }
    return num_blocks;
}

}  // namespace

BlockManager::BlockManager(std::int64_t num_blocks, double lock_timeout_s)
    : num_blocks_(checked_count(num_blocks)), lock_timeout_(lock_timeout_s), kept_(num_blocks) {
    if (!(lock_timeout_s > 0) || lock_timeout_s > 86400) {
        fail<std::invalid_argument>("lock_timeout_s must be above 0 and at most 86400 seconds, not ", lock_timeout_s);
    }
    references_.assign(static_cast<std::size_t>(num_blocks), 0);
    generations_.assign(references_.size(), 0);
    keeping_.assign(references_.size(), false);
    fill_free_list();
}

void BlockManager::fill_free_list() {
    free_.clear();
    for (std::int64_t block = 1; block < num_blocks_; ++block) {
        free_.push_back(static_cast<std::int32_t>(block));
    }
}

Allocation BlockManager::can_allocate(std::int64_t num_blocks) const {
    if (num_blocks >= num_blocks_) {
        return Allocation::never;
    }
    return num_blocks <= count_free() ? Allocation::ok : Allocation::later;
}

std::vector<std::int32_t> BlockManager::allocate_nolock(std::int64_t num_blocks) {
    if (num_blocks < 0) {
        fail<std::invalid_argument>("num_blocks must not be negative, not ", num_blocks);
    }
    const std::scoped_lock guard(state_);
    switch (can_allocate(num_blocks)) {
        case Allocation::never:
            fail<std::runtime_error>("cannot allocate ", num_blocks, " blocks: this manager can never hand out more than ",
                                     num_blocks_ - 1);
        case Allocation::later:
            fail<std::runtime_error>("cannot allocate ", num_blocks, " blocks: ", count_free(), " are free");
        case Allocation::ok:
            break;
    }
    const auto end = free_.begin() + std::min(num_blocks, static_cast<std::int64_t>(free_.size()));
    std::vector<std::int32_t> blocks(free_.begin(), end);
    blocks.reserve(static_cast<std::size_t>(num_blocks));
    free_.erase(free_.begin(), end);
    while (static_cast<std::int64_t>(blocks.size()) < num_blocks) {
        blocks.push_back(kept_.front());
        kept_.remove(kept_.front());
    }
    for (const auto block : blocks) {
        const auto place = static_cast<std::size_t>(block);
        references_[place] = 1;
        ++generations_[place];
        keeping_[place] = false;
    }
    return blocks;
}

void BlockManager::check_used(std::int64_t block_id, std::int64_t references) const {
    if (block_id < 1 || block_id >= num_blocks_) {
        fail<std::invalid_argument>("block ", block_id, " does not exist: ids are 1 to ", num_blocks_ - 1);
    }
    const std::int64_t held = references_[static_cast<std::size_t>(block_id)];
    if (held == 0) {
        fail<std::invalid_argument>("block ", block_id, " is not in use");
    }
    if (references > held) {
        fail<std::invalid_argument>("block ", block_id, " is listed ", references, " times and has ", held, " references");
    }
}

void BlockManager::pin_blocks(const std::vector<std::int64_t>& block_ids) {
    const Guard held(*this);
    const std::scoped_lock guard(state_);
    std::unordered_map<std::int64_t, std::int64_t> added;
    for (const auto block : block_ids) {
        check_used(block, 1);
        if (references_[static_cast<std::size_t>(block)] + ++added[block] > max_references) {
            fail<std::runtime_error>("block ", block, " has too many references");
        }
    }
    for (const auto block : block_ids) {
        ++references_[static_cast<std::size_t>(block)];
    }
}

void BlockManager::unpin_blocks(const std::vector<std::int64_t>& block_ids) {
    const Guard held(*this);
    const std::scoped_lock guard(state_);
    std::unordered_map<std::int64_t, std::int64_t> dropped;
    for (const auto block : block_ids) {
        check_used(block, ++dropped[block]);
    }
    for (auto block = block_ids.rbegin(); block != block_ids.rend(); ++block) {
        const auto place = static_cast<std::size_t>(*block);
        if (--references_[place] > 0) {
            continue;
        }
        if (keeping_[place]) {
            kept_.push_back(static_cast<std::int32_t>(*block));
        } else {
            free_.push_back(static_cast<std::int32_t>(*block));
        }
    }
}

void BlockManager::reset() {
    const Guard held(*this);
    const std::scoped_lock guard(state_);
    const auto used = num_blocks_ - 1 - count_free();
    if (used != 0) {
        fail<std::runtime_error>("cannot reset: ", used, " blocks are in use");
    }
    kept_.clear();
    keeping_.assign(keeping_.size(), false);
    fill_free_list();
}

std::int64_t BlockManager::get_num_free_blocks() const {
    const std::scoped_lock guard(state_);
    return count_free();
}

std::int64_t BlockManager::get_num_kept_blocks() const {
    const std::scoped_lock guard(state_);
    return static_cast<std::int64_t>(kept_.size());
}

std::int64_t BlockManager::count_free() const {
    return static_cast<std::int64_t>(free_.size() + kept_.size());
}

void BlockManager::check_in_use(std::int64_t block_id) const {
    const std::scoped_lock guard(state_);
    check_used(block_id, 1);
}

void BlockManager::check_room(const std::vector<std::int32_t>& block_ids) const {
    const std::scoped_lock guard(state_);
    for (const auto block : block_ids) {
        if (references_[static_cast<std::size_t>(block)] >= max_references) {
            fail<std::runtime_error>("block ", block, " has too many references");
        }
    }
}

Kept BlockManager::keep(std::int64_t block_id) {
    const std::scoped_lock guard(state_);
    check_used(block_id, 1);
    const auto place = static_cast<std::size_t>(block_id);
    keeping_[place] = true;
    return {static_cast<std::int32_t>(block_id), generations_[place]};
}

bool BlockManager::still_holds(const Kept& kept) const {
    const auto place = static_cast<std::size_t>(kept.id);
    return keeping_[place] && generations_[place] == kept.generation;
}

bool BlockManager::holds(const Kept& kept) const {
    const std::scoped_lock guard(state_);
    return still_holds(kept);
}

void BlockManager::take(const std::vector<std::int32_t>& block_ids) {
    check_room(block_ids);
    const std::scoped_lock guard(state_);
    for (const auto block : block_ids) {
        if (kept_.contains(block)) {
            kept_.remove(block);
        }
        ++references_[static_cast<std::size_t>(block)];
    }
}

void BlockManager::forget(const Kept& kept) {
    const std::scoped_lock guard(state_);
    if (!still_holds(kept)) {
        return;
    }
    keeping_[static_cast<std::size_t>(kept.id)] = false;
    if (kept_.contains(kept.id)) {
        kept_.remove(kept.id);
        free_.push_back(kept.id);
    }
}

void BlockManager::lock() {
    const auto me = std::this_thread::get_id();
    std::unique_lock guard(lock_state_);
    if (locked_ && owner_ == me) {
        fail<std::runtime_error>("this thread already holds the lock");
    }
    // wait_until on the steady clock: a step of the wall clock must neither end the wait nor prolong it.
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::steady_clock::duration>(lock_timeout_);
    if (!lock_released_.wait_until(guard, deadline, [this] { return !locked_; })) {
        fail<std::runtime_error>("the lock was not released within ", lock_timeout_.count(), " s");
    }
    locked_ = true;
    owner_ = me;
}

void BlockManager::unlock() {
    {
        const std::scoped_lock guard(lock_state_);
        if (!locked_) {
            fail<std::runtime_error>("the lock is not held");
        }
        if (owner_ != std::this_thread::get_id()) {
            fail<std::runtime_error>("another thread holds the lock");
        }
        locked_ = false;
        owner_ = std::thread::id();
    }
    lock_released_.notify_one();
}

}  // namespace deepinfer
