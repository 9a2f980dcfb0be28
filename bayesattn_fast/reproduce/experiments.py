"""The experiments by name: which cells each needs, what it computes, what it claims, which figures it draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import ablations, dynamics, figures, geometry, geometry_figures, lengths, table2
from .cells import ARCHITECTURES, TUNNELS
from .claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Result = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """needs: (tunnel, architecture) of cells to train; compute(scale, seeds, runs) gives what the others take."""

    about: str
    needs: tuple[tuple[str, str], ...]
    compute: Callable[[str, tuple[int, ...], Path], Result]
    claims: Callable[[Result], list[Claim]]
    figures: "Mapping[str, Callable[[Result], Figure]]" = field(default_factory=dict)


EXPERIMENTS = {
    "table2": Experiment(
        "four architectures on five tunnels, beside the papers' numbers and exact references",
        tuple((tunnel, architecture) for tunnel in TUNNELS for architecture in ARCHITECTURES),
        table2.table2,
        table2.claims,
        {"positions": figures.positions_figure, "steps": figures.steps_figure},
    ),
    "length-generalisation": Experiment(
        "longer sequences than were trained on, for the HMM and recall",
        lengths.NEEDS,
        lengths.length_generalisation,
        lengths.claims,
        {"curves": geometry_figures.lengths_figure},
    ),
    "ablations": Experiment(
        "each head, each layer, attention off in the top layers",
        ablations.NEEDS,
        ablations.ablations,
        ablations.claims,
        {"parts": geometry_figures.ablations_figure},
    ),
    "geometry": Experiment(
        "keys, attention by depth, value manifold, what settles first, clusters",
        geometry.NEEDS,
        geometry.geometry,
        geometry.claims,
        {"settling": geometry_figures.settling_figure, "states": geometry_figures.clusters_figure},
    ),
    "dynamics": Experiment(
        "the EM-like schedule against SGD and its controls",
        (),
        dynamics.dynamics,
        dynamics.claims,
    ),
}
