// Paged-cache block accounting: a FIFO free list and a reference count a block. No Python in here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "recency_list.hpp"

namespace deepinfer {

// Whether a request for blocks can be met: now, after others were freed, or not by this manager at all.
enum class Allocation { ok, later, never };

// A block, and how often it had been handed out when what it holds was kept.
struct Kept {
    std::int32_t id = 0;
    std::uint64_t generation = 0;
};

// Hands out block ids 1 .. num_blocks-1; block 0 is the padding block and is never handed out.
//
// Two locks: `lock`/`unlock` is the long one, held by a caller over several operations and owned by a thread;
// `state_` guards the fields for the length of one operation, so that `allocate_nolock` and the counters stay
// memory-safe even for a caller that forgot the long one. Nothing here needs the GIL, and none of the functions
// that may wait may be called with it.
//
// What a block holds may be worth keeping (PrefixIndex says so). Such a block is free like any other once its last
// reference is dropped, but is handed out only after those that hold nothing, the longest dropped first; until then it
// can be taken back as it is.
//
// Errors: std::invalid_argument for arguments that cannot be right, std::runtime_error for a state that forbids it.
class BlockManager {
public:
    static constexpr double default_lock_timeout_s = 20.0;

    // Holds the long lock while it lives.
    class Guard {
    public:
        explicit Guard(BlockManager& manager) : manager_(manager) { manager_.lock(); }
        ~Guard() { manager_.unlock(); }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

    private:
        BlockManager& manager_;
    };

    explicit BlockManager(std::int64_t num_blocks, double lock_timeout_s = default_lock_timeout_s);

    // Pops `num_blocks` ids from the front of the free list, each with one reference; kept ones only where no others
    // are left. The caller holds the lock.
    std::vector<std::int32_t> allocate_nolock(std::int64_t num_blocks);
    // Adds a reference to each listed block, once for every time it is listed. All of them or none.
    void pin_blocks(const std::vector<std::int64_t>& block_ids);
    // Drops a reference of each listed block, back to front; those that reach zero join the end of the free list, or
    // of the kept ones.
    void unpin_blocks(const std::vector<std::int64_t>& block_ids);
    // Back to the initial order 1, 2, ..., and nothing is kept; legal only while every block is free.
    void reset();
    // Blocks that can be allocated, kept ones included.
    std::int64_t get_num_free_blocks() const;
    // Free blocks that hold what is kept.
    std::int64_t get_num_kept_blocks() const;

    void lock();
    void unlock();

    // For PrefixIndex, which holds the lock.
    // Throws unless the block is in use.
    void check_in_use(std::int64_t block_id) const;
    // Throws unless each of these blocks can have one reference more.
    void check_room(const std::vector<std::int32_t>& block_ids) const;
    // Keeps what a block in use holds, from its last reference on until it is handed out again.
    Kept keep(std::int64_t block_id);
    // Whether the block still holds what was kept then.
    bool holds(const Kept& kept) const;
    // Adds a reference to each of these kept blocks, in use or not.
    void take(const std::vector<std::int32_t>& block_ids);
    // No longer keeps it; a free one joins the end of the free list. Nothing where it is not held any more.
    void forget(const Kept& kept);

private:
    Allocation can_allocate(std::int64_t num_blocks) const;
    void check_used(std::int64_t block_id, std::int64_t references) const;
    void fill_free_list();
    std::int64_t count_free() const;
    bool still_holds(const Kept& kept) const;

    const std::int64_t num_blocks_;
    const std::chrono::duration<double> lock_timeout_;

    mutable std::mutex state_;
    std::deque<std::int32_t> free_;
    RecencyList kept_;  // free blocks whose content is kept, the longest free first
    std::vector<std::int32_t> references_;
    std::vector<std::uint64_t> generations_;  // how often each block was handed out
    std::vector<bool> keeping_;               // whether a block's content is kept, in use or not

    std::mutex lock_state_;
    std::condition_variable lock_released_;
    bool locked_ = false;
    std::thread::id owner_;
};

}  // namespace deepinfer
