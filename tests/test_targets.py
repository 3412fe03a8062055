"""From what a user types to a workload, and what is said when it cannot be."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hotlap import targets
from hotlap.base import registry
from hotlap.base.errors import ConfigError, TargetError, UnknownName
from hotlap.base.registry import Registry
from hotlap.device.seed import generator
from hotlap.targets import InputSpec, ModuleWorkload, first_tensor, load_target
from hotlap.workload import Agreement, Workload, adopt, is_workload

MODELS = """
import torch
from torch import nn
from hotlap import Workload

def mlp(width=8, depth=1):
    return nn.Sequential(*[nn.Linear(4, width), nn.ReLU()] * 1, nn.Linear(width, 3))

class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)

class Full(Workload):
    name = "full"
    default_batch = 5
    def __init__(self, width=8):
        self.width = width
    def build_model(self):
        return mlp(self.width)
    def make_batch(self, n, device, generator):
        return torch.randn(n, 4, generator=generator).to(device)
    def loss(self, model, batch):
        return model(batch).square().sum(), len(batch)

class Duck:
    def build_model(self):
        return mlp()
    def make_batch(self, n, device, generator):
        return {"x": torch.randn(n, 4, generator=generator).to(device)}
    def loss(self, model, batch):
        return model(batch["x"]).sum(), len(batch["x"])

class Keyword(Net):
    def forward(self, x, *, mask):
        return self.layer(x) * mask

def needy(width):
    return mlp(width)

def placed(width, /):
    return mlp(width)

def annotated(width: int | None = 8, label: str = "", size: "NoSuchType" = 3):
    return Full((width, label, size))

ready = Full(16)
module = mlp()
number = 5

def raises():
    raise RuntimeError("no weights here")

def leaves():
    raise SystemExit("usage: train.py DATA")

def gives_text():
    return "text"

def scripted():
    return torch.jit.script(mlp())

