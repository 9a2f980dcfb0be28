"""A tunnel that does not come with the package: what registering asks of it, and what knows it then."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import bayesattn_fast as ba
from bayesattn_fast.tunnels import PRESETS, TUNNELS, Batch, Rows, Stream, Tunnel


@dataclass(frozen=True)
class Dice(Tunnel):
    """Rolls of a fair die: nothing to learn."""

    name: ClassVar[str] = "dice"
    primitive: ClassVar[str] = "patience"
    rolls: int = 3
    length = property(lambda self: self.rolls)  # type: ignore[assignment]
    vocabulary = property(lambda self: 7)  # type: ignore[assignment]
    classes = property(lambda self: 6)  # type: ignore[assignment]
    positions = property(lambda self: tuple(range(self.rolls)))  # type: ignore[assignment]

    def sample(self, seeds: Any, step: int, size: int, *, stream: Any = Stream.TRAIN, first: int = 0,
               device: Any = "cpu") -> Batch:  # fmt: skip
        rows = Rows.of(seeds, step, size, stream, first, device)
        rolls = (6 * rows.uniform(self.rolls)).long()
        shown = torch.cat([torch.full_like(rolls[:, :1], 6), rolls[:, :-1]], 1)
        return rows.batch(shown, rolls, torch.full((*rolls.shape, 6), 1 / 6))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The registry as it was."""
    yield
    for names in (TUNNELS, *PRESETS.values()):
        names.pop("dice", None)  # type: ignore[attr-defined]


def test_a_registered_tunnel_trains_by_name_and_by_itself_and_its_page_is_written(tmp_path: Path) -> None:
    ba.register_tunnel(Dice)
    small: dict[str, Any] = {"steps": 2, "warmup": 1, "d_model": 8, "heads": 1, "eval_sequences": 64}
    named = ba.train("dice", rolls=2, out=tmp_path / "named", **small)
    itself = ba.train(Dice(rolls=2), out=tmp_path / "itself", **small)
    assert named.config == itself.config
    assert named.config.tunnel == Dice(rolls=2)
    assert torch.equal(named.evaluation.per_seed("kl"), itself.evaluation.per_seed("kl"))
    assert named.evaluation.per_seed("kl", "uniform").item() == pytest.approx(0, abs=1e-6)
    assert "dice" in named.report.read_text(encoding="utf-8")


def test_entropy_left_out_is_that_of_the_predictive() -> None:
    batch = Dice().sample([0, 5], 0, 4)
    torch.testing.assert_close(batch.entropy, torch.full((2, 4, 3), 2.584962500721156))


def test_what_inherits_from_tunnel_has_no_other_length_unless_it_says_so() -> None:
    with pytest.raises(ValueError, match="dice has 3 scored positions and no other length"):
        Dice().with_length(4)


def test_a_tunnel_that_was_not_registered_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="put @register_tunnel before Dice"):
        ba.train(Dice())


def test_the_name_of_a_built_in_cannot_be_taken() -> None:
    @dataclass(frozen=True)
    class Taken(Dice):
        name: ClassVar[str] = "hmm"

    with pytest.raises(ValueError, match="'hmm' comes with the package; choose another name for Taken"):
        ba.register_tunnel(Taken)
    assert TUNNELS["hmm"] is ba.tunnels.Hmm


def test_what_a_tunnel_lacks_is_named() -> None:
    @dataclass(frozen=True)
    class Half(Tunnel):
        name: ClassVar[str] = "half"
        primitive: ClassVar[str] = "none"

    with pytest.raises(TypeError, match="Half is no tunnel: it lacks length, classes, positions, sample"):
        ba.register_tunnel(Half)

    @dataclass(frozen=True)
    class Stranger:
        """Inherits nothing, so that nothing is supposed."""

        name: ClassVar[str] = "stranger"

    with pytest.raises(TypeError, match=r"lacks .*vocabulary.*with_length"):
        ba.register_tunnel(Stranger)


def test_sizes_need_defaults_and_a_frozen_dataclass() -> None:
    @dataclass(frozen=True)
    class Sized(Dice):
        faces: int = 6

    @dataclass(frozen=True)
    class Unsized:
        rolls: int

    class Loose(Dice):
        pass

    with pytest.raises(TypeError, match="every size of a tunnel needs a default; Unsized gives rolls none"):
        ba.register_tunnel(Unsized)
    with pytest.raises(TypeError, match="a tunnel is a frozen dataclass"):
        ba.register_tunnel(dict)
    assert ba.register_tunnel(Sized) is Sized
    # Defining it again replaces it, as a notebook does.
    assert ba.register_tunnel(Loose) is TUNNELS["dice"] is Loose
