"""Selective scan (Mamba): y_t = C_t · h_t, h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t u_t."""