def takes_anything(**options):
    return mlp(**options)
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A user's file with targets of every kind, in the current folder."""
    (tmp_path / "models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "models", raising=False)
    return "models.py"


def output_of(workload, n=2):
    batch = workload.make_batch(n, torch.device("cpu"), generator(0))
    return workload.predict(workload.build_model(), batch)


@pytest.mark.parametrize("prefix", ["models.py", "models"])
def test_a_function_of_a_file_or_a_module_gives_a_plain_module(models, prefix):
    workload = load_target(f"{prefix}:mlp", {"width": 6}, ["4"])
    assert isinstance(workload, ModuleWorkload) and workload.name == "mlp"
    assert output_of(workload).shape == (2, 3)
    assert workload.build_model()[0].out_features == 6


def test_a_module_class_is_a_factory_too(models):
    workload = load_target("models.py:Net", {"width": 7}, ["4"])
    assert output_of(workload).shape == (2, 7)


def test_every_build_of_a_plain_module_is_fresh(models):
    for name in ("mlp", "module"):
        workload = load_target(f"models.py:{name}", {}, ["4"])
        first, second = workload.build_model(), workload.build_model()
        assert first is not second
        assert first[0].weight is not second[0].weight


def test_a_workload_class_is_called_with_the_options(models):
    workload = load_target("models.py:Full", {"width": 9})
    assert (workload.name, workload.default_batch, workload.build_model()[0].out_features) == ("full", 5, 9)


def test_a_ready_workload_is_taken_as_it_is(models):
    assert load_target("models.py:ready").width == 16


@pytest.mark.parametrize("name", ["ready", "module"])
def test_options_for_something_already_built_are_refused(models, name):
    with pytest.raises(TargetError, match=rf"'models.py:{name}' is already built.*'width'"):
        load_target(f"models.py:{name}", {"width": 9}, ["4"] if name == "module" else [])


def test_a_workload_by_shape_alone_gets_the_defaults_for_the_rest(models):
    workload = load_target("models.py:Duck")
    assert isinstance(workload, Workload)
    assert (workload.name, workload.default_batch) == ("Duck", 16)
    assert output_of(workload).shape == (2, 3)
    assert isinstance(workload.optimizer(workload.build_model()), torch.optim.AdamW)
    assert workload.compare(torch.ones(1), torch.ones(1)) == []


def test_what_a_duck_brings_itself_is_not_overridden():
    duck = SimpleNamespace(
        build_model=lambda: 1, make_batch=lambda *a: 2, loss=lambda *a: 3, default_batch=99, name="d"
    )
    adopted = adopt(duck, "given")
    assert (adopted.name, adopted.default_batch, adopted.build_model()) == ("d", 99, 1)
    assert is_workload(duck) and not is_workload(Workload)


@pytest.mark.parametrize(
    ("target", "options", "inputs", "kind", "words"),
    [
        ("unett", {}, [], UnknownName, ["unknown target 'unett'", "file.py:factory", "Did you mean 'unet'"]),
        ("models.py", {}, ["4"], UnknownName, ["unknown target 'models.py'", "as in models.py:NAME"]),
        ("models.py:mpl", {}, [], UnknownName, ["'models.py' has no 'mpl'", "Did you mean 'mlp'"]),
        ("models.py:", {}, [], UnknownName, ["'models.py' has no ''"]),
        ("gone.py:mlp", {}, [], UnknownName, ["file 'gone.py' does not exist", "Looked in"]),
        ("no_such_pkg.sub:mlp", {}, [], UnknownName, ["no module named 'no_such_pkg'", "pip install no_such_pkg"]),
        ("models.py:mlp", {}, [], TargetError, ["plain Sequential", "--input 3x224x224"]),
        ("models.py:mlp", {}, ["axb"], TargetError, ["--input 'axb' is not an input", "3x224x224"]),
        ("models.py:mlp", {"widht": 3}, ["4"], TargetError, ["has no option 'widht'", "Did you mean 'width'"]),
        (
            "models.py:raises",
            {},
            [],
            TargetError,
            ["raised RuntimeError: no weights here", "models.py:", "no arguments"],
        ),
        (
            "models.py:needy",
            {},
            ["4"],
            TargetError,
            ["needs 'width', which was not given", "--set workload.width=VALUE"],
        ),
        ("models.py:placed", {"width": 3}, ["4"], TargetError, ["'models.py:placed' raised TypeError", "{'width': 3}"]),
        ("models.py:Net", {"width": "wide"}, ["4"], ConfigError, ["workload.width = 'wide'", "a whole number"]),
        ("unet", {"lr": "fast"}, [], ConfigError, ["workload.lr = 'fast'", "'unet'", "a number"]),
        ("models.py:Keyword", {}, ["4"], TargetError, ["forward(x, *, mask)", "--input 4", "'mask'", "predict()"]),
        ("models.py:Net", {}, ["4", "3x8"], TargetError, ["forward(x)", "--input 4 --input 3x8", "for each argument"]),
        ("models.py:leaves", {}, [], TargetError, ["raised SystemExit: usage: train.py DATA"]),
        ("models.py:gives_text", {}, [], TargetError, ["gave an object of type str", "build_model, make_batch, loss"]),
        ("models.py:number", {}, [], TargetError, ["'models.py:number' is a int", "a function or class to call"]),
        ("models.py:scripted", {}, ["4"], TargetError, ["gives a TorchScript module", "nn.Module that it was made of"]),
        ("models.py:Full", {}, ["4"], TargetError, ["--input 4 is given", "makes its own batches"]),
    ],
)
def test_a_target_that_cannot_be_used_says_why(models, target, options, inputs, kind, words):
    with pytest.raises(kind) as caught:
        load_target(target, options, inputs)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "width"),
    [({"width": "none"}, None), ({"width": 4.0}, 4), ({"label": 2024}, 8), ({"width": None}, None)],
)
def test_options_become_what_the_factory_s_annotations_say(tmp_path, options, width):
    code = MODELS.replace(', size: "NoSuchType" = 3', "").replace("(width, label, size)", "(width, label)")
    (tmp_path / "typed_models.py").write_text(code)
    made = load_target(f"{tmp_path}/typed_models.py:annotated", options).width
    assert made == (width, str(options.get("label", "")))
    assert type(made[0]) is type(width)


