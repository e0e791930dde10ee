# SPDX-License-Identifier: Apache-2.0
"""kvgpu: CUDA for KVM virtual machines.

The import root. Its sub-packages are symlinks to the folders at the repository's top level.
"""

__version__ = "0.1.0"
