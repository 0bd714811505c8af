#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "bindings.hpp"
#include "sampler_inputs.hpp"

namespace py = pybind11;

namespace deepinfer {
namespace {

constexpr std::int32_t min_int32 = std::numeric_limits<std::int32_t>::min();

std::int32_t as_token(py::handle value) { return as_bounded(value, "a token id", min_int32); }

std::vector<std::int32_t> as_tokens(py::handle values) {
    std::vector<std::int32_t> tokens;
    for (const auto value : py::iter(values)) {
        tokens.push_back(as_token(value));
    }
    return tokens;
}

double as_number(py::handle value, const std::string& name) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1.0 && PyErr_Occurred() != nullptr) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            throw py::type_error(name + " must be a number, not " + Py_TYPE(value.ptr())->tp_name);
        }
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            throw py::value_error(name + " is too large");
        }
        throw py::error_already_set();
    }
    if (std::isnan(number)) {
        throw py::value_error(name + " must be a number, not NaN");
    }
    return number;
}

std::uint64_t as_seed(py::handle value) {
    const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!index) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            throw py::error_already_set();
        }
        PyErr_Clear();
        throw py::type_error(std::string("seq_seed must be an integer, not ") + Py_TYPE(value.ptr())->tp_name);
    }
    return PyLong_AsUnsignedLongLongMask(index.ptr());
}

YocoMode as_mode(const std::string& name) {
    if (name == "off") {
        return YocoMode::off;
    }
    if (name == "mask") {
        return YocoMode::mask;
    }
    if (name == "compact") {
        return YocoMode::compact;
    }
    throw py::value_error("yoco_mode must be off, mask or compact, not '" + name + "'");
}

std::shared_ptr<SequenceData> make_data(py::handle prompt_token_ids) {
    auto data = std::make_shared<SequenceData>();
    data->tokens = as_tokens(prompt_token_ids);
    if (data->tokens.empty()) {
        throw py::value_error("prompt_token_ids must not be empty");
    }
    data->prompt_len = data->len();
    return data;
}

std::shared_ptr<SamplingValues> make_values(py::handle temperature, py::handle top_p, py::handle top_k,
                                            py::handle seq_seed, py::handle top_logprobs, bool prompt_logprobs,
                                            py::handle first_n_token_no_eos, py::handle eos_id, bool ignore_eos) {
    auto values = std::make_shared<SamplingValues>();
    values->temperature = as_number(temperature, "temperature");
    values->top_p = as_number(top_p, "top_p");
    values->top_k = as_bounded(top_k, "top_k", -1);
    values->settle();
    values->seq_seed = as_seed(seq_seed);
    values->top_logprobs = as_bounded(top_logprobs, "top_logprobs", 0);
    values->prompt_logprobs = prompt_logprobs;
    values->first_n_token_no_eos = as_bounded(first_n_token_no_eos, "first_n_token_no_eos", 0);
    values->eos_id = as_bounded(eos_id, "eos_id", -1);
    values->ignore_eos = ignore_eos;
    return values;
}

void advance(SequenceMetadata& meta, bool is_prompt, py::handle seqlen_q, py::handle seqlen_k, py::handle read_slot,
             py::handle write_slot) {
    const auto rows = as_bounded(seqlen_q, "seqlen_q", 1);
    const auto tokens = as_bounded(seqlen_k, "seqlen_k", 1);
    if (rows > tokens) {
        throw py::value_error("seqlen_k must be at least seqlen_q (" + std::to_string(rows) + "), not " +
                              std::to_string(tokens));
    }
    const auto read = as_bounded(read_slot, "mtp_info_read_slot", 0);
    meta.mtp_info_write_slot = as_bounded(write_slot, "mtp_info_write_slot", 0);
    meta.mtp_info_read_slot = read;
    meta.is_prompt = is_prompt;
    meta.seqlen_q = rows;
    meta.seqlen_k = tokens;
}

SequenceMetadata make_meta(std::shared_ptr<SequenceData> data, std::shared_ptr<SamplingValues> params, bool is_prompt,
                           py::handle seqlen_q, py::handle seqlen_k, py::handle read_slot, py::handle write_slot,
                           py::handle golden_token_ids) {
    SequenceMetadata meta;
    meta.seq_data = std::move(data);
    meta.sampling_params = std::move(params);
    if (!golden_token_ids.is_none()) {
        meta.golden_token_ids = as_tokens(golden_token_ids);
    }
    advance(meta, is_prompt, seqlen_q, seqlen_k, read_slot, write_slot);
    return meta;
}