def test_an_annotation_that_means_nothing_is_left_alone(models):
    assert load_target("models.py:annotated", {"size": "large"}).width == (8, "", "large")


def test_a_model_without_anything_to_train_is_refused_by_name():
    still = ModuleWorkload("still", lambda: nn.Linear(2, 2).requires_grad_(False), [InputSpec((2,))])
    with pytest.raises(TargetError, match=r"model of 'still' has no parameters.*--mode infer"):
        still.optimizer(still.build_model())


def test_a_factory_with_open_options_takes_any(models):
    assert load_target("models.py:takes_anything", {"width": 2}, ["4"]).build_model()[0].out_features == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere_at_all\n", "raised ModuleNotFoundError on import: No module named 'nowhere_at_all'"),
        ("1 / 0\n", "raised ZeroDivisionError on import: division by zero"),
        ("def f(:\n", "raised SyntaxError on import"),
        ("import sys\nsys.exit(3)\n", "raised SystemExit on import: 3"),
    ],
)
def test_a_file_that_does_not_import_says_where(tmp_path, text, words):
    file = tmp_path / "bad_target.py"
    file.write_text(text)
    with pytest.raises(TargetError, match=words) as caught:
        load_target(f"{file}:make")
    assert "bad_target.py" in str(caught.value)
    assert "_hotlap_target_bad_target" not in __import__("sys").modules


def test_a_factory_that_torch_stops_is_told_with_its_own_line(tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(4, 'wide')\n")
    with pytest.raises(TargetError, match=r"(?s)raised TypeError: .* \(\S*net\.py:3\)\."):
        load_target(f"{tmp_path / 'net.py'}:net", {}, ("4",))


def test_a_file_that_is_no_python_is_told_with_the_line_that_is_none(tmp_path):
    (tmp_path / "net.py").write_text("import torch\ndef f(:\n")
    with pytest.raises(TargetError, match=r"raised SyntaxError on import: .* \(\S*net\.py:2\)\."):
        load_target(f"{tmp_path / 'net.py'}:f")


@pytest.mark.parametrize("has_init", [True, False])
def test_a_file_that_imports_as_part_of_its_package_is_to_be_given_as_a_module(has_init, tmp_path, monkeypatch):
    package = tmp_path / "mine" / "nets"
    package.mkdir(parents=True)
    (package / "small.py").write_text("from . import parts\n")
    if has_init:
        (package / "__init__.py").write_text("")
        (package.parent / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    where, name = (tmp_path, "mine.nets.small") if has_init else (tmp_path / "mine", "nets.small")
    with pytest.raises(TargetError, match="attempted relative import") as refused:
        load_target("mine/nets/small.py:net", None, ())
    assert f"In {str(where)!r}, give it as a module of its package: {name}:net" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ["torch.set_default_device('meta')\n\ndef net():\n    return nn.Linear(4, 3)\n",
     "def net():\n    torch.set_default_device('meta')\n    return nn.Linear(4, 3)\n"],
    ids=["import", "factory"],
)  # fmt: skip
def test_a_target_that_moves_torch_s_default_device_is_refused(tmp_path, text):
    (tmp_path / "moved.py").write_text(f"import torch\nfrom torch import nn\n\n{text}")
    try:
        with pytest.raises(TargetError, match=r"default device is 'meta' once target '.*moved.py:net' is loaded"):
            load_target(f"{tmp_path / 'moved.py'}:net", inputs=["4"])
    finally:
        torch.set_default_device(None)


def test_a_module_that_does_not_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "bad_module_here.py").write_text("raise OSError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        TargetError, match=r"importing 'bad_module_here' raised OSError: no licence .*bad_module_here\.py:1"
    ):
        load_target("bad_module_here:make")


def test_a_file_s_neighbours_import_as_they_do_for_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    (tmp_path / "neighbour_of_target.py").write_text("WIDTH = 5\n")
    (tmp_path / "main_target.py").write_text(
        "from torch import nn\nfrom neighbour_of_target import WIDTH\ndef make():\n    return nn.Linear(4, WIDTH)\n"
    )
    assert output_of(load_target(f"{tmp_path}/main_target.py:make", {}, ["4"])).shape == (2, 5)


