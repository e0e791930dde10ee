// SPDX-License-Identifier: Apache-2.0
// Fat binaries made by hand.
#pragma once

#include <string>

struct FatbinWrapper {  // fatbinary_section.h
  int magic;
  int version;
  const void* data;
  void* unused;
};

// A fat binary that holds PTX for compute_80 alone.
std::string make_fatbin(const std::string& ptx);
