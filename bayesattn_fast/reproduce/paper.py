"""The numbers that the papers print, each with where it stands.

Entropy MAE in bits, accuracy as a share. Paper I is arXiv 2512.22471; "v1" and "v3" are its versions. Its task sizes
are those of the scale "paper": V = 20 for the bijection, K = 20 for the HMM, 64 pairs for recall.
"""

ENTROPY_MAE: dict[tuple[str, str], str] = {
    ("bijection", "transformer"): "0.007 (v1: 0.003)",
    ("bijection", "mamba"): "0.010",
    ("bijection", "lstm"): "0.009",
    ("bijection", "mlp"): "1.85",
    ("hmm", "transformer"): "0.049 (v1: 7.5e-05)",
    ("hmm", "mamba"): "0.024",
    ("hmm", "lstm"): "0.411",
    ("hmm", "mlp"): "0.40",
}
ACCURACY: dict[tuple[str, str], str] = {
    ("recall", "transformer"): "100 %",
    ("recall", "mamba"): "97.8 %",
    ("recall", "lstm"): "0.5 % (chance 0.4 %)",
    ("recall", "mlp"): "fails",
}


def published(tunnel: str, architecture: str) -> str:
    """The paper's headline number of a cell; a dash where it prints none."""
    key = tunnel, architecture
    return ENTROPY_MAE.get(key) or ACCURACY.get(key) or "–"
