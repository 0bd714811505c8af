// Chained hashes of blocks of tokens, and which block and state slot is known under them. No Python in here.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "blake2b.hpp"
#include "block_manager.hpp"

namespace deepinfer {

constexpr std::int64_t block_tokens = 128;

// What else the tokens from `index` on depend on, such as an image.
struct Mark {
    std::int64_t index;
    std::string content;
};

// The hash of every whole block of 128 tokens, each over the one before it, its ids and its marks; what exactly is
// hashed is said in deepinfer/_python/prefix_index.py. Marks' indices ascend and are below `count`.
std::vector<Digest> hash_blocks(const std::int32_t* token_ids, std::int64_t count, const Digest& parent,
                                const std::vector<Mark>& marks);

// Owns no reference: what it knows is free once its users have dropped it, and is forgotten when its manager hands it
// out again. `match` and `insert` take both managers' locks, the slots' first; a call that throws has changed nothing.
class PrefixIndex {
public:
    // Both must outlive the index.
    PrefixIndex(BlockManager& blocks, BlockManager& slots);

    // Blocks of the longest beginning, at most `max_blocks` long, that is known whole and ends with a snapshot, and the
    // snapshot's slot, each with one reference more; none and 0 where there is no such beginning.
    std::pair<std::vector<std::int32_t>, std::int32_t> match(const std::vector<Digest>& hashes,
                                                             std::int64_t max_blocks);
    // Knows a block in use by its hash, and with `slot` (not 0) a slot in use. Where another block is known by the hash
    // that one stays, and may get the slot. Whether `block` is the one that is known.
    bool insert(const Digest& hash, std::int64_t block, std::int64_t slot);
    void clear();

private:
    struct Node {
        Kept block;
        Kept slot;  // id 0: no snapshot
    };
    // A digest is as good a hash as any.
    struct FirstBytes {
        std::size_t operator()(const Digest& digest) const noexcept;
    };
    using HashOf = std::unordered_map<std::int32_t, Digest>;

    Node* find(const Digest& hash);
    const Digest* key_of(std::int64_t place, const HashOf& hashes);
    static void unlink(std::int32_t place, const Digest& hash, HashOf& hashes);

    BlockManager& blocks_;
    BlockManager& slots_;
    std::unordered_map<Digest, Node, FirstBytes> nodes_;
    HashOf hash_of_block_;
    HashOf hash_of_slot_;
};

}  // namespace deepinfer
