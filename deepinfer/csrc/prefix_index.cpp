#include "prefix_index.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace deepinfer {
namespace {

void update_word(Blake2b& hash, std::size_t value) {
    const auto word = static_cast<std::uint32_t>(value);
    hash.update(&word, sizeof(word));
}

class BothLocked {
public:
    BothLocked(BlockManager& slots, BlockManager& blocks) : slots_(slots), blocks_(blocks) {}

private:
    BlockManager::Guard slots_;
    BlockManager::Guard blocks_;
};

void check_free_of_other(const Digest* known, const Digest& hash, const char* what, std::int64_t place) {
    if (known != nullptr && *known != hash) {
        throw std::invalid_argument(std::string(what) + " " + std::to_string(place) + " is known by another hash");
    }
}

}  // namespace

std::vector<Digest> hash_blocks(const std::int32_t* token_ids, std::int64_t count, const Digest& parent,
                                const std::vector<Mark>& marks) {
    std::vector<Digest> hashes;
    hashes.reserve(static_cast<std::size_t>(count / block_tokens));
    auto mark = marks.begin();
    const Digest* before = &parent;
    for (std::int64_t begin = 0; begin + block_tokens <= count; begin += block_tokens) {
        Blake2b hash("deepinfer-prefix");
        hash.update(before->data(), before->size());
        hash.update(token_ids + begin, static_cast<std::size_t>(block_tokens) * sizeof(std::int32_t));
        for (; mark != marks.end() && mark->index < begin + block_tokens; ++mark) {
            update_word(hash, static_cast<std::size_t>(mark->index - begin));
            update_word(hash, mark->content.size());
            hash.update(mark->content.data(), mark->content.size());
        }
        before = &hashes.emplace_back(hash.finish());
    }
    return hashes;
}

std::size_t PrefixIndex::FirstBytes::operator()(const Digest& digest) const noexcept {
    std::size_t value = 0;
    std::memcpy(&value, digest.data(), sizeof(value));
    return value;
}

PrefixIndex::PrefixIndex(BlockManager& blocks, BlockManager& slots) : blocks_(blocks), slots_(slots) {
    if (&blocks == &slots) {
        throw std::invalid_argument("blocks and slots must have a manager each");
    }
}

std::pair<std::vector<std::int32_t>, std::int32_t> PrefixIndex::match(const std::vector<Digest>& hashes,
                                                                      std::int64_t max_blocks) {
    if (max_blocks < 0) {
        throw std::invalid_argument("max_blocks must not be negative, not " + std::to_string(max_blocks));
    }
    const BothLocked guard(slots_, blocks_);
    std::vector<std::int32_t> blocks;
    std::size_t length = 0;
    std::int32_t slot = 0;
    for (const auto& hash : hashes) {
        const Node* node = static_cast<std::int64_t>(blocks.size()) < max_blocks ? find(hash) : nullptr;
        if (node == nullptr) {
            break;
        }
        blocks.push_back(node->block.id);
        if (node->slot.id != 0) {
            length = blocks.size();
            slot = node->slot.id;
        }
    }
    blocks.resize(length);
    if (slot != 0) {
        slots_.check_room({slot});
        blocks_.take(blocks);
        slots_.take({slot});
    }
    return {std::move(blocks), slot};
}

bool PrefixIndex::insert(const Digest& hash, std::int64_t block, std::int64_t slot) {
    const BothLocked guard(slots_, blocks_);
    blocks_.check_in_use(block);
    check_free_of_other(key_of(block, hash_of_block_), hash, "block", block);
    if (slot != 0) {
        slots_.check_in_use(slot);
        check_free_of_other(key_of(slot, hash_of_slot_), hash, "slot", slot);
    }
    Node* node = find(hash);
    if (node == nullptr) {
        node = &nodes_.insert_or_assign(hash, Node{blocks_.keep(block), Kept{}}).first->second;
        hash_of_block_.insert_or_assign(node->block.id, hash);
    }
    if (slot != 0 && node->slot.id == 0) {
        node->slot = slots_.keep(slot);
        hash_of_slot_.insert_or_assign(node->slot.id, hash);
    }
    return node->block.id == block;
}

void PrefixIndex::clear() {
    const BothLocked guard(slots_, blocks_);
    // In the order of the blocks: that of the map is no order, and what is forgotten joins the free lists in this one.
    std::vector<const Node*> known;
    known.reserve(nodes_.size());
    for (const auto& [hash, node] : nodes_) {
        known.push_back(&node);
    }
    const auto place = [](const Node* node) { return std::pair(node->block.id, node->block.generation); };
    std::ranges::sort(known, {}, place);
    for (const Node* node : known) {
        blocks_.forget(node->block);
        slots_.forget(node->slot);
    }
    nodes_.clear();
    hash_of_block_.clear();
    hash_of_slot_.clear();
}

// The node of a hash, after what its managers handed out again has been struck off.
PrefixIndex::Node* PrefixIndex::find(const Digest& hash) {
    const auto found = nodes_.find(hash);
    if (found == nodes_.end()) {
        return nullptr;
    }
    Node& node = found->second;
    if (node.slot.id != 0 && !slots_.holds(node.slot)) {
        unlink(node.slot.id, hash, hash_of_slot_);
        node.slot = Kept{};
    }
    if (blocks_.holds(node.block)) {
        return &node;
    }
    if (node.slot.id != 0) {
        slots_.forget(node.slot);
        unlink(node.slot.id, hash, hash_of_slot_);
    }
    unlink(node.block.id, hash, hash_of_block_);
    nodes_.erase(found);
    return nullptr;
}

// The hash by which a block or slot is known now.
const Digest* PrefixIndex::key_of(std::int64_t place, const HashOf& hashes) {
    const auto id = static_cast<std::int32_t>(place);
    if (const auto known = hashes.find(id); known != hashes.end()) {
        const Digest hash = known->second;  // `find` may strike the entry off
        find(hash);
    }
    const auto known = hashes.find(id);
    return known == hashes.end() ? nullptr : &known->second;
}

void PrefixIndex::unlink(std::int32_t place, const Digest& hash, HashOf& hashes) {
    if (const auto known = hashes.find(place); known != hashes.end() && known->second == hash) {
        hashes.erase(known);
    }
}

}  // namespace deepinfer
