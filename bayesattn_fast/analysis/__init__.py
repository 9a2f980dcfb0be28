"""What is inside a trained model, as numbers: functions of plain tensors, and ways to take those from a model.

key_orthogonality(keys)             mean |cosine| between different keys
attention_mass(pattern, relevant)   share of attention that goes where the evidence is
query_key_alignment(q, k, relevant) cosine with the relevant keys above that with the others
manifold(states, entropy)           share of the first principal component, its rank correlation with entropy
silhouette, adjusted_rand_index     whether states form the clusters that labels say
probe_r2(states, targets)           what a linear map reads out of states, on states it was not fitted to
settling(distances, errors)         whether attention settles before the error does
captured, ablated                   a model's queries, keys, values and states; a model with parts switched off
"""

from .ablation import ablated
from .attention import attention_mass, pattern, query_key_alignment
from .capture import Captured, captured
from .clusters import adjusted_rand_index, k_means, silhouette
from .keys import key_orthogonality, random_orthogonality
from .manifold import Manifold, manifold, principal_components
from .probes import probe_r2
from .settling import Settling, settling

__all__ = [
    "Captured",
    "Manifold",
    "Settling",
    "ablated",
    "adjusted_rand_index",
    "attention_mass",
    "captured",
    "k_means",
    "key_orthogonality",
    "manifold",
    "pattern",
    "principal_components",
    "probe_r2",
    "query_key_alignment",
    "random_orthogonality",
    "settling",
    "silhouette",
]
