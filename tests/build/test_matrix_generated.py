"""What is generated from the matrix and its types: the schema and the page do not drift, and say what is true."""

import json
from pathlib import Path

import pytest

from build.cache import REPOSITORY
from build.errors import MatrixError
from build.matrix import page, schema
from build.matrix.generated import generate
from build.matrix.load import load_matrix


def test_the_schema_has_not_drifted() -> None:
    generate(schema.SCHEMA, schema.schema_text(), "build.matrix.schema", check=True)


def test_the_page_has_not_drifted() -> None:
    generate(page.PAGE, page.page_text(), "build.matrix.page", check=True)


def test_drift_is_an_error_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.matrix.generated.REPOSITORY", tmp_path)
    file = tmp_path / "page.md"
    with pytest.raises(MatrixError, match="does not follow"):
        generate(file, "new", "build.matrix.page", check=True)
    generate(file, "new", "build.matrix.page", check=False)
    generate(file, "new", "build.matrix.page", check=True)
    file.write_text("newer")
    with pytest.raises(MatrixError) as caught:
        generate(file, "new", "build.matrix.page", check=True)
    assert "python -m build.matrix.page" in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_schema_is_a_schema_and_accepts_the_real_file() -> None:
    import jsonschema
    import yaml

    made = schema.make_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    jsonschema.validate(yaml.safe_load((REPOSITORY / "matrix.yaml").read_text()), made)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("components", "nccl", "source", "sha256"), "12"),
        (("components", "nccl", "source", "git"), "https://example.org/x"),
        (("components", "nccl", "colour"), "blue"),
        (("components", "nccl", "requires", "triton"), ">=3"),
        (("components", "a;b"), {}),
        (("components", "deep_gemm", "memory_gib"), 0),
        (("images", "cpu", "components"), ["_C", "_C"]),
        (("images", "cpu", "kind"), "vm"),
        (("schema",), 2),
    ],
    ids=lambda part: ".".join(part) if isinstance(part, tuple) else None,
)
def test_the_schema_refuses(path: tuple[str, ...], value: object) -> None:
    import jsonschema
    import yaml

    data = yaml.safe_load((REPOSITORY / "matrix.yaml").read_text())
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema.make_schema())


def test_the_schema_describes_every_key() -> None:
    made = json.loads(schema.SCHEMA.read_text())
    for name, definition in made["$defs"].items():
        assert definition["description"], name
        for key, value in definition["properties"].items():
            assert value.get("description"), f"{name}.{key}"


def test_the_page_says_what_can_be_built() -> None:
    matrix = load_matrix()
    text = page.make_page(matrix)
    rows = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in text.splitlines() if line[:1] == "|"}
    first, second, extension, gemm, deep_ep = (one.version for one in matrix.components.values())
    assert ("`flagtree`", "replica", first, "-", extension, gemm, deep_ep) in rows
    assert ("`flagos`", "replica", "-", second, extension, gemm, deep_ep) in rows
    assert ("`cpu`", "replica", "-", "-", extension, "no", "no") in rows
    assert ("gcc", "13", "14.2") in rows
    assert "DeepEP: upstream states CUDA >= 13.1, here CUDA >= 12.9 will do" in text
    assert "DeepGEMM: needs CUDA >= 12.9, the base has a torch built for the CPU only; needs gcc >= 13" in text


def test_a_title_cannot_break_the_page() -> None:
    import dataclasses

    matrix = load_matrix()
    odd = dataclasses.replace(matrix.components["nccl"], title="a|b <script>")
    text = page.make_page(dataclasses.replace(matrix, components={**matrix.components, "nccl": odd}))
    assert "<script>" not in text
    assert "| a\\|b &lt;script> |" in text
