// BLAKE2b (RFC 7693) with digests of 32 bytes and a personalisation, no key. No Python in here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace deepinfer {

using Digest = std::array<std::uint8_t, 32>;

class Blake2b {
public:
    // `person` has at most 16 bytes; zeros follow it.
    explicit Blake2b(std::string_view person);

    void update(const void* data, std::size_t size);
    Digest finish();

private:
    static constexpr std::size_t block_bytes = 128;

    void compress(bool last);

    std::array<std::uint64_t, 8> state_;
    std::array<std::uint8_t, block_bytes> block_{};
    std::size_t filled_ = 0;
    std::uint64_t length_ = 0;
};

}  // namespace deepinfer
