"""Networks that transformers, timm and torchvision know by name. The last two are stand-ins here, with their calls."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, DistilBertConfig, ResNetConfig, RobertaConfig, ViTConfig

from anchorfl import EncoderSpec, load_model
from anchorfl.models.dropout import MaskSource
from anchorfl.models.encoders.libraries import make
from anchorfl.models.encoders.plug_in import PlugIn, start
from anchorfl.models.errors import NetworkError
from anchorfl.models.start import StartError, read_start
from anchorfl.pipeline.config.experiment import digest
from anchorfl.pipeline.config.networks import find_network
from anchorfl.pipeline.run.lifecycle import run
from anchorfl.pipeline.storage.places import places_of
from anchorfl.pipeline.storage.run_record import read_metadata
from anchorfl.tasks.errors import InputError
from anchorfl.testing import check_network, small_experiment
from tests.runs import quiet

STAND_INS = {
    "timm": """
from types import SimpleNamespace
from torch import nn
def is_model(name): return name.partition(".")[0] in ("resnet18", "vit")
def list_models(): return ["resnet18", "vit"]
def get_pretrained_cfg(name): return SimpleNamespace(fixed_input_size=name.startswith("vit"))
class Net(nn.Module):
    default_cfg = {"classifier": "fc"}
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, classes) if classes else nn.Identity()
    def forward(self, x):
        return self.fc(self.bn1(self.conv1(x)).relu().mean((2, 3)))
def create_model(name, pretrained, in_chans, num_classes, img_size=None):
    if name.endswith("no_such_weights"): raise RuntimeError("no such tag")
    assert not pretrained and (img_size == (4, 4)) == name.startswith("vit")
    return Net(in_chans, num_classes)
""",
    "torchvision": """
import timm
from . import models
""",
}
MODELS = """
import sys
from torch import nn
from timm import Net
def list_models(module):
    assert module is sys.modules[__name__]
    return ["resnet18", "squeezenet"]
def get_model(name, weights):
    assert weights is None
    return Net(3, 1000) if name == "resnet18" else nn.Sequential(nn.Conv2d(3, 8, 3, padding=1))
