// SPDX-License-Identifier: Apache-2.0
// Copies of boxes, CUDA_MEMCPY2D's and CUDA_MEMCPY3D's, in the wire's terms.
#pragma once

#include "copies.h"
#include "kvgpu/image_calls.h"

namespace kvgpu::guest {

// Addresses are the program's, arrays are named by their handles. A pitch or height of 0 becomes
// what it stands for: rows and planes without gaps.
wire::MemcpyNode box_of(const CUDA_MEMCPY3D& copy);
wire::MemcpyNode box_of(const CUDA_MEMCPY2D& copy);
CUDA_MEMCPY3D copy_of(const wire::MemcpyNode& box);

// Can it be what a CUmemorytype says? Driver 580 takes the GPU's memory for the host's, too; what
// is nobody's, of those that are for the GPU's, is neither.
bool may_be(uint32_t type, const Operand& found);

// Where the GPU finds the side, put into its address; that of pageable memory stays the program's.
// CUDA_ERROR_INVALID_VALUE: there is no such side.
CUresult place_side(const wire::MemcpyNode& box, wire::MemcpySide* side, Operand* found);

// Any copy of a box within a device.
CUresult copy_box(const Enqueue& enqueue, const wire::MemcpyNode& box, Wait wait);

// Copies with arrays.
bool has_array(const wire::MemcpyNode& box);
CUresult copy_array_box(const Enqueue& enqueue, const wire::MemcpyNode& box, Wait wait);

// What the GPU reaches on both sides; done on return if `wait` says so, and natively it would be.
CUresult copy_placed_box(const Enqueue& enqueue, const wire::MemcpyNode& box, const Operand& to,
                         const Operand& from, Wait wait);

}  // namespace kvgpu::guest
