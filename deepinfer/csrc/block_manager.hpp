// Paged-cache block accounting: a FIFO free list and a reference count a block. No Python in here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace deepinfer {

// Whether a request for blocks can be met: now, after others were freed, or not by this manager at all.
enum class Allocation { ok, later, never };

// Hands out block ids 1 .. num_blocks-1; block 0 is the padding block and is never handed out.
//
// Two locks: `lock`/`unlock` is the long one, held by a caller over several operations and owned by a thread;
// `state_` guards the fields for the length of one operation, so that `allocate_nolock` and the counters stay
// memory-safe even for a caller that forgot the long one. Nothing here needs the GIL, and none of the functions
// that may wait may be called with it.
//
// Errors: std::invalid_argument for arguments that cannot be right, std::runtime_error for a state that forbids it.
class BlockManager {
public:
    static constexpr double default_lock_timeout_s = 20.0;

    explicit BlockManager(std::int64_t num_blocks, double lock_timeout_s = default_lock_timeout_s);

    // Pops `num_blocks` ids from the front of the free list, each with one reference. The caller holds the lock.
    std::vector<std::int32_t> allocate_nolock(std::int64_t num_blocks);
    // Adds a reference to each listed block, once for every time it is listed. All of them or none.
    void pin_blocks(const std::vector<std::int64_t>& block_ids);
    // Drops a reference of each listed block, back to front; those that reach zero join the end of the free list.
    void unpin_blocks(const std::vector<std::int64_t>& block_ids);
    // Back to the initial order 1, 2, ...; legal only while every block is free.
    void reset();
    std::int64_t get_num_free_blocks() const;

    void lock();
    void unlock();

private:
    Allocation can_allocate(std::int64_t num_blocks) const;
    void check_used(std::int64_t block_id, std::int64_t references) const;
    void fill_free_list();

    const std::int64_t num_blocks_;
    const std::chrono::duration<double> lock_timeout_;

    mutable std::mutex state_;
    std::deque<std::int32_t> free_;
    std::vector<std::int32_t> references_;

    std::mutex lock_state_;
    std::condition_variable lock_released_;
    bool locked_ = false;
    std::thread::id owner_;
};

}  // namespace deepinfer
