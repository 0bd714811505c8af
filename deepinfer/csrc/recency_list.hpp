// Ids 1 .. n-1 in the order of their last use, each in the list at most once; every operation takes constant time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace deepinfer {

class RecencyList {
public:
    explicit RecencyList(std::int64_t ids) : links_(static_cast<std::size_t>(ids)) { clear(); }

    std::size_t size() const { return size_; }
    bool contains(std::int32_t id) const { return link(id).next != none; }
    std::int32_t front() const { return link(head).next; }

    void push_back(std::int32_t id) {
        const auto last = link(head).previous;
        link(id) = {last, head};
        link(last).next = id;
        link(head).previous = id;
        ++size_;
    }
    void remove(std::int32_t id) {
        const auto [previous, next] = link(id);
        link(previous).next = next;
        link(next).previous = previous;
        link(id) = {none, none};
        --size_;
    }
    void clear() {
        links_.assign(links_.size(), {none, none});
        links_[head] = {head, head};
        size_ = 0;
    }

private:
    static constexpr std::int32_t head = 0;  // id 0 is nobody's: it closes the ring
    static constexpr std::int32_t none = -1;
    struct Link {
        std::int32_t previous;
        std::int32_t next;
    };

    Link& link(std::int32_t id) { return links_[static_cast<std::size_t>(id)]; }
    const Link& link(std::int32_t id) const { return links_[static_cast<std::size_t>(id)]; }

    std::vector<Link> links_;
    std::size_t size_ = 0;
};

}  // namespace deepinfer