def test_a_registered_name_is_loaded_and_a_broken_plugin_stops_no_other(models, monkeypatch):
    points = [
        SimpleNamespace(name="good", value="models:Full", dist=SimpleNamespace(name="good-dist")),
        SimpleNamespace(name="bad", value="no_such_pkg:make", dist=SimpleNamespace(name="bad-dist")),
        SimpleNamespace(name="left", value="leaving:make", dist=SimpleNamespace(name="left-dist")),
    ]
    Path("leaving.py").write_text("raise SystemExit('usage: leaving')\n")
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    monkeypatch.syspath_prepend(".")
    known = Registry("target", "hotlap.workloads", {})
    monkeypatch.setattr(targets, "WORKLOADS", known)
    assert load_target("good", {"width": 3}).width == 3
    with pytest.raises(TargetError, match=r"'bad' \(no_such_pkg:make, from bad-dist\) cannot be loaded"):
        load_target("bad")
    with pytest.raises(TargetError, match=r"'left' .* SystemExit: usage: leaving"):
        load_target("left")
    assert set(known.check_plugins()) == {"bad", "left"}


def test_the_built_in_names_are_registered():
    assert {"unet", "bilstm"} <= set(targets.WORKLOADS.names())


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "high"),
    [
        ("3x224x224", (3, 224, 224), "float32", 2),
        ("128:int64:32000", (128,), "int64", 32000),
        ("16:float32", (16,), "float32", 2),
        ("2X3:bool", (2, 3), "bool", 2),
    ],
)
def test_an_input_is_read_as_it_is_written(text, shape, dtype, high):
    assert InputSpec.parse(text) == InputSpec(shape, dtype, high)


@pytest.mark.parametrize(
    "text", ["", "x", "4x", "x4", "3xx4", "0x3", "-1", "3:float99", "3:int64:0", "3:int64:many", "3.5"]
)
def test_a_bad_input_is_refused_by_name(text):
    with pytest.raises(TargetError, match=r"--input '.*' is not an input"):
        InputSpec.parse(text)


def test_inputs_are_drawn_as_told_and_depend_on_the_generator_alone():
    tokens = InputSpec.parse("50:int64:7").draw(3, generator(1))
    assert tokens.shape == (3, 50) and tokens.dtype == torch.int64 and tokens.min() >= 0 and tokens.max() == 6
    floats = InputSpec.parse("5x2").draw(3, generator(1))
    assert floats.shape == (3, 5, 2) and floats.dtype == torch.float32
    assert torch.equal(floats, InputSpec.parse("5x2").draw(3, generator(1)))


class HFOutput(OrderedDict):
    """Shaped like the outputs of transformers: an ordered mapping with attributes."""


@dataclass
class PlainOutput:
    loss: object
    logits: object


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: (t, None),
        lambda t: [None, t],
        lambda t: {"logits": t},
        lambda t: HFOutput(loss=None, logits=t, hidden=(t + 1,)),
        lambda t: ({"a": [t]},),
        lambda t: PlainOutput(None, t),
    ],
    ids=["tensor", "tuple", "list", "dict", "hf", "nested", "dataclass"],
)
def test_the_first_tensor_of_any_output_is_found(wrap):
    tensor = torch.arange(3)
    assert first_tensor(wrap(tensor)) is tensor


@pytest.mark.parametrize("out", [None, "text", {}, {"a": None}, 5])
def test_an_output_without_a_tensor_is_named(out):
    with pytest.raises(TargetError, match=rf"returned {type(out).__name__} without a tensor.*predict"):
        first_tensor(out)


