# SPDX-License-Identifier: Apache-2.0
"""PyTorch programs that benchmarks are made of: random weights, nothing to download."""
