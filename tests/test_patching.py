"""patch() sends other packages' Mamba through these kernels, with equal results, and unpatch() takes it back."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesattn_fast.backends import backend
from bayesattn_fast.ops import selective_scan
from bayesattn_fast.patching import mamba_inner_fn, patch, unpatch
from tests.closeness import assert_close


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    unpatch()


def tiny_model(kind: str, **options: object) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=29, hidden_size=24, state_size=6, num_hidden_layers=2, expand=2, pad_token_id=0, **options
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def logits_and_gradients(model: torch.nn.Module, ids: Tensor) -> list[Tensor]:
    model.zero_grad()
    result = model(ids, labels=ids)
    result.loss.backward()
    return [result.logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


IDS = torch.randint(1, 29, (3, 21), generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Mamba", "FalconMamba"])
@pytest.mark.parametrize("training", [True, False])
def test_transformers_models_keep_their_logits_and_gradients(
    kind: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(kind).train(training)
    before = logits_and_gradients(model, IDS)
    assert f"transformers.models.{kind.lower().replace('falcon', 'falcon_')}" in " ".join(patch("transformers"))
    calls = []
    original = selective_scan._implementation
    monkeypatch.setattr(selective_scan, "_implementation", lambda *given: calls.append(given) or original(*given))
    after = logits_and_gradients(model, IDS)
    assert len(calls) == 4  # forward and backward of two layers: the ops did serve
    for ours, exact in zip(after, before, strict=True):
        assert_close(ours, exact, 1e-5)
    unpatch()
    assert all(torch.equal(a, b) for a, b in zip(logits_and_gradients(model, IDS), before, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_transformers_generates_the_same_tokens_from_its_cache() -> None:
    model = tiny_model("Mamba").eval()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    before = model.generate(IDS[:2, :5], **options)
    patch("transformers")
    assert torch.equal(model.generate(IDS[:2, :5], **options), before)


@pytest.mark.filterwarnings("ignore")
def test_mamba_layers_inside_a_hybrid_are_served_and_keep_logits_gradients_and_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.JambaConfig(
        vocab_size=29, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=6,
        mamba_dt_rank=3, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.JambaForCausalLM(config).eval()
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    before, tokens = logits_and_gradients(model, IDS), model.generate(IDS[:2, :5], **options)
    assert "transformers.models.jamba.modeling_jamba.mamba_selective_scan" in patch("transformers")
    for ours, exact in zip(logits_and_gradients(model, IDS), before, strict=True):
        assert_close(ours, exact, 1e-5)
    assert torch.equal(model.generate(IDS[:2, :5], **options), tokens)


@pytest.mark.filterwarnings("ignore")
def test_a_convolution_too_wide_for_the_kernel_stays_with_transformers() -> None:
    model = tiny_model("Mamba", conv_kernel=6).eval()
    before = logits_and_gradients(model, IDS)
    patch("transformers")
    for ours, exact in zip(logits_and_gradients(model, IDS), before, strict=True):
        assert_close(ours, exact, 1e-5)


def test_patching_twice_replaces_once_and_one_unpatch_restores() -> None:
    module = pytest.importorskip("transformers.models.mamba.modeling_mamba")
    original = module.mamba_selective_scan
    first = patch("transformers")
    assert first
    assert patch("transformers") == []
    assert module.mamba_selective_scan is not original
    unpatch()
    assert module.mamba_selective_scan is original


@pytest.fixture
def mamba_ssm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installation of mamba_ssm whose compiled half was never built."""
    interface = tmp_path / "mamba_ssm" / "ops" / "selective_scan_interface.py"
    block = tmp_path / "mamba_ssm" / "modules" / "mamba_simple.py"
    for file in (interface, block):
        file.parent.mkdir(parents=True)
        (file.parent / "__init__.py").write_text("")
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("")
    interface.write_text(
        "import selective_scan_cuda\n"
        "def selective_scan_fn(*args, **options):\n    return selective_scan_cuda.fwd(*args)\n"
        "def mamba_inner_fn(*args, **options):\n    return selective_scan_cuda.fwd(*args)\n"
    )
    block.write_text(
        "from mamba_ssm.ops.selective_scan_interface import selective_scan_fn\n"
        "def block(*args):\n    return selective_scan_fn(*args)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [n for n in sys.modules if n.startswith("mamba_ssm")]:
        del sys.modules[name]


@pytest.mark.usefixtures("mamba_ssm")
def test_mamba_ssm_without_its_compiled_half_imports_and_runs() -> None:
    replaced = patch("mamba_ssm")
    assert "mamba_ssm.modules.mamba_simple.selective_scan_fn" in replaced
    block = importlib.import_module("mamba_ssm.modules.mamba_simple").block
    u, A, B = torch.randn(2, 3, 5), -torch.rand(3, 4), torch.randn(2, 4, 5)
    given = (u, u.abs(), A, B, B)
    assert torch.equal(block(*given), selective_scan.selective_scan_fn(*given))
    assert "selective_scan_cuda" not in sys.modules
    unpatch()
    with pytest.raises(RuntimeError, match=r"selective_scan_cuda\.fwd was not built"):
        block(*given)


def test_inner_block_of_mamba_ssm_equals_our_module() -> None:
    from bayesattn_fast.models import Mamba

    torch.manual_seed(0)
    mamba, h = Mamba(16, bias=True), torch.randn(2, 9, 16)
    out = mamba_inner_fn(
        mamba.in_proj(h).transpose(1, 2),
        mamba.conv1d.weight,
        mamba.conv1d.bias,
        mamba.x_proj.weight,
        mamba.dt_proj.weight,
        mamba.out_proj.weight,
        mamba.out_proj.bias,
        -mamba.A_log.exp(),
        D=mamba.D,
        delta_bias=mamba.dt_proj.bias,
    )
    assert_close(out, mamba(h), 1e-6)
    with pytest.raises(NotImplementedError, match="b_rms_weight"):
        mamba_inner_fn(h, *[h] * 6, -mamba.A_log, b_rms_weight=h)
    with pytest.raises(TypeError, match="cu_seqlens"):
        mamba_inner_fn(h, *[h] * 6, -mamba.A_log, cu_seqlens=h)  # type: ignore[call-arg]


def test_what_cannot_be_patched_is_named() -> None:
    with pytest.raises(ValueError, match="packages must be among mamba_ssm, causal_conv1d, transformers; got numpy"):
        patch("numpy")
    if importlib.util.find_spec("mamba_ssm") is None:
        with pytest.raises(RuntimeError, match="cannot patch mamba_ssm: importing"):
            patch("mamba_ssm")


@pytest.mark.filterwarnings("ignore")
def test_patched_models_obey_the_choice_of_back_end() -> None:
    model = tiny_model("Mamba").eval()
    patch("transformers")
    native = logits_and_gradients(model, IDS)
    with backend("reference"):
        plain = logits_and_gradients(model, IDS)
    for ours, exact in zip(native, plain, strict=True):
        assert_close(ours, exact, 1e-5)