def test_the_loss_of_a_plain_module_fits_its_output():
    classes = ModuleWorkload("c", lambda: nn.Linear(4, 3), [InputSpec((4,))])
    batch = classes.make_batch(5, torch.device("cpu"), generator(0))
    total, count = classes.loss(classes.build_model(), batch)
    assert count == 5 and total.requires_grad
    maps = ModuleWorkload("m", lambda: nn.Conv2d(1, 2, 3), [InputSpec((1, 5, 5))])
    batch = maps.make_batch(2, torch.device("cpu"), generator(0))
    total, count = maps.loss(maps.build_model(), batch)
    assert count == 2 * 2 * 3 * 3 and total >= 0
    rows = ModuleWorkload("r", lambda: nn.Flatten(0, 1), [InputSpec((3, 4))])
    assert rows.loss(rows.build_model(), rows.make_batch(2, torch.device("cpu"), generator(0)))[1] == 2 * 3 * 4


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6)], ids=["layer", "rms"])
def test_a_norm_at_the_end_leaves_gradients_to_compare(norm):
    """The sum of a norm's squares is always the same, and its gradients nothing but rounding: bf16 seemed wrong."""
    workload = ModuleWorkload("n", lambda: nn.Sequential(nn.Linear(4, 6), norm), [InputSpec((5, 4))])
    model = workload.build_model()
    workload.loss(model, workload.make_batch(2, torch.device("cpu"), generator(0)))[0].backward()
    assert model[0].weight.grad.norm() > 0.1


def test_the_loss_of_a_vector_of_numbers_does_not_depend_on_where_they_stand():
    workload = ModuleWorkload("v", lambda: nn.Flatten(0), [InputSpec((1,))])
    *inputs, classes = workload.make_batch(4, torch.device("cpu"), generator(0))
    model = workload.build_model()
    turned = (*(tensor.flip(0) for tensor in inputs), classes)
    assert workload.loss(model, turned)[0] == pytest.approx(float(workload.loss(model, (*inputs, classes))[0]))


def test_the_loss_of_complex_numbers_is_that_of_their_parts():
    waves = ModuleWorkload("waves", lambda: Waves(4, 3), [InputSpec((4,))])
    model = waves.build_model()
    batch = waves.make_batch(5, torch.device("cpu"), torch.Generator().manual_seed(0))
    total, count = waves.loss(model, batch)
    out = model(batch[0])
    torch.testing.assert_close(total, (out.real + 1).square().sum() + (out.imag - 1).square().sum())
    assert count == 5 * 3 * 2 and total.requires_grad


class Waves(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        return torch.complex(out, out + 1).conj()


def test_the_loss_of_a_plain_module_is_the_sum_of_its_parts_however_it_is_split():
    workload = ModuleWorkload("c", lambda: nn.Linear(4, 3), [InputSpec((4,))])
    batch = workload.make_batch(6, torch.device("cpu"), generator(0))
    model = workload.build_model()
    whole = workload.loss(model, batch)[0]
    parts = [workload.loss(model, tuple(t[k : k + 2] for t in batch))[0] for k in (4, 0, 2)]
    assert torch.allclose(torch.stack(parts).sum(), whole)
    assert len(set((batch[-1] % 3).tolist())) > 1


def test_classes_are_compared_by_their_top_one():
    workload = ModuleWorkload("c", lambda: nn.Linear(4, 3), [InputSpec((4,))])
    out = torch.eye(3)
    assert workload.compare(out, out) == [Agreement(name="same class", value=1.0, at_least=0.99)]
    assert not workload.compare(out, out.flip(1))[0].passed
    assert workload.compare(torch.ones(2, 3, 4), torch.ones(2, 3, 4)) == []


@pytest.mark.parametrize(("call", "words"), [
    (lambda w: w.build_model(), "how to build its model.*build_model"),
    (lambda w: w.make_batch(1, None, None), "how to make a batch.*make_batch"),
    (lambda w: w.loss(None, None), "has no loss.*loss"),
])  # fmt: skip
def test_a_workload_that_lacks_a_part_says_which(call, words):
    with pytest.raises(TargetError, match=f"'workload' .*{words}"):
        call(Workload())


def test_the_default_prediction_takes_the_first_part_of_a_batch():
    double = nn.Identity()
    for batch in (torch.ones(2), (torch.ones(2), 0), [torch.ones(2), 0], {"x": torch.ones(2), "y": 0}):
        assert torch.equal(Workload().predict(double, batch), torch.ones(2))