template <typename T>
py::array_t<T> as_array(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

py::dict as_dict(const SamplerInputs& inputs) {
    py::dict result;
    result["temperatures"] = as_array(inputs.temperatures);
    result["top_ps"] = as_array(inputs.top_ps);
    result["top_ks"] = as_array(inputs.top_ks);
    result["seq_seeds"] = as_array(inputs.seq_seeds);
    result["max_top_logprobs"] = inputs.max_top_logprobs;
    result["selected_token_indices"] = as_array(inputs.selected_token_indices);
    result["sample_positions"] = as_array(inputs.sample_positions);
    if (inputs.prefill) {
        result["prompt_rows"] = as_array(inputs.prefill->prompt_rows);
        result["prompt_tokens"] = as_array(inputs.prefill->prompt_tokens);
        result["prompt_logprobs_lens"] = as_array(inputs.prefill->prompt_logprobs_lens);
        result["eos_suppression_rows"] = as_array(inputs.prefill->eos_suppression_rows);
        result["eos_token_ids"] = as_array(inputs.prefill->eos_token_ids);
    }
    if (inputs.decode) {
        result["mtp_first_token_positions"] = as_array(inputs.decode->mtp_first_token_positions);
        result["mtp_seqlens_q"] = as_array(inputs.decode->mtp_seqlens_q);
        if (const auto& drafts = inputs.decode->drafts) {
            result["mtp_info_read_rows"] = as_array(drafts->mtp_info_read_rows);
            result["mtp_info_write_slots"] = as_array(drafts->mtp_info_write_slots);
            result["stop_token_ids"] = as_array(drafts->stop_token_ids).reshape({-1, 2});
        }
    }
    result["golden_output"] = inputs.golden_output ? py::object(as_array(*inputs.golden_output)) : py::none();
    return result;
}

py::dict prepare(const std::vector<std::shared_ptr<SequenceMetadata>>& metas, py::handle max_mtp_tokens,
                 const std::string& yoco_mode, py::handle keep) {
    std::vector<const SequenceMetadata*> sequences;
    for (const auto& meta : metas) {
        if (meta == nullptr) {
            throw py::type_error("metas must be a list of SequenceMetadata, not None");
        }
        sequences.push_back(meta.get());
    }
    const auto drafts = as_bounded(max_mtp_tokens, "max_mtp_tokens", 0);
    const auto kept = as_bounded(keep, "keep", 0);
    return as_dict(prepare_sampler_inputs(sequences, drafts, as_mode(yoco_mode), kept));
}

}  // namespace

void bind_sampler_inputs(py::module_& module) {
    py::class_<SequenceData, std::shared_ptr<SequenceData>>(module, "SequenceData", py::module_local(),
                                                            "A sequence's tokens: the prompt, and what was appended.")
        .def(py::init(&make_data), py::arg("prompt_token_ids"))
        .def("append", [](SequenceData& self, py::handle token) { self.tokens.push_back(as_token(token)); },
             py::arg("token_id"), "Add an output token.")
        .def("get_token_ids", [](const SequenceData& self) { return self.tokens; }, "A copy of all tokens.")
        .def("get_len", &SequenceData::len, "How many tokens there are.")
        .def("get_prompt_len", [](const SequenceData& self) { return self.prompt_len; }, "How many are the prompt's.")
        .def("get_last_token_id", [](const SequenceData& self) { return self.tokens.back(); }, "The newest one.");

    py::class_<SamplingValues, std::shared_ptr<SamplingValues>>(module, "SamplingValues", py::module_local(),
                                                                "What a request asks of the kernels.")
        .def(py::init(&make_values), py::kw_only(), py::arg("temperature") = 1.0, py::arg("top_p") = 1.0,
             py::arg("top_k") = -1, py::arg("seq_seed") = 0, py::arg("top_logprobs") = 0,
             py::arg("prompt_logprobs") = false, py::arg("first_n_token_no_eos") = 0, py::arg("eos_id") = -1,
             py::arg("ignore_eos") = false)
        .def_readonly("temperature", &SamplingValues::temperature)
        .def_readonly("top_p", &SamplingValues::top_p)
        .def_readonly("top_k", &SamplingValues::top_k)
        .def_readonly("seq_seed", &SamplingValues::seq_seed);

    py::class_<SequenceMetadata, std::shared_ptr<SequenceMetadata>>(module, "SequenceMetadata", py::module_local(),
                                                                    "A sequence as one step sees it.")
        .def(py::init(&make_meta), py::arg("seq_data").none(false), py::arg("sampling_params").none(false),
             py::kw_only(), py::arg("is_prompt"), py::arg("seqlen_q"), py::arg("seqlen_k"),
             py::arg("mtp_info_read_slot") = 0, py::arg("mtp_info_write_slot") = 0,
             py::arg("golden_token_ids") = py::none())
        .def("advance", &advance, py::kw_only(), py::arg("is_prompt"), py::arg("seqlen_q"), py::arg("seqlen_k"),
             py::arg("mtp_info_read_slot") = 0, py::arg("mtp_info_write_slot") = 0,
             "Be the same sequence in another step.")
        .def_readonly("is_prompt", &SequenceMetadata::is_prompt)
        .def_readonly("seqlen_q", &SequenceMetadata::seqlen_q)
        .def_readonly("seqlen_k", &SequenceMetadata::seqlen_k);

    module.def("prepare_sampler_inputs", &prepare, py::arg("metas"), py::arg("max_mtp_tokens"),
               py::arg("yoco_mode") = "off", py::arg("keep") = 0, "The sampler's inputs of a step, as numpy arrays.");
}

}  // namespace deepinfer
