"""Do states fall into the clusters that labels say?

silhouette (Rousseeuw 1987): for each state, a = mean distance to its own cluster, b = the smallest mean distance to
another one; (b − a) / max(a, b), averaged. Near 1: tight and apart; 0: overlapping; below 0: in the wrong cluster.
adjusted Rand index (Hubert and Arabie 1985): agreement of two partitions over pairs, 1 when equal, 0 by chance.
"""

import torch
from torch import Tensor


def silhouette(states: Tensor, labels: Tensor) -> float:
    """Mean silhouette of states (n, d) under labels (n,); a state alone in its cluster counts 0.

    ValueError where there are fewer than two clusters, or as many as states.
    """
    names, of = labels.unique(return_inverse=True)
    clusters, n = len(names), len(states)
    if not 1 < clusters < n:
        raise ValueError(f"labels must name at least 2 clusters and fewer than the {n} states; got {clusters}")
    member = torch.nn.functional.one_hot(of, clusters).to(torch.float64)
    states = states.to(torch.float64)
    sums = torch.cdist(states, states) @ member
    sizes = member.sum(0)
    own = sizes[of]
    a = sums.gather(1, of[:, None])[:, 0] / (own - 1).clamp(min=1)
    b = (sums / sizes).masked_fill(member.bool(), torch.inf).min(1).values
    scores = (b - a) / torch.maximum(a, b).clamp(min=torch.finfo(torch.float64).tiny)
    return float(torch.where(own > 1, scores, 0.0).mean())


def adjusted_rand_index(a: Tensor, b: Tensor) -> float:
    """Agreement of two labellings (n,) of the same states; 1 where both put everything together, or everything apart.

    ValueError where their shapes differ.
    """
    if a.shape != b.shape or a.dim() != 1:
        raise ValueError(f"both labellings must be (n,); got {tuple(a.shape)} and {tuple(b.shape)}")
    rows, columns = (x.unique(return_inverse=True)[1] for x in (a, b))
    table = torch.zeros(int(rows.max()) + 1, int(columns.max()) + 1, dtype=torch.float64)
    table.index_put_((rows, columns), torch.ones(len(a), dtype=torch.float64), accumulate=True)
    together, in_a, in_b = (_pairs(x) for x in (table, table.sum(1), table.sum(0)))
    everything = len(a) * (len(a) - 1) / 2
    expected = in_a * in_b / everything if everything else 0.0
    most = (in_a + in_b) / 2
    return (together - expected) / (most - expected) if most != expected else 1.0


def _pairs(counts: Tensor) -> float:
    return float((counts * (counts - 1) / 2).sum())


def k_means(states: Tensor, clusters: int, *, starts: int = 10, seed: int = 0) -> Tensor:
    """Labels (n,) of Lloyd's algorithm with k-means++ starts; the start with the smallest sum of squares wins.

    ValueError where every start leaves a cluster empty, as when there are fewer different states than clusters.
    """
    from scipy.cluster.vq import ClusterError, kmeans2

    points = states.detach().cpu().to(torch.float64).numpy()
    best: tuple[float, Tensor] | None = None
    for start in range(starts):
        try:
            centres, labels = kmeans2(points, clusters, minit="++", missing="raise", seed=seed + start)
        except ClusterError:
            continue
        cost = float(((points - centres[labels]) ** 2).sum())
        if best is None or cost < best[0]:
            best = cost, torch.from_numpy(labels.astype("int64"))
    if best is None:
        raise ValueError(f"no start filled all {clusters} clusters")
    return best[1]
