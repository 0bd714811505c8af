#include "sampler_inputs.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace deepinfer {
namespace {

constexpr double lowest_temperature = 1e-5;
constexpr double highest_temperature = 1e30;
constexpr std::int64_t max_int32 = std::numeric_limits<std::int32_t>::max();

using Metas = std::vector<const SequenceMetadata*>;

std::int32_t narrow(std::int64_t value) { return static_cast<std::int32_t>(value); }

void check(const Metas& metas, std::int64_t drafts) {
    if (metas.empty()) {
        throw std::invalid_argument("metas must not be empty");
    }
    const bool is_prompt = metas.front()->is_prompt;
    for (const auto* meta : metas) {
        if (meta->is_prompt != is_prompt) {
            throw std::invalid_argument("metas must be all in prefill or all in decode");
        }
        if (is_prompt && meta->seqlen_k > meta->seq_data->len()) {
            throw std::invalid_argument("seqlen_k (" + std::to_string(meta->seqlen_k) + ") is beyond the sequence's " +
                                        std::to_string(meta->seq_data->len()) + " tokens");
        }
        if (!is_prompt && meta->seqlen_q > drafts + 1) {
            throw std::invalid_argument("seqlen_q (" + std::to_string(meta->seqlen_q) +
                                        ") is more than max_mtp_tokens + 1 (" + std::to_string(drafts + 1) + ")");
        }
    }
}

void add_values(const Metas& metas, SamplerInputs& inputs) {
    for (const auto* meta : metas) {
        const auto& params = *meta->sampling_params;
        inputs.temperatures.push_back(static_cast<float>(params.temperature));
        inputs.top_ps.push_back(static_cast<float>(params.top_p));
        inputs.top_ks.push_back(params.top_k);
        inputs.seq_seeds.push_back(params.seq_seed);
        inputs.max_top_logprobs = std::max(inputs.max_top_logprobs, params.top_logprobs);
    }
}

void add_prefill(const Metas& metas, YocoMode mode, std::int64_t keep, SamplerInputs& inputs) {
    auto& prefill = inputs.prefill.emplace();
    std::int64_t base = 0;
    for (std::size_t place = 0; place < metas.size(); ++place) {
        const auto& meta = *metas[place];
        const auto& data = *meta.seq_data;
        const auto& params = *meta.sampling_params;
        const std::int64_t rows = meta.seqlen_q;
        const auto clip =
            mode == YocoMode::compact ? std::clamp<std::int64_t>(data.len() - keep - meta.begin(), 0, rows - 1) : 0;
        if (base + rows - clip > max_int32) {
            throw std::invalid_argument("the step has more rows than fit 32 bits");
        }
        inputs.selected_token_indices.push_back(narrow(base + rows - clip - 1));
        inputs.sample_positions.push_back(meta.seqlen_k);
        // Tokens that follow rows of the chunk: those of the prompt, which ends where a recomputed sequence goes on.
        const bool wanted = params.prompt_logprobs && mode == YocoMode::off;
        const auto told = wanted ? std::clamp<std::int64_t>(data.prompt_len - 1 - meta.begin(), 0, rows) : 0;
        prefill.prompt_logprobs_lens.push_back(narrow(told));
        for (std::int64_t row = 0; row < told; ++row) {
            prefill.prompt_rows.push_back(narrow(base + row));
            prefill.prompt_tokens.push_back(data.tokens[static_cast<std::size_t>(meta.begin() + 1 + row)]);
        }
        if (params.first_n_token_no_eos == 1 && params.eos_id >= 0 && meta.seqlen_k == data.len()) {
            prefill.eos_suppression_rows.push_back(narrow(static_cast<std::int64_t>(place)));
            prefill.eos_token_ids.push_back(params.eos_id);
        }
        base += rows - clip;
    }
}

void add_drafts(const Metas& metas, std::int64_t drafts, DecodeInputs& decode) {
    auto& inputs = decode.drafts.emplace();
    for (const auto* meta : metas) {
        for (std::int64_t step = 0; step + 1 < meta->seqlen_q; ++step) {
            const auto row = meta->mtp_info_read_slot * drafts + step;
            if (row > max_int32) {
                throw std::invalid_argument("the step reads draft " + std::to_string(row) + ", more than fits 32 bits");
            }
            inputs.mtp_info_read_rows.push_back(narrow(row));
        }
        inputs.mtp_info_read_rows.push_back(0);
        inputs.mtp_info_write_slots.push_back(meta->mtp_info_write_slot);
        const auto& params = *meta->sampling_params;
        inputs.stop_token_ids.insert(inputs.stop_token_ids.end(), {params.ignore_eos ? -1 : params.eos_id, -1});
    }
}

void add_decode(const Metas& metas, std::int64_t drafts, SamplerInputs& inputs) {
    auto& decode = inputs.decode.emplace();
    std::int64_t total = 0;
    for (const auto* meta : metas) {
        if (total + meta->seqlen_q > max_int32) {
            throw std::invalid_argument("the step has more rows than fit 32 bits");
        }
        decode.mtp_first_token_positions.push_back(narrow(total));
        decode.mtp_seqlens_q.push_back(meta->seqlen_q);
        inputs.sample_positions.push_back(meta->seqlen_k - meta->seqlen_q + 1);
        total += meta->seqlen_q;
    }
    for (std::int64_t row = 0; row < total; ++row) {
        inputs.selected_token_indices.push_back(narrow(row));
    }
    if (drafts > 0) {
        add_drafts(metas, drafts, decode);
    }
}

std::optional<Column> golden_output(const Metas& metas) {
    Column rows;
    bool found = false;
    for (const auto* meta : metas) {
        const auto outputs = static_cast<std::size_t>(meta->seq_data->len() - meta->seq_data->prompt_len);
        const auto count = static_cast<std::size_t>(meta->is_prompt ? 1 : meta->seqlen_q);
        for (std::size_t place = outputs; place < outputs + count; ++place) {
            const bool laid_down = place < meta->golden_token_ids.size();
            found = found || laid_down;
            rows.push_back(laid_down ? meta->golden_token_ids[place] : -1);
        }
    }
    return found ? std::optional(std::move(rows)) : std::nullopt;
}

}  // namespace

void SamplingValues::settle() {
    if (temperature < 0) {
        throw std::invalid_argument("temperature must be at least 0");
    }
    if (!(top_p >= 0 && top_p <= 1)) {
        throw std::invalid_argument("top_p must be between 0 and 1");
    }
    if (temperature < lowest_temperature) {
        temperature = lowest_temperature;
        top_p = 1.0;
        top_k = -1;
    }
    temperature = std::min(temperature, highest_temperature);
}

SamplerInputs prepare_sampler_inputs(const Metas& metas, std::int64_t max_mtp_tokens, YocoMode yoco_mode,
                                     std::int64_t keep) {
    check(metas, max_mtp_tokens);
    SamplerInputs inputs;
    add_values(metas, inputs);
    if (metas.front()->is_prompt) {
        add_prefill(metas, yoco_mode, keep, inputs);
    } else {
        add_decode(metas, max_mtp_tokens, inputs);
    }
    inputs.golden_output = golden_output(metas);
    return inputs;
}

}  // namespace deepinfer