"""
TEXTS = {
    "bert": BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16),
    "distilbert": DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=16),
}
IMAGES = {
    "vit": ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=4, patch_size=2
    ),
    "resnet": ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
}
WORDS, PIXELS = EncoderSpec("tokens", (12,), 30, 16, 0.2), EncoderSpec("image", (1, 4, 4), 0, 16, 0.2)


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    for name, source in STAND_INS.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text(source)
        (tmp_path / "site" / f"{name}-9.9.dist-info").mkdir()
        (tmp_path / "site" / f"{name}-9.9.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 9.9\n")
    (tmp_path / "site/torchvision/models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in ("timm", "torchvision", "torchvision.models"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("timm", "torchvision", "torchvision.models"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path):
    """Return what writes a transformers folder: config.json, and the weights if asked."""

    def write(name, weights=False):
        config = (TEXTS | IMAGES)[name]
        if weights:
            AutoModel.from_config(config).save_pretrained(tmp_path / name)
        else:
            config.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


def seeded(library, name, spec):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return make(library, str(name), spec)


def test_one_with_adapters_keeps_the_contract(tmp_path, folder):
    """Two runs, a stopped one and forked workers give the same bits; its saved model is read again."""
    check_network(f"hf:{folder('bert')}", "toy-single", tmp_path / "runs", lora_rank=2)


def test_one_with_batch_norm_keeps_the_contract(tmp_path, stand_ins):
    check_network("torchvision:resnet18", "toy-multi", tmp_path / "runs", width=8)


@pytest.mark.parametrize(("name", "spec"), [(n, WORDS) for n in TEXTS] + [(n, PIXELS) for n in IMAGES])
def test_it_is_of_the_seed_and_rows_are_independent(folder, name, spec):
    """Same seed, same values; padding, and rows beside a row, change nothing; a row without words is finite."""
    net, again = (seeded("hf", folder(name), spec) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))
    assert isinstance(net.linear, torch.nn.Identity)
    assert not any("pooler" in key for key in net.state_dict())
    if spec.kind == "image":
        x = torch.rand(3, 1, 4, 4)
        short = x[:1]
    else:
        x = torch.tensor([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]])
        short = x[:1, :3]
        assert net.net.get_input_embeddings().weight.shape == (30, 16)
    z = net.eval()(x)
    assert torch.allclose(z[:1], net(short), atol=1e-5)
    assert torch.isfinite(z).all()
    assert z.std(0).max() > 0


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_the_weights_in_its_folder_are_where_it_starts_but_for_words(folder, name):
    place = folder(name, weights=True)
    spec = WORDS if name == "bert" else EncoderSpec("image", (3, 4, 4), 0, 16, 0.2)
    saved, net = load_file(place / "model.safetensors"), seeded("hf", place, spec).net
    for key, value in net.state_dict().items():
        if "word_embeddings" in key:
            assert not torch.equal(value, saved[key][:30])
            assert not value[0].any()
        else:
            assert torch.equal(value, saved[key]), key


def test_a_file_of_the_librarys_own_is_a_start(stand_ins):
    """Its names lack ours, and it has a classifier; the linear layer to another width stays drawn."""
    wide = EncoderSpec("image", (3, 4, 4), 0, 5, 0.0)
    net, other = seeded("timm", "resnet18", wide), seeded("torchvision", "resnet18", wide)
    assert net.net.conv1.in_channels == 3
    file = {"fc.weight": torch.ones(9, 8), "fc.bias": torch.ones(9)}
    file |= {name: torch.full_like(value, 2) for name, value in net.net.state_dict().items()}
    for encoder in (net, other):
        drawn = encoder.linear.weight.clone()
        start(PlugIn(encoder, MaskSource()), file, "f.safetensors")
        assert bool((encoder.net.conv1.weight == 2).all())
        assert torch.equal(encoder.linear.weight, drawn)
        with pytest.raises(StartError, match=r"tensor 'net\.bn1\.bias' is missing"):
            start(PlugIn(encoder, MaskSource()), {k: v for k, v in file.items() if k != "bn1.bias"}, "f.safetensors")


@pytest.mark.parametrize("head", [False, True], ids=["alone", "with a head"])
def test_a_file_of_transformers_is_a_start(folder, head):
    """Its network has a part called encoder; below a head it has the name of its family in front."""
    place = folder("vit", weights=True)
    spec = EncoderSpec("image", (3, 4, 4), 0, 16, 0.2)
    net, other = (seeded("hf", place, spec) for _ in range(2))
    file = {name: torch.full_like(value, 2) for name, value in net.net.state_dict().items()}
    file |= {"pooler.dense.bias": torch.ones(9)}
    if head:
        file = {f"vit.{name}": value for name, value in file.items()} | {"classifier.bias": torch.ones(9)}
    save_file(file, place / "theirs.safetensors")
    start(PlugIn(other, MaskSource()), read_start(place / "theirs.safetensors"), "theirs.safetensors")
    assert all(bool((value == 2).all()) for value in other.net.state_dict().values())


def test_a_model_of_a_run_is_a_start(tmp_path, folder):
    options = {"network": f"hf:{folder('distilbert')}", "width": 8}
    first = run(small_experiment("fedavg", model=options), tmp_path / "first", quiet)
    options["weights"] = str(first.folder / "model" / "weights.safetensors")
    second = small_experiment("fedavg", model=options, seed=2, federation={"rounds": 1, "epochs": 1},
                              optimizer={"lr": 1e-30})  # fmt: skip
    got = load_model(run(second, tmp_path / "second", quiet).folder / "model").model.encoder.net
    assert torch.equal(got.linear.weight, load_model(first.folder / "model").model.encoder.net.linear.weight)


def test_the_record_has_its_version_and_the_digest_its_files(tmp_path, folder, stand_ins):
    place = folder("bert")
    e = small_experiment("fedavg", model={"network": f"hf:{place}", "width": 16})
    run(e, tmp_path / "run", quiet)
    tags = read_metadata(tmp_path / "run")["tags"]
    assert tags["network_plugin"].startswith(f"hf:{place} of transformers=={version('transformers')}, sha256 ")
    before = digest(e)
    (place / "config.json").write_text((place / "config.json").read_text().replace('"gelu"', '"relu"'))
    assert digest(e) != before
    save_file({"x": torch.ones(1)}, place / "model.safetensors")
    assert find_network(f"hf:{place}").files == (place / "config.json", place / "model.safetensors")
    timm = small_experiment("fedavg", model={"network": "timm:resnet18"})
    before = digest(timm)
    metadata = tmp_path / "site/timm-9.9.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("9.9", "9.10"))
    assert digest(timm) != before
    assert not places_of({"model": {"network": "timm:resnet18"}})  # nothing of others is run or read
    assert places_of({"model": {"network": "hf:theirs"}})


@pytest.mark.parametrize(
    ("network", "data", "line"),
    [
        ("timm:resnet81", "toy-multi", "timm has no network 'resnet81' (did you mean 'resnet18'?)"),
        ("timm:hf-hub:a/b", "toy-multi", "timm has no network 'hf-hub:a/b'"),
        ("timm:resnet18", "toy-single", "is for images, and the input is of kind 'tokens'"),
        ("torchvision:resnet", "toy-multi", "torchvision has no network 'resnet' (did you mean 'resnet18'?)"),
        ("torchvision:squeezenet", "toy-multi", "ends in no linear layer that could be taken off"),
        ("hf:bert", "toy-multi", "a BertModel is for inputs of kind 'tokens', and these are 'image'"),
        ("timm:vit.of_no_such_weights", "toy-multi", "making it failed (RuntimeError: no such tag)"),
        ("hf:vit", "toy-single", "a ViTModel is for inputs of kind 'image', and these are 'tokens'"),
        ("hf:~nobody-here/bert", "toy-single", "there is no such home"),
        ("hf:nowhere", "toy-single", "no folder with a config.json, nor the hub name of a network in the cache"),
        ("hf:pickled", "toy-single", "its weights are in pytorch_model.bin, and only safetensors files are read"),
        ("hf:half", "toy-single", "tensor 'embeddings.LayerNorm.bias' is missing in its weights"),
    ],
)
def test_one_that_does_not_fit_is_one_line(tmp_path, monkeypatch, stand_ins, folder, network, data, line):
    monkeypatch.chdir(tmp_path)
    for name in ("bert", "vit"):
        folder(name)
    for name in ("pickled", "half"):
        folder("bert").rename(tmp_path / name)
        folder("bert")
    (tmp_path / "pickled/pytorch_model.bin").write_bytes(b"")
    save_file({"embeddings.LayerNorm.weight": torch.ones(16)}, tmp_path / "half/model.safetensors")
    with pytest.raises(InputError) as caught:
        run(small_experiment("fedavg", data, model={"network": network, "width": 16}), tmp_path / "run", quiet)
    assert line in str(caught.value)
    assert f"network = '{network}'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("pixels", "patch", "seen"), [(28, 14, True), (32, 16, True), (28, 16, False)])
def test_an_image_of_parts_of_patches_is_refused(tmp_path, pixels, patch, seen):
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ViTConfig(**small, image_size=224, patch_size=patch).save_pretrained(tmp_path)
    spec = EncoderSpec("image", (3, pixels, pixels), 0, 8, 0.0)
    if seen:
        assert make("hf", str(tmp_path), spec).training
        return
    with pytest.raises(NetworkError, match=r"sees whole patches of 16 x 16 pixels alone, and images have 28 x 28: set"):
        make("hf", str(tmp_path), spec)


def test_longer_texts_than_it_has_positions_for_are_refused(folder):
    spec = EncoderSpec("tokens", (513,), 30, 16, 0.2)
    with pytest.raises(NetworkError, match=r"takes 512 tokens, and texts have up to 513: set --task.max_tokens 512"):
        make("hf", str(folder("bert")), spec)


def test_words_stand_where_the_file_of_a_roberta_counts_them(tmp_path):
    """Its first word has the row after its padding's, and not the row of zeros that is padding's own."""
    config = RobertaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24, pad_token_id=1,
    )  # fmt: skip
    theirs = AutoModel.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = seeded("hf", tmp_path, WORDS).eval()
    words = ours.net.get_input_embeddings().weight
    x = torch.tensor([[5, 6, 7, 0]])
    with torch.no_grad():
        theirs.get_input_embeddings().weight[:30] = words
        theirs.get_input_embeddings().weight[1] = words[0]
        there = x != 0
        states = theirs(input_ids=torch.where(there, x, 1), attention_mask=there.long()).last_hidden_state
        torch.testing.assert_close(ours(x), states[:, :3].mean(1))
    with pytest.raises(NetworkError, match="takes 22 tokens"):
        make("hf", str(tmp_path), EncoderSpec("tokens", (23,), 30, 16, 0.2))


def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch):
    monkeypatch.setattr("anchorfl.pipeline.config.networks.LIBRARIES", {"timm": ("no-such-package", "timm")})
    line = r"needs no-such-package, which is not installed: pip install 'anchorfl\[timm\]'"
    with pytest.raises(InputError, match=line):
        find_network("timm:resnet18")
