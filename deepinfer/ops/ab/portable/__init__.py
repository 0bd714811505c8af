"""Dumps: the file in which calls travel from one process, machine or package to another: inputs, outputs, who ran them.

A zip file: `header.json`, and `blob/SHA256`, the bytes of one storage each, kept once however often they occur. Nothing
in it is code. Strides, offsets and shared storages are kept. This package needs Python and torch only and imports
nothing of ours but itself: its program (`__main__`) runs beside other packages that are called `deepinfer`.

    {"format": "deepinfer-ab", "version": 1, "side": {who ran it: text}, "sources": {family: digest of its cases},
     "calls": [{"factory", "case", "error", "parameters": [value], "named": {name: value},
                "storages": [{"bytes", "before": sha256, "after": sha256}],
                "arguments": [{"name", "output", "value"}]}]}

A value is null, true, a whole number, a text, {"float": "0x1p-1"}, {"dtype": "int8"}, {"tuple": [value]},
{"list": [value]}, {"object": class name, "fields": {name: value}} (a dataclass), or
{"tensor": dtype, "shape", "stride", "offset", "storage": index}; shape, stride and offset count elements.
"""
