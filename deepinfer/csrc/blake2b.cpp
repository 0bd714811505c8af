#include "blake2b.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace deepinfer {
namespace {

static_assert(std::endian::native == std::endian::little, "words are loaded as they lie");

constexpr std::array<std::uint64_t, 8> initial = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

constexpr int rounds = 12;

// The order in which a round takes the message's words; rounds 10 and 11 are 0 and 1 again.
constexpr std::uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

void mix(std::uint64_t& a, std::uint64_t& b, std::uint64_t& c, std::uint64_t& d, std::uint64_t x, std::uint64_t y) {
    a += b + x;
    d = std::rotr(d ^ a, 32);
    c += d;
    b = std::rotr(b ^ c, 24);
    a += b + y;
    d = std::rotr(d ^ a, 16);
    c += d;
    b = std::rotr(b ^ c, 63);
}

}  // namespace

Blake2b::Blake2b(std::string_view person) : state_(initial) {
    // The parameter block: digest length, no key, fanout and depth 1; its last 16 bytes are the personalisation.
    state_[0] ^= 0x01010000 ^ sizeof(Digest);
    std::array<std::uint64_t, 2> words{};
    std::memcpy(words.data(), person.data(), std::min(person.size(), sizeof(words)));
    state_[6] ^= words[0];
    state_[7] ^= words[1];
}

void Blake2b::update(const void* data, std::size_t size) {
    const auto* next = static_cast<const std::uint8_t*>(data);
    while (size > 0) {
        if (filled_ == block_bytes) {  // only now is it known that this block is not the last one
            compress(false);
        }
        const auto taken = std::min(size, block_bytes - filled_);
        std::memcpy(block_.data() + filled_, next, taken);
        filled_ += taken;
        length_ += taken;
        next += taken;
        size -= taken;
    }
}

Digest Blake2b::finish() {
    std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::uint8_t{0});
    compress(true);
    Digest digest;
    std::memcpy(digest.data(), state_.data(), digest.size());
    return digest;
}

void Blake2b::compress(bool last) {
    std::array<std::uint64_t, 16> m;
    std::memcpy(m.data(), block_.data(), block_bytes);
    std::array<std::uint64_t, 16> v;
    std::copy(state_.begin(), state_.end(), v.begin());
    std::copy(initial.begin(), initial.end(), v.begin() + 8);
    v[12] ^= length_;
    v[14] ^= last ? ~std::uint64_t{0} : 0;
    for (int round = 0; round < rounds; ++round) {
        const auto& s = sigma[round % 10];
        for (int i = 0; i < 4; ++i) {
            mix(v[i], v[4 + i], v[8 + i], v[12 + i], m[s[2 * i]], m[s[2 * i + 1]]);
        }
        for (int i = 0; i < 4; ++i) {
            mix(v[i], v[4 + (i + 1) % 4], v[8 + (i + 2) % 4], v[12 + (i + 3) % 4], m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
        }
    }
    for (std::size_t i = 0; i < state_.size(); ++i) {
        state_[i] ^= v[i] ^ v[i + 8];
    }
    filled_ = 0;
}

}  // namespace deepinfer
