// What the sampler's kernels are given, from what is known of the sequences of a step. No Python in here.
// What each field is and what is refused is said in deepinfer/_python/sequences.py and sampler_inputs.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace deepinfer {

struct SequenceData {
    std::vector<std::int32_t> tokens;
    std::int64_t prompt_len = 0;

    std::int64_t len() const { return static_cast<std::int64_t>(tokens.size()); }
};

struct SamplingValues {
    double temperature = 1.0;
    double top_p = 1.0;
    std::int32_t top_k = -1;
    std::uint64_t seq_seed = 0;
    std::int32_t top_logprobs = 0;
    bool prompt_logprobs = false;
    std::int32_t first_n_token_no_eos = 0;
    std::int32_t eos_id = -1;
    bool ignore_eos = false;

    // Refuses what cannot be, and puts what is greedy or too hot into the kernels' terms.
    void settle();
};

struct SequenceMetadata {
    std::shared_ptr<SequenceData> seq_data;
    std::shared_ptr<SamplingValues> sampling_params;
    std::vector<std::int32_t> golden_token_ids;
    bool is_prompt = false;
    std::int32_t seqlen_q = 1;
    std::int32_t seqlen_k = 1;
    std::int32_t mtp_info_read_slot = 0;
    std::int32_t mtp_info_write_slot = 0;

    std::int64_t begin() const { return seqlen_k - seqlen_q; }
};

enum class YocoMode { off, mask, compact };

using Column = std::vector<std::int32_t>;

struct PrefillInputs {
    Column prompt_rows;
    Column prompt_tokens;
    Column prompt_logprobs_lens;
    Column eos_suppression_rows;
    Column eos_token_ids;
};

struct DraftInputs {
    Column mtp_info_read_rows;
    Column mtp_info_write_slots;
    Column stop_token_ids;  // two a sequence
};

struct DecodeInputs {
    Column mtp_first_token_positions;
    Column mtp_seqlens_q;
    std::optional<DraftInputs> drafts;
};

struct SamplerInputs {
    Column selected_token_indices;
    std::vector<float> temperatures;
    std::vector<float> top_ps;
    Column top_ks;
    std::vector<std::uint64_t> seq_seeds;
    Column sample_positions;
    std::int32_t max_top_logprobs = 0;
    std::optional<Column> golden_output;
    std::optional<PrefillInputs> prefill;
    std::optional<DecodeInputs> decode;
};

// Throws std::invalid_argument for a step that cannot be.
SamplerInputs prepare_sampler_inputs(const std::vector<const SequenceMetadata*>& metas, std::int64_t max_mtp_tokens,
                                     YocoMode yoco_mode, std::int64_t keep);

}  // namespace deepinfer
