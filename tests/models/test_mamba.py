"""The Mamba block: its formula in float64, its state dict, its start, generation, and the ensemble over seeds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bayesattn_fast.models import Mamba, ModelConfig
from bayesattn_fast.models.mamba import MambaBlock, MambaMixer
from tests.closeness import assert_close


def plain_mamba(p: dict[str, Tensor], h: Tensor) -> Tensor:
    """The block position by position, from the equations of the paper, with the weights of a state dict."""
    inner, states = p["A_log"].shape
    xz = F.linear(h, p["in_proj.weight"], p.get("in_proj.bias"))
    x, z = xz[..., :inner], xz[..., inner:]
    width = p["conv1d.weight"].shape[-1]
    past = F.pad(x, (0, 0, width - 1, 0))
    x = sum(past[:, k : k + x.shape[1]] * p["conv1d.weight"][:, 0, k] for k in range(width))
    x = F.silu(x + p.get("conv1d.bias", 0))
    rank = p["dt_proj.weight"].shape[1]
    dt, B, C = (x @ p["x_proj.weight"].T).split([rank, states, states], -1)
    step = F.softplus(dt @ p["dt_proj.weight"].T + p["dt_proj.bias"])
    state, outputs = h.new_zeros(h.shape[0], inner, states), []
    for t in range(h.shape[1]):
        decay = torch.exp(-step[:, t, :, None] * p["A_log"].exp())
        state = decay * state + (step[:, t] * x[:, t])[..., None] * B[:, t, None]
        outputs.append((state * C[:, t, None]).sum(-1) + p["D"] * x[:, t])
    y = torch.stack(outputs, 1) * F.silu(z)
    return F.linear(y, p["out_proj.weight"], p.get("out_proj.bias"))


VARIANTS = [
    {"d_model": 24},
    {"d_model": 20, "d_state": 5, "d_conv": 3, "expand": 3, "bias": True, "conv_bias": False, "dt_rank": 4},
    {"d_model": 7, "d_state": 1, "d_conv": 2, "expand": 1, "dt_init": "constant"},
]


@pytest.mark.parametrize("options", VARIANTS)
def test_block_equals_its_equations_in_float64_with_all_gradients(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    mamba, h = Mamba(**options), torch.randn(3, 23, options["d_model"])  # type: ignore[arg-type]
    exact = {name: p.detach().double().requires_grad_() for name, p in mamba.named_parameters()}
    out, expected = mamba(h), plain_mamba(exact, h.double())
    assert_close(out, expected, 2e-6)
    ours = torch.autograd.grad(out.square().sum(), list(mamba.parameters()))
    wanted = torch.autograd.grad(expected.square().sum(), list(exact.values()))
    for name, a, b in zip(exact, ours, wanted, strict=True):
        assert_close(a, b, 5e-6, name)


def test_state_dict_has_the_names_and_shapes_of_mamba_ssm() -> None:
    # As listed by mamba_ssm 2.3.2's Mamba(32, bias=False, conv_bias=True).
    expected = {
        "A_log": (64, 16),
        "D": (64,),
        "in_proj.weight": (128, 32),
        "conv1d.weight": (64, 1, 4),
        "conv1d.bias": (64,),
        "x_proj.weight": (34, 64),
        "dt_proj.weight": (64, 2),
        "dt_proj.bias": (64,),
        "out_proj.weight": (32, 64),
    }
    assert {name: tuple(t.shape) for name, t in Mamba(32).state_dict().items()} == expected
    assert set(Mamba(32, bias=True).state_dict()) == {*expected, "in_proj.bias", "out_proj.bias"}


def test_start_has_s4d_rates_and_log_uniform_steps() -> None:
    torch.manual_seed(0)
    mamba = Mamba(512)
    assert torch.equal(mamba.A_log[3].exp().round(), torch.arange(1.0, 17.0))
    assert torch.equal(mamba.D, torch.ones(1024))
    steps = F.softplus(mamba.dt_proj.bias)
    assert steps.min() >= 0.000999
    assert steps.max() <= 0.1001
    # Uniform on the log scale: mean at the middle, to four standard errors.
    middle, spread = math.log(0.01), math.log(100) / 12**0.5
    assert abs(steps.log().mean() - middle) < 4 * spread / 1024**0.5
    assert mamba.dt_proj.weight.abs().max() <= 32**-0.5


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("prompt", [0, 1, 2, 9])
def test_generation_step_by_step_equals_the_whole_sequence(options: dict[str, int], prompt: int) -> None:
    torch.manual_seed(0)
    mamba, h = Mamba(**options), torch.randn(2, 12, options["d_model"])  # type: ignore[arg-type]
    with torch.no_grad():
        whole = mamba(h)
        cache = mamba.allocate_inference_cache(2)
        rows = [mamba(h[:, :prompt], cache=cache)] if prompt else []
        rows += [mamba.step(h[:, t : t + 1], *cache)[0] for t in range(prompt, 12)]
    assert_close(torch.cat(rows, 1), whole, 2e-6)


def test_generation_in_bfloat16_decays_at_the_rate_of_the_whole_sequence() -> None:
    torch.manual_seed(0)
    mamba, h = Mamba(16).bfloat16(), torch.randn(2, 12, 16).bfloat16()
    with torch.no_grad():
        mamba.A_log.fill_(4.594)  # A = −98.9, of which bfloat16 would make −99
        mamba.dt_proj.bias.fill_(-4.6)  # Δ A ≈ −1
        whole, steps = mamba.allocate_inference_cache(2), mamba.allocate_inference_cache(2)
        mamba(h, cache=whole)
        for t in range(12):
            mamba.step(h[:, t : t + 1], *steps)
    assert_close(steps[1], whole[1], 1e-5)


def test_bfloat16_autocast_stays_close_to_float32() -> None:
    torch.manual_seed(0)
    mamba, h = Mamba(32), torch.randn(2, 40, 32)
    with torch.autocast("cpu", torch.bfloat16):
        out = mamba(h)
    assert out.dtype == torch.bfloat16
    assert_close(out, mamba(h), 2e-2)
    assert_close(mamba.bfloat16()(h.bfloat16()), Mamba.forward(mamba.float(), h), 3e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_fullgraph_equals_eager(dtype: torch.dtype) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    mamba, h = Mamba(16).to(dtype), torch.randn(2, 9, 16, dtype=dtype)
    compiled = torch.compile(mamba, fullgraph=True, backend="aot_eager")
    ours = torch.autograd.grad(compiled(h).sum(), list(mamba.parameters()))
    exact = torch.autograd.grad(mamba(h).sum(), list(mamba.parameters()))
    for a, b in zip(ours, exact, strict=True):
        assert_close(a, b, 1e-6)


CONFIG = ModelConfig(model="mamba", layers=3, d_model=16)


def ensemble(seeds: tuple[int, ...]) -> MambaBlock:
    block = MambaBlock(len(seeds), CONFIG)
    generator = torch.Generator()
    with torch.no_grad():
        for name, module in block.named_modules():
            if hasattr(module, "reset_seeds"):
                module.reset_seeds(seeds, name)
        for name, parameter in block.named_parameters():
            if "proj.weight" in name and "dt_proj" not in name:
                for row, seed in zip(parameter, seeds, strict=True):
                    row.copy_(0.2 * torch.randn(row.shape, generator=generator.manual_seed(seed)))
    return block


def test_each_seed_of_an_ensemble_is_a_mamba_of_its_own() -> None:
    block, x = ensemble((4, 9)), torch.randn(2, 3, 20, 16)
    out = block(x)
    gradients = dict(
        zip(dict(block.named_parameters()), torch.autograd.grad(out.cos().sum(), list(block.parameters())), strict=True)
    )
    for seed in range(2):
        alone = Mamba(16)
        state = {name: p.detach()[seed] for name, p in block.mamba.named_parameters()}
        state["conv1d.weight"] = state["conv1d.weight"].unsqueeze(1)
        alone.load_state_dict(state)
        expected = x[seed] + alone(F.layer_norm(x[seed], (16,)))
        assert_close(out[seed], expected, 1e-6)
        for name, exact in zip(
            dict(alone.named_parameters()),
            torch.autograd.grad(expected.cos().sum(), list(alone.parameters())),
            strict=True,
        ):
            assert_close(gradients[f"mamba.{name}"][seed].view_as(exact), exact, 5e-6, name)


def test_a_seed_starts_the_same_alone_and_packed() -> None:
    packed, alone = ensemble((3, 8)), ensemble((8,))
    for (name, a), b in zip(packed.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(a[1], b[0]), name
    steps = F.softplus(packed.mamba.dt_proj.bias)
    assert steps.min() > 0.00099
    assert steps.max() < 0.101
    assert not torch.equal(steps[0], steps[1])


def test_nothing_crosses_seeds_positions_backwards_or_the_batch() -> None:
    block = ensemble((1, 2))
    x = torch.randn(2, 3, 20, 16, requires_grad=True)
    (gradient,) = torch.autograd.grad(block(x)[1, 2, 7].sum(), x)
    reached = gradient.abs().sum(-1) > 0
    expected = torch.zeros_like(reached)
    expected[1, 2, :8] = True
    assert torch.equal(reached, expected)


def test_parameters_reach_the_kernels_without_a_copy_for_every_sequence() -> None:
    mixer, shapes = MambaMixer(2, CONFIG), []
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.uniform_(-0.1, 0.1)
        x = torch.randn(2, 50, 5, 16)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
            mixer(x)
    for event in seen.events():
        if event.name == "bayesattn::selective_scan_forward":
            shapes.append(event.input_shapes[2])
    assert shapes == [[2, 32, 16]]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"d_conv": 5}, "d_conv must be 2, 3 or 4; got 5"), ({"dt_init": "zero"}, "dt_init must be")],
)
def test_unknown_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mamba(16, **options)  # type: ignore[arg-type]


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(B, L, 16\)"):
        Mamba(16)(torch.zeros(2, 3, 15))
    with pytest.raises(ValueError, match="one position at a time"):
        Mamba(16).step(torch.zeros(2, 3, 16), *Mamba(16).allocate_inference_cache(2))
